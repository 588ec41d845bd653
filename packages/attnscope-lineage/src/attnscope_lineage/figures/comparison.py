"""Translation systems side by side: scores, scores by length, learning curves, alignments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from attnscope.report.schema import Report
from attnscope.results.figures.panels import curve, name_point
from attnscope.results.figures.style import Figure, drawable, figure_style, legend_columns, system_colours
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.figures.alignment import alignment_maps
from attnscope_lineage.scores import NO_ATTENTION

_MARKERS = "osD^vPX"
_LONGEST_NAME = 28
_GRADIENTS = (
    "The loss is backpropagated to the embedding of each source token. Bands are 95% intervals over long sentences; "
    "the dashed line is an equal share."
)
_FORWARD = " A fixed vector reads the source in both directions. Its second curve leaves the reverse one out."


@figure_style()
def score_intervals(scores: xr.Dataset) -> Figure:
    """Draw each system's BLEU with its 95% interval."""
    names, bleu = _names(scores), scores.sel(metric="BLEU")
    figure = Figure(figsize=(4.4, 0.34 * len(names) + 0.75), layout="constrained")
    axes = figure.add_subplot()
    for row, colour in enumerate(system_colours(len(names))):
        value, low, high = (float(bleu[name][row]) for name in ("score", "lower", "upper"))
        if not math.isnan(low):
            axes.plot([low, high], [row, row], color=colour, linewidth=7, solid_capstyle="butt", alpha=0.35)
        axes.plot(value, row, marker=_MARKERS[row % len(_MARKERS)], color=colour, markersize=4)
        name_point(axes, f"{value:.1f}", (value, row), (0, 6), ha="center")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    intervals = ", with 95% interval" * bool(bleu["lower"].notnull().any())
    end = _top(bleu["score"], bleu["upper"])
    axes.set(ylim=(len(names) - 0.5, -0.6), xlim=(0, end), xlabel=f"BLEU{intervals}")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    return figure


def _names(result: xr.Dataset, longest: int = _LONGEST_NAME) -> list[str]:
    return [drawable(str(name), longest=longest) for name in result["system"].values]


def _curve(axes: Axes, row: int, name: str, along: Any, *values: xr.DataArray) -> None:
    """The curve of a system with its interval, in the colour and with the mark of its row."""
    mean, low, high = (one.values for one in values)
    mark = {"marker": _MARKERS[row % len(_MARKERS)], "markersize": 4, "label": name}
    curve(axes, np.asarray(along), (mean, low, high), system_colours(row + 1)[row], **mark)


def _top(*values: xr.DataArray) -> float:
    """End of an axis of scores: the next multiple of ten above the largest, with room for its mark."""
    largest = max((float(of.max()) for of in values if of.notnull().any()), default=0.0)
    return 1.03 * min(100, 10 * math.ceil(max(largest, 1) / 10))


@figure_style()
def score_by_length(scores: xr.Dataset) -> Figure:
    """Draw how each system's BLEU depends on the length of the source, with 95% intervals as bands."""
    if "bucket" not in scores.dims:
        raise AttnscopeError("these scores have no buckets of length: compute them with source and by_length")
    buckets = [str(bucket).replace("-", "–") for bucket in scores["bucket"].values]
    counts = [int(count) for count in scores["sentences"].values]
    bleu = scores.sel(metric="BLEU")
    figure = Figure(figsize=(max(3.6, 0.72 * len(buckets) + 1.2), 3.0), layout="constrained")
    axes = figure.add_subplot()
    at_bucket = np.arange(len(buckets))
    for row, name in enumerate(_names(scores)):
        ends = (bleu[f"{end}_by_length"][row] for end in ("score", "lower", "upper"))
        _curve(axes, row, name, at_bucket, *ends)
    axes.set_xticks(at_bucket, [f"{bucket}\nn = {count}" for bucket, count in zip(buckets, counts, strict=True)])
    axes.set(
        xlabel=f"Source length, {scores.attrs.get('length_in', 'words')} (n: sentences)",
        ylabel="BLEU",
        ylim=(0, _top(bleu["score_by_length"], bleu["upper_by_length"])),
    )
    axes.grid(axis="y")
    _legend(figure)
    return figure


@figure_style()
def learning_curve_figure(curves: xr.Dataset) -> Figure:
    """Draw validation BLEU (or loss, if no training measured BLEU) against target tokens, updates and time."""
    if not curves.sizes.get("validation"):
        raise AttnscopeError("no training log contains validations, so there is no learning curve")
    metric, label = (
        ("loss", "Validation loss, nats per token")
        if bool(np.isnan(curves["bleu"]).all())
        else ("bleu", "Validation BLEU (greedy)")
    )
    titles = {"tokens": "Target tokens", "updates": "Updates", "seconds": "Seconds of training"}
    figure = Figure(figsize=(7.4, 2.6), layout="constrained")
    for axes, (along, title) in zip(figure.subplots(1, 3, sharey=True), titles.items(), strict=True):
        for row, name in enumerate(_names(curves)):
            system = curves.isel(system=row)
            if bool(system[metric].notnull().any()):
                _curve(axes, row, name, system[along], *(system[f"{metric}{end}"] for end in ("", "_lower", "_upper")))
        axes.set(xlabel=title, xlim=(0, None), ylim=(0, None))
        axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axes.grid()
    figure.axes[0].set_ylabel(label)
    _legend(figure)
    return figure


@figure_style()
def gradient_by_position(gradients: xr.Dataset) -> Figure:
    """Draw the share of each tenth of the source in the gradient of the loss, with 95% intervals as bands."""
    tenths = gradients["tenth"].values
    figure = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for row, name in enumerate(_names(gradients, 2 * _LONGEST_NAME)):
        _curve(axes, row, name, tenths, *(100 * gradients[end][row] for end in ("share", "lower", "upper")))
    axes.axhline(100 / len(tenths), color="0.6", linewidth=0.8, linestyle="--")
    axes.set(xlabel="Tenth of the source, from its beginning", ylabel="Share of the gradient, %", ylim=(0, None))
    axes.set_xticks(tenths)
    axes.grid(axis="y")
    _legend(figure)
    return figure


def alignments_side_by_side(alignment: xr.Dataset) -> Figure:
    """Draw the attention of each system on one sentence pair, with the gold links as squares."""
    weights = {
        f"{drawable(str(system), longest=20)}: {read_from}": weights
        for system, read_from, weights in zip(
            alignment["system"].values, alignment["read_from"].values, alignment["weights"].values, strict=True
        )
        if not np.isnan(weights).any()
    }
    if not weights:
        raise AttnscopeError("no system has attention, so there is no alignment to draw")
    gold = None
    if "gold" in alignment:
        gold = {(int(at), int(by)) for by, at in np.argwhere(alignment["gold"].values)}
    source, target = ([str(word) for word in alignment[side].values] for side in ("source", "target"))
    return alignment_maps(weights, source, target, sure=gold, sure_name="Known link")


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    alignment = report.result["alignment"].to_dataset()
    fixed = [str(of.item()) for of in alignment["system"][alignment["read_from"] == NO_ATTENTION]]
    without = f"{', '.join(fixed)}: one fixed vector represents the whole sentence. "
    without += "Systems with attention read the source again for every word. "
    rows = "Attention of each system while it reads the reference: rows are target words, columns source words."
    return {
        "bleu": ("BLEU of every system", ""),
        "length": ("BLEU by source length", f"{without * bool(fixed)}Bands are 95% intervals over sentences."),
        "learning": (
            "Learning curves",
            "Greedy translations of the validation text. The validation points decide which weights are saved."
            + " Bands are 95% intervals over training seeds." * (report.result["curves"].sizes["seed"] > 1),
        ),
        "gradients": ("Gradient of the loss by source position", _GRADIENTS + _FORWARD * bool(fixed)),
        "alignment": ("Alignments of one sentence", rows + " Squares are the known links." * ("gold" in alignment)),
    }


def grid(_: Report) -> None:
    """A comparison has no heads."""


def figures(report: Report) -> dict[str, Figure]:
    """All figures that a comparison has data for, by name."""
    tree = report.result
    scores, curves, alignment = (tree[name].to_dataset() for name in ("scores", "curves", "alignment"))
    figures = {"bleu": score_intervals(scores), "length": score_by_length(scores)}
    if curves.sizes["validation"]:
        figures["learning"] = learning_curve_figure(curves)
    gradients = tree["gradients"].to_dataset()
    if gradients["share"].notnull().any():
        figures["gradients"] = gradient_by_position(gradients)
    if not bool(np.isnan(alignment["weights"]).all()):
        figures["alignment"] = alignments_side_by_side(alignment)
    return figures


def _legend(figure: Figure) -> None:
    """Draw a legend above the axes, in as many columns as fit; names are not parsed as formulas."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=legend_columns(figure, labels))
    for text in legend.get_texts():
        text.set_parse_math(False)


def _thousands(value: Any, _: Any) -> str:
    """Write 1.5M and 20k for large numbers."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
