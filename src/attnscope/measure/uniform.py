"""Uniform attention, the null: equal weights over the keys that a query may see; and tables fitted by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.bins import segments
from attnscope.kernels.call import AttentionCall, Need, RowMeasures

if TYPE_CHECKING:
    from collections.abc import Iterator


def without_gaps(call: AttentionCall) -> bool:
    """Whether each query may see all keys from a first to a last: those of `AttentionCall.extent`."""
    bias = call.bias  # which is a mask where it is so low
    return call.is_contiguous and (bias is None or float(bias.amin()) > torch.finfo(bias.dtype).min / 2)


def keys_at(edges: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The first key from each edge (an offset) on, between `start` and `stop` of each query: ``(..., edge)``."""
    own = torch.arange(start.shape[-1], device=edges.device)
    return torch.maximum(torch.minimum(own[:, None] + edges, stop[..., None]), start[..., None])


def allowed_by_rows(call: AttentionCall, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Which keys so many queries at a time may see, text by text, where a mask has gaps: of the first head."""
    queries = call.query.shape[2]
    for text in range(call.query.shape[0]):
        for begin in range(0, queries, rows):
            block = slice(begin, min(begin + rows, queries))
            allowed = call.allowed(text, 0, block)
            yield text, torch.arange(block.start, block.stop, device=allowed.device), allowed


def evenly(call: AttentionCall) -> AttentionCall:
    """A call of one head with equal weights over whatever the first head may see."""
    query, key, value = (torch.zeros_like(side[:, :1, :, :1]) for side in (call.query, call.key, call.value))
    bias = None
    if call.bias is not None:
        forbids = call.bias[:, :1] <= torch.finfo(call.bias.dtype).min / 2
        bias = forbids.to(call.bias.dtype).masked_fill(forbids, -torch.inf)  # also one by offset alone
    mask = None if call.mask is None else call.mask[:, :1]
    return replace(call, query=query, key=key, value=value, mask=mask, bias=bias, softcap=None, sinks=None)


_ROWS = 512  # whose allowed keys are written out at once, where a mask has gaps


def equal_rows(call: AttentionCall, need: Need) -> RowMeasures:
    """Measure equal weights over the keys that each query of a call may see: ``(batch, 1, query)`` each."""
    if without_gaps(call):
        return _of_extents(call, need)
    texts: list[list[RowMeasures]] = [[] for _ in call.query]
    for text, own, allowed in allowed_by_rows(call, _ROWS):
        texts[text].append(_of_allowed(need, text, own, allowed))
    return _joined([_joined(blocks, dim=2) for blocks in texts], dim=0)


def _of_extents(call: AttentionCall, need: Need) -> RowMeasures:
    """Arithmetic on the first and last key that each query may see."""
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    count = stop - start
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    columns = None
    if need.columns is not None:
        before = torch.nn.functional.pad(need.columns.double().cumsum(1), (0, 0, 1, 0))
        first, last = (bound[..., None].expand(-1, -1, before.shape[-1]) for bound in (start, stop))
        columns = (before.gather(1, last) - before.gather(1, first)) * share[..., None]

    def within(edges: Tensor) -> Tensor:
        """Share of a row between each edge, an offset, and the next."""
        return keys_at(edges, start, stop).diff(dim=-1) * share[..., None]

    return _equal_rows(need, count, share, within, columns)


def _of_allowed(need: Need, text: int, own: Tensor, seen: Tensor) -> RowMeasures:
    """The same of some queries from the keys that they may see, where a mask has gaps."""
    allowed = seen[None].double()
    count = allowed.sum(-1)
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    before = torch.nn.functional.pad(allowed.cumsum(-1), (1, 0))
    columns = None
    if need.columns is not None:
        columns = allowed @ need.columns[text : text + 1].double() * share[..., None]

    def within(edges: Tensor) -> Tensor:
        at = (own[:, None] + edges).clamp(0, allowed.shape[-1])[None]
        return before.gather(-1, at).diff(dim=-1) * share[..., None]

    return _equal_rows(need, count, share, within, columns)


def _equal_rows(
    need: Need, count: Tensor, share: Tensor, within: Callable[[Tensor], Tensor], columns: Tensor | None
) -> RowMeasures:
    band = bins = None
    if need.band is not None:
        band = within(torch.arange(-need.band, need.band + 2, device=count.device))
    if need.bins:
        sides = within(torch.from_numpy(segments(need.bins)).to(count.device))
        bins = torch.cat([sides[..., : len(need.bins)], sides[..., len(need.bins) + 1 :]], -1)
    entropy = count.clamp_min(1).double().log()
    return RowMeasures(
        log_sum_exp=entropy[:, None],
        mass=(share > 0).double()[:, None],
        entropy=entropy[:, None],
        band=None if band is None else band.float()[:, None],
        bins=None if bins is None else bins.float()[:, None],
        columns=None if columns is None else columns[:, None],
    )


def _joined(parts: list[RowMeasures], dim: int) -> RowMeasures:
    def of(name: str) -> Tensor | None:
        measures = [getattr(part, name) for part in parts]
        return None if measures[0] is None else torch.cat(measures, dim)

    names = ("log_sum_exp", "mass", "entropy", "band", "bins", "columns")
    return RowMeasures(**{name: of(name) for name in names})  # pyright: ignore[reportArgumentType]


_ROUNDS = 50
_NEAR = 1e-6  # of all weight, to which each place must be met
NONE = 1e-300  # instead of 0 below a fraction
Array = TypeVar("Array", Tensor, np.ndarray)


def fitted_places(sums: Array, mass: Array, counts: Array) -> tuple[Array, Array]:
    """Factors of the weight of a key at each position, ``(..., head, place)``, and of each row."""
    share, row = sums * 0.0 + 1.0, mass
    near = _NEAR * float(mass.sum(-1).max())
    for _ in range(_ROUNDS):
        row = row_factors(share, mass, counts)
        reached = row @ counts
        if float(abs(share * reached - sums).max()) <= near:
            break
        share = sums / reached.clip(min=NONE)
    return share, row


def row_factors(share: Array, mass: Array, counts: Array) -> Array:
    """What the rows are multiplied by, ``(..., head, row)``, so that each has its sum."""
    return mass / (share @ counts.mT).clip(min=NONE)
