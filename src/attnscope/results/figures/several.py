"""The figure of checkpoints: a quantity of the heads that change most, by the step of a training."""

from collections.abc import Iterator

import numpy as np

from attnscope.model_names import step_of
from attnscope.report.schema import Report
from attnscope.results.figures.panels import INK, curve, legend_above
from attnscope.results.figures.style import Figure, figure_style, system_colours

_HEADS = 6  # that are drawn
_WIDE = 50  # times the first step, from which steps are on a logarithmic axis
captions = {
    "steps": (
        "By step of the training",
        "The heads that change most between checkpoints, with 95% intervals, and in black the mean over the table.",
    )
}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    figure = grid(report)
    if figure is not None:
        yield "steps", figure


@figure_style()
def grid(report: Report) -> Figure | None:
    """Draw a quantity of the heads that change most by step; None if models are no checkpoints."""
    if len(report.rows) < 2 or report.rows[0].get("step") is None:  # noqa: PLR2004
        return None
    by_head, chosen = report.tables[1], report.result.attrs["quantity"]
    by_step = {step_of(one.name): one for one in by_head.quantities}
    columns = {step: one for step, one in by_step.items() if step is not None}
    steps = np.asarray([*columns])
    names = {"layer", "head"} | {end for one in columns.values() for end in one.columns}
    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    axes = figure.subplots()
    rows = by_head.rows[:_HEADS]
    for row, colour in zip(rows, system_colours(len(rows)), strict=True):
        effects = [one.effect(row) for one in columns.values()]
        values = [np.asarray([getattr(one, part) for one in effects]) for part in ("mean", "low", "high")]
        head = f"{row['layer']}.{row['head']}" if "head" in row else ""
        keys = [one.name for one in by_head.quantities if one.name in row and one.name not in names]
        label = " ".join([head, *(str(row[key]) for key in keys)]).strip()
        curve(axes, steps, (values[0], values[1], values[2]), colour, marker=".", label=label)
    means = [np.nan if row[chosen] is None else row[chosen] for row in report.rows]
    curve(axes, np.asarray([row["step"] for row in report.rows]), np.asarray(means), INK, marker=".", label="mean")
    first = min((step for step in steps.tolist() if step > 0), default=1)
    if steps.max() > _WIDE * first:
        axes.set_xscale("symlog", linthresh=first)
    axes.set(xlabel="Step", ylabel=next(one.title for one in report.tables[0].quantities if one.name == chosen))
    legend_above(figure, 4)
    return figure
