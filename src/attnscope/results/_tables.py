"""Labelled arrays as tidy tables: a row for each place, a column for each coordinate and each variable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import xarray as xr

AT_ONCE = 1 << 19  # rows of a table that are in memory together


def tables_of(dataset: xr.Dataset) -> dict[tuple[str, ...], list[str]]:
    """The variables that make up one table, by the dimensions that they share.

    Examples
    --------
    >>> tables_of(xr.Dataset({"a": ("text", [1]), "b": (("text", "head"), [[1]]), "c": ("text", [2])}))
    {('text',): ['a', 'c'], ('text', 'head'): ['b']}
    """
    by_dims: dict[frozenset[str], list[str]] = {}
    for name, values in dataset.data_vars.items():
        by_dims.setdefault(frozenset(map(str, values.dims)), []).append(str(name))
    return {tuple(map(str, dataset[names[0]].dims)): names for names in by_dims.values()}


def rows_of(
    dataset: xr.Dataset, dims: tuple[str, ...], names: Sequence[str], *, at_once: int = AT_ONCE
) -> Iterator[pd.DataFrame]:
    """The rows of one table, some at a time: in the order of the array's entries, its last dimension first.

    Parameters
    ----------
    dataset
        Where the variables are.
    dims, names
        One entry of `tables_of`.
    at_once
        Most rows of one part; a part has one entry of the first dimension at least.

    Returns
    -------
    iterator of pandas.DataFrame
        With a column for each dimension (its coordinate, else numbers from 0), for each other coordinate along these
        dimensions by name, and for each variable. Every place has its row, also one where nothing was measured: its
        numbers are NaN. Strings of coordinates are categories.

    Examples
    --------
    >>> heads = xr.Dataset({"weight": (("layer", "head"), [[0.5, 0.25], [0.75, np.nan]])}, {"layer": [0, 3]})
    >>> print(pd.concat(rows_of(heads, ("layer", "head"), ["weight"])).to_string(index=False))
     layer  head  weight
         0     0    0.50
         0     1    0.25
         3     0    0.75
         3     1     NaN
    """
    table = dataset[list(names)].transpose(*dims, ...)
    if not dims:
        yield pd.DataFrame({name: [table[name].item()] for name in names})
        return
    rows_of_each = math.prod(table.sizes[dim] for dim in dims[1:])
    step = max(1, at_once // max(1, rows_of_each))
    for first in range(0, max(1, table.sizes[dims[0]]), step):
        yield _rows(table.isel({dims[0]: slice(first, first + step)}), dims, names, first)


def _rows(part: xr.Dataset, dims: tuple[str, ...], names: Sequence[str], first: int) -> pd.DataFrame:
    sizes = tuple(part.sizes[dim] for dim in dims)

    def spread(values: np.ndarray, along: Sequence[str]) -> np.ndarray | pd.Categorical:
        """One entry for each row, of a coordinate along some of the dimensions."""
        if values.dtype.kind in "OUT":  # strings are kept once each
            codes, categories = pd.factorize(values.astype(object).ravel())
            return pd.Categorical.from_codes(np.asarray(spread(codes, along)), categories=list(categories))
        shape = [size if dim in along else 1 for dim, size in zip(dims, sizes, strict=True)]
        return np.broadcast_to(values.reshape(shape), sizes).ravel()

    columns: dict[str, np.ndarray | pd.Categorical] = {}
    for dim in dims:
        start = first if dim == dims[0] else 0
        numbers = np.arange(start, start + part.sizes[dim])
        columns[dim] = spread(part[dim].to_numpy() if dim in part.coords else numbers, [dim])
    for name, values in sorted(part.coords.items(), key=lambda item: str(item[0])):
        if name not in dims:
            own = [dim for dim in dims if dim in values.dims]
            columns[str(name)] = spread(values.transpose(*own).to_numpy(), own)
    for name in names:
        columns[name] = part[name].to_numpy().ravel()
    return pd.DataFrame(columns)
