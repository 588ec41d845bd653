"""What a mask allows: the first and the last key of each row, found and kept without a matrix of queries by keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from attnscope.attention._row_mask import RowMask

if TYPE_CHECKING:
    from collections.abc import Callable

#: Entries of a mask that are looked at at once: beyond it, rows are taken in turn.
MASK_ENTRIES = 1 << 19


class Extent(NamedTuple):
    """What a mask allows: from which key on each query may look, up to which, and whether it may look at all between.

    Attributes
    ----------
    start, stop
        ``(batch or 1, query)``: the first allowed key, and the one after the last.
    is_contiguous
        Whether nothing between the two is forbidden, to any head.

    Examples
    --------
    >>> import torch
    >>> extent = extent_of(torch.tensor([[[[True, False, True], [False, True, True]]]]))
    >>> extent.start.tolist(), extent.stop.tolist(), extent.is_contiguous  # the first query passes over a key
    ([[0, 1]], [[3, 3]], False)
    """

    start: Int[Tensor, "batch query"]
    stop: Int[Tensor, "batch query"]
    is_contiguous: bool


def extent_of(mask: Bool[Tensor, "batch head query key"]) -> Extent:
    """First and last-plus-one allowed key of each query, and whether nothing between is forbidden.

    Examples
    --------
    >>> import torch
    >>> start, stop, contiguous = extent_of(torch.tensor([[[[False, True, True], [False, False, False]]]]))
    >>> start.tolist(), stop.tolist(), contiguous
    ([[1, 0]], [[3, 0]], True)
    """
    if isinstance(mask, RowMask):
        mask = mask.settled()
        if isinstance(mask, RowMask):
            return Extent(mask.start, mask.stop, is_contiguous=True)
    batch, heads, queries, keys = mask.shape
    return extent_by_rows(lambda rows: mask[:, :, rows], queries, batch * heads * keys)


def extent_by_rows(
    written: Callable[[slice], Bool[Tensor, "batch head some key"]], queries: int, cells: int
) -> Extent:
    """Find the `extent_of` a mask that is never whole: ``written(rows)`` gives some rows of it.

    Parameters
    ----------
    written
        Makes the rows that it is asked for, ``(batch, head, row, key)``.
    queries
        How many rows there are.
    cells
        Entries in one row, of all texts and heads.

    Examples
    --------
    >>> index = torch.arange(3)
    >>> start, stop, contiguous = extent_by_rows(lambda rows: (index <= index[rows, None])[None, None], 3, 3)
    >>> stop.tolist(), contiguous
    ([[1, 2, 3]], True)
    """
    step = max(1, MASK_ENTRIES // max(1, cells))
    parts = [_bounds(written(slice(at, min(at + step, queries)))) for at in range(0, max(1, queries), step)]
    start, stop = (torch.cat(bounds, 1) for bounds in ([part[side] for part in parts] for side in (0, 1)))
    # asked once, not of each part: on CUDA each answer would be waited for
    return Extent(start, stop, bool(torch.stack([part[2] for part in parts]).all()))


def transposed(mask: Shaped[Tensor, "batch head query key"]) -> Shaped[Tensor, "batch head key query"]:
    """A mask or a bias with keys as queries; a mask is known by its rows, too, where these have no gaps.

    Examples
    --------
    >>> transposed(RowMask(torch.tensor([[0, 0, 1]]), torch.tensor([[1, 2, 3]]), 3)).stop.tolist()
    [[2, 3, 3]]
    """
    if not isinstance(mask, RowMask) or not mask.is_known:
        return mask.mT
    start, stop, keys = mask.start[:, None, None], mask.stop[:, None, None], mask.shape[-1]
    index = torch.arange(keys, device=start.device)[:, None]
    extent = extent_by_rows(
        lambda some: (index[some] >= start) & (index[some] < stop), keys, start.shape[0] * start.shape[-1]
    )
    return RowMask(extent.start, extent.stop, start.shape[-1]) if extent.is_contiguous else mask.mT


def _bounds(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First and last-plus-one key of some rows, and whether all between is allowed to all heads alike."""
    keys, bits = mask.shape[-1], mask.view(torch.uint8)  # a view: only numbers have a largest one
    count = bits.sum(-1)
    start = torch.where(count > 0, bits.argmax(-1), 0)
    stop = torch.where(count > 0, keys - bits.flip(-1).argmax(-1), 0)
    contiguous = (stop - start == count).all() & (mask.shape[1] == 1)
    return start.amin(1), stop.amax(1), contiguous
