"""Which heads of a vision encoder a reader asks for first, and at which neighbour each looks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope._returned import reads
from attnscope.statistics._kinds import LEAST_SHARE, LOCAL
from attnscope.statistics._means import text_mean
from attnscope.statistics._questions import Question, RankedHead, answered, beyond, sink_like
from attnscope.statistics.images._offsets import offset_name


def patch_shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Share of all weight of patches at each offset: the profile times the share of patches that have the neighbour.

    Parameters
    ----------
    results
        From `attnscope.statistics.images.scan_images`.
    prefix
        Start of the variables' names: ``"equal_"`` for equal weights.

    Examples
    --------
    >>> profile = xr.DataArray(np.ones((3, 3)), {"row_offset": [-1, 0, 1], "column_offset": [-1, 0, 1]})
    >>> results = xr.Dataset({"patch_profile": profile, "rows": 2, "columns": 4})
    >>> patch_shares(results).values.tolist()
    [[0.375, 0.5, 0.375], [0.75, 1.0, 0.75], [0.375, 0.5, 0.375]]
    """
    rows, columns = (
        (results[size] - abs(results[offset])).clip(0) / results[size]
        for size, offset in (("rows", "row_offset"), ("columns", "column_offset"))
    )
    return results[f"{prefix}patch_profile"].fillna(0.0) * rows * columns


@reads("scan")
def patch_peaks(results: xr.Dataset) -> xr.Dataset:
    """At which neighbour each head looks most, by means over images.

    Returns
    -------
    xarray.Dataset
        ``peak_row_offset``, ``peak_column_offset`` (patches), ``peak_weight`` (share of all weight of patches)
        ``(layer, head)``; NaN where patches are not known.

    Examples
    --------
    >>> dims = ("text", "layer", "head", "row_offset", "column_offset")
    >>> profile = np.zeros((1, 1, 1, 3, 3))
    >>> profile[..., 1, 0] = 0.8  # one to the left
    >>> sizes = {"rows": ("text", [4]), "columns": ("text", [4])}
    >>> offsets = {"row_offset": [-1, 0, 1], "column_offset": [-1, 0, 1]}
    >>> peaks = patch_peaks(xr.Dataset({"patch_profile": (dims, profile)} | sizes, offsets))
    >>> peaks.peak_row_offset.item(), peaks.peak_column_offset.item(), round(peaks.peak_weight.item(), 6)
    (0.0, -1.0, 0.6)
    """
    shares = text_mean(patch_shares(results)).transpose("layer", "head", "row_offset", "column_offset")
    known = (
        text_mean(results["patch_profile"])
        .notnull()
        .any(("row_offset", "column_offset"))
        .transpose("layer", "head")
    )
    stacked = shares.stack(place=("row_offset", "column_offset"))
    best = stacked.argmax("place").values
    peaks = {
        "peak_row_offset": (stacked.row_offset.values[best], "patches"),
        "peak_column_offset": (stacked.column_offset.values[best], "patches"),
        "peak_weight": (stacked.max("place").values, "share"),
    }
    return xr.Dataset(
        {
            name: (("layer", "head"), np.where(known.values, values.astype(float), np.nan), {"units": units})
            for name, (values, units) in peaks.items()
        }
    )


@reads("scan")
def rank_patch_heads(results: xr.Dataset, top: int = 5) -> dict[str, list[RankedHead]]:
    """The most positional, most local and most sink-like heads of a vision encoder, by means over images.

    ``positional``: largest share of a patch's weight on one neighbour, at least 0.1. ``local``: most weight in the
    3 x 3 patches about a patch, at least 0.5. ``sink-like``: most weight on the class token or on registers, whichever
    is more, at least 0.1. The first two are at least twice what equal weights give, and more than chance; of the last
    the odds are six times those of equal weights, which is no test (see `attnscope.statistics.rank_heads`).

    Parameters
    ----------
    results
        From `attnscope.statistics.images.scan_images`.
    top
        Number of heads for each question at most.

    Examples
    --------
    >>> offsets = {"row_offset": [-1, 0, 1], "column_offset": [-1, 0, 1]}
    >>> dims = ("text", "layer", "head", "row_offset", "column_offset")
    >>> profile = np.zeros((1, 1, 1, 3, 3))
    >>> profile[..., 1, 0] = 0.8  # one to the left
    >>> sizes = {"rows": ("text", [4]), "columns": ("text", [4])}
    >>> equal = {"equal_patch_profile": (("text", "layer", *dims[3:]), np.full((1, 1, 3, 3), 1 / 16))}
    >>> ranking = rank_patch_heads(xr.Dataset({"patch_profile": (dims, profile)} | equal | sizes, offsets))
    >>> ranking["positional"]
    [{'layer': 0, 'head': 0, 'value': 0.6, 'label': '', 'offset': 'left'}]
    """
    shares, equal = (text_mean(patch_shares(results, prefix)) for prefix in ("", "equal_"))
    away = shares.where((shares.row_offset != 0) | (shares.column_offset != 0))
    told = (results.rows * results.columns).sum()
    away = beyond(away, equal, LEAST_SHARE, told)
    near = {"row_offset": abs(shares.row_offset) <= 1, "column_offset": abs(shares.column_offset) <= 1}
    about, of_equal = (grid.isel(near).sum(("row_offset", "column_offset")) for grid in (shares, equal))

    def neighbour(layer: int, head: int) -> str:
        at = away.isel(layer=layer, head=head).fillna(-1.0).stack(place=("row_offset", "column_offset"))
        best = at.isel(place=int(at.argmax("place")))
        return offset_name(int(best.row_offset), int(best.column_offset))

    questions = [
        Question("positional", away.max(("row_offset", "column_offset")), neighbour),
        Question("local", beyond(about, of_equal, LOCAL, told)),
        *sink_like(results, ("class_token", "registers")),
    ]
    return answered(questions, results, top)
