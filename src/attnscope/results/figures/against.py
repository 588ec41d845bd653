"""One score of heads against another, such as a role against an effect: points with intervals, correlation by layer."""

import numpy as np
import xarray as xr
from matplotlib.ticker import MaxNLocator

from attnscope.results.figures.panels import with_interval
from attnscope.results.figures.style import Figure, figure_style
from attnscope.statistics.agreement import related
from attnscope.support.errors import AttnscopeError

_SCORES = ("score", "effect", "above", "excess", "part", "change")


def scores_of(result: xr.Dataset | xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of each head and the ends of its interval, ``(layer, head)``; the mean itself where there is none."""
    if isinstance(result, xr.DataArray):
        result = result.rename("score").to_dataset()
    name = next((one for one in _SCORES if one in result and set(result[one].dims) == {"layer", "head"}), None)
    if name is None:
        raise AttnscopeError(
            f"found {', '.join(map(str, result.data_vars)) or 'nothing'}; expected one of {', '.join(_SCORES)} over "
            "layer and head alone: choose a role or an ablation by .sel()"
        )
    result = result.transpose("layer", "head", ...)
    if f"{name}_low" not in result and "low" in result and name == "score":  # as roles name them
        result = result.rename({"low": "score_low", "high": "score_high"})
    return with_interval(result, name)


@figure_style()
def against(
    first: xr.Dataset | xr.DataArray, second: xr.Dataset | xr.DataArray, *, names: tuple[str, str] = ("first", "second")
) -> Figure:
    """Draw one score of every head against another, with 95% intervals, and their rank correlation in each layer.

    Parameters
    ----------
    first, second
        Scores ``(layer, head)``: arrays, or results with one role or ablation chosen, which have intervals, such as
        ``roles.sel(role="induction")`` and ``effects["heads"].to_dataset().sel(ablation="mean")``.
    names
        Names of the axes.

    Returns
    -------
    matplotlib.figure.Figure
        The title has the correlation over all heads, with p by exchanging heads within their layers; the panel on the
        right that of each layer, filled if p < 0.05 corrected for all layers. See
        `attnscope.statistics.agreement.related`.

    Raises
    ------
    AttnscopeError
        If a result has no score over layer and head alone, or both have other shapes.

    Examples
    --------
    >>> import attnscope
    >>> roles = attnscope.roles(limit=4, window=32, controls="none")
    >>> figure = against(roles.sel(role="previous_token"), roles.sel(role="next_token"), names=("previous", "next"))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['next', 'layer', 'layer']
    """
    x, y = scores_of(first), scores_of(second)
    if x[0].shape != y[0].shape:
        raise AttnscopeError(f"found scores of {x[0].shape} and {y[0].shape} heads; expected those of one model")
    correlation = related(x[0], y[0])
    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    points, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    layers = np.broadcast_to(np.arange(len(x[0]))[:, None], x[0].shape)
    ends = [np.abs(np.stack([one[1], one[2]]) - one[0]).reshape(2, -1) for one in (x, y)]
    points.errorbar(x[0].ravel(), y[0].ravel(), *ends[::-1], fmt="none", ecolor="0.8", elinewidth=0.6, zorder=0)
    dots = points.scatter(x[0], y[0], c=layers, s=12, cmap="viridis")
    figure.colorbar(dots, ax=points, label="layer", ticks=MaxNLocator(integer=True))
    points.set(xlabel=names[0], ylabel=names[1])
    title = f"ρ = {correlation.whole:.2f}, p = {correlation.p:.3g} within layers".replace("-", "−")
    points.set_title(title, loc="left", fontsize=8)
    significant = correlation.p_by_layer < 0.05  # noqa: PLR2004 corrected
    numbers = np.arange(len(correlation.by_layer))
    for which, colour in ((significant, "C0"), (~significant, "none")):
        bars.scatter(correlation.by_layer[which], numbers[which], s=16, facecolors=colour, edgecolors="C0")
    bars.axvline(0, color="0.7", linewidth=0.6)
    bars.set(xlabel="ρ in the layer", ylabel="layer", xlim=(-1.05, 1.05), yticks=numbers)
    bars.invert_yaxis()
    return figure
