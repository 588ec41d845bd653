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
    shares = _shares(result)
    if shares is None:
        return None
    shares = shares.seen()
    return {
        "first": shares.first.tolist(),
        "last": shares.last.tolist(),
        "share": numbers(shares.share.reshape(-1, len(shares.first))),
        "equal": None if shares.equal is None else numbers(shares.equal),
        "whole": shares_by_offset(result, "bins") is not None,
    }


def _shares(result: xr.Dataset) -> OffsetShares | None:
    shares = shares_by_offset(result, "bins")
    return shares_by_offset(result, "band") if shares is None and "profile" not in result else shares


def with_peak(result: xr.Dataset) -> xr.Dataset:
    """The result with a number for each head, to colour the grid by, where it has none of its own.

    Examples
    --------
    >>> profile = xr.DataArray([[[0.2, 0.7, 0.1]]], dims=("layer", "head", "offset"), coords={"offset": [-1, 0, 1]})
    >>> with_peak(xr.Dataset({"profile": profile})).peak_share.item()
    0.2
    """
    shares = _shares(result)
    profile = next((name for name in ("profile", "patch_profile") if name in result), None)
    if shares is not None:
        away = shares.share[..., (shares.first != 0) | (shares.last != 0)]
        said = "Largest share of the weight in one bin of offsets other than 0"
    elif profile is not None:
        offsets = [result[dim] for dim in result[profile].dims if str(dim).endswith("offset")]
        elsewhere = sum(abs(offset) for offset in offsets) > 0
        away = mean_over_texts(result[profile].where(elsewhere))
        away = away.reshape(*away.shape[:2], -1)
        said = "Largest mean weight at one offset other than 0"
    else:
        return result
    largest = np.nan_to_num(away, nan=-np.inf).max(-1, initial=-np.inf)
    values = np.where(np.isfinite(largest), largest, np.nan)
    return result.assign({PEAK: (("layer", "head"), values, {"long_name": said, "units": "share"})})
