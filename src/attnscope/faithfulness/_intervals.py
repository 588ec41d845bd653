"""Means over texts, with intervals that draw whole documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope._documents import DRAWS, interval


@typed
def with_intervals(
    effects: xr.Dataset, names: Sequence[str], documents: Sequence[str], *, draws: int = DRAWS, seed: int = 0
) -> xr.Dataset:
    """Add to each variable its mean over texts and its 95% interval over documents.

    Texts where a value is NaN do not count. Of fewer than 6 documents there is no interval: NaN.

    Parameters
    ----------
    effects
        Variables along ``text`` and other dimensions.
    names
        Names of those that get an interval.
    documents
        The document that each text is from.
    draws, seed
        Number of draws and seed of the bootstrap.

    Examples
    --------
    >>> values = xr.Dataset({"tvd": (("text", "head"), np.tile([[0.1, 0.0], [0.3, 0.0]], (4, 1)), {"units": "share"})})
    >>> intervals = with_intervals(values, ["tvd"], list("abcdefgh"))
    >>> [intervals[f"tvd_{end}"].values.round(3).tolist() for end in ("mean", "low", "high")]
    [[0.2, 0.0], [0.125, 0.0], [0.275, 0.0]]
    """
    added: dict[str, xr.DataArray] = {}
    for name in names:
        values = effects[name].transpose("text", ...)
        known = np.isfinite(values.values)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(known, values.values, 0.0).sum(0) / known.sum(0)
        low, high = interval(values.values, documents, draws=draws, seed=seed)
        like = values.isel(text=0, drop=True)
        for end, part in (("mean", mean), ("low", low), ("high", high)):
            said = {"mean": "mean over texts", "low": "lower end", "high": "upper end"}[end]
            attrs = values.attrs | {"long_name": f"{values.attrs.get('long_name', name)}, {said}"}
            added[f"{name}_{end}"] = like.copy(data=part).assign_attrs(attrs)
    return effects.assign(added)
