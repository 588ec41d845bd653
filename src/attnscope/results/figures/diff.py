"""Figures of a comparison of two scans, with their captions."""

import math
from collections.abc import Iterator

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.comparison.diff import same_heads
from attnscope.report.schema import Report
from attnscope.results.figures.panels import MOST_COLUMNS, HeadMap, head_maps, largest, name_point, panel_rows
from attnscope.results.figures.style import MARK, figure_style

panel = "changes.js"  # above the numbers of a head
_NAMED = 3  # heads labelled in each panel
_SHORT = 4  # longest tick labels, in letters, of which three fit side by side
_DIGITS = 15  # at most


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    same = same_heads(report.result)
    signs = f"Orange: {'the statistic rose; blue: it fell' if same else 'higher in the second model; blue: lower'}."
    dots = rings = ""
    if report.result.tested.any():
        dots = " Dots: significant changes (corrected for all heads and statistics); hollow: not significant."
        rings = " Filled points are significant changes, rings are not."
    return {
        "change-maps": (
            "Change of each head" if same else "Difference of each pair of heads",
            signs + " Unit: the standard deviation of all heads of both models." + dots,
        ),
        "before-after": (
            "Before and after" if same else "First and second model",
            f"One point for each {'head' if same else 'pair of heads'}. On the grey line both values are equal.{rings}",
        ),
    }


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    yield "change-maps", grid(report)
    yield "before-after", before_after(report.result)


def grid(report: Report) -> Figure:
    """Draw the size of every change, a panel of layers by heads for each statistic."""
    changes = report.result
    sizes = changes["size"].values
    top = largest(np.abs(sizes))
    reach = float(np.clip(top, 0.5, 4.0))
    label = f"{'Change' if same_heads(changes) else 'Difference'}, standard deviations"
    titles = [str(name).replace("_", " ") for name in changes.statistic.values]
    panels = zip(titles, sizes, changes.changed.astype(float).where(changes.tested).values, strict=True)
    maps = [HeadMap.signed(*one, reach, label) for one in panels]
    return head_maps(maps, changes.layer.values, extend="both" if top > reach else "neither")


@figure_style()
def before_after(changes: xr.Dataset) -> Figure:
    """Draw each statistic of each head in the second model against the first."""
    names = [str(name) for name in changes.statistic.values]
    columns = min(len(names), MOST_COLUMNS)
    size = (max(4.0, columns * 1.75 + 0.9), math.ceil(len(names) / columns) * 1.7 + 0.4)
    figure, panels = panel_rows(len(names), size)
    for number, (axes, name) in enumerate(zip(panels, names, strict=True)):
        part = changes.isel(statistic=number)
        before, after = part.before.values.ravel(), part.after.values.ravel()
        finite = np.isfinite(before) & np.isfinite(after)
        ends = [float(np.min([before[finite], after[finite]])), float(np.max([before[finite], after[finite]]))]
        margin = 0.06 * (ends[1] - ends[0] or 1.0)
        ends = [ends[0] - margin, ends[1] + margin]
        axes.plot(ends, ends, color="0.7", linewidth=0.8, zorder=0)
        filled = (part.changed | ~part.tested).values.ravel()  # a ring is a change that was tested
        for which, fill in ((finite & filled, MARK), (finite & ~filled, "none")):
            axes.scatter(before[which], after[which], s=10, facecolors=fill, edgecolors=MARK, linewidths=0.7)
        _name_some(axes, part, before, after)
        axes.set(xlim=ends, ylim=ends, aspect="equal")
        ticks, labels = _ticks(*ends)
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        units = str(part.units.item())
        axes.set_title(name.replace("_", " ") + ("" if units == "1" else f", {units}"), loc="left", fontsize=7.5)
    figure.supxlabel(str(changes.attrs["before"]))
    figure.supylabel(str(changes.attrs["after"]))
    return figure


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Round numbers between two ends, written in full: a few, or the outermost two if they are long."""
    ticks, labels = _written(low, high, 3)
    if max(map(len, labels)) <= _SHORT:
        return ticks, labels
    ticks, labels = _written(low, high, 6)
    return [ticks[0], ticks[-1]], [labels[0], labels[-1]]


def _written(low: float, high: float, bins: int) -> tuple[list[float], list[str]]:
    ticks = np.array(MaxNLocator(bins, min_n_ticks=2).tick_values(low, high))
    digits = max(0, math.floor(-math.log10(ticks[1] - ticks[0])))
    while np.abs(ticks - ticks.round(digits)).max() > 0.01 * (ticks[1] - ticks[0]) and digits < _DIGITS:
        digits += 1
    inside = [float(tick) for tick in ticks if low <= tick <= high]
    return inside, [f"{tick:.{digits}f}".replace("-", "−") for tick in inside]


def _name_some(axes: Axes, part: xr.Dataset, before: np.ndarray, after: np.ndarray) -> None:
    """Label the heads with the largest significant changes."""
    heads = part.sizes["head"]
    size = np.where(part.changed.values, np.abs(part["size"].values), 0.0).ravel()
    for number in np.argsort(-size)[:_NAMED]:
        if size[number] > 0:
            name, point = f"{part.layer.values[number // heads]}.{number % heads}", (before[number], after[number])
            name_point(axes, name, point, (3, 2))
