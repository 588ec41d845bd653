"""What each head alone is worth: a map of all, the largest effects with their intervals, weight against effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from attnscope.faithfulness import verdicts
from attnscope.figures.palette import LEFT, RIGHT, cluster_colours
from attnscope.figures.reading import LISTED
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from attnscope.faithfulness import HeadVerdict

_MARKS = {"zero": ("o", "0.25"), "mean": ("s", RIGHT), "resample": ("D", LEFT)}
_NAMED = 8  # heads named beside their points
_QUANTILE = (
    0.98  # of the effects: what the strongest colour stands for, so that one head does not pale the others
)


def effect_maps(heads: xr.Dataset) -> Figure:
    """Draw the effect of every head under each ablation, layers by heads.

    Orange: the loss rises without the head; blue: it falls. A dot marks a significant effect.
    The strongest colour stands for the effect that 98% of the heads stay below.

    Parameters
    ----------
    heads
        The node ``heads`` of `attnscope.intervene`.

    Examples
    --------
    >>> import xarray as xr
    >>> dims = ("ablation", "layer", "head")
    >>> heads = xr.Dataset(
    ...     {"effect": (dims, np.ones((1, 2, 2))), "shown": (dims, np.ones((1, 2, 2), dtype=bool))},
    ...     coords={"ablation": ["zero"], "layer": [0, 1], "head": [0, 1]},
    ... )
    >>> effect_maps(heads).axes[0].get_title(loc="left")
    'zero'
    """
    effects = heads.effect.values
    names = [str(name) for name in heads.ablation.values]
    layers, columns = effects.shape[1:]
    cell = float(np.clip(3.0 / max(layers, columns), 0.14, 0.42))  # inches
    size = (max(4.4, len(names) * (columns * cell + 0.55) + 1.1), layers * cell + 1.0)
    finite = np.abs(effects[np.isfinite(effects)])
    reach = float(np.quantile(finite, _QUANTILE)) or float(finite.max()) or 1.0
    with figure_style():
        figure = Figure(figsize=size, layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
        for place, (axes, name) in enumerate(zip(panels, names, strict=True)):
            axes.imshow(
                effects[place],
                cmap=LinearSegmentedColormap.from_list("effect", [LEFT, "#F7F7F7", RIGHT]).with_extremes(
                    bad="0.9"
                ),
                norm=Normalize(-reach, reach),
                aspect="equal",
            )
            shown = np.argwhere(heads.shown.values[place])
            axes.plot(shown[:, 1], shown[:, 0], ".", color="0.1", markersize=float(np.clip(9 * cell, 1.5, 3)))
            axes.set_title(name, loc="left")
            axes.set_xlabel("Head")
            axes.set_xticks(range(0, columns, max(1, columns // 8)))
            axes.set_yticks(
                range(0, layers, max(1, layers // 12)), heads.layer.values[:: max(1, layers // 12)]
            )
            axes.spines[:].set_visible(False)
        panels[0].set_ylabel("Layer")
        bar = figure.colorbar(panels[0].images[0], ax=list(panels), shrink=0.9, pad=0.02, extend="both")
        bar.set_label("nats")
        bar.outline.set_visible(False)
    return figure


def effect_intervals(tree: xr.DataTree) -> Figure:
    """Draw the heads with the largest effects, each under every ablation with its 95% interval.

    Filled points are significant (corrected for all heads and ablations), rings are not.

    Parameters
    ----------
    tree
        From `attnscope.intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import effect_intervals
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> len(effect_intervals(tree).axes)
    1
    """
    rows = verdicts(tree)[:LISTED]
    names = list(rows[0].effects)
    with figure_style():
        figure = Figure(figsize=(5.6, 0.24 * len(rows) + 1.0), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="0.6", linewidth=0.8)
        handles: list[Line2D] = []  # filled: a ring says of one point that it is open, not of an ablation
        for step, name in enumerate(names):
            marker, colour = _MARKS[name]
            places = np.arange(len(rows)) + (step - (len(names) - 1) / 2) * 0.22
            effects = [row.effects[name] for row in rows]
            for place, effect in zip(places, effects, strict=True):
                if np.isfinite(effect.low):
                    axes.plot([effect.low, effect.high], [place, place], color=colour, linewidth=1.1)
            axes.scatter(
                [effect.mean for effect in effects],
                places,
                s=12,
                marker=marker,
                facecolors=["w" if effect.shown is False else colour for effect in effects],
                edgecolors=colour,
                linewidths=0.9,
                zorder=3,
            )
            handles.append(axes.plot([], [], marker, color=colour, markersize=3.2, label=name)[0])
        axes.set_yticks(range(len(rows)), [_called(row) for row in rows], parse_math=False)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("Change of the loss without the head, nats")
        axes.grid(axis="x", color="0.92")
        axes.set_axisbelow(True)
        figure.legend(handles=handles, loc="outside upper right", ncols=len(names), frameon=False, fontsize=7)
    return figure


def weight_against_effect(tree: xr.DataTree) -> Figure:
    """Draw how sharply each head looks at one offset against what the loss does without it.

    Parameters
    ----------
    tree
        From `attnscope.intervene`. The mean ablation is drawn where there is one, else the first.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import weight_against_effect
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> len(weight_against_effect(tree).axes)
    1
    """
    rows = verdicts(tree)
    name = "mean" if "mean" in rows[0].effects else next(iter(rows[0].effects))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    with figure_style():
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color="0.6", linewidth=0.8)
        for kind, colour in zip(kinds, cluster_colours(kinds), strict=True):
            some = [row for row in rows if row.kind == kind]
            axes.scatter(
                [row.peak_weight for row in some],
                [row.effects[name].mean for row in some],
                s=[26 if row.effects[name].shown else 12 for row in some],
                facecolors=["none" if row.effects[name].shown is False else colour for row in some],
                edgecolors=colour,
                linewidths=0.9,
                label=kind or "head",
            )
        axes.set(
            xlabel="Largest share of all weight at one offset",
            ylabel=f"Change of the loss without the head, nats ({name})",
            xlim=(-0.02, 1.02),
        )
        axes.margins(y=0.12)
        _name_some(axes, rows, name)
        figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _name_some(axes: Axes, rows: list[HeadVerdict], name: str) -> None:
    """Names of the heads that stand out: the largest effects, and the sharpest that have none."""
    idle = sorted((row for row in rows if row.effects[name].shown is False), key=lambda row: -row.peak_weight)
    apart = float(np.ptp([row.effects[name].mean for row in rows])) / 12
    named = [
        row for row in rows[:_NAMED] if abs(row.effects[name].mean) > apart
    ]  # names near 0 would lie on each other
    for row in [*named, *(row for row in idle[:1] if row not in named)]:
        right = row.peak_weight > 0.8  # noqa: PLR2004 there the name stands to the left of its point
        axes.annotate(
            f"{row.layer}.{row.head}",
            (row.peak_weight, row.effects[name].mean),
            xytext=(-5 if right else 5, 2),
            textcoords="offset points",
            ha="right" if right else "left",
            fontsize=6.5,
            color="0.2",
        )


def _called(row: HeadVerdict) -> str:
    return f"{row.layer}.{row.head}  {row.kind}" if row.kind else f"{row.layer}.{row.head}"
