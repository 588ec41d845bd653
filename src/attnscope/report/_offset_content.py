"""What a page says of where each head looks by offset, in bins that double."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.figures.reading import mean_over_texts
from attnscope.report._embed import numbers
from attnscope.statistics import shares_by_offset

if TYPE_CHECKING:
    from attnscope.statistics import OffsetShares

PEAK = "peak_share"


def offset_data(result: xr.Dataset) -> dict[str, Any] | None:
    """Shares of the weight in each bin of offsets, head by head, and what equal weights give, layer by layer.

    Of a scan that has the band alone, its offsets, unless the profile shows them already: ``whole`` says whether the
    bins hold all weight.
    """
    found = _shares(result)
    if found is None:
        return None
    found = found.seen()
    return {
        "first": found.first.tolist(),
        "last": found.last.tolist(),
        "share": numbers(found.share.reshape(-1, len(found.first))),
        "equal": None if found.equal is None else numbers(found.equal),
        "whole": shares_by_offset(result, "bins") is not None,
    }


def _shares(result: xr.Dataset) -> OffsetShares | None:
    found = shares_by_offset(result, "bins")
    return shares_by_offset(result, "band") if found is None and "profile" not in result else found


def with_peak(result: xr.Dataset) -> xr.Dataset:
    """The result with a number for each head, to colour the grid by, where it has none of its own.

    Examples
    --------
    >>> profile = xr.DataArray([[[0.2, 0.7, 0.1]]], dims=("layer", "head", "offset"), coords={"offset": [-1, 0, 1]})
    >>> with_peak(xr.Dataset({"profile": profile})).peak_share.item()
    0.2
    """
    name, said = "profile", "Largest mean weight at one offset other than 0"
    if (found := _shares(result)) is not None:
        away = found.share[..., (found.first != 0) | (found.last != 0)]
        said = "Largest share of the weight in one bin of offsets other than 0"
    elif (name := next((one for one in ("profile", "patch_profile") if one in result), "")) != "":
        offsets = [result[dim] for dim in result[name].dims if str(dim).endswith("offset")]
        elsewhere = sum(abs(offset) for offset in offsets) > 0
        away = mean_over_texts(result[name].where(elsewhere))
        away = away.reshape(*away.shape[:2], -1)
    else:
        return result
    largest = np.nan_to_num(away, nan=-np.inf).max(-1, initial=-np.inf)
    values = np.where(np.isfinite(largest), largest, np.nan)
    return result.assign({PEAK: (("layer", "head"), values, {"long_name": said, "units": "share"})})
