"""What every analysis of a model needs of its texts: layers, tables and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from jaxtyping import Float

from attnscope.capture import Site
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import StateMoments
from attnscope.mechanism.evidence._projections import Projections
from attnscope.mechanism.evidence._reach import Reach
from attnscope.mechanism.evidence._rows import pairs_at
from attnscope.mechanism.evidence._tables import PositionTable


@dataclass(eq=False)
class Layer:
    """One attention layer over all texts.

    Attributes
    ----------
    site
        Which attention call.
    projections
        Its matrices, verified.
    moments
        Moments of X, the layer's input: position means and covariance.
    sample
        X of the first text, ``(position, width)``.
    band_sums
        ``(text, head, offset)``: weights summed along each offset.
    has_bias
        Whether a bias is added to the scores (T5, ALiBi).
    reach
        Reach of its mask: which offsets a query may look at.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.mechanism.evidence import gather
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> (layer,) = gather(BertModel(config).eval(), [[5, 6, 7], [7, 8, 5]], band=2).layers
    >>> layer.heads, layer.profiles.shape, [matrix.shape for matrix in layer.matrices(1, affine=False)]
    (2, (2, 2, 5), [(8, 4), (8, 4)])
    """

    site: Site
    projections: Projections
    moments: StateMoments
    sample: Float[np.ndarray, "position width"]
    reach: Reach
    band_sums: list[Float[np.ndarray, "head offset"]] = field(default_factory=list)
    has_bias: bool = False

    @property
    def profiles(self) -> Float[np.ndarray, "text head offset"]:
        """Mean weight at each offset; NaN where no two tokens are so far apart."""
        sums = np.stack(self.band_sums)
        pairs = pairs_at(len(self.sample), len(self.sample), sums.shape[-1] // 2)
        return sums / np.where(pairs > 0, pairs, np.nan)

    @property
    def heads(self) -> int:
        """How many query heads the layer has."""
        return self.band_sums[0].shape[0]

    def matrices(
        self, head: int, *, affine: bool
    ) -> tuple[Float[np.ndarray, "width r"], Float[np.ndarray, "width r"]]:
        """W_Q and W_K of a head; with `affine`, biases are stacked below, for X with a column of ones."""
        check_range("head", [head], self.heads)
        query, query_bias, key, key_bias = self.projections.of_head(head)
        if not affine:
            return query, key
        return np.vstack([query, query_bias]), np.vstack([key, key_bias])


@dataclass(eq=False)
class Evidence:
    """All layers, the position table and the words of one text.

    Attributes
    ----------
    layers
        Self-attention layers, in the order of the calls.
    tables
        Position tables of the model; empty for RoPE and the like.
    words
        Word vectors of the texts, one after the other, as many as the first table has rows (or as the texts
        have tokens): the control for the table.
    texts, length
        Number of texts, and tokens in each.
    crosses
        Whether the model has cross-attention too, whose queries and keys lie in different texts: it has no offsets, and
        none of its layers is here.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> from attnscope.mechanism.evidence import gather
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> evidence = gather(BertModel(config).eval(), [[5, 6, 7], [7, 8, 5]], band=2)
    >>> evidence.layer(1).site.name, evidence.tables[0].name
    ('encoder.layer.1.attention.self', 'embeddings.position_embeddings')
    >>> evidence.layer(2)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no self-attention layer 2: choose from 0, 1
    """

    layers: list[Layer]
    tables: list[PositionTable]
    words: Float[np.ndarray, "word word_width"]
    texts: int
    length: int
    crosses: bool = False

    def table_of(self, layer: Layer) -> PositionTable:
        """The table that a layer's side of the model reads: an encoder and a decoder may each have one."""
        place = layer.site.name.split(".")

        def beside(table: PositionTable) -> int:
            """How many modules hold both."""
            pairs = zip(table.name.split("."), place, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(self.tables, key=beside)

    def layer(self, index: int) -> Layer:
        """The layer of that call.

        Raises
        ------
        AttnscopeError
            If there is none: the existing ones are named.
        """
        for layer in self.layers:
            if layer.site.index == index:
                return layer
        raise no_layer(index, [layer.site.index for layer in self.layers])

    @property
    def bilinear(self) -> list[Layer]:
        """Layers whose score is exactly bilinear in X, where query and key waves are defined."""
        return [layer for layer in self.layers if layer.projections.form == "bilinear"]


@dataclass(eq=False)
class LayerSums:
    """What of a layer is summed over some texts.

    Attributes
    ----------
    moments, band_sums, has_bias
        As in `Layer`.

    Examples
    --------
    >>> sums = LayerSums(StateMoments.zeros(4, 5), [np.ones((2, 7))])  # 2 heads, offsets -3 to 3
    >>> len(sums.band_sums), sums.has_bias
    (1, False)
    """

    moments: StateMoments
    band_sums: list[Float[np.ndarray, "head offset"]] = field(default_factory=list)
    has_bias: bool = False


def no_layer(index: int, known: Sequence[int]) -> AttnscopeError:
    """What is said of a layer that does not exist."""
    return AttnscopeError(
        f"there is no self-attention layer {index}: choose from {', '.join(map(str, known))}"
    )


def check_range(name: str, chosen: Sequence[int] | None, known: int) -> None:
    """Refuse a layer or head that does not exist.

    Examples
    --------
    >>> check_range("head", [7], 4)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no head 7: heads are counted from 0 to 3
    """
    for number in chosen or []:
        if not 0 <= number < known:
            raise AttnscopeError(f"there is no {name} {number}: {name}s are counted from 0 to {known - 1}")
