"""Heat maps of the weight of groups of tokens on each other, beside what places alone and equal weights give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope._group_pairs import MeanGroupWeights
from attnscope.figures.reading import axis_values, check_heads, require
from attnscope.figures.style import figure_style, name_columns
from attnscope.figures.text import drawable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_DARK = 0.6  # from which weight a number is written in white
_MOST = 8  # groups whose numbers fit into the cells


def group_maps(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw how much the queries of each group look at the keys of each other, head by head.

    Left the head, in the middle a head that has its weight at each offset and on the first token whatever stands there,
    right equal weights. Grey: no text has both groups.

    Parameters
    ----------
    result
        A scan with groups.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the scan has no groups, or there is no such head.

    Examples
    --------
    >>> import attnscope
    >>> results = attnscope.scan(limit=2, groups="kinds", statistics="entropy")
    >>> [axes.get_title() for axes in group_maps(results, [(2, 1)]).axes[:3]]
    ['Head 2.1', 'Its places alone', 'Equal weights']
    """
    require(result, ("group_weight", "place_group_weight", "equal_group_weight"), purpose="group_maps")
    pairs = check_heads(result, heads)
    means = MeanGroupWeights.of(result)
    kept = means.present
    names = [drawable(str(name)) for name in result.group_query.values[kept]]
    side = max(1.4, 0.3 * len(names))  # inches
    wide = 0.06 * max(map(len, names))
    layers, columns = axis_values(result, "layer"), axis_values(result, "head")
    with figure_style():
        figure = Figure(
            figsize=(3 * side + wide + 1.1, len(pairs) * (side + 0.3) + wide + 0.3), layout="constrained"
        )
        grid = np.reshape(figure.subplots(len(pairs), 3, sharex=True, sharey=True), (-1, 3))
        image = None
        for row, (layer, head) in zip(grid, pairs, strict=True):
            titles = (f"Head {layer}.{head}", "Its places alone", "Equal weights")
            shown = (means.weight, means.places, means.equal)
            for axes, title, values in zip(row, titles, shown, strict=True):
                own = values[layers.index(layer), columns.index(head)][np.ix_(kept, kept)]
                image = _draw(axes, own, names)
                axes.set_title(title)
            row[0].set_ylabel("Queries")
        for axes in grid[-1]:
            axes.set_xlabel("Keys")
        if image is not None:
            bar = figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.8, pad=0.02)
            bar.set_label("Mean weight")
            bar.outline.set_visible(False)
    return figure


def _draw(axes: Axes, values: np.ndarray, names: list[str]) -> AxesImage:
    axes.set_facecolor("0.88")
    image = axes.imshow(values, cmap="Blues", vmin=0.0, vmax=1.0)
    name_columns(axes, range(len(names)), names)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (query, key), value in np.ndenumerate(values):
        if np.isfinite(value) and len(names) <= _MOST:
            colour = "white" if value > _DARK else "black"
            axes.text(key, query, f"{value:.2f}", ha="center", va="center", fontsize=6, color=colour)
    return image
