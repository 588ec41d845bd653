"""One pass over the texts, which gathers what every analysis of a model needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import AttentionCall, Need, measure
from attnscope.capture import Site, verify
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import StateMoments
from attnscope.mechanism.evidence._evidence import Evidence, Layer, LayerSums, check_range, no_layer
from attnscope.mechanism.evidence._inputs import add_states, watching_inputs
from attnscope.mechanism.evidence._projections import projections
from attnscope.mechanism.evidence._reach import Reach
from attnscope.mechanism.evidence._tables import position_tables, word_table
from attnscope.mechanism.evidence._tokens import FOR_MATCHING, Windows, batches, model_inputs, read, token_ids
from attnscope.progress import Progress, Tell, tell_nobody

if TYPE_CHECKING:
    from transformers import PreTrainedModel


UNIT = 16  # batches whose sums are made apart from others', whoever makes them


class Gathering:
    """The pass over the texts, unit after unit: sums of each unit, and what they come to.

    Parameters
    ----------
    model, windows, band, layer, head
        See `gather`.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> gathering = Gathering(BertModel(config).eval(), [[5, 6, 7, 8], [7, 8, 9, 5]], band=2, layer=None, head=None)
    >>> (unit,) = gathering.units()
    >>> sums = gathering.read(unit)
    >>> unit, list(sums), len(sums[0].band_sums)
    (range(0, 2), [0, 1], 2)
    """

    def __init__(
        self, model: PreTrainedModel, windows: Windows, *, band: int, layer: int | None, head: int | None
    ) -> None:
        self.model, self.band, self.asked = model, band, (layer, head)
        self.windows = list(windows)
        self.ids = token_ids(self.windows, least=2)
        first = model_inputs(model, self.ids[:1])
        sites, _ = verify(model, first, text=self.ids.names[0])
        check_self_attention(model, sites)
        start = model_inputs(model, self.ids[:1].start(FOR_MATCHING))
        self.matrices_of = projections(model, start)
        self.layers: dict[int, Layer] = {}

    def units(self) -> list[range]:
        """Texts of each unit."""
        places = [place for place, _ in batches(self.ids)]
        chosen = [places[first : first + UNIT] for first in range(0, len(places), UNIT)]
        return [range(unit[0].start, unit[-1].stop) for unit in chosen]

    @torch.no_grad()
    def read(self, texts: range, tell: Tell = tell_nobody) -> dict[int, LayerSums]:
        """Run the texts of a unit through the model; sums by the number of the layer."""
        if texts.start:
            self._see_first()
        sums: dict[int, LayerSums] = {}

        def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
            output, rows = measure(call, Need(band=self.band))
            if site.kind == "cross" or rows.band is None:
                return output
            if site.index not in self.layers:
                self.layers[site.index] = self._layer(site, call, states)
            if site.index not in sums:
                sums[site.index] = LayerSums(StateMoments.zeros(self.ids.length, states.shape[-1]))
            seen = sums[site.index]
            seen.has_bias = seen.has_bias or call.bias is not None
            add_states(seen.moments, states)
            seen.band_sums += list(rows.band.double().sum(2).cpu().numpy())
            return output

        with watching_inputs(self.model, observe):
            for place, batch in batches(self.ids[texts.start : texts.stop]):
                read(self.model, batch)
                if not texts.start + place.start:
                    heads = {index: len(seen.band_sums[0]) for index, seen in sums.items()}
                    _check_asked(heads, *self.asked)
                done = texts.start + place.stop
                tell(Progress("reading the texts", done / len(self.ids), {"windows": done}))
        return sums

    def evidence(self, units: Iterable[dict[int, LayerSums]]) -> Evidence:
        """What all units come to, in order."""
        for unit in units:
            self._see_first()
            for index, sums in unit.items():
                layer = self.layers[index]
                layer.has_bias = layer.has_bias or sums.has_bias
                layer.moments.merge(sums.moments)
                layer.band_sums += sums.band_sums
        tables = position_tables(self.model)
        rows = len(tables[0].rows) if tables else self.ids.length
        return Evidence(
            layers=[self.layers[index] for index in sorted(self.layers)],
            tables=tables,
            words=word_table(self.model)[_words(self.windows, self.ids.ids)[:rows]],
            texts=len(self.ids),
            length=self.ids.length,
            crosses=any(site.kind == "cross" for site in self.matrices_of),
        )

    def _see_first(self) -> None:
        """Read the first batch, unless it was: samples and reach are of its first text, whoever reads the rest."""
        if not self.layers:
            self.read(range(next(batches(self.ids))[0].stop))

    def _layer(self, site: Site, call: AttentionCall, states: Tensor) -> Layer:
        """A layer as the first text shows it, without sums."""
        matrices = next(matrices for other, matrices in self.matrices_of.items() if other.index == site.index)
        sample = states[0].double().cpu().numpy()
        moments = StateMoments.zeros(self.ids.length, states.shape[-1])
        return Layer(site, matrices, moments, sample, Reach.of(call, self.band))


def gather(
    model: PreTrainedModel,
    windows: Windows,
    *,
    band: int = 10,
    layer: int | None = None,
    head: int | None = None,
    progress: Tell | None = None,
    kept: Callable[[range], dict[int, LayerSums] | None] = lambda _: None,
) -> Evidence:
    """Run all texts through the model once, and keep what does not grow with their number.

    Parameters
    ----------
    model
        In eval mode.
    windows
        Two or more, all equally long.
    band
        Largest offset of the profiles.
    layer, head
        Will be asked for later: refused after the first texts if they do not exist.
    progress
        Called with a `Progress` after each batch; it tells of ``windows`` done.
    kept
        Gives the sums of a unit that another process has read; None where none has.

    Raises
    ------
    AttnscopeError
        If the windows are too few, of several lengths, or the model cannot be captured or has no self-attention.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> evidence = gather(BertModel(config).eval(), [[5, 6, 7, 8], [7, 8, 9, 5]], band=2)
    >>> len(evidence.layers), evidence.layers[0].profiles.shape
    (2, (2, 2, 5))
    """
    gathering = Gathering(model, windows, band=band, layer=layer, head=head)
    tell = progress or tell_nobody
    return gathering.evidence(kept(texts) or gathering.read(texts, tell) for texts in gathering.units())


def check_self_attention(model: PreTrainedModel, sites: Sequence[Site]) -> None:
    """Refuse a model of which only cross-attention was seen.

    Parameters
    ----------
    model
        The model, for the error.
    sites
        Attention calls that were seen in it.

    Raises
    ------
    AttnscopeError
        If all calls are of cross-attention.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> check_self_attention(BertModel(config), [Site(0, "decoder.attention", "cross")])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: BertModel has no self-attention, and all analyses are of ...
    """
    if all(site.kind == "cross" for site in sites):
        raise AttnscopeError(
            f"{type(model).__name__} has no self-attention, and all analyses are of offsets, positions and scores "
            "within one text: none is defined here. Where it looks in another text, scan (with --target) and align say"
        )


def _words(windows: Sequence[Any], ids: Tensor) -> np.ndarray:
    """Ids of all tokens but the special ones, which come round with every window and would look like a wave."""
    special = [getattr(window, "special", None) or [False] * ids.shape[1] for window in windows]
    return ids.numpy()[~np.array(special, dtype=bool)]


def _check_asked(heads_of: dict[int, int], layer: int | None, head: int | None) -> None:
    if layer is not None and layer not in heads_of:
        raise no_layer(layer, sorted(heads_of))
    heads = [heads for index, heads in heads_of.items() if layer in {None, index}]
    check_range("head", None if head is None else [head], max(heads, default=0))
