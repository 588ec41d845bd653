"""Figures of edges: how much of the difference circuits keep, and the graph of the strongest edges."""

from collections.abc import Iterator
from typing import Any

import networkx as nx

from attnscope.intervention.edge_report import ORDERS
from attnscope.report.schema import Report
from attnscope.results.figures.circuits import graph_figure
from attnscope.results.figures.panels import ALONE, MEASURED, NOISE, curve, legend_above, with_interval
from attnscope.results.figures.style import Figure, figure_style

_MOST = 40  # edges
_SIDES = {"<q>": "query", "<k>": "key", "<v>": "value", "": "MLP or logits"}
captions = {
    "faithfulness": (
        "Faithfulness of circuits",
        "Share of the difference that is kept if all other edges have corrupted activations, with 95% intervals.",
    ),
    "edges": (
        "The strongest edges",
        (
            "At most 40. A line leads from a part to a later one that reads its output. Width: size of the change. "
            "Dashed: the edge works against the answer."
        ),
    ),
}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    if any(row["raising"] is not None for row in report.tables[1].rows):
        yield "faithfulness", grid(report)
    yield "edges", graph_figure(graph_of(report))


@figure_style()
def grid(report: Report) -> Figure:
    """Draw how much of the difference circuits of each size keep."""
    circuits = report.result
    figure = Figure(figsize=(4.2, 2.6), layout="constrained")
    axes = figure.subplots()
    for name, colour in zip(ORDERS, (MEASURED, ALONE, NOISE), strict=True):
        values = with_interval(circuits.sel(order=name), "faithfulness")
        curve(axes, circuits["size"].values, values, colour, label=ORDERS[name][0].capitalize(), marker=".")
    axes.set_xscale("symlog", linthresh=1e-3)
    axes.set(xlabel="Share of edges", ylabel="Share kept", xlim=(0, 1))
    axes.grid(axis="y")
    legend_above(figure, 3)
    return figure


def graph_of(report: Report) -> Any:
    """The 40 strongest edges as a graph of networkx: parts are nodes, sides the keys of edges."""
    graph: Any = nx.MultiDiGraph()
    parts = [*dict.fromkeys(name.partition(".")[0] for name in report.result.sender.values.tolist()), "logits"]
    for row in report.rows[:_MOST]:
        to, mark, side = row["receiver"].partition("<")
        for part in (row["sender"], to):
            graph.add_node(part, layer=parts.index(part.partition(".")[0]))
        graph.add_edge(row["sender"], to, key=_SIDES[mark + side], weight=abs(row["score"]), lowers=row["score"] > 0)
    return graph
