"""One model of the zoo, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnscope.models import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, eq=False)
class Looking:
    """How much of its weight a head puts on which keys, by construction.

    Attributes
    ----------
    keys
        ``(text, query, key)``: the keys meant; of rows without one nothing is said.
    least, most
        Share of a row's weight on them.

    Examples
    --------
    >>> import torch
    >>> looking = Looking(torch.tensor([[[False, False], [True, False]]]), least=0.9, most=1.0)  # at the token before
    >>> weights = torch.tensor([[[1.0, 0.0], [0.95, 0.05]]])
    >>> share = (weights * looking.keys).sum(-1)[looking.keys.any(-1)]
    >>> bool(((looking.least <= share) & (share <= looking.most)).all())
    True
    """

    keys: Bool[Tensor, "text query key"]
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class Animal:
    """A model whose circuit is known, and the task that it solves.

    Attributes
    ----------
    name, kind, form, architecture, seed, noise
        ``induction-decoder-3``; ``induction``; ``decoder``; ``gpt2``; of everything that was drawn; the standard
        deviation of what was added to every weight, as a share of the root mean square of its matrix.
    model
        In eval mode, float32.
    ids
        ``(text, token)``; of the source, in an encoder-decoder.
    target
        ``(text, query)``: what the decoder of an encoder-decoder reads, else None.
    labels
        ``(text, query)``: the token that the logits of that place shall name, not shifted; -100 where nothing is
        asked.
    groups
        ``(vocabulary,)``: tokens of one number may stand for one another without making nonsense of a text.
    heads
        ``(layer, head)``: whether taking this head out alone changes what is predicted, by construction. Attention
        calls are numbered in the order of the forward pass.
    roles
        What each head does, in words.
    tokens
        ``(text, query, token)``: whether the prediction asked for at the query hangs on this input token (of the
        source, in an encoder-decoder); False in all of a row where nothing is asked. None where no single token
        decides.
    redundant
        Groups of heads, as (layer, head), that are backups of each other.
    looks
        Where planted heads look.

    Examples
    --------
    >>> from attnscope.zoo import build
    >>> animal = build("previous-decoder-1")
    >>> int(animal.heads.sum()), float(animal.accuracy(animal.logits()))
    (1, 1.0)
    """

    name: str
    kind: str
    form: str
    architecture: str
    seed: int
    noise: float
    model: PreTrainedModel
    ids: Int[Tensor, "text token"]
    target: Int[Tensor, "text query"] | None
    labels: Int[Tensor, "text query"]
    groups: Int[Tensor, " vocabulary"]
    heads: Bool[Tensor, "layer head"]
    roles: tuple[tuple[str, ...], ...]
    tokens: Bool[Tensor, "text query token"] | None
    redundant: tuple[tuple[tuple[int, int], ...], ...]
    looks: Mapping[tuple[int, int], tuple[Looking, ...]]

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Arguments of the model's forward pass."""
        given = {"input_ids": self.ids}
        return given if self.target is None else given | {"decoder_input_ids": self.target}

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "text query vocabulary"]:
        """What the model says of all texts."""
        return self.model(**self.inputs).logits

    def loss(self, logits: Float[Tensor, "text query vocabulary"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over all that is asked, nats."""
        return cross_entropy(logits.flatten(0, 1), self.labels.flatten(), ignore_index=IGNORED)

    def accuracy(self, logits: Float[Tensor, "text query vocabulary"]) -> Float[Tensor, ""]:
        """Share of what is asked that is answered rightly."""
        asked = self.labels != IGNORED
        return (logits.argmax(-1) == self.labels)[asked].double().mean()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer of the words ``t0 t1 ...``, as `attnscope.scan` asks for beside a model.

        Examples
        --------
        >>> from attnscope.zoo import build
        >>> build("previous-decoder-1").tokenizer("t1 t7 t5")["input_ids"]
        [1, 7, 5]
        """
        from transformers import PreTrainedTokenizerFast

        words = {f"t{number}": number for number in range(len(self.groups))}
        padding = "t0"
        backend = Tokenizer(WordLevel(words, unk_token=padding))
        backend.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=padding, unk_token=padding)
