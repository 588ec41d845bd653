"""Where all heads look by offset, in bins that double, beside equal weights."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from attnscope.errors import AttnscopeError
from attnscope.figures.reading import axis_values, layer_labels, noun_of
from attnscope.figures.style import figure_style
from attnscope.statistics import shares_by_offset, unit_of

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_LINES = 40  # rows of which each head is named, and layers that are
_LETTER = 0.066  # inches


def offset_shares(result: xr.Dataset) -> Figure:
    """Draw which share of its weight each head puts in each bin of offsets: a row for each head, layer by layer.

    Bins double away from the token itself and are all drawn alike, so that a window of any length fits and near offsets
    stay apart. Beside it stands what equal weights over all that a token may see put there, layer by layer, on the same
    colours; a scan that did not measure that has one panel. Colours are on a square-root scale.

    Parameters
    ----------
    result
        The result of a scan with ``bin_sum``, else ``offset_sum``, else ``band_sum``, whose offsets are the bins then.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result has none of them.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.scan import offset_shares
    >>> sums = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 4)) * 20
    >>> result = xr.Dataset(
    ...     {"band_sum": (("text", "layer", "head", "offset"), sums), "length": ("text", [20, 20])},
    ...     coords={"offset": np.arange(-2, 3)},
    ... )
    >>> offset_shares(result).axes[0].get_title(loc="left")
    'Each head'
    """
    shares = shares_by_offset(result, "bins")
    whole = shares is not None
    shares = shares if whole else shares_by_offset(result, "band")
    if shares is None:
        raise AttnscopeError(
            "offset_shares needs bin_sum, offset_sum or band_sum, and the length of each text: the result holds "
            f"{', '.join(sorted(map(str, result.data_vars))) or 'nothing'}."
        )
    shares = shares.seen()
    layers, heads, bins = shares.share.shape
    names = [
        _named(first, last) for first, last in zip(shares.first.tolist(), shares.last.tolist(), strict=True)
    ]
    rows = shares.share.reshape(-1, bins)
    panels = [("Each head", rows)]
    if shares.equal is not None:
        panels.append(("Equal weights, by layer", np.repeat(shares.equal, heads, 0)))
    most = max([float(np.nanmax(values, initial=0.0)) for _, values in panels]) or 1.0
    longest = max(map(len, names))
    width = 1.1 + len(panels) * float(np.clip(0.17 * bins, 2.2, 4.4)) + 0.9
    height = 1.5 + _LETTER * longest + float(np.clip(0.14 * layers * heads, 0.8, 6.5))
    count, noun = result.sizes.get("text", 1), noun_of(result)
    said = "bins of offsets that double" if whole else "the offsets of the band"
    with figure_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        image = None
        for axes, (title, values) in zip(grid, panels, strict=True):
            image = _draw(axes, values, names, most, layers)
            axes.set_title(title, loc="left")
        _name_rows(grid[0], layer_labels(result), axis_values(result, "head"))
        if image is not None:
            bar = figure.colorbar(image, ax=grid[-1], pad=0.03, aspect=35)
            bar.set_label("Share of the weight (square-root scale)", fontsize=7)
            bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0))
            bar.outline.set_visible(False)
        figure.supxlabel(f"Offset in {unit_of(result)}, key − query: negative is left", fontsize=8)
        text = f"Share of the weight in {said}, mean over {count} {noun}{'s' * (count != 1)}. "
        text += "A far bin holds more tokens: read it beside equal weights."
        text += " Grey: no such head." * bool(np.isnan(shares.share).any())
        figure.suptitle(fill(text, int(width / _LETTER) - 2), x=0.01, ha="left", fontsize=8)
    return figure


def _named(first: int, last: int) -> str:
    """Offsets of a bin, the one nearest to 0 first.

    Examples
    --------
    >>> _named(-16, -9), _named(0, 0), _named(1025, 2048)
    ('−9…−16', '0', '1,025…2,048')
    """
    near, far = (last, first) if last < 0 else (first, last)
    text = f"{near:,}" if near == far else f"{near:,}…{far:,}"
    return text.replace("-", "−")


def _draw(axes: Axes, values: np.ndarray, names: list[str], most: float, layers: int) -> AxesImage:
    """A panel: rows are heads, and a line parts layers."""
    image = axes.imshow(
        values,
        cmap=colormaps["Blues"].with_extremes(bad="0.88"),
        norm=PowerNorm(0.5, 0.0, most),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_xticks(range(len(names)), names, rotation=90)
    for layer in range(1, layers):
        axes.axhline(layer * len(values) / layers - 0.5, color="0.55", linewidth=0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _name_rows(axes: Axes, layers: list[str], heads: list[int]) -> None:
    """Name every head where there is room, else every layer, or some of them, in its middle."""
    if len(layers) * len(heads) <= _LINES:
        names = [f"{layer}.{head}" for layer in layers for head in heads]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylabel("Layer.head")
        return
    every = -(-len(layers) // _LINES)
    middles = [(layer + 0.5) * len(heads) - 0.5 for layer in range(0, len(layers), every)]
    axes.set_yticks(middles, layers[::every])
    axes.set_ylabel("Layer, and in it its heads from the first down")
