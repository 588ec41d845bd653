"""Every change of every head: maps of their size, and each statistic after against before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.comparison.diff import same_heads
from attnscope.results.figures.panels import HeadMap, head_maps
from attnscope.results.figures.style import MARK, figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from attnscope.results.schema import Report

_COLUMNS = 4
_NAMED = 3  # heads named in each panel
_SHORT = 4  # letters of tick labels of which three stand beside each other
_DIGITS = 15  # at most

#: By name of the figure: its title, how to read it, and what is so only where changes are tested against 0.
_READINGS = {
    "change-maps": (
        "How much each head changed",
        "Orange: the statistic rose; blue: it fell; in standard deviations of all heads of both models.",
        "A dot: a significant change (corrected for all heads and statistics).",
    ),
    "before-after": (
        "Before and after",
        "One point a head. On the grey line nothing changed.",
        "Filled points are significant changes, rings are not.",
    ),
}

#: The same where nothing shows pairs to be the same heads.
_READINGS_OF_PAIRS = {
    "change-maps": (
        "How far pairs of heads are apart",
        "Orange: higher in the second model; blue: lower; in standard deviations of all heads of both models.",
        _READINGS["change-maps"][2],
    ),
    "before-after": (
        "One model beside the other",
        "One point a pair of heads. On the grey line both have the same.",
        _READINGS["before-after"][2],
    ),
}


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """By name of each figure: its title, and how to read it."""
    readings = _READINGS if same_heads(report.result) else _READINGS_OF_PAIRS
    tested = bool(report.result.tested.any())  # that nothing was tested is in the headline
    return {
        name: (title, f"{reading} {significance}" if tested else reading)
        for name, (title, reading, significance) in readings.items()
    }


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure, with its name."""
    yield "change-maps", grid(report)
    yield "before-after", before_after(report.result)


def grid(report: Report) -> Figure:
    """Draw the size of every change, a panel of layers by heads for each statistic."""
    changes = report.result
    sizes = changes["size"].values
    cell = float(np.clip(1.9 / max(sizes.shape[1:]), 0.06, 0.3))  # inches
    top = float(np.nanmax(np.abs(sizes), initial=0.0)) or 1.0
    reach = float(np.clip(top, 0.5, 4.0))
    label = f"{'Change' if same_heads(changes) else 'Difference'}, standard deviations"
    titles = [str(name).replace("_", " ") for name in changes.statistic.values]
    shown = zip(titles, sizes, changes.changed.values, strict=True)
    with figure_style():
        maps = [HeadMap.signed(*one, reach, label) for one in shown]
        return head_maps(maps, changes.layer.values, cell=cell, extend="both" if top > reach else "neither")


def before_after(changes: xr.Dataset) -> Figure:
    """Draw each statistic of each head in the second model against the first."""
    names = [str(name) for name in changes.statistic.values]
    with figure_style():
        figure, panels = _panels(names, (1.75, 1.7))
        for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
            part = changes.isel(statistic=number)
            before, after = part.before.values.ravel(), part.after.values.ravel()
            known = np.isfinite(before) & np.isfinite(after)
            ends = [float(np.min([before[known], after[known]])), float(np.max([before[known], after[known]]))]
            room = 0.06 * (ends[1] - ends[0] or 1.0)
            ends = [ends[0] - room, ends[1] + room]
            axes.plot(ends, ends, color="0.7", linewidth=0.8, zorder=0)
            told = (part.changed | ~part.tested).values.ravel()  # rings are for what was tested
            for which, fill in ((known & told, MARK), (known & ~told, "none")):
                axes.scatter(before[which], after[which], s=10, facecolors=fill, edgecolors=MARK, linewidths=0.7)
            _name_some(axes, part, before, after)
            axes.set(xlim=ends, ylim=ends, aspect="equal")
            ticks, labels = _ticks(*ends)
            axes.set_xticks(ticks, labels)
            axes.set_yticks(ticks, labels)
            units = str(part.units.item())
            axes.set_title(name.replace("_", " ") + ("" if units == "1" else f", {units}"), loc="left", fontsize=7.5)
        figure.supxlabel(str(changes.attrs["before"]), fontsize=8)
        figure.supylabel(str(changes.attrs["after"]), fontsize=8)
    return figure


def _panels(names: list[str], size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    columns = min(len(names), _COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(max(4.0, columns * size[0] + 0.9), rows * size[1] + 0.4), layout="constrained")
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axes in grid[len(names) :]:
        axes.remove()
    return figure, list(grid[: len(names)])


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round numbers between two ends, written out in full: a few, or where they are long the two outermost."""
    places, labels = _written(low, high, 3)
    if max(map(len, labels)) <= _SHORT:
        return places, labels
    places, labels = _written(low, high, 6)
    return [places[0], places[-1]], [labels[0], labels[-1]]


def _written(low: float, high: float, bins: int) -> tuple[list[float], list[str]]:
    places = np.array(MaxNLocator(bins, min_n_ticks=2).tick_values(low, high))
    digits = max(0, math.floor(-math.log10(places[1] - places[0])))
    while np.abs(places - places.round(digits)).max() > 0.01 * (places[1] - places[0]) and digits < _DIGITS:
        digits += 1
    inside = [float(place) for place in places if low <= place <= high]
    return inside, [f"{place:.{digits}f}".replace("-", "−") for place in inside]


def _name_some(axes: Axes, part: xr.Dataset, before: np.ndarray, after: np.ndarray) -> None:
    """Names of the heads that changed most, of those told from 0."""
    heads = part.sizes["head"]
    size = np.where(part.changed.values, np.abs(part["size"].values), 0.0).ravel()
    for place in np.argsort(-size)[:_NAMED]:
        if size[place] > 0:
            layer = part.layer.values[place // heads]
            axes.annotate(
                f"{layer}.{place % heads}",
                (before[place], after[place]),
                xytext=(3, 2),
                textcoords="offset points",
                fontsize=5.5,
            )
