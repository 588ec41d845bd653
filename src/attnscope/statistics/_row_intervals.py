"""How far statistics from some rows may lie from those of all: intervals, from their standard errors."""

from __future__ import annotations

import xarray as xr

from attnscope.statistics._catalogue import ERROR, FREEDOM, wording

_OF_HEADS = 2  # dimensions: layer, head


def intervals_note(results: xr.Dataset) -> str:
    """How wide the intervals are, in words."""
    widest = {
        name: float(width.max()) for name, width in intervals(results).items() if width.ndim == _OF_HEADS
    }
    said = [f"{name} ± {width:.2g} {wording(str(name)).units}" for name, width in widest.items()]
    return f" Widest 95% intervals of a head's mean over these windows: {', '.join(said)}." if said else ""


def intervals(results: xr.Dataset) -> xr.Dataset:
    """Half widths of 95% intervals of the means over the windows that were read, by the rows drawn alone.

    That is how far the scan of all rows of the same windows may lie away; degrees of freedom are added up by the
    formula of Welch and Satterthwaite. How far other texts may lie away is another question, which their spread
    answers.

    Examples
    --------
    >>> import xarray as xr
    >>> error = {"entropy_error": (("text", "head"), [[0.03], [0.04]])}
    >>> results = xr.Dataset(error | {"entropy_freedom": (("text", "head"), [[60.0], [60.0]])})
    >>> round(intervals(results).entropy.item(), 3)
    0.05
    """
    from scipy import stats  # only where rows were drawn: it takes half a second

    half: dict[str, xr.DataArray] = {}
    for name in [str(name).removesuffix(ERROR) for name in results.data_vars if str(name).endswith(ERROR)]:
        variances = results[f"{name}{ERROR}"] ** 2
        variance = variances.sum("text")
        spread = (variances**2 / results[f"{name}{FREEDOM}"]).sum("text")
        freedom = (variance**2 / spread.where(spread > 0)).fillna(1.0)
        times = freedom.copy(data=stats.t.ppf(0.975, freedom.values))
        half[name] = times * variance**0.5 / results.sizes["text"]
    return xr.Dataset(half)
