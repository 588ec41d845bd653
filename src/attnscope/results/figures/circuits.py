"""Figures of circuits: copying of all heads, and the graph of composition."""

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import xarray as xr

from attnscope.explanation.circuit_report import pairs_of
from attnscope.report.schema import Report
from attnscope.results.figures.panels import HeadMap, head_maps
from attnscope.results.figures.style import MARK, Figure, figure_style

_EDGES = 40
_COLOURS = {"query": "#0072B2", "key": "#D55E00", "value": "#009E73", "MLP or logits": "0.4"}
captions = {
    "copying": (
        "Copying",
        (
            "Sum of the eigenvalues from embeddings to logits, over the sum of their sizes: near 1, the head raises "
            "the logits of the tokens it attends to. Dots: significant."
        ),
    ),
    "composition": (
        "Composition of heads",
        (
            "The strongest significant pairs, at most 40. A line leads from a head to a later one that reads its "
            "output, through queries, keys or values. Width: composition above that of random matrices."
        ),
    ),
}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    if bool(report.result.copying.notnull().any()):
        yield "copying", grid(report)
    graph = graph_of(report.result)
    if graph.number_of_edges():
        yield "composition", graph_figure(graph)


def grid(report: Report) -> Figure:
    """Draw the copying of every head."""
    data = report.result
    significant = data.copying_shown.values
    maps = [HeadMap.signed("Copying", data.copying_sum.values, significant, 1.0, "Sum")]
    return head_maps(maps, data.layer.values, mark=MARK)


def graph_of(circuits: xr.Dataset, edges: int = _EDGES) -> Any:
    """The strongest significant compositions of heads as a graph of networkx.

    Parameters
    ----------
    circuits
        Result of `attnscope.circuits`.
    edges
        Number of edges at most, the strongest first.

    Returns
    -------
    networkx.MultiDiGraph
        Nodes are heads (``"0.3"``) with their ``layer``. Edges lead to the head that reads the other's output; their
        key is the side that reads it (``query``, ``key``, ``value``), their ``weight`` the composition above that of
        random matrices.
    """
    graph: Any = nx.MultiDiGraph()
    strong = [row for row in pairs_of(circuits) if row["shown"] and row["composition"] > row["random"]]
    for row in strong[:edges]:
        for layer, head in ((row["from_layer"], row["from_head"]), (row["layer"], row["head"])):
            graph.add_node(f"{layer}.{head}", layer=layer)
        graph.add_edge(row["from"], row["to"], key=row["kind"], weight=row["composition"] - row["random"])
    return graph


@figure_style()
def graph_figure(graph: Any) -> Figure:
    """Draw a graph of heads with its layers from the bottom up."""
    positions: Any = nx.multipartite_layout(graph, subset_key="layer", align="horizontal")
    layers = len({layer for _, layer in graph.nodes(data="layer")})
    widest = max(np.unique([layer for _, layer in graph.nodes(data="layer")], return_counts=True)[1])
    most = max(weight for *_, weight in graph.edges(data="weight"))
    size = (float(np.clip(0.55 * widest + 1, 3.2, 7.0)), float(np.clip(0.7 * layers + 0.6, 2.0, 8.0)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    nx.draw_networkx_nodes(graph, positions, ax=axes, node_color="white", edgecolors="0.4", node_size=420)
    nx.draw_networkx_labels(graph, positions, ax=axes, font_size=7)
    for number, (kind, colour) in enumerate(_COLOURS.items()):
        edges = [(start, end, name) for start, end, name in graph.edges(keys=True) if name == kind]
        if not edges:
            continue
        widths = [0.4 + 2.6 * graph.edges[edge]["weight"] / most for edge in edges]
        styles: Any = ["dashed" if graph.edges[edge].get("lowers") else "solid" for edge in edges]
        nx.draw_networkx_edges(
            graph, positions, edgelist=edges, ax=axes, edge_color=colour, width=widths, node_size=420,
            arrowsize=7, style=styles, connectionstyle=f"arc3,rad={0.1 * (number - 1)}",
        )  # fmt: skip
        axes.plot([], [], color=colour, label=kind)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4)
    axes.set_axis_off()
    return figure
