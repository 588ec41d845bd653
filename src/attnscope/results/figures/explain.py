"""Figures of an explanation: all heads at a glance, and the share explained by position."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from attnscope.explanation.analyses.verdict import COLOURS, SAME, WEIGHT, best_heads
from attnscope.explanation.catalogue import analyses_of, known_analyses
from attnscope.explanation.report import rank_explanations
from attnscope.explanation.study import Analysis, Picture, Words
from attnscope.explanation.study import Section as AnalysisSection
from attnscope.report.reads import reads
from attnscope.report.render import Cell, Column
from attnscope.report.schema import Report
from attnscope.results.figures import panels
from attnscope.results.figures.selection import NothingToShowError, axis_values, layer_labels, require
from attnscope.results.figures.style import Figure, figure_style, name_heads, one_scale, printed
from attnscope.results.page.parts import Section, TextRows, picture, pieces_note


@reads("explain")
def explain_figures(tree: xr.DataTree, heads: Sequence[tuple[int, int]] | None = None) -> Iterator[tuple[str, Figure]]:
    """Every figure with data in the tree, with its name."""
    chosen = best_heads(rank_explanations(tree)) if heads is None else list(heads)
    for analysis in known_analyses().values():
        measured = analysis.name in tree.children
        for one in analysis.pictures:
            if not one.draw or not measured:
                continue
            figure = _picture_figure(tree, analysis, one, chosen)
            if figure is not None:
                yield one.name, figure


def figures(report: Report) -> dict[str, Figure]:
    """Every figure of an explanation, by name; figures that equal a paper's have both names."""
    drawn = dict(explain_figures(report.result, report.heads))
    pictures = (picture for analysis in analyses_of(report.result) for picture in analysis.pictures)
    copies = [picture for picture in pictures if picture.same_as in drawn]
    return drawn | {picture.name: drawn[picture.same_as] for picture in copies}


def grid(report: Report) -> Figure | None:
    nodes = report.result.children
    return verdict_grid(nodes["verdict"].to_dataset()) if "verdict" in nodes else None


def sections(report: Report, drawn: Mapping[str, Figure]) -> list[Section]:
    """The sections of the page with figures, in the order of the catalogue."""
    by_name: dict[str, Section] = {}

    def section_of(one: AnalysisSection) -> Section:
        if one.name not in by_name:
            by_name[one.name] = Section(one.name, one.title, _reading(one, report), [])
        return by_name[one.name]

    copies = [one for analysis in analyses_of(report.result) for one in analysis.pictures if one.same_as]
    numbers = {one.same_as: one.title.partition(":")[0].split()[-1] for one in copies}  # in the paper
    for analysis in known_analyses().values():
        for one in analysis.pictures:
            if analysis.section is None or not one.on_page or one.same_as or one.name not in drawn:
                continue
            reading, figure = _words(one.reading, report), drawn[one.name]
            reading += f" This is figure {numbers[one.name]} of the paper." if one.name in numbers else ""
            if one.with_tokens:
                labels = (label.get_text() for axes in figure.axes for label in axes.get_yticklabels())
                reading = f"{reading} {pieces_note(labels)}".rstrip()
            section_of(analysis.section).pictures.append(picture(figure, one.name, one.title, reading))
    on_page = {picture.name for section in by_name.values() for picture in section.pictures}
    for analysis in analyses_of(report.result):
        if analysis.table is None or analysis.section is None:
            continue
        text = analysis.table
        columns = [Column(heading, kind="left") for heading in text.columns]
        rows = [[Cell(cell, cell) for cell in line] for line in text.lines(report.result[analysis.name].to_dataset())]
        elsewhere = [(f"figure-{one.same_as}", one.title) for one in analysis.pictures if one.same_as in on_page]
        section_of(analysis.section).tables.append(TextRows(text.title, text.key, columns, rows, elsewhere))
    return list(by_name.values())


def _words(text: Words, report: Report) -> str:
    """The text of a section or a picture, fixed or made from the explanation."""
    return text if isinstance(text, str) else text(report.result, report.rows)


def _reading(section: AnalysisSection, report: Report) -> str:
    reading = _words(section.says, report)
    if section.name == "content" and "position_content" in report.result.children:
        texts = report.result["position_content"].attrs.get("texts", "few")
        return f"{reading} From the first {texts} windows."
    return reading


def _picture_figure(
    tree: xr.DataTree, analysis: Analysis, picture: Picture, heads: Sequence[tuple[int, int]]
) -> Figure | None:
    """The figure of a picture, by the function that it names; None where it has nothing to show."""
    draw: Any = pkgutil.resolve_name(picture.draw)
    result = tree[analysis.name].to_dataset()
    if picture.of == "heads":
        defined = _heads_with_values(result, heads)
        return draw(result, defined) if defined else None
    try:
        return draw(result, picture.variable) if picture.variable else draw(result)
    except NothingToShowError:
        return None


def _heads_with_values(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The heads with values in an analysis: not all are defined in every layer."""
    layers, columns = axis_values(result, "layer"), axis_values(result, "head")
    within = [(layer, head) for layer, head in heads if layer in layers and head in columns]
    drawn = next((name for name in ("profile", "kernel") if name in result), None)
    if drawn is None:
        return within
    part = [result[drawn].sel(layer=layer, head=head).values for layer, head in within]
    return [head for head, values in zip(within, part, strict=True) if np.isfinite(values).any()]


_COLOURS = {"PP": "#0072B2", "PC": "#56B4E9", "CP": "#CC79A7", "CC": "#E69F00", "B": "#009E73"}


@figure_style()
def position_content(content: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile from position alone, and the contributions of the four parts of the scores."""
    needs = ("profile", "profile_position", "share", "shapley", "target")
    labels = ("Mean weight", "Share of\nthe scores", "Part of\nthe weight")
    figure, columns = panels.head_panels(content, heads, needs, (1.7, 1.3, 1.3), labels, purpose="position_content")
    for whole, (profile, share, shapley) in columns:
        part = panels.up_to_the_mask(whole, "profile")
        offset = part["offset"].values
        panels.zero_line(profile)
        dots = {"label": "The model's weights", "marker": "o", "markersize": 2.2}
        panels.curve(profile, offset, panels.with_interval(part, "profile"), panels.MEASURED, **dots)
        dashes = {"label": "Position alone", "linewidth": 1.1, "linestyle": "--"}
        panels.curve(profile, offset, part["profile_position"].values, panels.ALONE, **dashes)
        profile.set(xlim=(offset[0], offset[-1]), ylim=(0, None), xlabel="Offset, tokens")
        _draw_bars(share, part, "share")
        _draw_bars(shapley, part, "shapley")
        at = f"{int(part['target']):+d}".replace("-", "−").replace("+0", "0")
        shapley.set_title(f"weight at offset {at}", loc="right", fontsize=7)
    for of_heads in zip(*(axes for _, axes in columns), strict=True):
        one_scale(of_heads)
    panels.legend_above(figure, 2)
    return figure


def _draw_bars(axes: Axes, part: xr.Dataset, name: str) -> None:
    terms = panels.names(part, "term")
    value, low, high = (np.nan_to_num(bound) for bound in panels.with_interval(part, name))
    at = np.arange(len(terms))
    colours = [_COLOURS.get(term, panels.OTHERS[row % len(panels.OTHERS)]) for row, term in enumerate(terms)]
    axes.bar(at, value, color=colours, width=0.7)
    ends = np.maximum([value - low, high - value], 0)
    axes.errorbar(at, value, yerr=ends, fmt="none", ecolor=panels.INK, elinewidth=0.8, capsize=2)
    axes.axhline(0, color="0.4", linewidth=0.6)
    axes.set_xticks(at, terms)
    axes.tick_params(axis="x", length=0)
    bottom, top = min(0.0, float(low.min()), float(value.min())), max(float(high.max()), float(value.max()))
    room = 0.2 * max(top - bottom, 1e-12)
    for x, (height, end) in enumerate(zip(value, high, strict=True)):
        text = f"{height:.2f}".replace("-0.00", "0.00").replace("-", "−")
        axes.text(x, max(end, height, 0) + 0.15 * room, text, ha="center", va="bottom", fontsize=7)
    axes.set_ylim(bottom - (room / 3 if bottom < 0 else 0), top + 1.4 * room)


_FEW = 6  # pairs that can all be labelled


@figure_style()
def scheme_kernel(kernel: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the contribution of rotation or bias to each head's scores at every offset, and of each pair."""
    needs = ("kernel", "scores", "offset_of_kernel", "offset_of_weights")
    heights = (1.7, 1.3) if "pair_share" in kernel else (1.7,)
    labels = ("Score, nats", "Share of\nthe scores")
    figure, drawn = panels.head_panels(kernel, heads, needs, heights, labels, purpose="scheme_kernel")
    for part, axes in drawn:
        _draw_curves(axes[0], part)
        both = (float(part[f"offset_of_{name}"]) for name in ("weights", "kernel"))
        offsets = (panels.tokens(one, 0) if np.isfinite(one) else "none" for one in both)
        name = axes[0].get_title("left")
        axes[0].set_title(f"{name}\n" + "weights {}, scheme {}".format(*offsets), loc="left")
        if "pair_share" in kernel:
            _draw_pairs(axes[1], part)
    panels.legend_above(figure, 4)
    return figure


def _draw_curves(axes: Axes, part: xr.Dataset) -> None:
    offset = part["offset"].values
    panels.zero_line(axes)
    for name, colour, label in (
        ("scores", panels.MEASURED, "Mean scores"),
        ("kernel", panels.ALONE, "Position scheme alone"),
    ):
        values = part[name].values.astype(float)
        dashes = "--" if name == "kernel" else "-"
        middle = np.nanmean(values) if np.isfinite(values).any() else 0.0
        panels.curve(axes, offset, values - middle, colour, label=label, linestyle=dashes)
    for name, colour in (("offset_of_weights", panels.MEASURED), ("offset_of_kernel", panels.ALONE)):
        at = float(part[name])
        if np.isfinite(at):
            axes.axvline(at, color=colour, linewidth=0.9, linestyle=":")
    defined = offset[np.isfinite(part["kernel"].values.astype(float))]
    if len(defined) > 1:
        axes.set_xlim(defined[0] - 0.3, defined[-1] + 0.3)
    axes.set_xlabel("Offset, tokens")


def _draw_pairs(axes: Axes, part: xr.Dataset) -> None:
    share, period = (part[name].values.astype(float) for name in ("pair_share", "period"))
    defined = np.isfinite(share)
    axes.axhline(0, color="0.4", linewidth=0.6)
    axes.vlines(period[defined], 0, share[defined], color=panels.ALONE, linewidth=1.4)
    axes.plot(period[defined], share[defined], "o", color=panels.ALONE, markersize=3, mew=0)
    axes.set_xscale("log")
    if defined.sum() <= _FEW:
        axes.set_xticks(period[defined], [f"{tokens_of:,.0f}" for tokens_of in period[defined]])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Tokens per turn", color=panels.INK)


_WAYS = {
    "offset_of_weights": "Largest mean weight",
    "offset_of_spectrum": "Cross-spectrum",
    "offset_of_correlation": "Cross-correlation",
}


def verdict_grid(verdict: xr.Dataset) -> Figure:
    """Draw one cell for each head: colour is the share explained by position, number the preferred offset.

    Parameters
    ----------
    verdict
        The node ``verdict`` of the result of `attnscope.explain`.

    Raises
    ------
    AttnscopeError
        If it lacks a variable, or no head has a value.
    """
    colour = next((name for name in COLOURS if name in verdict), [*COLOURS][-1])
    require(verdict, ("offset_of_weights", "agree", colour), purpose="verdict_grid")
    if not bool(np.isfinite(verdict[colour]).any()):
        raise NothingToShowError("verdict_grid needs a head with a value, but found none.")
    agree = _agreeing(verdict)
    # layers may have different numbers of heads
    weight = verdict[WEIGHT.name] if WEIGHT.name in verdict else xr.ones_like(verdict["offset_of_weights"])
    exists = np.isfinite(panels.by_head(weight))
    grey = bool((exists & np.isnan(panels.by_head(verdict[colour]))).any())
    title = "Number: favoured offset" + "; grey: none" * grey + "\nFrame: its scores match" * bool(agree.any())
    return _grid(verdict, verdict[colour], exists, agree, title, COLOURS[colour])


def _agreeing(verdict: xr.Dataset) -> np.ndarray:
    """Heads whose estimates agree, ``(layer, head)``."""
    return verdict["agree"].transpose("layer", "head").values.astype(bool)


@figure_style()
def _grid(
    result: xr.Dataset, colour: xr.DataArray, exists: np.ndarray, agree: np.ndarray, title: str, label: str
) -> Figure:
    values, offset = panels.by_head(colour), panels.by_head(result["offset_of_weights"])
    layers, heads = values.shape
    cell = float(np.clip(5.0 / max(layers, heads), 0.3, 0.6))
    width = printed(heads * cell + 1.2)
    cell = min(cell, (width - 1.7) / heads)
    figure = Figure(figsize=(width, layers * cell + 1.15), layout="constrained")
    axes = figure.add_subplot()
    image = panels.heat(axes, values)
    for (layer, head), value in np.ndenumerate(values):
        if not np.isfinite(value):
            hatch, face, edge = (None, "0.88", "0.88") if exists[layer, head] else ("////", "0.96", "0.75")
            look: dict[str, Any] = {"hatch": hatch, "fc": face, "ec": edge, "lw": 0 if hatch is None else 1}
            axes.fill_between([head - 0.5, head + 0.5], layer - 0.5, layer + 0.5, **look)
        if agree[layer, head]:
            corner = head - 0.42, layer - 0.42
            axes.add_patch(Rectangle(corner, 0.84, 0.84, fill=False, edgecolor="#D55E00", linewidth=1.3))
    panels.write_cells(image, lambda at: panels.tokens(at, 0), offset)
    name_heads(axes, layer_labels(result), axis_values(result, "head"))
    axes.set_title(title, loc="left")
    panels.colour_bar(figure, image, axes, label, shrink=0.9, aspect=18)
    return figure


@figure_style()
def offset_agreement(verdict: xr.Dataset) -> Figure:
    """Draw two estimates from the scores against the weights and against each other, one disc for each head."""
    require(verdict, (*_WAYS, "agree", WEIGHT.name), purpose="offset_agreement")
    complete = verdict[list(_WAYS)].to_dataarray().notnull().all("variable").transpose("layer", "head").values
    if not complete.any():
        raise NothingToShowError("offset_agreement needs a head with all three offsets, but found none.")
    agree = _agreeing(verdict)[complete]
    weight = panels.by_head(verdict[WEIGHT.name])[complete]
    offsets = {name: panels.by_head(verdict[name])[complete] for name in _WAYS}
    reach = 1.08 * max(4.0, float(np.nanmax(np.abs(np.stack(list(offsets.values()))), initial=0.0)))
    figure = Figure(figsize=(7.2, 2.75), layout="constrained")
    for index, (across, up) in enumerate(combinations(_WAYS, 2)):
        axes = figure.add_subplot(1, 3, index + 1)
        _scatter(axes, offsets[across], offsets[up], weight, agree, reach)
        axes.set_xlabel(f"{_WAYS[across]}, tokens")
        axes.set_ylabel(f"{_WAYS[up]}, tokens")
    panels.legend_above(figure, 3)
    return figure


@figure_style()
def peak_agreement(correlations: xr.Dataset) -> Figure:
    """Draw how well the scores' profile predicts that of the weights, by layer."""
    require(correlations, ("weight_argmax", "score_argmax", "spearman"), purpose="peak_agreement")
    rank, *peaks = (panels.by_head(correlations[name]) for name in ("spearman", "weight_argmax", "score_argmax"))
    share, by_accident = zip(*map(_equal_offsets, *peaks), strict=True)
    labels = layer_labels(correlations)
    at = np.arange(len(labels))
    figure = Figure(figsize=(6.6, 2.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.bar(at, share, width=0.7, color=panels.MEASURED)
    for layer, value in zip(at, share, strict=True):
        panels.name_point(left, f"{100 * value:.0f}", (layer, value), (0, 1), ha="center")
    left.hlines(by_accident, at - 0.35, at + 0.35, color=panels.ALONE, linewidth=1.2, linestyle="--")
    left.set_ylim(0, 1.1)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_title("Heads whose two peaks coincide", loc="left")
    right.axhline(0, color="0.6", linewidth=0.6)
    right.plot(np.repeat(at, rank.shape[1]), rank.ravel(), "o", color=panels.MEASURED, alpha=0.45, ms=4, mew=0)
    right.hlines(panels.medians(rank), at - 0.3, at + 0.3, color=panels.ALONE, linewidth=1.5)
    right.set_ylim(-1.05, 1.05)
    right.set_title("Rank correlation of the two profiles", loc="left")
    for axes in (left, right):
        axes.set_xticks(at, labels)
        axes.set(xlim=(-0.6, len(labels) - 0.4), xlabel="Layer")
    return figure


def _equal_offsets(weights: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Share of heads with equal offsets, and of pairs of different heads (NaN for a single head)."""
    finite = np.isfinite(weights) & np.isfinite(scores)
    equal = weights[finite, None] == scores[finite]
    pairs = ~np.eye(len(equal), dtype=bool)
    return float(np.diag(equal).mean()), float(equal[pairs].mean()) if pairs.any() else float("nan")


def _scatter(axes: Axes, x: np.ndarray, y: np.ndarray, weight: np.ndarray, agree: np.ndarray, reach: float) -> None:
    ends = np.array([-reach, reach])
    axes.fill_between(ends, ends - SAME, ends + SAME, color="0.9", linewidth=0, label="Within half a token")
    axes.plot(ends, ends, color="0.6", linewidth=0.6)
    for chosen, colour, label in (
        (~agree, "0.45", "Not positional, or no match"),
        (agree, panels.MEASURED, "Positional, all three match"),
    ):
        area = 8 + 60 * weight[chosen]
        axes.scatter(x[chosen], y[chosen], s=area, color=colour, alpha=0.55, linewidths=0, label=label)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
