"""Weights over rows and columns of patches, one row of queries at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.attention import AttentionCall, attend_in_full

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.statistics.images._grid import Grid


@torch.no_grad()
def measure_patches(call: AttentionCall, grid: Grid, band: int) -> dict[str, Tensor]:
    r"""Where the weights of the patches' rows lie, in patches.

    With `A` the weights, a patch in row r and column c and its neighbour `dr` rows below and `dc` columns to the right,

    .. math:: \mathrm{profile}(dr, dc) = \mathrm{mean}_{(r, c)} A_{(r, c), (r + dr, c + dc)}

    over the patches that have this neighbour. Distances are Euclidean, between the patches' middles, and means over the
    weight that lies on patches (Dosovitskiy et al. 2021, figure 7, in pixels). No more than the weights of one row of
    patches is in memory: O(columns) rows of the matrix of each head.

    Parameters
    ----------
    call
        Call of self-attention over the tokens of `grid`.
    grid
        Which tokens are patches.
    band
        Largest offset of the profile in rows and in columns.

    Returns
    -------
    dict of str to Tensor
        Float64. ``patch_profile (batch, head, row_offset, column_offset)``, NaN where no patch has the neighbour;
        ``(batch, head)``: ``same_row``, ``same_column`` (the patch itself counts), ``class_token``, ``registers``, the
        shares of a patch's weight there; ``patch_distance``, ``row_offset_mean``, ``column_offset_mean``, in patches.

    Examples
    --------
    >>> from attnscope.statistics.images import Grid
    >>> x = torch.zeros(1, 1, 5, 4)
    >>> statistics = measure_patches(AttentionCall(x, x, x, scale=1.0), Grid(2, 2, 1, 5, 0), band=1)
    >>> round(statistics["same_row"].item(), 6), round(statistics["patch_profile"][0, 0, 1, 0].item(), 6)
    (0.4, 0.2)
    """
    rows, columns = grid.rows, grid.columns
    sizes, kind = call.query.shape[:2], torch.promote_types(call.query.dtype, torch.float32)
    along, across = (torch.arange(size, device=call.query.device, dtype=kind) for size in (rows, columns))
    aside = across - across[:, None]  # (query, key): columns to the right
    places = torch.zeros(*sizes, 2 * band + 1, columns, columns, dtype=kind, device=call.query.device)
    names = ("on_patches", "same_row", "same_column", "class_token", "registers", "distance", "down", "right")
    sums = {name: torch.zeros(sizes, dtype=torch.float64, device=call.query.device) for name in names}
    for row in range(rows):
        weights = _weights_of_row(call, grid, row)
        patches = weights[..., grid.patches].unflatten(-1, (rows, columns))  # (..., query, row, column)
        below = along - row
        by_row, by_column = patches.sum((-1, -3)), patches.sum(-2)
        sums["on_patches"] += by_row.sum(-1)
        sums["same_row"] += by_row[..., row]
        sums["same_column"] += by_column.diagonal(dim1=-2, dim2=-1).sum(-1)
        distance = (below[:, None] ** 2 + aside[:, None] ** 2).sqrt()
        sums["distance"] += patches.flatten(2) @ distance.flatten()
        sums["down"] += by_row @ below
        sums["right"] += by_column.flatten(2) @ aside.flatten()
        sums["registers"] += weights[..., grid.registers].sum((-1, -2))
        if grid.class_token is not None:
            sums["class_token"] += weights[..., grid.class_token].sum(-1)
        first, last = max(0, row - band), min(rows, row + band + 1)
        at = slice(first - row + band, last - row + band)
        places[:, :, at] += patches[..., first:last, :].movedim(-2, 2)
    count, held = rows * columns, torch.where(sums["on_patches"] > 0, sums["on_patches"], torch.nan)
    return {
        "patch_profile": _profile(places.double(), rows, band),
        **{name: sums[name] / count for name in ("same_row", "same_column", "class_token", "registers")},
        "patch_distance": sums["distance"] / held,
        "row_offset_mean": sums["down"] / held,
        "column_offset_mean": sums["right"] / held,
    }


def equal_call(call: AttentionCall) -> AttentionCall:
    """A call of one head whose weights are equal over all that each query of `call` may see (its first head's mask).

    Texts share one where nothing is forbidden.

    Examples
    --------
    >>> x = torch.randn(3, 2, 5, 4)
    >>> attend_in_full(equal_call(AttentionCall(x, x, x, scale=1.0)))[1].shape
    torch.Size([1, 1, 5, 5])
    """
    bias = None
    if call.bias is not None:
        forbidden = call.bias[:, :1] <= torch.finfo(call.bias.dtype).min / 2
        if bool(forbidden.any()):
            bias = torch.zeros_like(call.bias[:, :1]).masked_fill(forbidden, -torch.inf)
    mask = None if call.mask is None else call.mask[:, :1]
    batch = max([1, *(len(tensor) for tensor in (bias, mask) if tensor is not None)])

    def nothing(tokens: int) -> Tensor:
        return call.query.new_zeros(batch, 1, tokens, 1)

    key = nothing(call.key.shape[2])
    return AttentionCall(nothing(call.query.shape[2]), key, key, 1.0, call.causal, mask, bias)


def _weights_of_row(call: AttentionCall, grid: Grid, row: int) -> Tensor:
    """Weights of the patches in one row, ``(batch, head, column, key)``."""
    first = grid.start + row * grid.columns
    part = slice(first, first + grid.columns)
    cut = {
        name: None if (tensor := getattr(call, name)) is None else tensor[..., part, :]
        for name in ("mask", "bias")
    }
    return attend_in_full(replace(call, query=call.query[..., part, :], **cut))[1]


def _profile(places: Tensor, rows: int, band: int) -> Tensor:
    """Mean over the patches that have a neighbour, from sums over rows: ``(..., row offset, query, key)``."""
    columns = places.shape[-1]
    profile = places.new_full((*places.shape[:2], 2 * band + 1, 2 * band + 1), torch.nan)
    for index in range(2 * band + 1):
        pairs = rows - abs(index - band)
        for column in range(-min(band, columns - 1), min(band, columns - 1) + 1):
            if pairs > 0:
                total = places[:, :, index].diagonal(offset=column, dim1=-2, dim2=-1).sum(-1)
                profile[:, :, index, column + band] = total / (pairs * (columns - abs(column)))
    return profile
