"""The arrays of a run for those who read them part by part: nodes of a tree, each a piece of texts at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.results._open_run import read_run, unfinished
from attnscope.results._run_list import Run
from attnscope.store import RunFolder

if TYPE_CHECKING:
    from attnscope.translation.alignment import Aligned


@dataclass(frozen=True, eq=False)
class Node:
    """Some labelled arrays of a run.

    Attributes
    ----------
    name
        Path in the tree, such as ``verdict``; empty where all arrays are one Dataset.
    pieces
        Reads the arrays: put together along `along`, the pieces are the whole. There is one at least.
    texts
        Size of ``text`` in all pieces together; 0 where there is one piece, or nobody knows before they are read.
    along
        The dimension of which a piece is a part; what does not have it is the same in every piece.
    """

    name: str
    pieces: Callable[[], Iterator[xr.Dataset]]
    texts: int = 0
    along: str = "text"


def nodes_of(run: Run) -> list[Node]:
    """The arrays of a finished run: of a scan read as they are asked for, of other commands opened at once.

    In a scan with pools, the windows in short are a node of their own.

    Raises
    ------
    AttnscopeError
        If the run is unfinished or damaged.
    """
    if not run.complete:
        raise unfinished(run.path, run.command)
    if run.command == "scan" and run.signature is not None:
        from attnscope.statistics import WINDOWS, scan_pieces

        folder = RunFolder(run.path, run.signature)
        folder.look()
        windows = Node(WINDOWS, lambda: _apart(folder, WINDOWS), along="window")
        return [
            Node("", lambda: scan_pieces(folder), folder.texts),
            *([windows] if any(name.startswith(f"{WINDOWS}/") for name in folder.files) else []),
        ]
    return in_memory(read_run(run))


def _apart(folder: RunFolder, kind: str) -> Iterator[xr.Dataset]:
    """What was kept apart of each piece."""
    parts = (folder.apart(kind, texts) for texts in folder.pieces)
    return (part for part in parts if part is not None)


def in_memory(opened: xr.Dataset | xr.DataTree | Aligned) -> list[Node]:
    """The nodes of what `open_run` gives."""
    return [
        Node(name, lambda dataset=dataset: iter([dataset])) for name, dataset in datasets_of(opened).items()
    ]


def datasets_of(opened: xr.Dataset | xr.DataTree | Aligned) -> dict[str, xr.Dataset]:
    """What `open_run` gives, as Datasets by their path in the tree, those without variables left out."""
    if isinstance(opened, xr.Dataset):
        return {"": opened}
    tree = opened if isinstance(opened, xr.DataTree) else tree_of_alignment(opened)
    datasets = {node.path.strip("/"): node.to_dataset() for node in tree.subtree}
    return {name: dataset for name, dataset in datasets.items() if dataset.data_vars}


def tree_of_alignment(aligned: Aligned) -> xr.DataTree:
    """What `align` found as labelled arrays: links, scores, rates of all heads, the pairs shown.

    Lines count from 1, words from 0.
    """
    rows = [(line, *link) for line, links in enumerate(aligned.links, 1) for link in sorted(links)]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    named = dict(zip(("line", "source_word", "target_word"), columns, strict=True))
    datasets = {"links": xr.Dataset({name: ("link", values) for name, values in named.items()})}
    if aligned.score is not None:
        datasets["score"] = xr.Dataset({name: ((), value) for name, value in vars(aligned.score).items()})
    if aligned.heads is not None:
        datasets["heads"] = aligned.heads
    for pair in aligned.pairs:
        words = pair.words
        datasets[f"pairs/{pair.line}"] = xr.Dataset(
            {"weights": (("target_word", "source_word"), words.weights)},
            {
                "target": ("target_word", np.array(words.target, dtype=object)),
                "source": ("source_word", np.array(words.source, dtype=object)),
            },
        )
    tree = xr.DataTree.from_dict(datasets)
    tree.attrs = {"signature": aligned.signature, "model": aligned.model}
    return tree


def chosen(nodes: list[Node], names: list[str] | None) -> list[Node]:
    """The nodes with some of their variables alone; None keeps all.

    Raises
    ------
    AttnscopeError
        If no node has a variable of one of the names.
    """
    if names is None:
        return nodes
    known = {node.name: [str(name) for name in next(node.pieces()).data_vars] for node in nodes}
    every = sorted({name for own in known.values() for name in own})
    unknown = [name for name in names if name not in every]
    if unknown:
        raise AttnscopeError(
            f"there is no variable {unknown[0]!r:.60} in this run: choose of {', '.join(every)}"
        )

    def of(node: Node) -> Node:
        own = [name for name in known[node.name] if name in names]
        return replace(node, pieces=lambda: (piece[own] for piece in node.pieces()))

    return [of(node) for node in nodes if not set(known[node.name]).isdisjoint(names)]
