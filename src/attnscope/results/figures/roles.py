"""Figures of roles: maps of all scores, and the scores next to untrained and shuffled controls."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from attnscope.detection.report import controls_of
from attnscope.detection.role import ROLES
from attnscope.report.schema import Report, value_of
from attnscope.results.figures.panels import HeadMap, head_maps
from attnscope.results.figures.style import MARK, Figure, figure_style

first: tuple[str, ...] = ()
panel = "card.js"  # on the page above the numbers of a head
#: Title and caption of each figure, by name.
captions = {
    "role-maps": (
        "Scores of all heads",
        (
            "One panel for each role, one cell for each head, all on one scale. Dots: the score reaches the published "
            "threshold. Grey: the role is not defined for this layer."
        ),
    ),
    "beside-controls": (
        "Next to untrained and shuffled weights",
        (
            "One point for each head of the model, and of the same model with random and with shuffled weights. Grey: "
            "the score of uniform attention. Dashed red: the threshold, if any."
        ),
    ),
}


def panel_data(report: Report) -> dict[str, Any]:
    """Roles with their thresholds, the controls, the roles that each head reaches, and its best example."""
    result = report.result
    roles: list[dict[str, Any]] = []
    reached: dict[str, list[str]] = {}
    for name in map(str, result.role.values):
        part = result.sel(role=name)
        if name.startswith("kept_"):  # the panel has the caches by themselves
            continue
        needed = {"threshold": value_of(part.threshold.item()), "more": ROLES[name].more}
        roles.append({"role": name, "title": str(part.title.item()), **needed})
        for layer, head in np.argwhere(ROLES[name].reached(part["score"].values, part["equal"].values)).tolist():
            reached.setdefault(f"{result.layer.values[layer]}.{head}", []).append(name)
    examples = {
        f"{result.layer.values[layer]}.{head}": json.loads(text)
        for (layer, head), text in (np.ndenumerate(result.example.values) if "example" in result else ())
        if text
    }
    return {"table": "heads", "roles": roles, "controls": controls_of(result), "reached": reached, "examples": examples}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    yield "role-maps", grid(report)
    yield "beside-controls", with_controls(report.result)


def grid(report: Report) -> Figure:
    """Draw the score of every head, a panel of layers by heads for each role."""
    result = report.result
    maps: list[HeadMap] = []
    for number in range(result.sizes["role"]):
        part = result.isel(role=number)
        score = part["score"].values
        marked = ROLES[str(part.role.item())].reached(score, part["equal"].values)
        maps.append(HeadMap(str(part.title.item()), score, marked, "Blues", label="Score"))
    return head_maps(maps, result.layer.values, mark=MARK)


@figure_style()
def with_controls(result: xr.Dataset) -> Figure:
    """Draw the scores of all heads next to those of each control, a row for each role.

    Parameters
    ----------
    result
        Result of `attnscope.roles`.
    """
    rows = ["model", *([str(name) for name in result.control.values] if "control" in result.coords else [])]
    colours = dict(zip(rows, ("#0072B2", "#E69F00", "#009E73"), strict=False))
    count = result.sizes["role"]
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
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(rows))
    return figure
