"""All heads at a glance: how much position explains, and whether weights and scores find the same offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from attnscope.explanation.analyses.verdict import COLOURS, SAME, WEIGHT
from attnscope.results.figures.panels import ALONE, MEASURED, colour_bar, heat, legend_above, tokens, write_cells
from attnscope.results.figures.selection import NothingToShowError, axis_values, layer_labels, require
from attnscope.results.figures.style import figure_style, name_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WAYS = {
    "offset_of_weights": "Largest mean weight",
    "offset_of_spectrum": "Cross-spectrum",
    "offset_of_correlation": "Cross-correlation",
}


def verdict_grid(verdict: xr.Dataset) -> Figure:
    """Draw one cell for each head: its colour is what position explains, its number the offset it looks at."""
    colour = next((name for name in COLOURS if name in verdict), [*COLOURS][-1])
    require(verdict, ("offset_of_weights", "agree", colour), purpose="verdict_grid")
    if not bool(np.isfinite(verdict[colour]).any()):
        raise NothingToShowError("verdict_grid needs a head with a value, but found none.")
    agree = _agreeing(verdict)
    there = _is_there(verdict)
    grey = bool((there & np.isnan(verdict[colour].transpose("layer", "head").values)).any())
    title = "Number: offset preferred" + "; grey: none" * grey + "\nFrame: its scores agree" * bool(agree.any())
    return _grid(verdict, verdict[colour], there, agree, title, COLOURS[colour])


def _is_there(verdict: xr.Dataset) -> np.ndarray:
    """Which heads there are, ``(layer, head)``: layers may have fewer than others."""
    known = verdict[WEIGHT.name] if WEIGHT.name in verdict else xr.ones_like(verdict["offset_of_weights"])
    return np.isfinite(known.transpose("layer", "head").values)


def _agreeing(verdict: xr.Dataset) -> np.ndarray:
    """Heads whose readings agree, ``(layer, head)``: those that are counted."""
    return verdict["agree"].transpose("layer", "head").values.astype(bool)


def _grid(
    result: xr.Dataset, colour: xr.DataArray, there: np.ndarray, agree: np.ndarray, title: str, label: str
) -> Figure:
    values = colour.transpose("layer", "head").values.astype(float)
    offset = result["offset_of_weights"].transpose("layer", "head").values.astype(float)
    layers, heads = values.shape
    cell = float(np.clip(5.0 / max(layers, heads), 0.3, 0.6))
    with figure_style():
        size = (max(heads * cell + 1.7, 4.2), layers * cell + 1.15)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        image = heat(axes, values)
        for (layer, head), value in np.ndenumerate(values):
            if not np.isfinite(value):
                hatch, face, edge = (None, "0.88", "0.88") if there[layer, head] else ("////", "0.96", "0.75")
                place = [head - 0.5, head + 0.5], layer - 0.5, layer + 0.5
                axes.fill_between(*place, hatch=hatch, fc=face, ec=edge, lw=0 if hatch is None else 1)
            if agree[layer, head]:
                axes.add_patch(_frame(layer, head))
        write_cells(image, lambda at: tokens(at, 0), offset, 6.5)
        name_heads(axes, layer_labels(result), axis_values(result, "head"))
        axes.set_title(title, loc="left")
        colour_bar(figure, image, axes, label, shrink=0.9, aspect=18)
    return figure


def _frame(layer: int, head: int) -> Rectangle:
    return Rectangle((head - 0.42, layer - 0.42), 0.84, 0.84, fill=False, edgecolor="#D55E00", linewidth=1.3)


def offset_agreement(verdict: xr.Dataset) -> Figure:
    """Draw two readings of the scores against the weights and against each other, one disc for each head."""
    require(verdict, (*_WAYS, "agree", WEIGHT.name), purpose="offset_agreement")
    shown = has_offsets(verdict)
    if not shown.any():
        raise NothingToShowError("offset_agreement needs a head with all three offsets, but found none.")
    agree = _agreeing(verdict)[shown]
    weight = verdict[WEIGHT.name].transpose("layer", "head").values.astype(float)[shown]
    ways = {name: verdict[name].transpose("layer", "head").values.astype(float)[shown] for name in _WAYS}
    reach = 1.08 * max(4.0, float(np.nanmax(np.abs(np.stack(list(ways.values()))), initial=0.0)))
    with figure_style():
        figure = Figure(figsize=(7.2, 2.75), layout="constrained")
        order = list(_WAYS)
        for index, (across, up) in enumerate(((0, 1), (0, 2), (1, 2))):
            axes = figure.add_subplot(1, 3, index + 1)
            _scatter(axes, ways[order[across]], ways[order[up]], weight, agree, reach)
            axes.set_xlabel(f"{_WAYS[order[across]]}, tokens")
            axes.set_ylabel(f"{_WAYS[order[up]]}, tokens")
        legend_above(figure, figure.axes[0], 3)
    return figure


def has_offsets(verdict: xr.Dataset) -> np.ndarray:
    """Heads that prefer an offset, and of whose scores both readings find one, ``(layer, head)``."""
    known = verdict[list(_WAYS)].to_dataarray().notnull().all("variable")
    return known.transpose("layer", "head").values


def peak_agreement(correlations: xr.Dataset) -> Figure:
    """Draw how well the scores' profile along offsets predicts that of the weights, by layer."""
    require(correlations, ("weight_argmax", "score_argmax", "spearman"), purpose="peak_agreement")
    rank = correlations["spearman"].transpose("layer", "head").values.astype(float)
    share, by_accident = zip(*map(_equal_offsets, *_argmaxes(correlations)), strict=True)
    labels = layer_labels(correlations)
    at = np.arange(len(labels))
    with figure_style():
        figure = Figure(figsize=(6.6, 2.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.bar(at, share, width=0.7, color=MEASURED)
        for layer, value in zip(at, share, strict=True):
            left.annotate(
                f"{100 * value:.0f}", (layer, value), (0, 1), textcoords="offset points", ha="center", fontsize=6
            )
        left.hlines(by_accident, at - 0.35, at + 0.35, color=ALONE, linewidth=1.2, linestyle="--")
        left.set_ylim(0, 1.1)
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        left.set_title("Heads with their peaks at one offset", loc="left")
        right.axhline(0, color="0.6", linewidth=0.6)
        right.plot(np.repeat(at, rank.shape[1]), rank.ravel(), "o", color=MEASURED, alpha=0.45, ms=4, mew=0)
        middle = [np.median(head[np.isfinite(head)]) if np.isfinite(head).any() else np.nan for head in rank]
        right.hlines(middle, at - 0.3, at + 0.3, color=ALONE, linewidth=1.5)
        right.set_ylim(-1.05, 1.05)
        right.set_title("Rank correlation of the two profiles", loc="left")
        for axes in (left, right):
            axes.set_xticks(at, labels)
            axes.set(xlim=(-0.6, len(labels) - 0.4), xlabel="Layer")
    return figure


def _argmaxes(correlations: xr.Dataset) -> list[np.ndarray]:
    """Offsets of the largest weight and of the highest scores, ``(layer, head)`` each; NaN where there is no head."""
    names = ("weight_argmax", "score_argmax")
    return [correlations[name].transpose("layer", "head").values.astype(float) for name in names]


def _equal_offsets(weights: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Share of heads for which the two are equal, and of pairs of two heads (NaN where there is one)."""
    known = np.isfinite(weights) & np.isfinite(scores)
    equal = weights[known, None] == scores[known]
    pairs = ~np.eye(len(equal), dtype=bool)
    return float(np.diag(equal).mean()), float(equal[pairs].mean()) if pairs.any() else float("nan")


def _scatter(axes: Axes, x: np.ndarray, y: np.ndarray, weight: np.ndarray, agree: np.ndarray, reach: float) -> None:
    ends = np.array([-reach, reach])
    axes.fill_between(ends, ends - SAME, ends + SAME, color="0.9", linewidth=0, label="Within half a token")
    axes.plot(ends, ends, color="0.6", linewidth=0.6)
    for chosen, colour, label in (
        (~agree, "0.45", "Not positional, or not the same"),
        (agree, MEASURED, "Positional, all three the same"),
    ):
        axes.scatter(
            x[chosen], y[chosen], s=8 + 60 * weight[chosen], color=colour, alpha=0.55, linewidths=0, label=label
        )
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
