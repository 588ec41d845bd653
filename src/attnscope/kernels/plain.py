"""The exact tile pass: online softmax over blocks of queries and keys, with the measures of each row.

Scores exist one tile at a time (Milakov & Gimelshein 2018; Dao et al. 2022); a row's measures are running sums over its
tiles. `absorb` and `Sums.finish` have compiled forms in `compiled`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnscope.kernels.bins import segments
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, without_flat_curves

QUERY_TILE, KEY_TILE = 512, 512  # 1 MiB of float32 scores: a usual second-level cache
PLAIN_TILE = 1 << 24  # scores in one tile of the batched pass


@dataclass(eq=False)
class TileState:
    """Running sums over the keys so far, one number a query: shape ``(..., query)``."""

    maximum: Tensor
    total: Tensor
    score: Tensor
    square: Tensor
    mean: Tensor
    spread: Tensor
    largest_key: Tensor
    band: Tensor
    bins: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        """All fields, in order."""
        return tuple(vars(self).values())

    def view(self, cut: Callable[[Tensor], Tensor]) -> TileState:
        """A part, or another shape."""
        return TileState(*map(cut, self.parts()))

    @classmethod
    def empty(cls, shape: tuple[int, ...], need: Need, like: Tensor) -> TileState:
        width = 0 if need.band is None else 2 * need.band + 1
        zeros = torch.zeros(5, *shape, dtype=torch.float64, device=like.device)
        return cls(
            like.new_full(shape, -math.inf),
            *zeros,
            largest_key=torch.full((*shape, int(need.largest_key)), -1, device=like.device),
            band=like.new_full((*shape, width), -math.inf),
            bins=like.new_zeros(*shape, 2 * len(need.bins)),
        )


def absorb(
    scores: Tensor, state: TileState, start: Tensor, stop: Tensor, bins: tuple[int, ...], *, own: Tensor, column: int
) -> Tensor:
    """Add one tile of scores to the running sums, in PyTorch; overwrite it with exp(score - maximum)."""
    keys = scores.shape[-1]
    index = torch.arange(column, column + keys, device=scores.device)
    scores.masked_fill_((index < start[..., None]) | (index >= stop[..., None]), -math.inf)
    band = state.band.shape[-1] // 2
    if state.band.shape[-1]:
        # columns of this tile at the offsets -band to band of each query: diagonals are not views of a tile
        at = own[..., None] + torch.arange(-band, band + 1, device=scores.device) - column
        inside = (at >= 0) & (at < keys)
        near = scores.gather(-1, at.clamp(0, keys - 1).expand(*scores.shape[:-1], -1))
        state.band.copy_(torch.where(inside, near, state.band))
    if state.largest_key.shape[-1]:
        largest, first = scores.max(-1, keepdim=True)  # the first of several
        state.largest_key.copy_(torch.where(largest > state.maximum[..., None], first + column, state.largest_key))
    maximum = torch.maximum(state.maximum, scores.amax(-1))
    shift = torch.where(maximum == -math.inf, 0.0, maximum)  # rows before their first allowed key
    # where exp underflows to 0, the score stays finite too: 0 * -inf would be NaN
    below = (scores - shift[..., None]).clamp_min_(-87.0 if scores.dtype == torch.float32 else -700.0)
    torch.exp(scores.sub_(shift[..., None]), out=scores)
    # sums relative to an older maximum m become sums relative to the new one m': exp(s - m') is exp(s - m) exp(m - m'),
    # and s - m' is (s - m) + (m - m')
    old = torch.where(state.maximum == -math.inf, 0.0, state.maximum).double()
    # float64, as this factor multiplies sums over all earlier keys
    rescale = torch.exp(state.maximum.double() - shift.double())
    # within a tile float32 adds 512 numbers; between tiles float64 does
    total = scores.sum(-1).double()
    state.score.add_((old - shift.double()) * state.total).mul_(rescale)
    state.score.add_((scores * below).sum(-1))
    state.square.mul_(rescale**2).add_((scores * scores).sum(-1))
    local = torch.arange(keys, device=scores.device, dtype=scores.dtype)
    # mean position of the tile's weights, counted from its first key: small numbers, which float32 holds exactly
    mean = (scores @ local).double() / torch.where(total > 0, total, 1.0)
    away = local - mean[..., None].to(scores.dtype)
    before = state.total * rescale
    state.total.copy_(before + total)
    jump = mean + column - state.mean
    share = total / torch.where(state.total > 0, state.total, 1.0)
    # squared distances from two means, joined about their common mean (Chan, Golub and LeVeque 1979)
    state.spread.mul_(rescale).add_((scores * away.square_()).sum(-1)).add_(jump**2 * before * share)
    state.mean.add_(jump * share)
    state.maximum.copy_(maximum)
    rescale = rescale.to(scores.dtype)
    if bins:
        edges = torch.from_numpy(segments(bins)).to(scores.device)
        # the sum between two edges is a difference of cumulative sums; the middle one is that of the band
        at = (own[..., None] - column + edges).clamp(0, keys).expand(*scores.shape[:-1], -1)
        sums = torch.nn.functional.pad(scores.cumsum(-1), (1, 0)).gather(-1, at).diff(dim=-1)
        binned = torch.cat([sums[..., : len(bins)], sums[..., len(bins) + 1 :]], dim=-1)
        state.bins.mul_(rescale[..., None]).add_(binned)
    return rescale


@dataclass(frozen=True, eq=False)
class Operands:
    """Operands of a sweep, with any leading dimensions: one head or all of them."""

    query: Tensor
    key: Tensor
    value: Tensor
    start: Tensor
    stop: Tensor
    positions: Tensor
    columns: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    softcap: float | None
    bins: tuple[int, ...]

    def scores(self, rows: slice, keys: slice, buffer: Tensor | None = None) -> Tensor:
        """One tile of scores, in the memory of `buffer` where it fits."""
        query, key = self.query[..., rows, :], self.key[..., keys, :].transpose(-2, -1)
        scores = torch.matmul(query, key, out=buffer)
        adjust(scores, self.softcap, self.bias, self.mask, rows, keys)
        return scores


def adjust(
    scores: Tensor, softcap: float | None, bias: Tensor | None, mask: Tensor | None, rows: slice, keys: slice
) -> None:
    """Cap a tile of scores, add its bias, and set masked scores to -inf."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if bias is not None:
        scores.add_(bias[..., rows, keys])
    if mask is not None:
        scores.masked_fill_(~mask[..., rows, keys], -math.inf)


def sweep(operands: Operands, rows: range, into: Sums) -> None:
    """Attend for one block of queries, tile by tile, adding to the block's empty part of `into`."""
    block = slice(rows.start, rows.stop)
    start, stop = operands.start[..., block], operands.stop[..., block]
    diagonal = operands.positions[..., block]
    sums = into.rows(block)
    first, last = int(start.min()), int(stop.max())
    # tiles begin at multiples of their size, as in the compiled pass
    leftmost = first - first % KEY_TILE
    for column in range(leftmost, last, KEY_TILE):
        keys = slice(column, min(column + KEY_TILE, operands.key.shape[-2]))
        scores = operands.scores(block, keys)
        factor = absorb(scores, sums.state, start, stop, operands.bins, own=diagonal, column=column)
        rescale = None if column == leftmost else factor[..., None]
        add_weighted(sums.output, rescale, scores, operands.value[..., keys, :])
        if operands.columns is not None and sums.columns is not None:
            add_weighted(sums.columns, rescale, scores, operands.columns[..., keys, :])


def add_weighted(total: Tensor, rescale: Tensor | None, weights: Tensor, values: Tensor) -> None:
    """Rescale the earlier sums, if any, and add the weighted sums of a tile."""
    if rescale is not None:
        total.mul_(rescale)
    if not weights.shape[-1]:
        return
    if total.ndim == 2:  # noqa: PLR2004 one head
        total.addmm_(weights, values)
    elif total.ndim == values.ndim == 3:  # noqa: PLR2004 some heads
        total.baddbmm_(weights, values)
    else:
        total.add_(weights @ values)


@dataclass(frozen=True, eq=False)
class Sums:
    """All sums, for every head and query: ``(batch, head, query, ...)``."""

    output: Tensor
    columns: Tensor | None
    state: TileState

    @classmethod
    def empty(cls, call: AttentionCall, need: Need, dtype: torch.dtype) -> Sums:
        shape = call.query.shape[:-1]
        zeros = partial(torch.zeros, dtype=dtype, device=call.query.device)
        return cls(
            zeros(*shape, call.value.shape[-1]),
            None if need.columns is None else zeros(*shape, need.columns.shape[-1]),
            TileState.empty(tuple(shape), need, zeros(())),
        )

    def view(self, cut: Callable[[Tensor], Tensor]) -> Sums:
        """A part, or another shape; additions to it change the whole."""
        return Sums(cut(self.output), None if self.columns is None else cut(self.columns), self.state.view(cut))

    def rows(self, block: slice) -> Sums:
        """The part of some queries."""
        dim = self.state.total.ndim - 1
        return self.view(lambda tensor: tensor[(slice(None),) * dim + (block,)])

    def finish(self, call: AttentionCall) -> tuple[Tensor, RowMeasures]:
        """Turn running sums into weights: the attention output and the measures of each row."""
        state = self.state
        visible = state.maximum != -math.inf
        total = torch.where(visible, state.total, 1.0)
        log_real = torch.where(visible, state.maximum.double() + torch.log(total), -math.inf)
        log_sum_exp = log_real
        if call.sinks is not None:
            # a sink is one more exponential in the denominator, of a key without value (gpt-oss)
            log_sum_exp = torch.logaddexp(log_real, call.sinks.double()[:, None])
        mass = torch.where(visible, torch.exp(log_real - log_sum_exp), 0.0)
        share = mass / total  # turns p = exp(score - maximum) into a weight
        # entropy of the weights renormalised to 1, ln sum_j p_j - sum_j p_j (s_j - m) / sum_j p_j for p = exp(s - m);
        # then of the weights as they are (sinks take a part): -sum_j M w_j ln(M w_j) = M H(w) - M ln M for the mass M
        start, stop = call.extent
        most = (stop - start).clamp_min(1).double().log()[:, None]  # ln of the number of allowed keys
        entropy = torch.minimum((torch.log(total) - state.score / total).clamp_min_(0.0), most)
        level = torch.where(visible, log_sum_exp, 0.0).to(state.band.dtype)[..., None]
        rows = RowMeasures(
            log_sum_exp=log_sum_exp,
            mass=mass,
            entropy=mass * entropy - torch.xlogy(mass, mass),
            mean_offset=torch.where(visible, state.mean - call.query_positions[:, None], 0.0),
            offset_variance=state.spread / total,
            largest=share * visible,
            largest_key=state.largest_key[..., 0].double() if state.largest_key.shape[-1] else None,
            collision=state.square * share**2,
            band=state.band.sub_(level).exp_() if state.band.shape[-1] else None,
            bins=state.bins.mul_(share[..., None].to(state.bins.dtype)) if state.bins.shape[-1] else None,
            columns=None if self.columns is None else self.columns.double() * share[..., None],
        )
        return self.output.mul_(share[..., None].to(self.output.dtype)).to(call.query.dtype), rows


def plain_tiles(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The tile pass in plain PyTorch, for all heads at once: any device, any float type."""
    return without_flat_curves(batched_tiles, call, need)


def batched_tiles(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """As `plain_tiles`, for finite queries, keys and values."""
    queries = call.query.shape[2]
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    sums = Sums.empty(call, need, dtype)
    grouped = sums.view(partial(by_group, call))
    step = rows_at_once(call)
    operands = batched_operands(call, dtype, need)
    for first in range(0, queries, step):
        sweep(operands, range(first, min(first + step, queries)), grouped)
    return sums.finish(call)


def batched_operands(call: AttentionCall, dtype: torch.dtype, need: Need | None = None) -> Operands:
    """All heads at once: ``(batch, kv_head, group, ...)`` each, or 1 where heads share something."""
    start, stop, positions = (each[:, None, None] for each in (*call.extent, call.query_positions))
    query = by_group(call, call.query.to(dtype) * call.scale)
    key, value = (side.to(dtype)[:, :, None] for side in (call.key, call.value))
    columns = None if need is None or need.columns is None else need.columns.to(dtype)[:, None, None]
    mask = None if call.is_contiguous or call.mask is None else by_group(call, call.mask)
    bias = None if call.bias is None else by_group(call, call.bias)
    bins = () if need is None else need.bins
    return Operands(query, key, value, start, stop, positions, columns, mask, bias, call.softcap, bins)


def by_group(call: AttentionCall, tensor: Tensor) -> Tensor:
    """A view with the heads, dimension 1, as ``(kv_head, group)``."""
    # a view: key heads then broadcast over their group, without the copies of repeat_interleave
    return tensor.unflatten(1, (1, 1) if (tensor.shape[1] != call.query.shape[1]) else (call.key.shape[1], -1))


def rows_at_once(call: AttentionCall) -> int:
    """Number of queries of all heads in a tile."""
    batch, heads = call.query.shape[:2]
    # a GPU needs large launches; on a CPU a tile should stay in the cache
    return max(16, (PLAIN_TILE if call.query.is_cuda else PLAIN_TILE >> 5) // (batch * heads * KEY_TILE))
