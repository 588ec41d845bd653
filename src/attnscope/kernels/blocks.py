"""Sum and maximum of the weights in each block of queries by keys: a small map of a text of any length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.by_head import each_tile
from attnscope.kernels.call import AttentionCall
from attnscope.support.errors import AttnscopeError

BLOCK = 64  # queries and keys on a side, as block-sparse kernels have them


@dataclass(frozen=True, eq=False)
class Blocks:
    """Weights in blocks from the first query and the first key on; the last blocks may be smaller.

    Attributes
    ----------
    total, largest
        Sum and maximum of the weights of a block: ``(batch, head, query_block, key_block)``, float32; 0 where nothing
        is allowed.
    size
        Queries, and keys, on a side of a block.
    """

    total: Float[Tensor, "batch head query_block key_block"]
    largest: Float[Tensor, "batch head query_block key_block"]
    size: int


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
    each_tile(call, level, (total, largest), partial(_add, size=size), size)
    # a row that is NaN makes its blocks NaN; rows beyond the last are none
    unknown = torch.nn.functional.pad(log_sum_exp.isnan(), (0, -queries % size)).unflatten(-1, (-1, size))
    unknown = unknown.any(-1, keepdim=True)
    return Blocks(total.masked_fill_(unknown, torch.nan), largest.masked_fill_(unknown, torch.nan), size)


def _add(weights: Tensor, rows: slice, keys: slice, total: Tensor, largest: Tensor, *, size: int) -> None:
    """Add a tile of whole blocks, or of part of one."""
    sides = [min(size, side.stop - side.start) for side in (rows, keys)]
    beyond = [-length % side for length, side in zip(weights.shape[-2:], sides, strict=True)]
    # zeros change neither a sum nor the maximum of weights
    cells = torch.nn.functional.pad(weights, (0, beyond[1], 0, beyond[0]))
    cells = cells.unflatten(-1, (-1, sides[1])).unflatten(-3, (-1, sides[0]))
    sums, maxima = cells.sum((-3, -1)).float(), cells.amax((-3, -1)).float()
    at = tuple(
        slice(side.start // size, side.start // size + count)
        for side, count in zip((rows, keys), sums.shape[-2:], strict=True)
    )
    total[(..., *at)] += sums
    largest[(..., *at)] = torch.maximum(largest[(..., *at)], maxima)
