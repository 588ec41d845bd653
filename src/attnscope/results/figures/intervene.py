"""Figures of an intervention, with their captions."""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from attnscope.intervention.ablation import ESTIMATES
from attnscope.intervention.metrics import unit_of_loss
from attnscope.intervention.verdicts import ESTIMATORS, PEAK, curve_of, effect_of
from attnscope.report.language import translate
from attnscope.report.schema import UNITS, Report, Row, shown_label
from attnscope.results.figures.panels import HeadMap, curve, estimate_panels, head_maps, interval_rows, name_point
from attnscope.results.figures.selection import LISTED, captions_of, rank_caption
from attnscope.results.figures.style import LEFT, RIGHT, Figure, cluster_colours, figure_style

#: By name of the figure: its title, its caption, and the part of the caption that needs tested effects.
_CAPTIONS = {
    "effect-intervals": (
        "Heads with the largest effects",
        "Each point is the mean change of the loss without that head. Right of 0, the model is worse without it.",
        (
            "Lines are 95% intervals, each of one head alone. Filled points are significant (corrected for all heads "
            "and ablations), rings are not."
        ),
    ),
    "effect-maps": (
        "All heads",
        "Orange: the loss rises without the head; blue: it falls. The colour scale ends at the 98% quantile.",
        "Dots: significant effects (corrected for all heads and ablations); hollow: not significant.",
    ),
    "weight-against-effect": (
        "Attention weight and effect",
        "Right: nearly all weight at one offset. Up: the loss rises without the head.",
        "Filled points are significant, rings are not.",
    ),
    "sets-against-random": (
        "Chosen and random sets of heads",
        "Dots: random sets of as many heads. Diamond: the chosen set.",
        "",
    ),
    "forbidden": (
        "Forbidden attention",
        (
            "Left: the share of each head's weight that the rule forbids. Right: the change of the loss when the rule "
            "applies to that head alone. Cross: no such head, or cross-attention, which has no offsets."
        ),
        "Dots: significant changes (corrected for all heads); hollow: not significant.",
    ),
    "estimates": (
        "Estimated and measured effects",
        "On the grey line an estimate equals the effect. A rank correlation of 1 means the same order of heads.",
        "",
    ),
    "curves": (
        "Heads removed together",
        (
            "Heads are removed in the order of each score, the largest first. An order from one half of the texts is "
            "measured on the other half. Dashed: the mean of random orders."
        ),
        "Bands are 95% intervals.",
    ),
}


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    tree = report.result
    tested = tree["heads" if "heads" in tree else "together"].tested
    captions = captions_of(_CAPTIONS, tested=bool(tested.any()), of="windows")
    about = tree["together"].attrs if "together" in tree else {}
    better = about.get("better") if "metric" in about else "lower"  # a lower loss
    if better is not None:
        title, reading = captions["sets-against-random"]
        captions["sets-against-random"] = title, f"{reading} {_WORSE[better]}"
    return captions


#: The side of a figure on which the model is worse, by the direction in which what is measured is better.
_WORSE = {"lower": "Right of 0, the model is worse without it.", "higher": "Left of 0, the model is worse without it."}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure that the result has values for, with its name."""
    tree = report.result
    if "together" in tree and "p" in tree["together"]:
        yield "sets-against-random", sets_against_random(tree["together"].to_dataset())
    if "heads" not in tree:
        return
    rows = report.rows[:LISTED]
    names = [f"{row['layer']}.{row['head']}  {translate(shown_label(row['label']))}".strip() for row in rows]
    series = {
        name: (*_MARKS.get(name, ("^", "0.5")), [effect_of(row, name) for row in rows]) for name in _ablations(report)
    }
    unit = unit_of_loss(tree.attrs)
    yield "effect-intervals", interval_rows(names, series, f"Change of the loss without the head, {unit}")
    maps = grid(report)
    if maps is not None:
        yield "effect-maps", maps
    if any(row[PEAK.name] is not None for row in report.rows):
        yield "weight-against-effect", weight_against_effect(report)
    if "forbidden" in tree:
        yield "forbidden", forbidden_maps(tree["forbidden"].to_dataset(), unit)
    if "agreement" in tree:
        yield "estimates", estimates_of_effects(tree)
    if "curves" in tree:
        yield "curves", removal_curves(tree["curves"].to_dataset(), unit)


_MARKS = {"zero": ("o", "0.25"), "mean": ("s", RIGHT), "resample": ("D", LEFT)}
_NAMED = 8  # heads labelled in the figure
_QUANTILE = 0.98  # of the effects: end of the colour scale, so that one extreme head does not wash out the others


def grid(report: Report) -> Figure | None:
    """Draw the effect of every head under each ablation, layers by heads; of sets alone, next to random ones.

    Parameters
    ----------
    report
        Report of `attnscope.intervene`, by `attnscope.results.reports.report_of`.
    """
    if "heads" not in report.result:
        sets = report.result["together"].to_dataset()
        return sets_against_random(sets) if "p" in sets else None
    heads = report.result["heads"].to_dataset()
    effects = heads.effect.values
    finite = np.abs(effects[np.isfinite(effects)])
    reach = max(float(np.quantile(finite, _QUANTILE)), UNITS["nats"].full)
    names = heads.ablation.values.tolist()
    unit = unit_of_loss(report.result.attrs)
    marks = heads.shown.astype(float).where(heads.tested).values
    maps = [HeadMap.signed(*panel, reach, unit) for panel in zip(names, effects, marks, strict=True)]
    return head_maps(maps, heads.layer.values, cell=_cell(effects), extend="both")


@figure_style()
def sets_against_random(sets: xr.Dataset) -> Figure:
    """Draw the effect of each set of heads in a line with those of random sets."""
    rows = [(name, ablation) for name in sets.set.values for ablation in sets.ablation.values]
    figure = Figure(figsize=(6.4, 0.9 + 0.45 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for line, (name, ablation) in enumerate(rows):
        chosen = sets.sel(set=name, ablation=ablation)
        axes.plot(chosen.random_effect, np.full(chosen.sizes["draw"], line), "o", color="0.55", alpha=0.5, markersize=4)
        axes.plot(float(chosen.effect), line, "D", color=RIGHT, markersize=7)
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(rows)), [f"{name}  {ablation}" for name, ablation in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"Change of {sets.attrs.get('metric', 'the loss')} without the set, {sets.effect.attrs['units']}")
    return figure


def _cell(values: np.ndarray) -> float:
    return float(np.clip(3.0 / max(values.shape[-2:]), 0.14, 0.42))


def _ablations(report: Report) -> list[str]:
    return [str(name) for name in report.result["heads"].ablation.values]


@figure_style()
def weight_against_effect(report: Report) -> Figure:
    """Draw the largest weight at one offset of each head against the change of the loss without it.

    Parameters
    ----------
    report
        Report of `attnscope.intervene`, by `attnscope.results.reports.report_of`.
    """
    names = _ablations(report)
    name = "mean" if "mean" in names else names[0]
    rows = [row for row in report.rows if row[PEAK.name] is not None]
    kinds = list(dict.fromkeys(row["label"] for row in rows))
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="0.6", linewidth=0.8)
    for kind, colour in zip(kinds, cluster_colours(kinds), strict=True):
        some = [row for row in rows if row["label"] == kind]
        effects = [effect_of(row, name) for row in some]
        axes.scatter(
            [row[PEAK.name] for row in some],
            [effect.mean for effect in effects],
            s=[26 if effect.shown else 12 for effect in effects],
            facecolors=["none" if effect.shown is False else colour for effect in effects],
            edgecolors=colour,
            linewidths=0.9,
            label=shown_label(kind) or "head",
        )
    axes.set(
        xlabel="Largest share of all weight at one offset",
        ylabel=f"Change of the loss without the head, {unit_of_loss(report.result.attrs)} ({name})",
        xlim=(-0.02, 1.02),
    )
    axes.margins(y=0.12)
    _name_some(axes, rows, name)
    figure.legend(loc="outside right upper")
    return figure


def _name_some(axes: Axes, rows: list[Row], name: str) -> None:
    """Label the heads with the largest effects, and the sharpest head without an effect."""
    idle = sorted((row for row in rows if row[f"{name}_shown"] is False), key=lambda row: -row[PEAK.name])
    apart = float(np.ptp([row[f"{name}_mean"] for row in rows])) / 12
    named = [row for row in rows[:_NAMED] if abs(row[f"{name}_mean"]) > apart]  # near 0 names would overlap
    for row in [*named, *(row for row in idle[:1] if row not in named)]:
        right = row[PEAK.name] > 0.8  # noqa: PLR2004 there the name is to the left of its point
        head, at = f"{row['layer']}.{row['head']}", (row[PEAK.name], row[f"{name}_mean"])
        name_point(axes, head, at, (-5 if right else 5, 2), ha="right" if right else "left", color="0.2")


@figure_style()
def forbidden_maps(forbidden: xr.Dataset, unit: str = "nats") -> Figure:
    """Draw the weight that a rule forbids next to the change of the loss without it, layers by heads."""
    weight, effect = forbidden.forbidden_weight.values, forbidden.effect.values
    marks = forbidden.shown.astype(float).where(forbidden.tested).values
    reach = max(float(np.nanmax(np.abs(effect))), UNITS["nats"].full)
    cell = _cell(effect)
    maps = [
        HeadMap("Weight forbidden", weight, None, "Greys", (0.0, float(np.nanmax(weight)) or 1.0), "share"),
        HeadMap.signed("Change of the loss", effect, marks, reach, unit),
    ]
    figure = head_maps(maps, forbidden.layer.values, cell=cell)
    absent = np.argwhere(np.isnan(weight))
    for axes in figure.axes[:2]:
        size = float(np.clip(9 * cell, 1.5, 3))
        axes.plot(absent[:, 1], absent[:, 0], "x", color="0.7", markersize=size, markeredgewidth=0.6)
    return figure


_COLOURS = ("0.1", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")


def estimates_of_effects(tree: xr.DataTree) -> Figure:
    """Draw each estimate of a head's effect against the measured effect, a point for each head."""
    heads, agreement = tree["heads"].to_dataset(), tree["agreement"].to_dataset()
    ablations, unit = [str(name) for name in heads.ablation.values], unit_of_loss(tree.attrs)
    panels: list[tuple[str, str, np.ndarray, np.ndarray]] = []
    for name in (*ESTIMATES, "importance"):
        ablation = {"eap_ig": "resample", "importance": "zero"}.get(name, "mean")
        if ablation not in ablations:
            if name == "eap_ig":
                continue
            ablation = ablations[0]
        measured = heads.effect.sel(ablation=ablation).values
        title = f"{ESTIMATORS[name]}\n{rank_caption(agreement.sel(estimator=name, ablation=ablation))}"
        if name == "importance":
            size = f"Size of the effect ({ablation}), {unit}"
            panels.append((title, size, np.abs(measured), heads.importance.values))
        else:
            estimated = heads.estimate.sel(estimator=name, ablation=ablation).values
            panels.append((title, f"Effect ({ablation}), {unit}", measured, estimated))
    return estimate_panels(panels, f"Estimated change, {unit}")


def _of_curves(curves: xr.Dataset, unit: str) -> str:
    """The label of what curves show."""
    subject, unit = curves.attrs.get("metric", "the loss"), curves.attrs.get("unit", unit)
    return f"Change of {subject}, {unit} ({curves.attrs['ablation']})"


@figure_style()
def removal_curves(curves: xr.Dataset, unit: str = "nats") -> Figure:
    """Draw the loss as more and more heads are removed together, in each order."""
    removed = curves.removed.values
    figure = Figure(figsize=(5.8, 3.3), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(curves.order.values):
        numbers, *values = curve_of(curves, str(name))
        colour, dashes = ("0.55", "--") if name == "random" else (_COLOURS[number % len(_COLOURS)], "-")
        banded = {"chosen", "random"} if "chosen" in curves.order else {"effect", "random"}
        curve(
            axes,
            numbers,
            (values[0], values[1], values[2]) if name in banded else values[0],
            colour,
            linestyle=dashes,
            marker="o",
            markersize=2.5,
            label=str(name),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(removed, [str(count) for count in removed])
    axes.minorticks_off()
    axes.set(xlabel="Heads removed together", ylabel=_of_curves(curves, unit))
    axes.grid()
    figure.legend(loc="outside right upper", title="Largest first by")
    return figure
