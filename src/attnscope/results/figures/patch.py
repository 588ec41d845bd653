"""Figures of patching, with their captions."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from attnscope.intervention.metrics import subject_of
from attnscope.intervention.patch_findings import RECOVERED, name_of
from attnscope.intervention.verdicts import ESTIMATORS
from attnscope.report.schema import UNITS, Report
from attnscope.results.figures.panels import HeadMap, estimate_panels, head_maps, interval_rows
from attnscope.results.figures.selection import LISTED, captions_of, rank_caption
from attnscope.results.figures.style import RIGHT, drawable, figure_style, name_columns

first, panel = ("recovered-by-position",), "pairs.js"  # on the page: what comes first, and above the numbers of a head
_DOT = "Dots: significant effects (corrected for all heads or positions); hollow: not significant."
_COLOURS = "Orange: patching moves the prediction towards the source run; blue: away from it. 1: the whole difference."

#: By name of the figure: its title, its caption, and the part of the caption that needs tested effects.
_CAPTIONS = {
    "recovered-map": ("Share of the difference between both runs", _COLOURS, _DOT),
    "recovered-by-position": (
        "Share of the difference between both runs, by position",
        (
            f"{_COLOURS} " + "At most 24 heads are drawn. a/b: token a in the clean text, b in the "
            "corrupted one. …: the token differs between pairs."
        ),
        _DOT,
    ),
    "recovered-intervals": (
        "Largest effects",
        "Each point is a patch's change as a share of the difference between both runs, over all pairs.",
        (
            "Lines are 95% intervals over pairs. Filled points are significant (corrected for all heads or "
            "positions), rings are not."
        ),
    ),
    "estimates": (
        "Estimated and measured changes",
        (
            "One point for each patched activation. On the grey line an estimate equals the measured change. A rank "
            "correlation of 1 means the same order."
        ),
        "",
    ),
}


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    return captions_of(_CAPTIONS, tested=bool(report.result["patched"].tested.any()), of="pairs")


_WORD = re.compile(r"\s+|<[^<>\s]+>|[^\s<]+|<")  # a mask is a word by itself


def panel_data(report: Report) -> dict[str, Any]:
    """The pairs, with the words marked in which both texts differ, and the means of both runs."""
    pairs = report.result["pairs"].to_dataset()
    ends = {"clean": float(pairs.clean.mean()), "corrupted": float(pairs.corrupted.mean())}
    base, source = ("corrupted", "clean") if pairs.attrs["direction"] == "denoising" else ("clean", "corrupted")
    return {
        "pairs": [
            dict(zip(("clean", "corrupted"), _differing(row["clean"], row["corrupted"]), strict=True))
            | {name: str(row.get(name) or "").strip() for name in ("answer", "wrong")}
            for row in report.tables[-1].rows[: report.tables[-1].page]
        ],
        "title": subject_of(pairs.attrs),
        "base": ends[base],
        "source": ends[source],
        "names": ["corrupted run", "clean run"] if base == "corrupted" else ["clean run", "corrupted run"],
    }


def _differing(clean: str, corrupted: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pieces of both texts, those that differ with a mark."""
    texts = [_WORD.findall(str(text)) for text in (clean, corrupted)]
    pieces: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for kind, *ends in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        for side, words, (start, end) in zip(pieces, texts, (ends[:2], ends[2:]), strict=True):
            if end > start:
                side.append(("".join(words[start:end]), "" if kind == "equal" else "different"))
    return pieces


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure that the result has values for, with its name."""
    tree = report.result
    yield "recovered-by-position" if "position" in tree["patched"].dims else "recovered-map", grid(report)
    if report.rows[0]["recovered"] is not None:
        yield "recovered-intervals", recovered_intervals(report)
    if "agreement" in tree:
        patched, agreement = tree["patched"].to_dataset(), tree["agreement"].to_dataset()
        unit = tree["pairs"].attrs.get("unit", "logits")
        panels = [
            (
                f"{ESTIMATORS[name]}\n{rank_caption(agreement.sel(estimator=name))}",
                f"Measured change, {unit}",
                patched.effect.values,
                patched.estimate.sel(estimator=name).values,
            )
            for name in patched.estimator.values.tolist()
        ]
        yield "estimates", estimate_panels(panels, f"Estimated change, {unit}")


def grid(report: Report) -> Figure:
    """Draw the share of the difference that each patched head, block or position carries."""
    return recovered_map(report.result)


_ROWS = 24  # heads of a map by position: those with the largest effects
_TOKENS = 60  # positions that are labelled


@figure_style()
def recovered_map(tree: xr.DataTree) -> Figure:
    """Draw the share of the difference: layers by heads, or blocks or heads by positions.

    Parameters
    ----------
    tree
        Result of `attnscope.patch`.
    """
    patched = tree["patched"].to_dataset()
    patched = patched.isel({name: np.arange(size) for name, size in _drawn(patched).items()})
    values, significant, rows, title = _as_grid(patched)
    by_position = "position" in patched.dims
    cell = float(np.clip((6.0 if by_position else 3.0) / max(values.shape), 0.14, 0.42))  # inches
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    reach = float(np.clip(largest, UNITS["percent"].full, 1.0))
    beyond = "both" if largest > reach else "neither"
    panel = HeadMap.signed("", values, significant, reach, "Share of difference")
    figure = head_maps([panel], rows, cell=cell, extend=beyond)
    axes = figure.axes[0]
    axes.set_ylabel(title)
    if title == "Head":
        axes.set_yticks(range(len(rows)), rows)
    if by_position:
        figure.set_figheight(figure.get_figheight() + 0.7)
        step = -(-patched.sizes["position"] // _TOKENS)  # in a long text every second or third token
        is_named = "position" in patched.coords  # spans
        names = [drawable(name) for name in patched["position" if is_named else "token"].values.tolist()[::step]]
        name_columns(axes, range(0, patched.sizes["position"], step), names)
        axes.set_xlabel("Span" if is_named else "Token")
    return figure


def recovered_intervals(report: Report) -> Figure:
    """Draw the largest effects with 95% intervals over pairs."""
    rows = report.rows[:LISTED]
    names = [name_of(row) + (f"  {drawable(row['token'])}" if row.get("token") else "") for row in rows]
    series = {"patched": ("o", RIGHT, [RECOVERED.effect(row) for row in rows])}
    return interval_rows(names, series, "Share of the difference between both runs")


def _drawn(patched: xr.Dataset) -> dict[str, int]:
    """Number of layers with a measured effect: in path patching, the layers below the receiver."""
    if "layer" not in patched.dims:
        return {}
    measured = np.isfinite(patched.effect.values).reshape(patched.sizes["layer"], -1).any(1)
    return {"layer": int(np.flatnonzero(measured)[-1]) + 1}


def _as_grid(patched: xr.Dataset) -> tuple[np.ndarray, np.ndarray, list[str], str]:
    """Values and significance, ``(row, column)``, with the names of the rows and their axis label."""
    values, marks = patched.recovered.values, patched.shown.astype(float).where(patched.tested).values
    if "block" in patched.dims:
        return values, marks, [str(block) for block in patched.block.values], "Block"
    layers = [str(layer) for layer in patched.layer.values]
    if "position" not in patched.dims:
        return values, marks, layers, "Layer"
    names = [f"{layer}.{head}" for layer in layers for head in patched["head"].values]
    flat, significant = (part.reshape(len(names), -1) for part in (values, marks))
    chosen = np.sort(np.argsort(-np.abs(np.nan_to_num(flat)).max(1), kind="stable")[:_ROWS])
    return flat[chosen], significant[chosen], [names[number] for number in chosen], "Head"
