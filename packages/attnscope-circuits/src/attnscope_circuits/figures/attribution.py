"""Figures of direct logit attribution: what each head adds, and the logit lens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnscope.report.schema import UNITS, Report
from attnscope.results.figures.panels import MEASURED, HeadMap, curve, head_maps, panel_rows, with_interval
from attnscope.results.figures.style import Figure, figure_style

captions = {
    "heads": (
        "What each head adds to the logit",
        (
            "Part of the logit above that of the mean token; of a difference or a direction, the part. "
            "Dots: significant; hollow: not significant."
        ),
    ),
    "lens": (
        "Logit lens",
        "Mean logit and probability if the stream ended after that number of attention layers, with 95% intervals.",
    ),
}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure, with its name."""
    drawn = grid(report)
    if drawn is not None:
        yield "heads", drawn
        yield "lens", _lens(report)


def grid(report: Report) -> Figure | None:
    """Draw what each head adds."""
    if "scores" in report.result:
        return None
    parts = report.result["parts"].to_dataset()
    heads = parts.isel(component=parts.kind == "head").set_index(component=["layer", "head"]).unstack("component")
    tested = heads.tested.fillna(0).astype(bool)
    values, significant = heads.excess.values, heads.shown.astype(float).where(tested).values
    reach = max(float(np.nanmax(np.abs(values))), UNITS["logits"].full)
    maps = [HeadMap.signed("", values, significant, reach, "Logits")]
    return head_maps(maps, heads.layer.values)


@figure_style()
def _lens(report: Report) -> Figure:
    lens = report.result["lens"].to_dataset()
    titles = {one.name: one.title for one in report.tables[-1].quantities}
    names = [name for name in ("logit", "metric", "probability") if name in lens]
    figure, panels = panel_rows(len(names), (2.6 * len(names), 2.2))
    for axes, name in zip(panels, names, strict=True):
        curve(axes, lens.depth.values, with_interval(lens, name), MEASURED)
        axes.set(xlabel="Attention layers", ylabel=titles[name].capitalize())
    return figure
