"""How well estimates put heads in order, and what becomes of the loss when heads go in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope._documents import units_of
from attnscope.faithfulness import ESTIMATES
from attnscope.faithfulness.arrays import by_document
from attnscope.figures.palette import LEFT
from attnscope.figures.reading import rank_said
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr

_COLOURS = ("0.1", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_TITLES = {
    "attribution": "Attribution patching",
    "integrated": "Integrated gradients",
    "eap_ig": "EAP-IG",
    "importance": "Gradient importance",
}


def estimate_panels(tree: xr.DataTree) -> Figure:
    """Draw each estimate of a head's effect against the effect measured, a point for each head.

    Parameters
    ----------
    tree
        From `attnscope.intervene`, with estimates. The mean ablation is drawn where there is one; EAP-IG against
        resampling, as it interpolates towards another text; the importance, which has no sign, against zeroing's size.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import estimate_panels
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=1, why=False)
    >>> bool(estimate_panels(tree).axes)
    True
    """
    heads, agreement = tree["heads"].to_dataset(), tree["agreement"].to_dataset()
    ablations = [str(name) for name in heads.ablation.values]
    panels: list[tuple[str, str, np.ndarray, np.ndarray]] = []
    for name in (*ESTIMATES, "importance"):
        wanted = {"eap_ig": "resample", "importance": "zero"}.get(name, "mean")
        if wanted not in ablations:
            if name == "eap_ig":
                continue
            wanted = ablations[0]
        measured = heads.effect.sel(ablation=wanted).values
        if name == "importance":
            panels.append((name, wanted, heads.importance.values, np.abs(measured)))
        else:
            panels.append(
                (name, wanted, heads.estimate.sel(estimator=name, ablation=wanted).values, measured)
            )
    with figure_style():
        figure = Figure(figsize=(2.1 * len(panels) + 0.4, 2.5), layout="constrained")
        for axes, (name, ablation, estimated, measured) in zip(
            np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True
        ):
            axes.axline((0, 0), slope=1, color="0.75", linewidth=0.8)
            axes.plot(measured.ravel(), estimated.ravel(), "o", color=LEFT, markersize=2.8, alpha=0.75, mew=0)
            of_this = agreement.sel(estimator=name, ablation=ablation)
            axes.set_title(f"{_TITLES[name]}\n{rank_said(of_this)}", fontsize=7)
            size = "Size of the effect" if name == "importance" else "Effect"
            axes.set_xlabel(f"{size} ({ablation}), nats")
        figure.axes[0].set_ylabel("Estimate, nats")
    return figure


def removal_curves(curves: xr.Dataset) -> Figure:
    """Draw the loss as more and more heads are taken out together, in each order.

    Parameters
    ----------
    curves
        The node ``curves`` of `attnscope.intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import removal_curves
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=1, curves=True, why=False)
    >>> bool(removal_curves(tree["curves"].to_dataset()).axes)
    True
    """
    removed = curves.removed.values
    units, _ = units_of(curves.source.values.tolist())
    with figure_style():
        figure = Figure(figsize=(5.8, 3.3), layout="constrained")
        axes = figure.subplots()
        for name, own in zip(curves.order.values, _cycled(curves.sizes["order"]), strict=True):
            change = by_document(curves.loss_change.sel(order=name).values, units)
            colour, dashes = ("0.55", "--") if name == "random" else (own, "-")
            line = axes.plot(removed, change.mean, dashes, color=colour, linewidth=1.2, label=str(name))[0]
            line.set(marker="o", markersize=2.5)
            if name in {"effect", "random"}:
                axes.fill_between(removed, change.low, change.high, color=colour, alpha=0.18, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(removed, [str(count) for count in removed])
        axes.minorticks_off()
        axes.set(
            xlabel="Heads taken out together", ylabel=f"Change of the loss, nats ({curves.attrs['ablation']})"
        )
        axes.grid(color="0.93")
        axes.set_axisbelow(True)
        figure.legend(
            loc="outside right upper", frameon=False, fontsize=7, title="Largest first by", title_fontsize=7
        )
    return figure


def _cycled(count: int) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(count)]
