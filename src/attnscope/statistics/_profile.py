"""Profiles from sums: the mean weight at an offset is not kept on a disk beside what it is made of."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope.statistics._catalogue import wording
from attnscope.statistics._ranking import queries


def rows_of(results: xr.Dataset) -> xr.DataArray:
    """Queries of each window in each layer, ``(text, layer)``."""
    rows = queries(results)
    if "layer" not in rows.dims:
        rows = rows.expand_dims(layer=results.sizes["layer"])
    return rows.transpose("text", "layer").drop_vars([*rows.coords]).astype(float)


def pairs_of(results: xr.Dataset) -> xr.DataArray:
    """How many (query, key) pairs each window has in each layer at each offset, ``(text, layer, offset)``.

    Examples
    --------
    >>> window = xr.Dataset(
    ...     {"length": ("text", [4])}, {"layer": [0], "layer_kind": ("layer", ["self"]), "offset": [-1, 0, 1, 5]}
    ... )
    >>> pairs_of(window).values.tolist()
    [[[3.0, 4.0, 3.0, 0.0]]]
    """
    if "pairs" in results:
        return results.pairs.transpose("text", "layer", "offset")
    rows, offset = rows_of(results), results.offset.values
    kinds = results.layer_kind.values if "layer_kind" in results.coords else ["self"]
    own = np.array([kind == "causal" for kind in kinds])
    keys = np.where(own, rows.values, results.length.values[:, None])[..., None]
    # query i has a key at offset t for max(0, -t) <= i < min(queries, keys - t)
    pairs = (np.minimum(rows.values[..., None], keys - offset) - np.maximum(0, -offset)).clip(0)
    return xr.DataArray(pairs.astype(float), dims=("text", "layer", "offset"))


def profile_of(results: xr.Dataset) -> xr.DataArray:
    """Mean weight at each offset, ``(text, layer, head, offset)``; NaN where no pair of tokens has it."""
    dims = ("text", "layer", "head", "offset")
    pairs = pairs_of(results).values[:, :, None]
    sums = results.band_sum.transpose(*dims).values
    profile = np.divide(sums, pairs, out=np.full(sums.shape, np.nan), where=pairs > 0)
    return xr.DataArray(profile, dims=dims, attrs=wording("profile").attributes)


def with_profile(results: xr.Dataset) -> xr.Dataset:
    """Give the profile back to what `without_profile` took it from."""
    return results if "profile" in results else results.assign(profile=profile_of(results))


def without_profile(results: xr.Dataset) -> xr.Dataset:
    """Leave the profile out where `profile_of` gives it back bit for bit."""
    if "profile" not in results or "band_sum" not in results:
        return results
    there = results.profile.transpose("text", "layer", "head", "offset").values
    same = there.dtype == np.float64 and np.array_equal(there, profile_of(results).values, equal_nan=True)
    return results.drop_vars("profile") if same else results
