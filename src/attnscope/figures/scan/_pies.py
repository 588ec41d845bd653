"""Label shares of all heads as a grid of pies."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge

from attnscope.figures.palette import cluster_colours
from attnscope.figures.reading import axis_values, label_shares, layer_labels, noun_of, require
from attnscope.figures.style import figure_style, looked_at, name_heads
from attnscope.figures.text import with_minus
from attnscope.statistics import unit_of

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

_LEFT, _RIGHT, _BOTTOM, _TOP, _GAP = 0.7, 0.28, 0.5, 0.35, 0.6  # inches
_CURVE_WIDTH, _CURVE_GAP, _CURVE_TEXT, _PITCH = 1.2, 0.4, 0.32, 0.66  # inches
_GRID, _INK = 3.4, "0.15"  # inches; the letters keep a readable size where the figure is as wide as a page


def label_pies(result: xr.Dataset) -> Figure:
    """Draw the share of texts that each head spends in each cluster, one pie per head.

    A pie of one colour is a head that behaves alike on every text. The legend shows the centroid of each
    cluster over offsets; colours follow the clusters' names. A head without labels is an empty ring.

    Parameters
    ----------
    result
        With ``label (text, layer, head)``, ``centroid (cluster, offset)`` and the names ``cluster``.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds no labels.

    References
    ----------
    Yamamoto and Matsuzaki (NLP 2023), figure 1.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures import label_pies
    >>> result = xr.Dataset(
    ...     {
    ...         "label": (("text", "layer", "head"), np.array([[[0, 1]], [[0, 0]]])),
    ...         "centroid": (("cluster", "offset"), np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3]])),
    ...     },
    ...     coords={"cluster": ["previous", "mixed"], "offset": [-1, 0, 1]},
    ... )
    >>> figure = label_pies(result)
    >>> len(figure.axes)  # the grid of pies and two centroids
    3
    """
    require(result, ("label", "cluster", "centroid"), purpose="label_pies")
    shares = label_shares(result)  # (layer, head, cluster)
    count, noun = result.sizes["text"], noun_of(result)
    names = [str(name) for name in result["cluster"].values]
    colours = cluster_colours(names)
    layers, heads, _ = shares.shape

    cell = float(np.clip(_GRID / max(layers, heads), 0.22, 0.6))  # inches
    grid_width, grid_height = heads * cell, layers * cell
    legend_columns = 1 if len(names) * _PITCH <= max(grid_height, 4.0) else 2
    legend_rows = math.ceil(len(names) / legend_columns)
    pitch = float(np.clip(grid_height / legend_rows, _PITCH, 0.9))
    legend_width = legend_columns * (_CURVE_WIDTH + _CURVE_GAP) - _CURVE_GAP
    width = _LEFT + grid_width + _GAP + legend_width + _RIGHT
    height = _TOP + max(grid_height, legend_rows * pitch) + _BOTTOM

    with figure_style():
        figure = Figure(figsize=(width, height))
        grid = figure.add_axes(
            (_LEFT / width, 1 - (_TOP + grid_height) / height, grid_width / width, grid_height / height)
        )
        _draw_pies(grid, shares, colours)
        name_heads(grid, layer_labels(result), axis_values(result, "head"))
        grid.set_title(f"Kinds over {count} {noun}{'s' * (count != 1)}", loc="left")

        left = _LEFT + grid_width + _GAP
        curves = result["centroid"].transpose("cluster", "offset")
        shown = looked_at(curves["offset"].values, curves.values)
        units = str(result["centroid"].attrs.get("units", ""))
        heading = f"Mean profiles ({units})" if units else "Mean profiles"
        figure.text(left / width, 1 - (_TOP - 0.08) / height, heading, va="bottom", parse_math=False)
        for index, (name, colour) in enumerate(zip(names, colours, strict=True)):
            column, row = divmod(index, legend_rows)
            x, y = left + column * (_CURVE_WIDTH + _CURVE_GAP), height - _TOP - (row + 1) * pitch + 0.2
            axes = figure.add_axes(
                (x / width, y / height, _CURVE_WIDTH / width, (pitch - _CURVE_TEXT) / height)
            )
            _draw_centroid(axes, result["centroid"].isel(cluster=index), name, colour, shown, noun)
            if row == legend_rows - 1 or index == len(names) - 1:
                axes.set_xlabel(f"Offset (key − query), {unit_of(result)}", fontsize=7)
    return figure


def _draw_pies(axes: Axes, shares: np.ndarray, colours: list[str]) -> None:
    layers, heads, clusters = shares.shape
    wedges: list[list[Wedge]] = [[] for _ in range(clusters)]
    for layer, head in np.ndindex(layers, heads):
        if np.isnan(shares[layer, head]).any():
            axes.add_patch(Circle((head, layer), 0.3, fill=False, edgecolor="0.8", linestyle=":"))
            continue
        edges = 90 - 360 * np.concatenate([[0.0], np.cumsum(shares[layer, head])])  # clockwise from the top
        for cluster, (start, stop) in enumerate(pairwise(edges)):
            if start > stop:
                wedges[cluster].append(Wedge((head, layer), 0.42, stop, start))
    for patches, colour in zip(wedges, colours, strict=True):
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor="white", linewidth=0.3))
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(layers - 0.5, -0.5), aspect="equal")


def _draw_centroid(
    axes: Axes, centroid: xr.DataArray, name: str, colour: str, shown: tuple[int, int], noun: str
) -> None:
    offsets, values = centroid["offset"].values, centroid.values
    axes.fill_between(offsets, values, color=colour, linewidth=0)
    axes.plot(offsets, values, color=_INK, linewidth=0.6)
    top = float(np.nanmax(values, initial=0.0))
    if top > 0:
        axes.axvline(0, color="0.5", linewidth=0.6, linestyle=":")
    else:
        axes.text(0.5, 0.45, f"no {noun}", color="0.5", ha="center", transform=axes.transAxes, fontsize=6)
    axes.set(xlim=shown, ylim=(0, 1.08 * (top or 1.0)))
    axes.set_xticks(sorted({shown[0], 0, shown[1]}))
    ticks = {0.0: "0", top: f"{top:.3g}"}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(labelsize=6, length=2, pad=1.5)
    axes.set_title(
        with_minus(name), loc="left", color=_INK, fontweight="bold", fontsize=7, pad=2, parse_math=False
    )
