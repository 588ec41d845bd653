"""`attnscope.contrasts`."""

from typing import TYPE_CHECKING, Annotated

from attnscope.options import Dataset, Share
from attnscope.verbs import verb

if TYPE_CHECKING:
    import xarray as xr


@verb()
def contrasts(
    results: Annotated[
        Dataset,
        "Compare the texts of this scan: ``attnscope.scan(..., by=FIELD)``, or any scan with a coordinate ``by "
        "(text)``.",
    ],
    *,
    level: Annotated[Share, "Bound the false discovery rate."] = 0.05,
) -> "xr.Dataset":
    """Compare the texts of each value with all others, head by head.

    Means are over texts. Intervals are Welch's (1947), with standard errors over documents, because windows of one
    document are not independent. Each :math:`p` is from 1,000 permutations of the values among documents, or among the
    windows of each document if most documents have several values; it is that of the largest studentised difference
    over all heads, statistics and values (Westfall and Young 1993). So the false discovery rate is at most `level`.

    Returns
    -------
    xarray.Dataset
        Over ``statistic, by, layer, head``: ``mean`` of the texts with the value, ``others`` (mean of all others),
        ``difference``, ``low`` and ``high`` (95% interval), ``p``, ``differs``, ``tested``, and ``size``, the
        difference in standard deviations of all heads on both sides. Each chosen offset (``weight_at_-64``) and each
        share of blocks counts as a statistic. With fewer than 6 documents on one side there is no test: ``low``,
        ``high`` and ``p`` are NaN, ``differs`` and ``tested`` False. With two values only the first is tested. Over
        ``by``: ``texts``, ``documents``, ``length`` (mean tokens of a window). In a scan in pools (``pool=``) each pool
        counts as a text and a document, and ``windows`` counts the windows.

        A statistic with the same numbers as an earlier one is counted once; the attribute ``repeated`` lists these.

    Raises
    ------
    AttnscopeError
        If the scan has no such coordinate or only one value of it, or no statistic with one number for each head.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> rng = np.random.default_rng(0)
    >>> entropy = rng.normal(2.0, 0.1, (40, 1, 3))
    >>> entropy[:20, 0, 1] += 0.5
    >>> scan = xr.Dataset(
    ...     {"entropy": (("window", "layer", "head"), entropy)},
    ...     {"by": ("window", ["en"] * 20 + ["ja"] * 20), "source": ("window", np.arange(40))},
    ... )
    >>> contrasts(scan).differs.sel(statistic="entropy", by="en").values.tolist()
    [[False, True, False]]
    """
    from attnscope.comparison.contrasts import contrasts as contrasts_of

    return contrasts_of(results, level=level)
