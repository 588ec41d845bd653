"""The figures of patching, all at once, and how each is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope.intervention.patch_findings import name_of, recovered_of
from attnscope.intervention.verdicts import ESTIMATORS
from attnscope.results.figures.panels import HeadMap, estimate_panels, head_maps, interval_rows
from attnscope.results.figures.selection import LISTED, captions_of, rank_caption
from attnscope.results.figures.style import RIGHT, drawable, figure_style, name_columns

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from attnscope.results.schema import Report

_DOT = "A dot: a significant effect (corrected for all heads or positions)."

#: By name of the figure: its title, how to read it, and what is so only where effects are tested against 0.
_READINGS = {
    "recovered-map": (
        "How far the prediction goes to the other run",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way."
        ),
        _DOT,
    ),
    "recovered-by-position": (
        "How far the prediction goes, by position",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way. Of heads, the 24 that carry most are drawn. A token with … stands for others in other pairs; a/b "
            "is a in the clean text, b in the other."
        ),
        _DOT,
    ),
    "recovered-intervals": (
        "The places that carry most",
        "Each point is the share of the way over all pairs.",
        (
            "Each line is a 95% interval over pairs. Filled points have a significant effect (corrected for all heads "
            "or positions), rings have not."
        ),
    ),
    "estimates": (
        "Estimates beside what was measured",
        (
            "A point for each place. On the grey line the estimate equals the change that was measured. A rank "
            "correlation near 1: the estimate puts the places in the right order."
        ),
        "",
    ),
}


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """By name of each figure: its title, and how to read it."""
    return captions_of(_READINGS, tested=bool(report.result["patched"].tested.any()), of="pairs")


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure that the result has values for, with its name."""
    tree = report.result
    yield "recovered-by-position" if "position" in tree["patched"].dims else "recovered-map", grid(report)
    yield "recovered-intervals", recovered_intervals(report)
    if "agreement" in tree:
        yield "estimates", estimate_points(tree)


def grid(report: Report) -> Figure:
    """How far the prediction goes with each head, block or position patched."""
    return recovered_map(report.result)


def estimate_points(tree: xr.DataTree) -> Figure:
    """Draw each estimate against the change that was measured, a point for each place."""
    patched, agreement = tree["patched"].to_dataset(), tree["agreement"].to_dataset()
    panels = [
        (
            f"{ESTIMATORS[name]}\n{rank_caption(agreement.sel(estimator=name))}",
            "Change measured, logits",
            patched.effect.values,
            patched.estimate.sel(estimator=name).values,
        )
        for name in patched.estimator.values.tolist()
    ]
    with figure_style():
        return estimate_panels(panels, "Estimate, logits")


_ROWS = 24  # heads of a map by position: those that carry most
_TOKENS = 60  # positions that are named


def recovered_map(tree: xr.DataTree) -> Figure:
    """Draw how far the prediction goes with each place patched: layers by heads, or blocks or heads by positions."""
    patched = tree["patched"].to_dataset()
    patched = patched.isel({name: np.arange(size) for name, size in _drawn(patched).items()})
    values, shown, rows, title = _as_grid(patched)
    by_position = "position" in patched.dims
    cell = float(np.clip((6.0 if by_position else 3.0) / max(values.shape), 0.14, 0.42))  # inches
    largest = float(np.nanmax(np.abs(values)))
    reach = min(1.0, largest) or 1.0
    with figure_style():
        beyond = "both" if largest > reach else "neither"
        map_ = HeadMap.signed("", values, shown, reach, "Share of the way")
        figure = head_maps([map_], rows, cell=cell, extend=beyond)
        axes = figure.axes[0]
        axes.set_ylabel(title)
        if title == "Head":
            axes.set_yticks(range(len(rows)), rows)
        if by_position:
            figure.set_figheight(figure.get_figheight() + 0.7)
            _name_positions(axes, patched.token.values.tolist())
    return figure


def recovered_intervals(report: Report) -> Figure:
    """Draw what carries most, with 95% intervals over pairs."""
    rows = report.rows[:LISTED]
    names = [name_of(row) + (f"  {drawable(row['token'])}" if row.get("token") else "") for row in rows]
    series = {"patched": ("o", RIGHT, [recovered_of(row) for row in rows])}
    with figure_style():
        return interval_rows(names, series, "Share of the way to the other run")


def _drawn(patched: xr.Dataset) -> dict[str, int]:
    """Layers of which something was measured: of a path, those below the receiver."""
    if "layer" not in patched.dims:
        return {}
    known = np.isfinite(patched.effect.values).reshape(patched.sizes["layer"], -1).any(1)
    return {"layer": int(np.flatnonzero(known)[-1]) + 1}


def _as_grid(patched: xr.Dataset) -> tuple[np.ndarray, np.ndarray, list[str], str]:
    """Values and what is told from 0, ``(row, column)``, with names of the rows and what they are."""
    values, shown = patched.recovered.values, patched.shown.values
    if "block" in patched.dims:
        return values, shown, [str(block) for block in patched.block.values], "Block"
    layers = [str(layer) for layer in patched.layer.values]
    if "position" not in patched.dims:
        return values, shown, layers, "Layer"
    names = [f"{layer}.{head}" for layer in layers for head in patched["head"].values]
    flat, told = (part.reshape(len(names), -1) for part in (values, shown))
    largest = np.abs(np.nan_to_num(flat)).max(1)
    chosen = np.sort(np.argsort(-largest, kind="stable")[:_ROWS])
    return flat[chosen], told[chosen], [names[place] for place in chosen], "Head"


def _name_positions(axes: Axes, tokens: list[str]) -> None:
    """Tokens below their columns; of a long text every second or third, so that none covers another."""
    step = -(-len(tokens) // _TOKENS)
    names = [drawable(token) for token in tokens[::step]]
    name_columns(axes, range(0, len(tokens), step), names)
    axes.set_xlabel("Token")
