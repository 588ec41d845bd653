"""What is measured of the queries of one attention call from which new tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from attnscope.attention import bin_ranges, row_weights
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import EQUAL

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.attention import AttentionCall

SPANS, BINS = "span_weight", "bin_weight"
_REACH = 1 << 17  # tokens: what lies farther back is in the last bin
_PARTS = 4  # of a doubling, so that a head's decay within a bin is small


#: First and last offset of each bin that a result has, from far left to the query itself.
DOUBLINGS = [(first, last) for first, last in bin_ranges(0, _REACH) if last <= 0]


def _ranges() -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for first, last in DOUBLINGS:
        width = last - first + 1
        cuts = [first + width * part // _PARTS for part in range(_PARTS + 1)]
        ranges += [(start, stop - 1) for start, stop in pairwise(cuts) if stop > start]
    return ranges


#: The same of the bins that are measured, parts of those.
RANGES = _ranges()


@dataclass(frozen=True, eq=False)
class KeyMarks:
    """What is known of the keys of a side.

    Attributes
    ----------
    padding
        ``(batch,)``: places before the first token of each text.
    spans
        ``(batch, place, span)``, float32: which places belong to a span.
    beyond
        Number of the span that goes on behind these places; -1 if there is none.
    """

    padding: Tensor
    spans: Tensor
    beyond: int
    _columns: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def columns(self, keys: int, shift: int) -> Tensor:
        """The spans of keys of which the first stands at place `shift`, ``(batch, key, span)``."""
        if (keys, shift) not in self._columns:
            self._columns.clear()  # the layers of one pass share them
            known = self.spans[:, max(shift, 0) : max(shift + keys, 0)]
            columns = torch.nn.functional.pad(known, (0, 0, max(-shift, 0), 0))
            missing = keys - columns.shape[1]
            columns = torch.nn.functional.pad(columns, (0, 0, 0, missing))
            if self.beyond >= 0 and missing:
                columns[:, -missing:, self.beyond] = 1.0
            self._columns[keys, shift] = columns.double()
        return self._columns[keys, shift]


def measure_rows(
    call: AttentionCall, first: int, place: int, marks: KeyMarks, *, is_cross: bool
) -> dict[str, Tensor]:
    """Statistics of the rows from `first` on: ``(batch, head, row)``, spans behind; one head for equal weights.

    Parameters
    ----------
    call
        The attention call.
    first
        The first query that is measured.
    place
        Where that query stands in its text, counted from 0 with padding.
    marks
        Marks of the keys' text.
    is_cross
        Whether that is another text.

    Notes
    -----
    A query sees itself and no later token of its own text. So the last key that it may see is its own, in whichever way
    a cache keeps the keys before it: that tells where each key stands.

    Raises
    ------
    AttnscopeError
        If that key is another one in each text of the batch.
    """
    weights, allowed = row_weights(call, first)
    rows, keys = weights.shape[-2:]
    index = torch.arange(keys, device=weights.device)
    shift = 0 if is_cross else place - _own_key(call, allowed, rows)
    query = torch.arange(place, place + rows, device=weights.device)
    offset = (index + shift - query[:, None])[None, None]
    if is_cross:
        offset = offset - marks.padding[:, None, None, None]
    keys_of = _Keys(offset, marks.columns(keys, shift), marks.padding - shift)
    even = allowed[:, :1].double()
    even = even / even.sum(-1, keepdim=True).clamp_min(1.0)
    largest, top = weights.max(-1)
    return {
        "max_weight": largest,
        "top_key": (top - keys_of.start[:, None, None]).double(),
        BINS: _bins(weights, None if is_cross else place - shift),
        **_sums(weights, keys_of),
        **{f"{EQUAL}{name}": value for name, value in _sums(even, keys_of).items()},
    }


class _Keys(NamedTuple):
    offset: Tensor  # (batch or 1, 1, row, key)
    columns: Tensor  # (batch, key, span)
    start: Tensor  # (batch,), the first token of each text as a key: below 0 where it is out of sight


def _sums(weights: Tensor, keys: _Keys) -> dict[str, Tensor]:
    at = keys.start.clamp(0, weights.shape[-1] - 1)[:, None, None, None].expand(*weights.shape[:-1], 1)
    is_there = (keys.start >= 0)[:, None, None]
    return {
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "first_token": weights.gather(-1, at)[..., 0].where(is_there, 0.0),
        "mean_offset": (weights * keys.offset).sum(-1) / weights.sum(-1),
        SPANS: weights @ keys.columns[:, None],
    }


def _bins(weights: Tensor, own: int | None) -> Tensor:
    """Weight in each bin of offsets, from far left to the query itself, float32; NaN where keys are another text's."""
    if own is None:
        return weights.new_full((*weights.shape[:-1], len(RANGES)), torch.nan).float()
    rows, keys = weights.shape[-2:]
    edges = torch.tensor([-keys, *(last + 1 for _, last in RANGES)], device=weights.device)
    query = torch.arange(own, own + rows, device=weights.device)
    at = (query[:, None] + edges).clamp(0, keys).expand(*weights.shape[:2], -1, -1)
    return torch.nn.functional.pad(weights.cumsum(-1), (1, 0)).gather(-1, at).diff(dim=-1).float()


def _own_key(call: AttentionCall, allowed: Tensor, rows: int) -> int:
    """The first measured query's own key: the last one that it may see."""
    keys = allowed.shape[-1]
    if not call.query.shape[
        -1
    ]:  # weights alone: a cache holds the query's own key last, and nothing behind it
        return keys - rows
    last = keys - 1 - allowed.any(1).flip(-1).to(torch.uint8).argmax(-1)  # (batch, row)
    own = last - torch.arange(rows, device=last.device)
    if bool((own != own[0, 0]).any()):
        raise AttnscopeError(
            "a layer lets the texts of a batch look at different last keys: where its keys stand is not known"
        )
    return int(own[0, 0])
