r"""Attention from word to word: of the tokens of a word, queries are averaged and keys summed.

With :math:`U` and :math:`V` the sets of tokens of two words,
:math:`W_{UV} = \frac{1}{|U|} \sum_{i \in U} \sum_{j \in V} A_{ij}` (Clark et al. 2019, section 4.1), so that rows go
on to sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from attnscope.attention import AttentionCall, attend_in_full, call_of_weights
from attnscope.corpus import in_words
from attnscope.errors import AttnscopeError
from attnscope.statistics._map_weights import weight_rows
from attnscope.statistics._reading import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int
    from torch import Tensor

    from attnscope.capture import Site
    from attnscope.corpus import Window

_ROWS = 512  # of one head, written out at once


@dataclass(frozen=True, eq=False)
class MergedCall:
    """What one attention call is from word to word.

    Attributes
    ----------
    call
        Attention call of these weights, each row scaled to sum to 1; it has no output.
    mass
        What the rows sum to, ``(batch, head, word)``.
    equal
        Equal weights over the tokens that each token may see, merged likewise, as those of one head.
    """

    call: AttentionCall
    mass: Tensor
    equal: AttentionCall


@dataclass(frozen=True, eq=False)
class WordReading:
    """Windows side by side, read by tokens and measured by words.

    Attributes
    ----------
    words
        The same windows as if their words were their tokens.
    numbers
        ``(batch, token)``: the number of each token's word, -1 on padding; of the text, and of what a decoder reads.

    Examples
    --------
    >>> from attnscope.corpus import Window
    >>> window = Window((5, 6, 7), (False,) * 3, ((0, 1), (1, 4), (4, 5)), "t", 0, ("e", "bbs", "."), words=(0, 0, 1))
    >>> reading = WordReading.of([window])
    >>> reading.words.text.valid.shape, reading.numbers[0].tolist()
    (torch.Size([1, 2]), [[0, 0, 1]])
    """

    words: Reading
    numbers: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, windows: Sequence[Window], device: torch.device | str = "cpu") -> WordReading:
        """Merge windows, and their targets."""
        words = Reading.of([in_words(window) for window in windows], 0, device)
        sides = (windows, [window.target or window for window in windows])
        text, target = (_padded([window.words for window in side]).to(device) for side in sides)
        return cls(words, (text, target))

    def merged(self, kind: str, call: AttentionCall) -> MergedCall | None:
        """The call from word to word; None where its places are not the tokens."""
        text, target = self.numbers
        queries = text if kind == "self" else target
        keys = target if kind == "causal" else text
        if (queries.shape[1], keys.shape[1]) != (call.query.shape[2], call.key.shape[2]):
            return None
        return merge_call(call, queries.to(call.query.device), keys.to(call.query.device))

    def weights(self, site: Site, call: AttentionCall) -> Tensor:
        """The weights from word to word, ``(batch, head, word, word)``.

        Raises
        ------
        AttnscopeError
            If places of the call are not the tokens.
        """
        merged = self.merged(site.kind, call)
        if merged is None:
            raise AttnscopeError(
                f"layer {site.index} does not attend from token to token (pooled tokens, a prompt), so its weights are "
                "not merged to words: leave out words"
            )
        return attend_in_full(merged.call)[1] * merged.mass[..., None]


@torch.no_grad()
def merge_call(
    call: AttentionCall, queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]
) -> MergedCall:
    """Merge tokens to words, on either side by the number of each token's word; -1 is none (padding).

    A token that may look nowhere is left out of the average over its word.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 4)
    >>> words = torch.tensor([[0, 0, 1]])
    >>> merge_call(AttentionCall(x, x, x, scale=1.0, causal=True), words, words).call.bias.exp()[0, 0]
    tensor([[1.0000, 0.0000],
            [0.6667, 0.3333]])
    """
    weights, mass = _words(call, queries, keys, range(call.query.shape[1]))
    nothing = torch.zeros_like(call.query[:, :1])
    flat = replace(
        call, query=nothing, key=torch.zeros_like(call.key[:, :1]), value=call.value[:, :1], sinks=None
    )
    flat = replace(flat, bias=None if call.bias is None else _forbidding(call.bias[:, :1]))
    equal, _ = _words(flat, queries, keys, range(1))
    seen = (equal > 0) | (weights > 0).any(1, keepdim=True)
    return MergedCall(replace(call_of_weights(weights), mask=seen), mass, call_of_weights(equal))


def _words(call: AttentionCall, queries: Tensor, keys: Tensor, heads: range) -> tuple[Tensor, Tensor]:
    """Shares of each word's weight on each, ``(batch, head, word, word)``, and what they are shares of."""
    words = [int(side.max()) + 1 for side in (queries, keys)]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    merged = torch.zeros(
        len(queries), len(heads), words[0] + 1, words[1] + 1, dtype=wide, device=queries.device
    )
    rows = torch.zeros(len(queries), len(heads), words[0] + 1, dtype=wide, device=queries.device)
    for text, (own, others) in enumerate(zip(queries % (words[0] + 1), keys % (words[1] + 1), strict=True)):
        for head in heads:
            first = 0
            for weights in weight_rows(call, head, len(own), _ROWS, text=text):
                at = own[first : first + len(weights)]
                on_words = weights.new_zeros(len(weights), words[1] + 1).index_add_(1, others, weights)
                merged[text, head].index_add_(0, at, on_words.to(wide))
                rows[text, head].index_add_(0, at, (weights.sum(-1) > 0).to(wide))
                first += len(weights)
    merged = merged[..., :-1, :-1] / rows[..., :-1, None].clamp_min(1)
    mass = merged.sum(-1, dtype=torch.float64)
    shares = merged / torch.where(mass > 0, mass, 1.0)[..., None].to(wide)
    return shares, torch.where((mass - 1).abs() < 1e-5, 1.0, mass)  # noqa: PLR2004 no learned sink


def _forbidding(bias: Tensor) -> Tensor:
    """A bias without what it adds, but for where it forbids."""
    forbids = bias <= torch.finfo(bias.dtype).min / 2
    return torch.zeros_like(bias).masked_fill(forbids, -torch.inf)


def _padded(words: Sequence[tuple[int, ...]]) -> Tensor:
    whole = torch.full((len(words), max(map(len, words))), -1)
    for row, own in zip(whole, words, strict=True):
        row[: len(own)] = torch.tensor(own)
    return whole
