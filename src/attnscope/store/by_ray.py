"""A run whose units are handed out to Ray's actors: they measure, and this process keeps what they send."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.read.files import is_standard_input
from attnscope.store.tasks import Measure, Share, Task, task_in
from attnscope.store.workers import Crew, RayEngine, cluster_of
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.store.runs import RunFolder
    from attnscope.store.signature import Signature
    from attnscope.store.workers import Cluster

_OWN = {"out", "task", "ray", "workers", "ray_gpus", "progress", "repair", "also"}  # of this process alone
_ALL = 10**9  # more tasks than there are units: each is one unit, or none


@dataclass(frozen=True)
class ByRay(Task):
    """The one task of a run, whose units others measure."""

    cluster: Cluster  # where they are
    begin: Beginning  # makes ready in each of them what the units need
    tell: Tell  # called with a `Progress` after each unit
    share: float  # part of all work that the units are, about

    def measuring(self, measure: Measure, signature: Signature) -> Measure:  # noqa: ARG002 others measure
        """What keeps the units that workers send, of a run of that signature."""
        return partial(self._keep, signature)

    def _keep(self, signature: Signature, part: RunFolder, share: Share) -> None:
        self.tell(Progress("start workers", 0.0))
        with RayEngine(self.cluster, self.begin) as engine:
            crew, texts = Crew(engine, engine.size, Agreed(signature)), 0
            held = tuple(part.pieces)
            for unit in crew.hand_out(lambda number: partial(_measured, number, held)):
                for first, results in unit.pieces:
                    part.append(results, first)
                share.texts, share.starts = unit.texts, unit.starts
                texts += len(unit.covered)
                done = self.share * texts / unit.texts
                self.tell(Progress("units by workers", done, {"texts": texts, "workers": crew.ready}))


@dataclass(frozen=True)
class Beginning:
    """All that a process needs to measure units of a verb."""

    verb: Callable[..., object]  # what is called, and with what
    given: Mapping[str, Any]  # what is called, and with what
    folder: Path  # the one that names of files are relative to

    def __call__(self) -> tuple[Measure, Signature]:
        """Load the model and open the texts, on one thread; how units are measured, and of which run."""
        import torch

        enter(self.folder)
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as nowhere:
            try:
                self.verb(**self.given, out=Path(nowhere) / "run", task=_Asking(1, 1))
            except _Ready as ready:
                return ready.measure, ready.signature
        raise AssertionError("a verb that has tasks does its share of one")


class _Ready(BaseException):
    """How units are measured is known."""

    def __init__(self, measure: Measure, signature: Signature) -> None:
        self.measure, self.signature = measure, signature


class _Asking(Task):
    """A task that is not done: it only asks how."""

    def measuring(self, measure: Measure, signature: Signature) -> Measure:
        """End the verb here."""
        raise _Ready(measure, signature)


@dataclass(frozen=True, eq=False)
class _Unit:
    """What was measured of a unit: results by their first text; which texts it has; texts and units of the run."""

    pieces: Sequence[tuple[int, xr.Dataset]]
    covered: range
    texts: int
    starts: list[int]


@dataclass(eq=False)
class _InMemory:
    """A part of a run in memory: it has what others hold, and takes what is measured."""

    held: Sequence[range]
    pieces: list[tuple[int, xr.Dataset]] = field(default_factory=list["tuple[int, xr.Dataset]"])

    def holds(self, texts: range) -> bool:
        """Whether the results of these texts are there."""
        return any(piece.start <= texts.start and texts.stop <= piece.stop for piece in self.held)

    def append(self, results: xr.Dataset, first: int) -> None:
        """Add the results of some texts."""
        self.pieces.append((first, results))


def _measured(number: int, held: Sequence[range], measure: Measure) -> _Unit | None:
    """A unit, counted from 0; None where there is no such unit."""
    part: Any = _InMemory(held)  # verbs that are handed out take any `Part`
    share = Share(Task(number + 1, _ALL).does, part)
    measure(part, share)
    if number >= len(share.starts):
        return None
    covered = range(share.starts[number], [*share.starts, share.texts][number + 1])
    return _Unit(part.pieces, covered, share.texts, share.starts)


class Agreed:
    """All workers must read the same."""

    def __init__(self, signature: Signature | None = None) -> None:
        self.signature = signature

    def __call__(self, said: Signature) -> None:
        """Refuse a worker that says of itself that it does something else."""
        self.signature = self.signature or said
        differing = self.signature.differences(said)
        if differing:
            raise AttnscopeError(
                f"workers do not agree: with one of them {differing[0]}. All need the same files and versions"
            )


def way_in(verb: Callable[..., object], given: Mapping[str, Any], *, share: float = 1.0) -> Task | None:
    """How a verb that has tasks does its units: one task of them, by Ray, or, by None, all in this process."""
    cluster = cluster_of(
        given["ray"], given["workers"], given["ray_gpus"], besides={"task (--task)": given["task"]}
    )
    if cluster is None:
        return task_in(given["task"], given["out"])
    if given["out"] is None:
        raise AttnscopeError("what workers (--ray) measure is kept in a run folder: name it with out (--out)")
    read = [given[name] for name in ("texts", "targets", "pairs") if name in given]
    check_sent(given["model"], given["tokenizer"], given["device"], *read)
    sent = {name: value for name, value in given.items() if name not in _OWN}
    return ByRay(1, 1, cluster, Beginning(verb, sent, Path.cwd()), given["progress"] or no_progress, share)


def enter(folder: Path) -> None:
    """Take the folder that names of files are relative to, in a worker."""
    with explaining(f"{folder} is not there on a worker's machine", "Work on a disk that all machines share"):
        os.chdir(folder)


def check_sent(model: object, tokenizer: object, device: str | None, *texts: Any) -> None:
    """Refuse what each worker would need, and this process alone has."""
    for name, given in {"model": model, "tokenizer": tokenizer}.items():
        if given is not None and not isinstance(given, str | Path):
            raise AttnscopeError(
                f"the {name} is an object in this process, which is not sent to workers (--ray): give its folder or "
                "hub id"
            )
    for sources in texts:
        _reject_read_once(sources)
    if device is not None and ":" in device:
        raise AttnscopeError(f"device (--device) is {device}, and Ray says which GPU a worker has: give cuda")


def _reject_read_once(sources: Any) -> None:
    """Refuse what each worker would have to read, and one alone can."""
    if isinstance(sources, Iterator):
        raise AttnscopeError(
            "texts of a generator are not sent to workers (--ray): write them to a file, and give its path"
        )
    for source in sources if isinstance(sources, list) else [sources]:
        if isinstance(source, Path) and (is_standard_input(source) or _is_pipe(source)):
            raise AttnscopeError(
                f"{source} is read once, and each worker (--ray) reads all texts: write it to a file"
            )


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False
