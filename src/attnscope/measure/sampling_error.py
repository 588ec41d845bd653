"""The error of a scan from sampling rows of attention."""

from __future__ import annotations

import scipy
import xarray as xr

from attnscope.measure.quantities import EFFECTIVE, ERROR, FREEDOM, SKEWNESS, wording
from attnscope.report.reads import reads
from attnscope.statistics.intervals import long_tail, without_skewness
from attnscope.support.numbers import significant

_FEW = 128  # effective rows; with fewer, a spread counts as skewed: a row that was not drawn may attend far
_SPREAD_SKEW = 0.5  # at least, of the estimate from one window
FEWEST = 8  # effective rows: measured, intervals from fewer have too little coverage
_OF_HEADS = 2  # dimensions: layer, head


def intervals_note(results: xr.Dataset) -> str:
    """A note with the widths of the intervals and the number of heads without one."""
    bounds = {str(name): each for name, each in intervals(results).items() if each.ndim == 1 + _OF_HEADS}
    widths = {name: each.sel(bound="high") - each.sel(bound="low") for name, each in bounds.items()}
    finite = {name: width for name, width in widths.items() if width.notnull().any()}
    widest = [f"{name} {significant(float(width.max()), 2)} {wording(name).units}" for name, width in finite.items()]
    missing = [f"{name} of {number} heads" for name, width in widths.items() if (number := int(width.isnull().sum()))]
    note = f" Widest 95% intervals of a head's mean over these windows: {', '.join(widest)}."
    none = f" No interval, with fewer than {FEWEST} effective rows: {', '.join(missing)}."
    return (note if widest else "") + (none if missing else "")


@reads("scan")
def intervals(results: xr.Dataset) -> xr.Dataset:
    """95% intervals of the means over these windows, for the error from sampling rows.

    They cover a scan of all rows of the same windows. For the variation between texts, use the spread over texts.

    Variances and third moments of windows are summed, degrees of freedom by the Welch-Satterthwaite formula. The
    interval is that of Student's t, corrected for skewness (Hall 1992). With fewer than 128 effective rows that of
    ``offset_spread`` reaches further up, as rows that attend far are seldom drawn.

    Parameters
    ----------
    results
        Result of `scan` with `rows`: statistics with their ``_error``, ``_freedom``, ``_skewness`` and
        ``_effective_rows``.

    Returns
    -------
    xr.Dataset
        Dimensions of the statistics without ``window``, and ``bound`` ("low" and "high"), in their own units. NaN with
        fewer than 8 effective rows (Kish 1965), where one row that was not drawn may matter as much as all others.

    Examples
    --------
    >>> import xarray as xr
    >>> ends = {"": 1.0, "_error": 0.05, "_freedom": 60.0, "_skewness": 0.0, "_effective_rows": 40.0}
    >>> results = xr.Dataset({f"entropy{end}": (("window", "head"), [[value]]) for end, value in ends.items()})
    >>> intervals(results).entropy.values.round(3).tolist()
    [[0.9, 1.1]]
    """
    names = [str(name).removesuffix(EFFECTIVE) for name in results.data_vars if str(name).endswith(EFFECTIVE)]
    if not names:
        return xr.Dataset()
    ends_of: dict[str, xr.DataArray] = {}
    for name in names:
        estimate = results[name]
        variances = results[f"{name}{ERROR}"] ** 2
        variance = variances.sum("window")
        spread = (variances**2 / results[f"{name}{FREEDOM}"]).sum("window")
        freedom = (variance**2 / spread.where(spread > 0)).fillna(1.0)
        third = (results[f"{name}{SKEWNESS}"] * variances**1.5).sum("window")
        skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
        times = freedom.copy(data=scipy.special.stdtrit(freedom.values, 0.975))
        windows = estimate.notnull().sum("window")
        error = variance**0.5 / windows.where(windows > 0)
        mean, parts, rows = estimate.mean("window"), abs(estimate), results[f"{name}{EFFECTIVE}"]
        squares = (parts**2 / rows.where(rows > 0)).sum("window")
        effective = (parts.sum("window") ** 2 / squares.where(squares > 0)).where(squares > 0, rows.min("window"))
        low, high = (mean - error * without_skewness(sign * times, skewness) for sign in (1.0, -1.0))
        if name == "offset_spread":
            third = (results[f"{name}{SKEWNESS}"].clip(min=_SPREAD_SKEW) * variances**1.5).sum("window")
            skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
            farther = mean + error * long_tail(times, skewness)
            high = xr.where((effective < _FEW) & (farther > high), farther, high)
        ends = [end.where(effective >= FEWEST) for end in (low, high)]
        ends_of[name] = xr.concat(ends, xr.IndexVariable("bound", ["low", "high"])).transpose(..., "bound")
    return xr.Dataset(ends_of)
