"""Labelled arrays put together: parts along a dimension, and layers that differ in their number of heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import xarray as xr


def stacked(
    parts: Iterable[xr.Dataset],
    dim: str,
    labels: Sequence[int] | Sequence[str] | np.ndarray,
    *,
    attrs: Literal["override", "drop_conflicts"] = "override",
) -> xr.Dataset:
    """Put datasets one after the other along a new dimension; what one has less of is NaN.

    Parameters
    ----------
    parts
        With the same variables.
    dim, labels
        Name of the dimension, and its coordinate: one label for each part.
    attrs
        Which attributes of variables stay: those of the first part, or those that agree.

    Examples
    --------
    >>> parts = [xr.Dataset({"weight": ("head", np.ones(n))}, {"head": range(n)}) for n in (2, 1)]
    >>> stacked(parts, "layer", [0, 3]).weight.values.tolist()
    [[1.0, 1.0], [1.0, nan]]
    """
    whole = xr.concat(
        list(parts),
        dim,
        join="outer",
        combine_attrs=attrs,
        data_vars="all",
        coords="different",
        compat="equals",
    )
    return whole.assign_coords({dim: labels})


def padded_heads(rows: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Arrays of layers, which may have other numbers of heads along `axis`, as one with ``layer`` first; NaN beyond.

    Parameters
    ----------
    rows
        Array of each layer.
    axis
        Dimension of the heads.

    Examples
    --------
    >>> padded_heads([np.ones(2), np.ones(1)]).tolist()
    [[1.0, 1.0], [1.0, nan]]
    """
    most = max(row.shape[axis] for row in rows)

    def filled(row: np.ndarray) -> np.ndarray:
        beyond = [(0, 0)] * row.ndim
        beyond[axis] = (0, most - row.shape[axis])
        return np.pad(row, beyond, constant_values=np.nan) if most > row.shape[axis] else row

    return np.stack([filled(row) for row in rows])
