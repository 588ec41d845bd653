"""Opening the results of a run folder."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

import xarray as xr

from attnscope.catalogue import verb_of, verbs
from attnscope.report.registry import check_registered
from attnscope.report.signature import Signature
from attnscope.store.files import MANIFEST, PIECES, RUN, TASKS, VIEWS, local_folder, read_as, texts_of
from attnscope.store.folder import Manifest, OwnedFolder, damage, manifest_of
from attnscope.store.runs import RunFolder
from attnscope.support.errors import AttnscopeError


def open_run(path: str | Path, *, part: str | None) -> xr.Dataset | xr.DataTree:
    """The work of `attnscope.open_run`."""
    folder = local_folder(path)
    manifest = manifest_of(folder)
    if manifest is None:
        raise _without_run(folder, "pass the folder in the results line of a command")
    command, state = manifest.command, manifest.state
    if not is_complete(manifest):
        raise unfinished(folder, command)
    if _stored(command) == "by window":
        if part is not None:
            return _part_of(RunFolder(folder, state.get("signature", {})), part)
        with RunFolder(folder, state.get("signature", {})) as run, read_as(folder):
            return _load(run)
    if part is not None:
        raise AttnscopeError(f"{folder} has no part {part!r}; only scans have parts")
    owned = OwnedFolder(folder, command).look()
    damaged = [name for name in owned.damaged() if not name.startswith(VIEWS)]
    if damaged:
        raise damage(folder / damaged[0], ". Repeat the command to recompute it")
    with read_as(folder):
        return _load(owned)


def _part_of(run: RunFolder, part: str) -> xr.Dataset:
    from attnscope.measure.stored import EXAMPLES, HEADS, SAMPLE, WINDOWS, load_heads

    run.look()  # check only the files that are read: a large run would take minutes
    readers = {WINDOWS: lambda: run.apart(WINDOWS), HEADS: lambda: load_heads(run)}
    readers |= {name: lambda name=name: run.load(name) for name in (SAMPLE, EXAMPLES)}
    with read_as(run.path):
        opened = readers[part]() if part in readers else None
    if opened is None:
        raise AttnscopeError(
            f"{run.path} has no part {part!r}; scans with --pool have {WINDOWS!r} and {HEADS!r}, scans with a page "
            f"{SAMPLE!r} and {EXAMPLES!r}"
        )
    return opened


def read_run(run: Run) -> xr.Dataset | xr.DataTree:
    """The same, but only files that are read are checked, and nothing is written."""
    if not run.complete:
        raise unfinished(run.path, run.command)
    with read_as(run.path):
        if _stored(run.command) == "by window" and run.signature is not None:
            folder = RunFolder(run.path, run.signature)
            folder.look()
            return _load(folder)
        return _load(OwnedFolder(run.path, run.command).look())


def unfinished(folder: Path, command: str) -> AttnscopeError:
    """The error for a run that has no results yet."""
    return AttnscopeError(
        f"{folder} contains an unfinished run of attnscope {command}: repeat the command to resume it"
    )


def _load(folder: OwnedFolder) -> xr.Dataset | xr.DataTree:
    """The results in a folder, by the function of its command."""
    settings = (folder.state.get("signature") or {}).get("settings")
    check_registered(settings, folder.state.get("records") or {}, folder.path)
    return pkgutil.resolve_name(verb_of(folder.command).load)(folder)


@dataclass(frozen=True, eq=False)
class Node:
    """Some labelled arrays of a run."""

    name: str  # path in the tree, such as ``verdict``; empty where all arrays are one Dataset
    pieces: Callable[[], Iterator[xr.Dataset]]  # reads the pieces, to be concatenated along `along`
    # total size of ``window``; 0 for a single piece, or if unknown before reading
    texts: int = 0
    along: str = "window"  # the dimension of the pieces; variables without it are equal in every piece


def nodes_of(run: Run) -> list[Node]:
    """The arrays of a finished run; those of a scan are read on demand."""
    if not run.complete:
        raise unfinished(run.path, run.command)
    if run.command == "scan" and run.signature is not None:
        from attnscope.measure.stored import WINDOWS, scan_pieces

        folder = RunFolder(run.path, run.signature)
        folder.look()

        def windows() -> Iterator[xr.Dataset]:
            parts = (folder.apart(WINDOWS, texts) for texts in folder.pieces)
            return (part for part in parts if part is not None)

        nodes = [Node("", lambda: scan_pieces(folder), folder.texts)]
        pooled = any(name.startswith(f"{WINDOWS}/") for name in folder.files)
        return [*nodes, Node(WINDOWS, windows, along="pooled_window")] if pooled else nodes
    return in_memory(read_run(run))


def in_memory(opened: xr.Dataset | xr.DataTree) -> list[Node]:
    """The nodes of the result of `open_run`."""
    return [Node(name, lambda dataset=dataset: iter([dataset])) for name, dataset in datasets_of(opened).items()]


def datasets_of(opened: xr.Dataset | xr.DataTree) -> dict[str, xr.Dataset]:
    """The Datasets of the result of `open_run` by path in the tree, without empty ones."""
    if isinstance(opened, xr.Dataset):
        return {"": opened}
    datasets = {node.path.strip("/"): node.to_dataset() for node in opened.subtree}
    return {name: dataset for name, dataset in datasets.items() if dataset.data_vars}


def chosen(nodes: list[Node], names: list[str] | None) -> list[Node]:
    """The nodes with a selection of variables; None selects all."""
    if names is None:
        return nodes
    variables = {node.name: [str(name) for name in next(node.pieces()).data_vars] for node in nodes}
    every = sorted(set(chain.from_iterable(variables.values())))
    unknown = [name for name in names if name not in every]
    if unknown:
        raise AttnscopeError(f"this run has no variable {unknown[0]!r:.60}: choose from {', '.join(every)}")

    def selected(node: Node) -> Node:
        some = [name for name in variables[node.name] if name in names]
        return replace(node, pieces=lambda: (piece[some] for piece in node.pieces()))

    return [selected(node) for node in nodes if not set(variables[node.name]).isdisjoint(names)]


USUAL = ("attnscope-runs", ".")
_PART = re.compile("[0-9]{1,6}-of-[0-9]{1,6}")


@dataclass(frozen=True)
class Run:
    """A run, from the manifest of its folder."""

    path: Path  #: the folder; before the parts of several tasks are merged it may not exist
    command: str  #: ``scan``, ``explain``, ...; empty where the manifest is damaged
    signature: Signature | None  #: dependencies of the results; None if not yet recorded
    complete: bool  #: whether the run is complete
    windows: int  #: measured windows; pairs for ``align`` and ``patch``, pools for a scan with ``--pool``
    bytes: int  #: size of all files that attnscope wrote there; 0 where the manifest is damaged
    when: datetime  #: when the manifest was written last, in local time
    tasks: tuple[int, int] | None = None  #: numbers of finished tasks and of tasks, if there are several
    damage: str = ""  #: the damage of the manifest, if any

    @property
    def model(self) -> str:
        """The model's name; for ``compare``, the names of the systems."""
        if self.signature is None:
            return ""
        return self.signature.name or ", ".join(self.signature.systems or {})

    @property
    def corpus(self) -> str:
        """The first eight hexadecimal digits of the texts' SHA-256: equal texts, equal digits."""
        if self.signature is None:
            return ""
        corpus, pairs = self.signature.corpus or {}, self.signature.text or {}
        return str(corpus.get("sha256", pairs.get("source_sha256", "")))[:8]

    @property
    def progress(self) -> str:
        """The progress of the run, in words."""
        if self.damage:
            return "damaged"
        settings = {} if self.signature is None else self.signature.settings or {}
        unit = "pool" if settings.get("pool") else verbs()[self.command].unit if self.command in verbs() else "window"
        measured = f"{self.windows:,} {unit}{'s' * (self.windows != 1)}" if self.windows else ""
        if self.complete:
            return f"all {measured}" if measured else "complete"
        begun = "unfinished" if self.tasks is None else "{} of {} tasks".format(*self.tasks)
        return f"{begun}, {measured}" if measured else begun


def runs(*folders: str | Path) -> list[Run]:
    """The work of `attnscope.runs`."""
    listed: dict[Path, Run] = {}
    for folder in folders or map(Path, USUAL):
        path = local_folder(folder)
        if folders and not path.is_dir():
            raise AttnscopeError(f"there is no folder {path}: pass a run folder, or a folder that contains runs")
        for run in _runs_below(path):
            listed.setdefault(run.path.absolute(), run)
    return sorted(listed.values(), key=lambda run: run.when, reverse=True)


def run_at(folder: Path) -> Run | None:
    """The run in a folder, or that of the tasks next to it; None without any."""
    run = _of_manifest(folder)
    if run is not None and (run.complete or run.damage):
        return run
    parts = parts_of_run(folder)
    if not parts:
        return run
    return replace(
        run or replace(parts[0], path=folder),
        complete=False,
        windows=sum(part.windows for part in parts),
        bytes=sum(part.bytes for part in (*parts, *([run] if run else []))),
        when=max(part.when for part in parts),
        tasks=(sum(part.complete for part in parts), int(parts[0].path.name.rpartition("-")[2])),
    )


def known_run(folder: Path) -> Run:
    run = run_at(folder)
    if run is None:
        raise _without_run(folder, "pass a folder from attnscope runs list")
    if run.damage:
        raise AttnscopeError(run.damage)
    return run


def _without_run(folder: Path, instead: str) -> AttnscopeError:
    if not folder.exists():
        return AttnscopeError(f"{folder} does not exist: {instead}")
    return AttnscopeError(f"{folder} contains no run of attnscope (no {MANIFEST}): {instead}")


def is_complete(manifest: Manifest) -> bool:
    """Whether a run is complete, from its manifest."""
    state = manifest.state
    of_a_task = "signature" in state  # which has the file of the run from its beginning
    is_there = _stored(manifest.command) == "at once" and RUN in manifest.files
    return bool(state.get("complete") or (is_there and not of_a_task))


def _stored(command: str) -> str:
    return verbs()[command].stored if command in verbs() else ""


def _runs_below(folder: Path) -> Iterator[Run]:
    children: list[Path] = []
    with suppress(OSError):
        children = sorted(child for child in folder.iterdir() if child.is_dir())
    for candidate in dict.fromkeys([folder, *[child.parent / child.name.removesuffix(TASKS) for child in children]]):
        with suppress(OSError):  # unreadable folders are skipped
            run = run_at(candidate)
            if run is not None:
                yield run


def _of_manifest(folder: Path) -> Run | None:
    when = _last_modified(folder / MANIFEST)
    try:
        manifest = manifest_of(folder)
        if manifest is None:
            return None
        return Run(
            path=folder,
            command=manifest.command,
            signature=_signature(folder, manifest),
            complete=is_complete(manifest),
            windows=sum(len(texts_of(name)) for name in manifest.files if name.startswith(PIECES)),
            bytes=sum(size for size, _ in manifest.files.values()),
            when=when,
        )
    except AttnscopeError as error:
        return Run(folder, "", None, complete=False, windows=0, bytes=0, when=when, damage=str(error))


def _last_modified(path: Path) -> datetime:
    """Last modification of a file; 1970 if there is none or its time is invalid."""
    with suppress(OSError, ValueError, OverflowError):
        return datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return datetime.fromtimestamp(0).astimezone()


def _signature(folder: Path, manifest: Manifest) -> Signature | None:
    parts = manifest.state.get("signature")
    if parts is None and _stored(manifest.command) == "at once" and RUN in manifest.files:
        content = OwnedFolder(folder, manifest.command).look().read(RUN)
        with read_as(folder / RUN):
            parts = json.loads(content)
            return Signature.of(parts)
    return None if parts is None else Signature.of(parts)


def parts_of_run(run: Path) -> list[Run]:
    """The parts of a run by several tasks, next to its folder."""
    folders = sorted(run.with_name(run.name + TASKS).glob("*-of-*")) if run.name else []
    parts = [_of_manifest(folder) for folder in folders if _PART.fullmatch(folder.name)]
    return [part for part in parts if part is not None and not part.damage]
