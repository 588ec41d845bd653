"""Which runs there are, told from their manifests alone: neither arrays nor PyTorch are loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from attnscope._arguments import typed
from attnscope.checks import check_kind
from attnscope.errors import AttnscopeError
from attnscope.store import (
    MANIFEST,
    PIECES,
    RUN,
    TASKS,
    OwnedFolder,
    Signature,
    folders_beside,
    has_folder,
    is_bucket,
    manifest_of,
    named,
    staged,
    texts_of,
    written_at,
)

USUAL = ("attnscope-runs", ".")
#: Commands whose folders are never marked as complete: what they write appears at once, this file with it.
_WRITTEN_AT_ONCE = {"align": RUN, "compare": RUN}
_PART = re.compile(r"\d+-of-(\d+)")


@dataclass(frozen=True)
class Run:
    """A run, as its folder's manifest tells of it.

    Attributes
    ----------
    path
        The folder. Of a scan by several tasks, whose parts lie beside it, it need not be there yet.
    place
        What it is known by: the path, or its URL in an object store.
    command
        ``scan``, ``explain``, ...; empty where the manifest is damaged.
    signature
        What the results depend on; None where nothing says so yet.
    complete
        Whether all of it is there.
    windows
        Windows that are measured; of ``align`` and ``patch`` pairs, of a scan with ``--pool`` pools.
    bytes
        Size of all files that attnscope wrote there; 0 where the manifest is damaged.
    when
        When the manifest was written last, in local time.
    tasks
        Tasks of a scan by several: how many are done, and how many there are.
    damage
        What is wrong with the manifest; empty where nothing is.

    Examples
    --------
    >>> run = Run(Path("tide"), "tide", "scan", None, False, 40, 9_000, datetime(2026, 11, 25))
    >>> run.progress, run.model  # nothing says yet what it depends on
    ('unfinished, 40 windows', '')
    """

    path: Path
    place: str
    command: str
    signature: Signature | None
    complete: bool
    windows: int
    bytes: int
    when: datetime
    tasks: tuple[int, int] | None = None
    damage: str = ""

    @property
    def model(self) -> str:
        """The model's name; of ``compare``, those of the systems."""
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
        """How far it is, in words."""
        if self.damage:
            return "damaged"
        settings = {} if self.signature is None else self.signature.settings or {}
        unit = {"align": "pair", "patch": "pair", "generate": "prompt"}.get(self.command, "window")
        unit = "pool" if settings.get("pool") else unit
        measured = f"{self.windows:,} {unit}{'s' * (self.windows != 1)}" if self.windows else ""
        if self.complete:
            return f"all {measured}" if measured else "complete"
        begun = "unfinished" if self.tasks is None else "{} of {} tasks".format(*self.tasks)
        return f"{begun}, {measured}" if measured else begun


@typed
def runs(*folders: str | Path) -> list[Run]:
    """The runs that lie in folders: each folder itself, and those one level below.

    Parameters
    ----------
    *folders
        Where to look, here or by URL in an object store, a whole bucket too; by default ``attnscope-runs`` and the
        current folder.

    Returns
    -------
    list of Run
        The latest first. Folders that are no runs are passed over; a run whose manifest is damaged is there, with its
        `damage`.

    Raises
    ------
    AttnscopeError
        If a folder that was named is not there.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(place) / "tide")
    ...     [(run.path.name, run.command, run.model, run.progress) for run in attnscope.runs(place)]
    [('tide', 'scan', 'small-mlm', 'all 1 window')]
    """
    for folder in folders:
        check_kind("a folder", str, Path, folder=folder)
    listed: dict[Path, Run] = {}
    for folder in folders or map(Path, USUAL):
        with staged(folder, bucket=True) as place:
            if folders and not has_folder(place):
                raise AttnscopeError(
                    f"there is no folder {named(place)}: give one that holds runs, or is one"
                )
            for run in _below(place):
                listed.setdefault(run.path.absolute(), run)
    return sorted(listed.values(), key=lambda run: run.when, reverse=True)


@typed
def run_at(folder: Path) -> Run | None:
    """The run of that folder; None where it holds none.

    Raises
    ------
    OSError
        If it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from attnscope import scan
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = scan(limit=2, window=32, out=f"{place}/run")
    ...     run_at(Path(place) / "run").command, run_at(Path(place)) is None
    ('scan', True)
    """
    own = _of_manifest(folder)
    if own is not None and (own.complete or own.damage):
        return own
    parts = parts_of_run(folder)
    if not parts:
        return own
    whole = own or replace(parts[0], path=folder, place=named(folder))
    return replace(
        whole,
        complete=False,
        windows=sum(part.windows for part in parts),
        bytes=sum(part.bytes for part in (*parts, *([own] if own else []))),
        when=max(part.when for part in parts),
        tasks=(sum(part.complete for part in parts), _tasks(parts[0].path)),
    )


def known_run(folder: Path) -> Run:
    """The run of that folder.

    Raises
    ------
    AttnscopeError
        If it holds none, or its manifest is damaged.
    """
    run = run_at(folder)
    if run is None:
        raise AttnscopeError(
            f"{named(folder)} holds no run of attnscope (no {MANIFEST}): give a folder that attnscope ls names"
        )
    if run.damage:
        raise AttnscopeError(run.damage)
    return run


def is_complete(manifest: Mapping[str, Any]) -> bool:
    """Whether all of a run is there, from its manifest."""
    state, written_last = manifest["state"], _WRITTEN_AT_ONCE.get(manifest["command"])
    by_units = "signature" in state  # the part of a task, which has that file from its beginning
    return bool(state.get("complete") or (written_last in manifest["files"] and not by_units))


def _below(folder: Path) -> Iterator[Run]:
    """The run of a folder, and those of the folders in it."""
    children: list[Path] = []
    with suppress(OSError):
        children = [child for child in folders_beside(folder, "*") if not child.is_file()]
    taken = [child.parent / child.name.removesuffix(TASKS) for child in children]
    own = [] if is_bucket(folder) else [folder]
    for candidate in dict.fromkeys([*own, *taken]):
        with suppress(OSError):  # what may not be read is nobody's here
            run = run_at(candidate)
            if run is not None:
                yield run


def _of_manifest(folder: Path) -> Run | None:
    damage, seconds = "", None
    try:
        manifest = manifest_of(folder)
        seconds = written_at(folder / MANIFEST)
        if manifest is None or seconds is None:
            return None
        return _told(folder, manifest, _date(seconds))
    except AttnscopeError as error:
        damage = str(error)
    except (AttributeError, KeyError, TypeError, ValueError):  # whole, and yet no manifest that we know
        damage = f"{folder / MANIFEST} is not as this version of attnscope writes it: open it with the one that did"
    when = _date(seconds or written_at(folder / MANIFEST) or 0)
    return Run(folder, named(folder), "", None, complete=False, windows=0, bytes=0, when=when, damage=damage)


def _date(seconds: float) -> datetime:
    """A file may have any date, also one that Python has no year for."""
    return datetime.fromtimestamp(min(max(seconds, -6e10), 2.5e11)).astimezone()


def _told(folder: Path, manifest: Mapping[str, Any], when: datetime) -> Run:
    return Run(
        path=folder,
        place=named(folder),
        command=str(manifest["command"]),
        signature=_signature(folder, manifest),
        complete=is_complete(manifest),
        windows=sum(len(texts_of(name)) for name in manifest["files"] if name.startswith(PIECES)),
        bytes=sum(size for size, _ in manifest["files"].values()),
        when=when,
    )


def _signature(folder: Path, manifest: Mapping[str, Any]) -> Signature | None:
    parts = manifest["state"].get("signature")
    if parts is None and manifest["command"] in _WRITTEN_AT_ONCE and RUN in manifest["files"]:
        content = OwnedFolder(folder, manifest["command"]).look().read(RUN)
        parts = json.loads(content)
        parts = parts.get("signature", parts)  # beside it stands what `align` found
    return None if parts is None else Signature.of(parts)


def parts_of_run(run: Path) -> list[Run]:
    """What the tasks of a scan have, that lies beside its folder."""
    places = folders_beside(run.with_name(run.name + TASKS), "*-of-*") if run.name else []
    parts = [_of_manifest(place) for place in places if _PART.fullmatch(place.name)]
    return [part for part in parts if part is not None and not part.damage]


def _tasks(part: Path) -> int:
    named = _PART.fullmatch(part.name)
    return int(named[1]) if named else 0
