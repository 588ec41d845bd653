"""Attention received: the weight of each key from all queries, or from the last ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.kernels.by_head import each_head, operands_of_head
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.masks import transposed
from attnscope.kernels.plain import KEY_TILE, QUERY_TILE, Operands, batched_operands, by_group, rows_at_once
from attnscope.kernels.reference import masked_softmax
from attnscope.kernels.triton import can_triton, triton_tiles
from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator


def column_sums(
    call: AttentionCall,
    log_sum_exp: Float[Tensor, "batch head query"],
    counted: Bool[Tensor, "_ query"] | None = None,
    last: int | None = None,
) -> Float[Tensor, "batch head key"]:
    r"""Sum of the weights on each key, :math:`\sum_i A_{ij}`: the column sums, exact and in O(n) memory."""
    if last is not None:
        check_least(1, last=last)
        counted = log_sum_exp.new_ones(1, log_sum_exp.shape[-1]) > 0 if counted is None else counted
        counted = counted & (counted.flip(-1).cumsum(-1).flip(-1) <= last)
    return cast("Tensor", weight_sums(call, log_sum_exp, counted, received=True).received)


@dataclass(frozen=True, eq=False)
class WeightSums:
    """Sums of the weights over queries, float64; None where not requested."""

    received: Float[Tensor, "batch head key"] | None = None  # ``(batch, head, key)``: over the column of each key
    # ``(batch, head, offset)``: over the diagonal of each offset, from ``-(queries - 1)`` to ``keys - 1``
    offsets: Float[Tensor, "batch head offset"] | None = None


@torch.no_grad()
def weight_sums(
    call: AttentionCall,
    log_sum_exp: Float[Tensor, "batch head query"],
    counted: Bool[Tensor, "_ query"] | None = None,
    *,
    received: bool = False,
    offsets: bool = False,
) -> WeightSums:
    r"""Sums over queries of :math:`A_{ij} = \exp(s_{ij} - \mathrm{lse}_i)` by key, by offset or both, in one pass."""
    if offsets and call.positions is not None:
        raise AttnscopeError("some queries alone have no profile of all offsets: give the whole call")
    batch, heads, queries, _ = call.query.shape
    keys = call.key.shape[2]
    # log-sum-exp of each row; infinity for those left out, and for those without allowed keys
    nowhere = log_sum_exp < torch.finfo(torch.float32).min / 2
    level = log_sum_exp.masked_fill(nowhere if counted is None else nowhere | ~counted[:, None], torch.inf)
    by_kernel = received and _can_exchange(call)
    nothing = call.query.new_zeros(0, dtype=torch.float64)
    sums = WeightSums(
        nothing.new_zeros(batch, heads, keys) if received and not by_kernel else None,
        nothing.new_zeros(batch, heads, queries + keys - 1) if offsets else None,
    )
    if sums.received is not None or sums.offsets is not None:
        on_cpu = call.query.device.type == "cpu" and call.query.dtype != torch.float64
        (_by_head if on_cpu else _batched)(call, level, sums)
    if by_kernel:
        sums = replace(sums, received=triton_tiles(exchanged(call, level), Need())[1].log_sum_exp.exp())
    strange = level.isnan().any(-1, keepdim=True)
    parts = (sums.received, sums.offsets)
    return WeightSums(*(None if part is None else part.masked_fill_(strange, torch.nan) for part in parts))


def _can_exchange(call: AttentionCall) -> bool:
    """Whether the Triton kernel sums columns: on CUDA, and in a memory of O(n)."""
    if not call.query.is_cuda or call.bias is not None or call.positions is not None:
        return False
    is_square = call.query.shape[2] == call.key.shape[2]
    return (is_square or not call.causal) and can_triton(call, Need()) is None


def exchanged(call: AttentionCall, level: Float[Tensor, "batch head query"]) -> AttentionCall:
    r"""The call with queries and keys exchanged: its log-sum-exp is the log of the attention that each key receives."""
    dims = (-2,) if call.causal else ()

    def turned(pairs: Tensor) -> Tensor:
        return transposed(pairs.flip(-2, -1) if call.causal else pairs)

    keys = call.key.shape[2]
    bias = -level[:, :, None].to(torch.promote_types(call.query.dtype, torch.float32))
    bias = (bias.flip(-1) if call.causal else bias).expand(-1, -1, keys, -1)
    return AttentionCall(
        query=call.key.repeat_interleave(call.group, 1).flip(dims),  # each query head has columns of its own
        key=call.query.flip(dims),
        value=call.query.new_zeros(*call.query.shape[:3], 1),
        scale=call.scale,
        causal=call.causal,
        mask=None if call.mask is None else turned(call.mask),
        bias=bias if call.bias is None else turned(call.bias).to(bias.dtype) + bias,
        softcap=call.softcap,
    )


def _by_head(call: AttentionCall, level: Tensor, into: WeightSums) -> None:
    """Spread heads over threads; a compiled loop reads each tile once."""
    from attnscope.kernels.compiled import sums_compiled  # numba is loaded when it is first needed

    single = level.float()
    # what float32 cannot hold of a log-sum-exp is a factor of its row
    factor = torch.where(level < torch.inf, torch.exp(single - level), 0.0).float()
    queries = call.query.shape[2]

    def work(text: int, head: int) -> None:
        operands = operands_of_head(call, text, head)
        own = single[text, head]
        columns = None if into.received is None else into.received[text, head]
        diagonals = None if into.offsets is None else into.offsets[text, head]
        for rows, keys, scores in _tiles(operands, own < torch.inf, QUERY_TILE):
            bounds = operands.start[rows], operands.stop[rows]
            levels = own[rows], factor[text, head, rows]
            first = keys.start - rows.stop + queries  # of the offset at the tile's lower left corner
            by_key = columns if columns is None else columns[keys]
            by_offset = diagonals if diagonals is None else diagonals[first:]
            sums_compiled(scores, *bounds, *levels, keys.start, by_key, by_offset)

    each_head(call, work)


def _batched(call: AttentionCall, level: Tensor, into: WeightSums) -> None:
    """All heads at once in PyTorch, on any device and in any float type."""
    operands = batched_operands(call, torch.promote_types(call.query.dtype, torch.float32))
    level = by_group(call, level)
    columns, diagonals = (None if part is None else by_group(call, part) for part in (into.received, into.offsets))
    queries = call.query.shape[2]
    for rows, keys, scores in _tiles(operands, (level < torch.inf).flatten(0, -2).any(0), rows_at_once(call)):
        weights = scores.sub_(level[..., rows, None]).exp_()
        index = torch.arange(keys.start, keys.stop, device=weights.device)
        start, stop = operands.start[..., rows, None], operands.stop[..., rows, None]
        weights.masked_fill_((index < start) | (index >= stop) | (level[..., rows, None] == torch.inf), 0.0)
        if columns is not None:
            columns[..., keys] += weights.sum(-2, dtype=torch.float64)
        if diagonals is not None:
            first = keys.start - rows.stop + queries
            diagonal_sums = _diagonals(weights)
            diagonals[..., first : first + diagonal_sums.shape[-1]] += diagonal_sums


def _diagonals(weights: Tensor) -> Tensor:
    """Sums over the diagonals of a tile, from the lower left corner to the upper right; float64."""
    queries = weights.shape[-2]
    # rows in turn, each of one entry less than the padding makes it: every row moves one to the right
    sheared = torch.nn.functional.pad(weights.flip(-2), (0, queries)).flatten(-2)
    return sheared[..., :-queries].unflatten(-1, (queries, -1)).sum(-2, dtype=torch.float64)


def _tiles(operands: Operands, counted: Tensor, most: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tiles of scores, between the first counted row and the last, where a key is allowed."""
    if not len(at := counted.nonzero()):
        return
    first, last = int(at[0]), int(at[-1]) + 1
    for low in range(first, last, most):
        rows = slice(low, min(low + most, last))
        left, right = int(operands.start[..., rows].min()), int(operands.stop[..., rows].max())
        buffer: Tensor | None = None
        for column in range(left - left % KEY_TILE, right, KEY_TILE):
            keys = slice(column, min(column + KEY_TILE, operands.key.shape[-2]))
            if buffer is not None and buffer.shape[-1] != keys.stop - column:
                buffer = None
            buffer = operands.scores(rows, keys, buffer)
            yield rows, keys, buffer


class RowWeights(NamedTuple):
    """Some rows of a call, written out."""

    weights: Tensor  # ``(batch, head, row, key)``, float64; 0 where masked
    allowed: Tensor  # ``(batch, 1 or head, row, key)``: where it may


@torch.no_grad()
def row_weights(call: AttentionCall, first: int) -> RowWeights:
    """Write out the weights of the rows from `first` to the last, in memory that grows with their number alone."""
    rows = slice(first, None)
    wide = torch.promote_types(call.query.dtype, torch.float32)
    # heads that share keys are one matrix, so that no key is repeated
    grouped = call.query[:, :, rows].to(wide).unflatten(1, (-1, call.group)).flatten(2, 3)
    scores = call.scale * grouped @ call.key.to(wide).mT
    scores = scores.unflatten(2, (call.group, -1)).flatten(1, 2).double()
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    bias = None if call.bias is None else call.bias[..., rows, :]
    if bias is not None:
        scores = scores + bias.double()
    allowed = _allowed(call, bias, rows).expand(len(scores), -1, -1, -1)
    sinks = None if call.sinks is None else call.sinks.double()[:, None, None]
    return RowWeights(masked_softmax(scores, allowed, sinks), allowed)


def _allowed(call: AttentionCall, bias: Tensor | None, rows: slice) -> Tensor:
    queries, keys = call.query.shape[2], call.key.shape[2]
    place = torch.arange(max(queries, keys), device=call.query.device)
    allowed = torch.ones(1, 1, len(place[:queries][rows]), keys, dtype=torch.bool, device=place.device)
    if call.causal:
        allowed = (place[:keys] <= place[:queries][rows, None])[None, None]
    if call.mask is not None:
        allowed = allowed & call.mask[..., rows, :]
    if bias is not None:
        allowed = allowed & ~(bias <= torch.finfo(bias.dtype).min / 2)  # NaN shows
    return allowed
