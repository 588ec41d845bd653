"""Sum and maximum of the weights in each block of queries by keys: a small map of a text of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.by_head import each_head, operands_of_head
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.plain import KEY_TILE, QUERY_TILE, Operands, batched_operands, by_group, rows_at_once
from attnscope.support.errors import AttnscopeError

BLOCK = 64  # queries and keys on a side, as block-sparse kernels have them


@dataclass(frozen=True, eq=False)
class Blocks:
    """Weights in blocks from the first query and the first key on; the last blocks may be smaller."""

    # sum and maximum of the weights of a block: ``(batch, head, query_block, key_block)``, float32; 0 where nothing
    # is allowed
    total: Float[Tensor, "batch head query_block key_block"]
    largest: Float[Tensor, "batch head query_block key_block"]
    size: int  # queries, and keys, on a side of a block


def block_size(tokens: int, most: int) -> int:
    """Smallest block size that cuts `tokens` into at most `most` blocks."""
    return max(1, -(-tokens // most))


@torch.no_grad()
def block_weights(call: AttentionCall, log_sum_exp: Float[Tensor, "batch head query"], size: int = BLOCK) -> Blocks:
    r"""Sum and maximum of the weights in each block of ``size`` queries by ``size`` keys, without the full matrix.

    Scores are recomputed one tile at a time, and :math:`A_{ij} = \exp(s_{ij} - \mathrm{lse}_i)` is reduced at once, so
    memory beyond the result is one tile. It costs about half of the pass that measured the rows.

    Parameters
    ----------
    call
        The attention call.
    log_sum_exp
        Natural log-sum-exp of each row, from `measure`. Rows with infinity are left out.
    size
        Queries, and keys, on a side; see `block_size` for a number of blocks.

    Raises
    ------
    AttnscopeError
        If `size` is below 1.
    """
    if size < 1:
        raise AttnscopeError(f"the size of a block is {size}: expected 1 or more")
    batch, heads, queries, _ = call.query.shape
    counts = [-(-length // size) for length in (queries, call.key.shape[2])]
    total, largest = torch.zeros(2, batch, heads, *counts, dtype=torch.float32, device=call.query.device).unbind()
    # rows without allowed keys are left out, as those of infinity are
    real = log_sum_exp.isfinite() & (log_sum_exp > torch.finfo(torch.float32).min / 2)
    level = log_sum_exp.masked_fill(~real, torch.inf)
    if call.query.device.type == "cpu" and call.query.dtype != torch.float64:
        _by_head(call, level.float(), size, total, largest)
    else:
        _batched(call, level, size, total, largest)
    unknown = torch.nn.functional.pad(log_sum_exp.isnan(), (0, -queries % size)).unflatten(-1, (-1, size))
    unknown = unknown.any(-1, keepdim=True)
    return Blocks(total.masked_fill_(unknown, torch.nan), largest.masked_fill_(unknown, torch.nan), size)


def _by_head(call: AttentionCall, level: Tensor, size: int, total: Tensor, largest: Tensor) -> None:
    """Spread heads over threads; a compiled loop reads each tile once."""
    from attnscope.kernels.compiled import block_compiled  # numba is loaded when it is first needed

    def work(text: int, head: int) -> None:
        operands = operands_of_head(call, text, head)
        for rows, keys in _tiles(operands, size, QUERY_TILE):
            scores = operands.scores(rows, keys)
            start, stop = operands.start[rows], operands.stop[rows]
            at = (text, head, slice(rows.start // size, None), slice(keys.start // size, None))
            block_compiled(scores, start, stop, level[text, head, rows], keys.start, size, total[at], largest[at])

    each_head(call, work)


def _batched(call: AttentionCall, level: Tensor, size: int, total: Tensor, largest: Tensor) -> None:
    """All heads at once in PyTorch, on any device and in any float type."""
    operands = batched_operands(call, torch.promote_types(call.query.dtype, torch.float32))
    level, total, largest = (by_group(call, tensor) for tensor in (level, total, largest))
    for rows, keys in _tiles(operands, size, rows_at_once(call)):
        weights = operands.scores(rows, keys).sub_(level[..., rows, None]).exp_()
        index = torch.arange(keys.start, keys.stop, device=weights.device)
        start, stop = operands.start[..., rows, None], operands.stop[..., rows, None]
        weights.masked_fill_((index < start) | (index >= stop) | (level[..., rows, None] == torch.inf), 0.0)
        sides = [min(size, side.stop - side.start) for side in (rows, keys)]
        beyond = [-length % side for length, side in zip(weights.shape[-2:], sides, strict=True)]
        cells = torch.nn.functional.pad(weights, (0, beyond[1], 0, beyond[0]))
        cells = cells.unflatten(-1, (-1, sides[1])).unflatten(-3, (-1, sides[0]))
        sums, maxima = cells.sum((-3, -1)).float(), cells.amax((-3, -1)).float()
        at = tuple(
            slice(side.start // size, side.start // size + count)
            for side, count in zip((rows, keys), sums.shape[-2:], strict=True)
        )
        total[(..., *at)] += sums
        largest[(..., *at)] = torch.maximum(largest[(..., *at)], maxima)


def _tiles(operands: Operands, size: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of whole blocks, or parts of one block; tiles that are masked entirely are skipped."""
    for rows in _cuts(operands.query.shape[-2], size, most):
        first = int(operands.start[..., rows].min())
        last = int(operands.stop[..., rows].max())
        for keys in _cuts(operands.key.shape[-2], size, KEY_TILE):
            if keys.start < last and keys.stop > first:
                yield rows, keys


def _cuts(length: int, size: int, most: int) -> Iterator[slice]:
    """Pieces of at most `most` tokens, each of whole blocks or part of one block."""
    step = size if size > most else most - most % size
    for first in range(0, length, step):
        last = min(first + step, length)
        for start in range(first, last, most):
            yield slice(start, min(start + most, last))
