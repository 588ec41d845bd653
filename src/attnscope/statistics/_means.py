"""Means over texts, of what has texts."""

from __future__ import annotations

import xarray as xr


def text_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over texts, NaN where no text has a value; what has no texts, as a pooled result, stays.

    Examples
    --------
    >>> values = xr.DataArray([[1.0, float("nan")], [3.0, float("nan")]], dims=("text", "head"))
    >>> text_mean(values).values.tolist(), text_mean(values[0]).values.tolist()
    ([2.0, nan], [1.0, nan])
    """
    return values.mean("text", skipna=True) if "text" in values.dims else values
