"""Figures of edges: the graph of the circuit, and how much of the difference circuits keep."""

from collections.abc import Iterator
from typing import Any

import networkx as nx

from attnscope.report.schema import Report
from attnscope.results.figures.panels import ALONE, MEASURED, NOISE, curve, legend_above, with_interval
from attnscope.results.figures.style import Figure, figure_style
from attnscope_circuits.edge_report import ORDERS, chosen_circuits
from attnscope_circuits.figures.circuits import graph_figure

_MOST = 40  # edges
first = ("circuit",)  # on the page


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure, by name."""
    size, edges = len(_edges(report)), _size(report)
    which = "The circuit" if len(set(chosen_circuits(report.result).values())) == 1 else "The larger circuit"
    most = f"{which}: the {size} strongest of its {edges:,} edges."
    most = most if size < edges else f"{which}: all {size} edges."
    against = any(row["score"] > 0 for row in _edges(report))
    lines = (
        "Solid: the edge works for the answer; dashed: against it." if against else "Each edge works for the answer."
    )
    return {
        "circuit": (
            "The circuit",
            (
                f"{most} Each line leads from a part to a later one that reads its output. 0.3: head 3 of layer 0; "
                "MLP 0: that of layer 0. Thick: a large change. " + lines + " Colour: what the edge feeds. Layers go "
                "from left to right; the height has no meaning."
            ),
        ),
        "faithfulness": (
            "Faithfulness of circuits",
            "Share of the difference that is kept if all other edges have corrupted activations, with 95% intervals.",
        ),
    }


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    yield "circuit", graph_figure(graph_of(report))
    if any(row["raising"] is not None for row in report.tables[1].rows):
        yield "faithfulness", grid(report)


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


def _size(report: Report) -> int:
    """Number of edges of the larger circuit that a half of the pairs chooses; at least one."""
    return max(1, round(max(chosen_circuits(report.result).values())[0] * len(report.rows)))


def _edges(report: Report) -> list[dict[str, Any]]:
    """The edges of the circuit, at most 40, in its order: those that work most for the answer, or the largest."""
    _, order = max(chosen_circuits(report.result).values())
    rows = sorted(report.rows, key=lambda row: row["score"]) if order == "raising" else report.rows
    return list(rows[: min(_size(report), _MOST)])


def graph_of(report: Report) -> Any:
    """The edges of the circuit as a graph of networkx: parts are nodes, sides the keys of edges."""
    graph: Any = nx.MultiDiGraph()
    parts = [*dict.fromkeys(name.partition(".")[0] for name in report.result.sender.values.tolist()), "logits"]
    for row in _edges(report):
        for name, part in ((row["from"], row["sender"]), (row["to"], row["receiver"])):
            graph.add_node(name, layer=parts.index(part.partition(".")[0].partition("<")[0]))
        side = row["through"] or "MLP or logits"
        graph.add_edge(row["from"], row["to"], key=side, weight=abs(row["score"]), lowers=row["score"] > 0)
    return graph
