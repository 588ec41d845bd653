"""Attention received: the weight of each key from all queries, or from the last ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.kernels.by_head import each_tile
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.masks import transposed
from attnscope.kernels.triton import can_triton, triton_tiles
from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError


def column_sums(
    call: AttentionCall,
    log_sum_exp: Float[Tensor, "batch head query"],
    counted: Bool[Tensor, "_ query"] | None = None,
    last: int | None = None,
) -> Float[Tensor, "batch head key"]:
    r"""Sum of the weights on each key, :math:`\sum_i A_{ij}`: the column sums, exact and in O(n) memory.

    Parameters
    ----------
    call
        The attention call.
    log_sum_exp
        Of the rows, as `measure` returns it; weights are :math:`\exp(s_{ij} - \mathrm{lse}_i)`.
    counted
        Queries whose weights count; by default all.
    last
        Count only the last queries of those, as many as this: the observation window of SnapKV (Li et al. 2024).

    Returns
    -------
    Tensor
        ``(batch, head, key)``, float64; NaN for a head with a row whose denominator is NaN.
    """
    if last is not None:
        check_least(1, last=last)
        counted = log_sum_exp.new_ones(1, log_sum_exp.shape[-1]) > 0 if counted is None else counted
        # the number of counted queries from each on is at most `last`
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
    of_keys, of_offsets = keys * (received and not by_kernel), (queries + keys - 1) * offsets
    sums = [call.query.new_zeros(batch, heads, size, dtype=torch.float64) for size in (of_keys, of_offsets)]
    if of_keys or of_offsets:
        each_tile(call, level, sums, partial(_add, queries=queries))
    if by_kernel:
        # column j: ln sum_i exp(s_ij - lse_i), the log-sum-exp of a row of the exchanged call, whose bias is -lse_i
        # no atomic additions, whose order would change the sum from run to run
        received_by = triton_tiles(exchanged(call, level), Need())[1].log_sum_exp.exp()
        sums[0] = received_by.flip(-1) if call.causal else received_by
    strange = level.isnan().any(-1, keepdim=True)
    parts = zip(sums, (received, offsets), strict=True)
    return WeightSums(*(part.masked_fill_(strange, torch.nan) if wanted else None for part, wanted in parts))


def _can_exchange(call: AttentionCall) -> bool:
    """Whether the Triton kernel sums columns: on CUDA, and in a memory of O(n)."""
    if not call.query.is_cuda or call.bias is not None or call.positions is not None:
        return False
    is_square = call.query.shape[2] == call.key.shape[2]
    return (is_square or not call.causal) and can_triton(call, Need()) is None


def exchanged(call: AttentionCall, level: Float[Tensor, "batch head query"]) -> AttentionCall:
    r"""The call with queries and keys exchanged: its log-sum-exp is the log of the attention that each key receives.

    A causal call is also reversed: the last key becomes the first query.
    """
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


def _add(weights: Tensor, rows: slice, keys: slice, columns: Tensor, diagonals: Tensor, *, queries: int) -> None:
    """Add a tile to the sums of its keys and of its offsets, as far as they are requested."""
    if columns.shape[-1]:
        columns[..., keys] += weights.sum(-2)
    if diagonals.shape[-1]:
        # each row is laid one column further left than the one above, so that a diagonal becomes a column: in memory,
        # rows of `count + width - 1` numbers are written into rows of `count + width`
        count, width = weights.shape[-2:]
        sheared = weights.new_zeros(*weights.shape[:-2], count, count + width)  # row i begins in column count - 1 - i
        sheared.flatten(-2)[..., count - 1 : -1].unflatten(-1, (count, -1))[..., :width] = weights
        first = keys.start - rows.stop + queries  # of the offset at the lower left corner
        diagonals[..., first : first + count + width - 1] += sheared.sum(-2)[..., :-1]
