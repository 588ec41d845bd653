"""How far statistics from some rows may lie from those of all: intervals, from what the drawn rows tell."""

from __future__ import annotations

import xarray as xr

from attnscope._documents import long_tail, without_skewness
from attnscope._numbers import significant
from attnscope._returned import reads
from attnscope.statistics._catalogue import EFFECTIVE, ERROR, FREEDOM, SKEWNESS, wording

_FEW = (
    128  # effective rows; with fewer, a spread is taken to be skewed: a row that was not drawn may look far
)
_SPREAD_SKEW = 0.5  # at least, of the estimate from one window
FEWEST = 8  # effective rows: measured, intervals from fewer hold less often than they say
_OF_HEADS = 2  # dimensions: layer, head


def intervals_note(results: xr.Dataset) -> str:
    """How wide the intervals are, in words, and of how many heads none is told."""
    bounds = {str(name): each for name, each in intervals(results).items() if each.ndim == 1 + _OF_HEADS}
    widths = {name: each.sel(bound="high") - each.sel(bound="low") for name, each in bounds.items()}
    said = [
        f"{name} {significant(float(width.max()), 2)} {wording(name).units}"
        for name, width in widths.items()
        if width.notnull().any()
    ]
    untold = [
        f"{name} of {number} heads" for name, width in widths.items() if (number := int(width.isnull().sum()))
    ]
    note = f" Widest 95% intervals of a head's mean over these windows, from end to end: {', '.join(said)}."
    none = f" No interval is told where fewer than {FEWEST} rows carry an estimate: {', '.join(untold)}."
    return (note if said else "") + (none if untold else "")


@reads("scan")
def intervals(results: xr.Dataset) -> xr.Dataset:
    """95% intervals of the means over the windows that were read, by the rows drawn alone.

    That is how far the scan of all rows of the same windows may lie away. How far other texts may lie away is another
    question, which their spread answers.

    Variances and third moments of windows are added up, degrees of freedom by the formula of Welch and Satterthwaite.
    The interval is that of Student's t with the skewness of the estimate taken out (Hall 1992). With fewer than 128
    effective rows that of ``offset_spread`` reaches further up, as rows that look far are seldom drawn.

    Parameters
    ----------
    results
        What `scan` returns with `rows`: statistics, each with its ``_error``, ``_freedom``, ``_skewness`` and
        ``_effective_rows``.

    Returns
    -------
    xr.Dataset
        The statistics' own dimensions without ``text``, and ``bound``, "low" and "high", in their own units. NaN where
        an estimate rests on fewer than 8 effective rows (Kish 1965): a row that was not drawn may then hold as much as
        all that were, and nothing in the sample tells.

    Examples
    --------
    >>> import xarray as xr
    >>> ends = {"": 1.0, "_error": 0.05, "_freedom": 60.0, "_skewness": 0.0, "_effective_rows": 40.0}
    >>> results = xr.Dataset({f"entropy{end}": (("text", "head"), [[value]]) for end, value in ends.items()})
    >>> intervals(results).entropy.values.round(3).tolist()
    [[0.9, 1.1]]
    """
    names = [str(name).removesuffix(EFFECTIVE) for name in results.data_vars if str(name).endswith(EFFECTIVE)]
    if not names:
        return xr.Dataset()
    from scipy import stats  # only where rows were drawn: it takes half a second

    told: dict[str, xr.DataArray] = {}
    for name in names:
        estimate = results[name]
        variances = results[f"{name}{ERROR}"] ** 2
        variance = variances.sum("text")
        spread = (variances**2 / results[f"{name}{FREEDOM}"]).sum("text")
        freedom = (variance**2 / spread.where(spread > 0)).fillna(1.0)
        third = (results[f"{name}{SKEWNESS}"] * variances**1.5).sum("text")
        skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
        times = freedom.copy(data=stats.t.ppf(0.975, freedom.values))
        windows = estimate.notnull().sum("text")
        error = variance**0.5 / windows.where(windows > 0)
        mean, effective = estimate.mean("text"), _effective(results, name)
        low, high = (mean - error * without_skewness(sign * times, skewness) for sign in (1.0, -1.0))
        if name == "offset_spread":
            least = results[f"{name}{SKEWNESS}"].clip(min=_SPREAD_SKEW)
            third = (least * variances**1.5).sum("text")
            skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
            farther = mean + error * long_tail(times, skewness)
            high = xr.where((effective < _FEW) & (farther > high), farther, high)
        ends = [end.where(effective >= FEWEST) for end in (low, high)]
        told[name] = xr.concat(ends, xr.IndexVariable("bound", ["low", "high"])).transpose(..., "bound")
    return xr.Dataset(told)


def _effective(results: xr.Dataset, name: str) -> xr.DataArray:
    """As how many rows with parts alike those of all windows are; infinite where there is nothing to know."""
    rows = results[f"{name}{EFFECTIVE}"]
    parts = abs(results[name])
    squares = (parts**2 / rows.where(rows > 0)).sum("text")
    together = parts.sum("text") ** 2 / squares.where(squares > 0)
    return together.where(squares > 0, rows.min("text"))
