"""Figures of circuits: copying of all heads, and the graph of composition."""

from collections.abc import Iterator, Sequence
from typing import Any

import networkx as nx
import numpy as np
import xarray as xr

from attnscope.report.schema import Report
from attnscope.results.figures.panels import KEY, QUERY, HeadMap, head_maps
from attnscope.results.figures.style import COLUMN, PAGE, Figure, figure_style
from attnscope_circuits.circuit_report import pairs_of

_EDGES, _FEW = 40, 1  # edges of a graph; layers that fit into one column of a paper
first = ("composition",)  # on the page
_COLOURS = {"query": QUERY, "key": KEY, "value": "#332288", "MLP or logits": "0.4"}
_FEEDS = {
    "query": "feeds a head's query",
    "key": "feeds a head's key",
    "value": "feeds a head's value",
    "MLP or logits": "feeds an MLP or the logits",
}
captions = {
    "copying": (
        "Copying",
        (
            "Sum of the eigenvalues from embeddings to logits, over the sum of their sizes: near 1, the head raises "
            "the logits of the tokens it attends to. Dots: significant; hollow: not."
        ),
    ),
    "composition": (
        "Composition of heads",
        (
            "The strongest significant pairs, at most 40, with layers from left to right. A line leads from a head to "
            "a later one that reads its output, through queries, keys or values. Width: composition above that of "
            "random matrices."
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
    significant = data.copying_shown.astype(float).where(data.copying_p.notnull()).values
    maps = [HeadMap.signed("Copying", data.copying_sum.values, significant, 1.0, "Sum")]
    return head_maps(maps, data.layer.values)


def graph_of(circuits: xr.Dataset, edges: int = _EDGES) -> Any:
    """The strongest significant compositions of heads as a graph of networkx.

    Parameters
    ----------
    circuits
        Result of `attnscope_circuits.circuits`.
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


def _positions(graph: Any) -> dict[str, tuple[float, float]]:
    """Layers from left to right; heads near those that they read, MLPs in a row of their own at the bottom."""
    columns: dict[int, list[str]] = {}
    for node, layer in graph.nodes(data="layer"):
        columns.setdefault(layer, []).append(node)
    highest = (max(map(len, columns.values())) - 1) / 2
    positions: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(sorted(columns)):
        read = {
            node: np.mean([positions[one][1] for one in graph.predecessors(node) if one in positions] or [0.0])
            for node in columns[layer]
        }
        nodes = sorted(columns[layer], key=lambda node: (read[node], node))
        for number, node in enumerate(nodes):
            is_mlp = node.startswith("MLP")
            positions[node] = float(column), highest + 1.4 if is_mlp else number - (len(nodes) - 1) / 2
    return positions


_TURNS = (0.0, -0.16, 0.16, -0.3, 0.3, -0.45, 0.45)  # further bends of a line, the first that is clear of other parts


def _curve(start: np.ndarray, end: np.ndarray, bend: float) -> np.ndarray:
    """Points of Matplotlib's arc of this bend, a quadratic Bezier curve in inches, ``(point, 2)``."""
    across, up = end - start
    middle = (start + end) / 2 + bend * np.array([up, -across])
    along = np.linspace(0, 1, 40)[:, None]
    return (1 - along) ** 2 * start + 2 * along * (1 - along) * middle + along**2 * end


def _is_clear(start: np.ndarray, end: np.ndarray, bend: float, others: Sequence[np.ndarray]) -> bool:
    """Whether Matplotlib's arc of this bend passes all other parts."""
    curve, half_box = _curve(start, end, bend), np.array([0.22, 0.12])
    return not any((np.abs(curve - place) < half_box).all(1).any() for place in others)


@figure_style()
def graph_figure(graph: Any) -> Figure:
    """Draw a graph of heads with its layers from left to right."""
    positions = _positions(graph)
    across, down = ([place[axis] for place in positions.values()] for axis in (0, 1))
    most = max(weight for *_, weight in graph.edges(data="weight"))
    height = float(np.clip(0.42 * (max(down) - min(down)) + 1.3, 2.2, 8.0))
    figure = Figure(figsize=(PAGE if max(across) > _FEW else 0.95 * COLUMN, height), layout="constrained")
    axes = figure.subplots()
    wide, high = figure.get_size_inches() / (max(across) - min(across) + 0.8, max(down) - min(down) + 1.6)
    inches = {node: np.array([wide * x, -high * y]) for node, (x, y) in positions.items()}
    lowest = min(place[1] for place in inches.values())
    for start, end, kind in graph.edges(keys=True):
        edge = graph.edges[start, end, kind]
        bend = 0.08 * ([*_COLOURS].index(kind) - 1)
        others = [place for node, place in inches.items() if node not in {start, end}]
        clear = (one for one in (bend + turn for turn in _TURNS) if _is_clear(inches[start], inches[end], one, others))
        bend = next(clear, bend)
        lowest = min(lowest, _curve(inches[start], inches[end], bend)[:, 1].min())
        axes.annotate(
            "", positions[end], positions[start],
            arrowprops={
                "arrowstyle": "-|>", "mutation_scale": 7, "color": _COLOURS[kind],
                "linewidth": 0.4 + 2.6 * edge["weight"] / most, "linestyle": "--" if edge.get("lowers") else "-",
                "connectionstyle": f"arc3,rad={bend:.2f}", "shrinkA": 11, "shrinkB": 11,
            },
        )  # fmt: skip
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.4", "linewidth": 0.7}
    for node, place in positions.items():
        axes.text(*place, node.replace("MLP ", "m"), ha="center", va="center", fontsize=7, bbox=box, zorder=3)
    kinds = {kind for *_, kind in graph.edges(keys=True)}
    for kind in filter(kinds.__contains__, _COLOURS):
        axes.plot([], [], color=_COLOURS[kind], label=_FEEDS[kind])
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4)
    below = max(0.0, -lowest / high - max(down) - 0.5)  # of arcs that pass under the lowest row
    figure.set_figheight(height + below * high)
    axes.set(xlim=(min(across) - 0.4, max(across) + 0.4), ylim=(max(down) + 0.7 + below, min(down) - 0.9))
    axes.set_axis_off()
    return figure
