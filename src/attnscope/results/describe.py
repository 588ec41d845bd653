"""A description of a run and of the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xarray as xr

from attnscope.catalogue import verb_of
from attnscope.measure import stored
from attnscope.report.schema import hyphen_minus
from attnscope.report.signature import Signature
from attnscope.results.open import Node, Run, in_memory, known_run, nodes_of, parts_of_run, read_run
from attnscope.results.reports import report_of
from attnscope.store.files import PIECES, RUN, SUFFIX, VIEWS, local_folder, read_as, texts_of
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError

_PAGE, _FIGURES = VIEWS
_KINDS = {
    _PAGE: "page",
    _FIGURES: "figures",
    PIECES: "windows measured",
    f"{stored.WINDOWS}/": "windows of pools",
    RUN: "signature",
}


@dataclass(frozen=True)
class Variable:
    """An array of a run."""

    node: str  # path in the tree; empty if the run is not a tree
    name: str  # its name
    sizes: Mapping[str, int]  # its dimensions and their sizes
    dtype: str  # its data type
    long_name: str  # its meaning; empty if not recorded
    units: str  # its unit; empty if not recorded
    coordinate: bool  # whether it is a coordinate, not a result


@dataclass(frozen=True)
class Description:
    """A run, its findings and its files."""

    run: Run  #: as `runs` lists it
    headline: list[str]  #: the findings, in sentences
    notes: list[str]  #: anything unexpected, in sentences
    files: Mapping[str, tuple[int, int]]  #: number and bytes of the files of each kind
    variables: list[Variable]  #: the arrays
    parts: list[Run]  #: parts of a run by several tasks
    page: str | None  #: path of its page, if it has one
    damaged: list[str] | None  #: damaged files; None if they were not checked
    unread: str  #: the reason if the arrays could not be read, else empty


@checked
def describe(path: str | Path, *, verify: bool = False) -> Description:
    """Describe a run and the files in its folder.

    Parameters
    ----------
    path
        Folder of the run, finished or not.
    verify
        Whether to check every file against its checksum. By default only the files that are shown are checked.

    Raises
    ------
    AttnscopeError
        If the folder contains no run, or its manifest is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(folder) / "run")
    ...     run = describe(Path(folder) / "run", verify=True)
    >>> run.damaged, [one.units for one in run.variables if one.name == "entropy"]
    ([], ['nats'])
    """
    folder = local_folder(path)
    run = known_run(folder)
    owned = OwnedFolder(folder, run.command)
    if manifest_of(folder) is not None:  # otherwise the folder has only parts
        owned.look()
    variables: list[Variable] = []
    headline: list[str] = []
    notes: list[str] = []
    unread = ""
    try:
        with read_as(folder):
            if run.complete:
                nodes, opened = _read(run)
                headline = headline_of(run.command, opened)
                notes = notes_of(run.command, opened)
            else:
                nodes = _nodes_there(owned)
            variables = [variable for node in nodes for variable in _variables(node)]
    except AttnscopeError as error:
        unread = str(error)
    return Description(
        run,
        headline,
        notes,
        _kinds(owned),
        variables,
        [] if run.complete else parts_of_run(folder),
        f"{run.path}/{_PAGE}" if _PAGE in owned.files else None,
        owned.damaged() if verify else None,
        unread,
    )


def headline_of(command: str, opened: Any) -> list[str]:
    """The findings of a run, in sentences."""
    if command == "scan":  # recorded in the attributes of its first piece
        return [stored.describe_labels(opened)]
    return [*map(hyphen_minus, report_of(command, opened).finding.sentences)]


def notes_of(command: str, opened: Any) -> list[str]:
    """Anything unexpected, and parts that were skipped."""
    if command != "scan" and verb_of(command).report:
        return [*map(hyphen_minus, report_of(command, opened).notes)]
    return list(stored.notes_of(opened).values()) if command == "scan" else []


def settings_of(signature: Signature) -> list[tuple[str, str]]:
    """A signature in long form: a name and a value for each dependency of the results."""
    parts = signature.to_dict()
    parts.pop("command", None)
    singular = {"settings": "setting", "versions": "version of", "systems": "system", "scores": "score"}
    order = ("model", "tokenizer", "corpus", "target", "text", "systems", "scores", "settings", "versions")
    lines = list[tuple[str, str]]()
    for name in filter(parts.__contains__, order):
        lines += _lines(singular.get(name, name), parts[name])
    return lines


def _lines(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [line for key in sorted(value) for line in _lines(f"{name} {key}", value[key])]
    if value is None:
        return [(name, "not set")]
    if isinstance(value, bool):
        return [(name, "yes" if value else "no")]
    return [(name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]


def _read(run: Run) -> tuple[list[Node], xr.Dataset | xr.DataTree]:
    """A run's nodes, and the data for its sentences: for a scan, the first piece is enough."""
    if run.command == "scan":
        node = nodes_of(run)[0]
        first = next(node.pieces())
        return [replace(node, pieces=lambda: iter([first]))], first
    opened = read_run(run)
    return in_memory(opened), opened


def _nodes_there(folder: OwnedFolder) -> list[Node]:
    """The arrays of an unfinished run: its first piece with the size of all, and derived arrays."""
    pieces = sorted(name for name in folder.files if name.startswith(PIECES))
    others = [name for name in folder.files if name.endswith(SUFFIX) and "/" not in name]
    nodes = {name.removesuffix(SUFFIX): name for name in sorted(others)}
    nodes |= {"": pieces[0]} if pieces else {}
    texts = sum(len(texts_of(name)) for name in pieces)
    return [
        Node(name, lambda file=file: iter([folder.arrays(file)]), 0 if name else texts)
        for name, file in sorted(nodes.items())
    ]


def _variables(node: Node) -> list[Variable]:
    first = next(node.pieces())
    sizes = {str(dim): size for dim, size in first.sizes.items()} | ({"window": node.texts} if node.texts else {})
    labels = sorted(first.coords, key=lambda name: (name not in sizes, str(name)))  # dimensions first
    return [
        Variable(
            node.name,
            str(name),
            {str(dim): sizes[str(dim)] for dim in values.dims},
            "text" if values.dtype.kind in "OUT" else str(values.dtype),
            str(values.attrs.get("long_name", "")),
            str(values.attrs.get("units", "")),
            name in first.coords,
        )
        for name, values in ((name, first.variables[name]) for name in (*first.data_vars, *labels))
    ]


def _kinds(folder: OwnedFolder) -> dict[str, tuple[int, int]]:
    """How many files there are of each kind, and how large they are."""
    kinds: dict[str, tuple[int, int]] = {}
    for name, checksum in sorted(folder.files.items()):
        prefix = next((prefix for prefix in _KINDS if name.startswith(prefix)), "")
        kind = _KINDS[prefix] if prefix else "arrays" if name.endswith(SUFFIX) else f"{name.split('/')[0]}"
        number, size = kinds.get(kind, (0, 0))
        kinds[kind] = number + 1, size + checksum.size
    return kinds
