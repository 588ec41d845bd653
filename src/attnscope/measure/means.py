"""Means over the texts of a scan, and the rows behind them."""

import xarray as xr


def text_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over texts, NaN if no text has a value; pooled results stay as they are."""
    return values.mean("window", skipna=True) if "window" in values.dims else values


def queries(results: xr.Dataset) -> xr.DataArray:
    """Rows of each map, ``(window)`` or ``(window, layer)``: of a decoder with a target, the target's tokens."""
    if "queries" in results:
        return results.queries.transpose("window", "layer")
    if "target_length" not in results:
        return results.length
    return xr.where(results.layer_kind == "self", results.length, results.target_length).transpose("window", "layer")
