"""Every role of every head: maps of the scores, and the scores beside those of weights that know nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnscope.detection.role import ROLES
from attnscope.results.figures.style import MARK, figure_style

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.results.schema import Report

_COLUMNS = 4

#: By name of the figure: its title, and how to read it.
_READINGS = {
    "role-maps": (
        "Scores of all heads",
        (
            "One panel a role, one cell a head, all on one scale. A dot: the score reaches the threshold of the role's "
            "source. Grey: the role is not defined for this layer."
        ),
    ),
    "beside-controls": (
        "Next to untrained and shuffled weights",
        (
            "One point a head: of the model, and of the same model with its weights drawn anew or put in a random "
            "order. Grey tick: what equal weights give. Dashed red: the threshold, where one is published."
        ),
    ),
}


def captions(_: Report) -> dict[str, tuple[str, str]]:
    """By name of each figure: its title, and how to read it."""
    return _READINGS


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure, with its name."""
    yield "role-maps", grid(report)
    yield "beside-controls", with_controls(report.result)


def grid(report: Report) -> Figure:
    """The scores of all heads."""
    return role_maps(report.result)


def role_maps(result: xr.Dataset) -> Figure:
    """Draw the score of every head, a panel of layers by heads for each role."""
    layers, heads = result.sizes["layer"], result.sizes["head"]
    cell = float(np.clip(1.9 / max(layers, heads), 0.06, 0.3))  # inches
    size = (max(1.5, heads * cell + 0.5), max(0.9, layers * cell + 0.65))
    count = result.sizes["role"]
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    with figure_style():
        figure = Figure(figsize=(max(3.0, columns * size[0] + 0.6), rows * size[1] + 0.4), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid[count:]:
            axes.remove()
        for number, axes in enumerate(grid[:count]):
            part = result.isel(role=number)
            score = part["score"].values
            axes.set_facecolor("0.85")
            axes.imshow(score, cmap="Blues", norm=Normalize(0.0, 1.0), aspect="equal")
            dots = np.argwhere(ROLES[str(part.role.item())].reached(score, part["equal"].values))
            size_of = float(np.clip(18 * cell, 2.5, 5))
            axes.plot(dots[:, 1], dots[:, 0], "o", color=MARK, markersize=size_of, mec="white", mew=0.6)
            axes.set_title(str(part.title.item()), loc="left")
            axes.set_xticks(range(0, heads, max(1, heads // 4)))
            steps = max(1, layers // 4)
            axes.set_yticks(range(0, layers, steps), [str(layer) for layer in result.layer.values[::steps]])
            axes.spines[:].set(visible=True, color="0.8", linewidth=0.6)
            if number % columns == 0:
                axes.set_ylabel("Layer")
            if number >= count - columns:
                axes.set_xlabel("Head")
        panels = list(grid[:count])
        bar = figure.colorbar(panels[0].images[0], ax=panels, shrink=0.8, pad=0.02)
        bar.set_label("Score")
        bar.outline.set_visible(False)
    return figure


def with_controls(result: xr.Dataset) -> Figure:
    """Draw the score of every head beside those of each control, a row for each role."""
    controls = [str(name) for name in result.control.values] if "control" in result.coords else []
    rows = ["model", *controls]
    colours = dict(zip(rows, ("#0072B2", "#E69F00", "#009E73"), strict=False))
    count = result.sizes["role"]
    with figure_style():
        figure = Figure(figsize=(6.2, 0.5 + 0.15 * (len(rows) + 1) * count), layout="constrained")
        axes = figure.subplots()
        for number in range(count):
            part = result.isel(role=number)
            for line, name in enumerate(rows):
                values = part["score"] if name == "model" else part["control_score"].sel(control=name)
                at = number + (line - (len(rows) - 1) / 2) * 0.24
                scores = values.values[np.isfinite(values.values)]
                axes.scatter(
                    scores,
                    np.full(len(scores), at),
                    s=9,
                    color=colours[name],
                    alpha=0.55,
                    linewidths=0,
                    label=name if number == 0 else None,
                )
            equal = float(np.nanmax(part["equal"].values))
            axes.plot([equal, equal], [number - 0.4, number + 0.4], color="0.5", linewidth=1.0)
            threshold = float(part["threshold"])
            if np.isfinite(threshold):
                axes.plot([threshold, threshold], [number - 0.4, number + 0.4], color=MARK, linewidth=1.0, ls="--")
        axes.set_yticks(range(count), [str(title) for title in result.title.values])
        axes.set(ylim=(count - 0.5, -0.5), xlim=(-0.02, 1.02), xlabel="Score")
        for edge in range(1, count):
            axes.axhline(edge - 0.5, color="0.9", linewidth=0.6)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(rows), frameon=False)
    return figure
