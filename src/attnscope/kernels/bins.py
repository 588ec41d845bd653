"""Offsets between query and key: bins that double, and weights at chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.call import AttentionCall
from attnscope.support.errors import AttnscopeError

_FAR = 1 << 40  # beyond every offset


def far_starts(band: int, reach: int) -> tuple[int, ...]:
    """The bins that are not entirely inside a band of offsets; there is at least one, and the last has no end."""
    return tuple(first for first, last in bin_ranges(band, reach) if last > band)


def bin_ranges(band: int, reach: int) -> list[tuple[int, int]]:
    """First and last offset of every bin from left to right; on the right 1, 2, 3 to 4, 5 to 8, ..., with `reach`."""
    ranges = [(-1, -1), (0, 0), (1, 1)]
    # each step doubles the bins on both sides: the next one ends at twice the last offset
    while (last := ranges[-1][1]) < max(reach, band + 1):
        ranges = [(-2 * last, -last - 1), *ranges, (last + 1, 2 * last)]
    return ranges


@lru_cache(maxsize=32)
def segments(starts: tuple[int, ...]) -> np.ndarray:
    """First offset of each segment from left to right, and one past the last: bins, the middle between them, bins."""
    return np.array([-_FAR, *[1 - start for start in starts[::-1]], *starts, _FAR], dtype=np.int64)


@torch.no_grad()
def weights_at_offsets(
    call: AttentionCall, log_sum_exp: Float[Tensor, "batch head query"], offsets: Sequence[int]
) -> Float[Tensor, "batch head query offset"]:
    r"""Weights at any offsets, :math:`A_{i,i+t} = \exp(s_{i,i+t} - \mathrm{lse}_i)`: n d work for each.

    Two numbers a row show a head that attends one period back, or to the token after that, at any distance.

    Parameters
    ----------
    call
        The attention call.
    log_sum_exp
        Log-sum-exp of each row from `measure`, by any engine.
    offsets
        Key minus query position; negative is left.

    Returns
    -------
    Tensor
        Float32 or wider; 0 where the offset leaves the text or is masked.

    Raises
    ------
    AttnscopeError
        If the call has only some of its queries (`AttentionCall.take`).
    """
    if call.positions is not None:
        raise AttnscopeError("some queries alone have no diagonals: give the whole call")
    queries, keys = call.query.shape[2], call.key.shape[2]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    key = call.key.to(wide).repeat_interleave(call.group, dim=1)
    query = call.query.to(wide) * call.scale
    weights = torch.zeros(*query.shape[:3], len(offsets), dtype=wide, device=query.device)
    for column, offset in enumerate(offsets):
        first, last = max(0, -offset), min(queries, keys - offset)
        if first >= last:
            continue
        rows = slice(first, last)
        # row i with key i + offset: a diagonal as a product of two shifted slices
        scores = (query[:, :, rows] * key[:, :, first + offset : last + offset]).sum(-1)
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if call.bias is not None:
            scores = scores + torch.diagonal(call.bias, offset, dim1=-2, dim2=-1)
        level = torch.exp(scores - log_sum_exp[..., rows])
        weights[..., rows, column] = torch.where(_seen(call, offset, rows), level, 0.0).to(wide)
    return weights


def _seen(call: AttentionCall, offset: int, rows: slice) -> Tensor:
    """Whether these queries may attend to the offset, ``(batch or 1, head or 1, row)``."""
    start, stop = (bound[:, None, rows] for bound in call.extent)
    at = torch.arange(rows.start + offset, rows.stop + offset, device=start.device)
    seen = (at >= start) & (at < stop)
    if call.mask is not None and not call.is_contiguous:
        seen = seen & torch.diagonal(call.mask, offset, dim1=-2, dim2=-1)
    return seen
