"""Work units, the same for one process, `--task I/N` and Ray's actors: claim, measure, store, join."""

from __future__ import annotations

import inspect
import os
import re
import stat
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import xarray as xr

from attnscope.catalogue import function_of
from attnscope.read.files import is_standard_input
from attnscope.report.signature import Signature
from attnscope.store.arrays import in_a_row
from attnscope.store.files import TASKS, InUseError, are_in
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope.store.runs import RunFolder
from attnscope.store.workers import Cluster, Crew, RayEngine, cluster_of
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.store.run import Job

#: Whether a batch, whose texts it is called with, needs no measuring; called with every batch in turn.
Done: TypeAlias = Callable[[range], bool]


def completed(run: RunFolder | None = None) -> Done:
    """Whether the run has texts now, which can also be sent to other processes."""
    return partial(are_in, () if run is None else tuple(run.pieces))


@dataclass(eq=False)
class Share:
    """The share of one process: called with each batch in turn, it returns whether to skip it."""

    does: Callable[[int], bool]  # of a unit, counted from 0
    held: Done = field(default_factory=completed)
    unit: int = 1  # batches
    notes: dict[str, str] = field(default_factory=dict[str, str])  # about the texts, written as they are read
    batches: int = 0
    first: int = 0  # text of the last batch
    texts: int = 0
    starts: list[int] = field(default_factory=list[int])  # first text of each unit

    def __call__(self, texts: range) -> bool:
        if self.batches % self.unit == 0:
            self.starts.append(texts.start)
        mine = self.does(self.batches // self.unit)
        self.batches += 1
        self.first, self.texts = texts.start, texts.stop
        return not mine or self.held(texts)

    def state(self) -> dict[str, Any]:
        """Its entry in the state once everything is measured."""
        return {TEXTS: self.texts, STARTS: self.starts}


def each_of(job: Job, share: Share) -> Iterator[xr.Dataset | None]:
    """The results of every batch in turn, measured on request; None for a batch that is skipped."""
    for batch in job.batches():
        yield None if share(batch.texts) else job.measure(batch)


TEXTS, STARTS = "texts", "units"  # in the state of a part that is done
_IN_NUMBERS = re.compile("([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True)
class Task:
    """The part of a run that a process does: every N-th work unit."""

    number: int  # from 1 to `count`
    count: int

    def does(self, unit: int) -> bool:
        """Whether a unit of the corpus, counted from 0, is this task's."""
        return unit % self.count == self.number - 1

    def folder(self, run: Path) -> Path:
        """The folder of its part, next to the run."""
        return parts_of(run) / f"{self.number}-of-{self.count}"


def parts_of(run: Path) -> Path:
    """The folder of the parts of a run."""
    if run.name in {"", ".."}:
        raise AttnscopeError(f"{run} has no folder name, which the parts of tasks need: use the folder's own name")
    return _no_link(run.with_name(run.name + TASKS))


def _no_link(path: Path) -> Path:
    """The folder, whose files may be removed: those behind a link can be another run's."""
    if path.is_symlink():
        raise AttnscopeError(f"{path} is a link; expected a folder: replace the link by its target")
    return path


def task_of(text: str) -> Task:
    """Read a task: ``2/3``, or ``env`` for the task of torchrun or a Slurm array."""
    if text == "env":
        for number, count, first in (
            ("RANK", "WORLD_SIZE", "0"),  # torchrun
            ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", os.environ.get("SLURM_ARRAY_TASK_MIN", "0")),
        ):
            with suppress(KeyError, ValueError):
                return task_of(f"{int(os.environ[number]) - int(first) + 1}/{int(os.environ[count])}")
        raise AttnscopeError(
            "task (--task) is env, and the environment names no task (RANK and WORLD_SIZE of torchrun, or "
            "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT): give I/N"
        )
    matched = _IN_NUMBERS.fullmatch(text)
    if matched is None or not 1 <= int(matched[1]) <= int(matched[2]):
        raise AttnscopeError(f"task (--task) is {text[:40]!r}; expected I/N with I from 1 to N, or env")
    return Task(int(matched[1]), int(matched[2]))


#: Arguments that concern this process alone.
_OWN = {"out", "task", "ray", "workers", "ray_gpus", "progress", "repair", "dry_run", "show"}


def task_for(verb: Callable[..., object], arguments: Mapping[str, Any], *, in_memory: bool = False) -> Task | None:
    """How a verb runs its work units: all in this process (None), one task, or by Ray."""
    arguments = {**arguments, **arguments["reading"]}
    task, out, beside = arguments["task"], arguments["out"], {"task (--task)": arguments["task"]}
    if "until" in arguments:
        beside["until (--until)"] = arguments["until"]
    cluster = cluster_of(arguments["ray"], arguments["workers"], arguments["ray_gpus"], besides=beside)
    if cluster is None:
        if task is not None and out is None:
            raise AttnscopeError("a task (--task) is a part of a run folder: name it with out")
        return task_of(task) if isinstance(task, str) else task
    if out is None and not in_memory:
        raise AttnscopeError("what workers (--ray) measure is kept in a run folder: name it with out (--out)")
    read = [arguments[name] for name in ("texts", "targets", "pairs") if name in arguments]
    _check_sent(arguments["model"], arguments["tokenizer"], arguments["device"], *read)
    public = function_of(verb.__name__)
    sent = {name: arguments[name] for name in inspect.signature(public).parameters if name not in _OWN}
    return ByRay(1, 1, cluster, Beginning(public, sent, Path.cwd()), arguments["progress"] or no_progress)


def _check_sent(model: object, tokenizer: object, device: str | None, *texts: Any) -> None:
    """Reject inputs that exist in this process only and cannot be sent to workers."""
    for name, value in {"model": model, "tokenizer": tokenizer}.items():
        if value is not None and not isinstance(value, str | Path):
            raise AttnscopeError(
                f"the {name} is an object in this process, which cannot go to workers (--ray): use its folder or hub id"
            )
    for sources in texts:
        if isinstance(sources, Iterator):
            raise AttnscopeError(
                "texts of a generator cannot go to workers (--ray): write them to a file, and use its path"
            )
        for source in sources if isinstance(sources, list) else [sources]:
            if isinstance(source, Path) and (is_standard_input(source) or _is_pipe(source)):
                raise AttnscopeError(
                    f"{source} is read once, and each worker (--ray) reads all texts: write it to a file"
                )
    if device is not None and ":" in device:
        raise AttnscopeError(f"device (--device) is {device}, and Ray says which GPU a worker has: give cuda")


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class ByRay(Task):
    """The only task of a run whose units Ray's actors measure; this process alone writes."""

    cluster: Cluster
    begin: Beginning  # makes ready in each of them what the units need
    tell: Tell  # called with a `Progress` after each unit

    def results(self, job: Job, share: Share) -> Iterator[xr.Dataset]:
        """The results of workers, unit by unit as they arrive."""
        self.tell(Progress("start workers", 0.0))
        with RayEngine(self.cluster, self.begin) as engine:
            crew, done, texts = Crew(engine, engine.size, agreed_on(job.signature)), 0.0, 0
            ask = partial(WorkerUnits.measure, held=share.held)
            for measured, count, part in crew.hand_out(lambda number: partial(ask, number=number)):
                for share.first, results in measured:
                    yield results
                done, texts = min(1.0, done + part), texts + count
                self.tell(Progress("units by workers", done, {"texts": texts, "workers": crew.ready}))
            ((share.texts, share.starts, notes),) = crew.hand_out(lambda _: WorkerUnits.end, 1)
            share.notes |= notes


def agreed_on(signature: Signature) -> Callable[[Signature], None]:
    """Checks that a worker measures the same as this process."""

    def check(other: Signature) -> None:
        differing = signature.differences(other)
        if differing:
            raise AttnscopeError(
                f"workers do not agree: with one of them {differing[0]}. All need the same files and versions"
            )

    return check


@dataclass(frozen=True)
class Beginning:
    """The inputs of a worker that measures units of a verb."""

    verb: Callable[..., object]
    arguments: Mapping[str, Any]
    folder: Path  # the one that names of files are relative to

    def __call__(self) -> tuple[WorkerUnits, Signature]:
        import torch

        with explaining(f"{self.folder} is not there on a worker's machine", "Work on a disk that all machines share"):
            os.chdir(self.folder)
        torch.set_num_threads(1)
        shares = [0.0]
        with tempfile.TemporaryDirectory() as temporary:
            try:
                task, out = OnlyPrepare(1, 1), Path(temporary) / "run"
                self.verb(**self.arguments, out=out, task=task, progress=lambda p: shares.__setitem__(0, p.share))
            except PreparedError as ready:
                return WorkerUnits(ready.job, lambda: shares[0]), ready.job.signature
        raise AssertionError("a verb that has tasks measures its share of one")


class PreparedError(BaseException):
    """Preparation is complete: raised before anything is measured."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.job = job


class OnlyPrepare(Task):
    """A task that measures nothing."""


class WorkerUnits:
    """The units of a run in a worker; texts are read once as long as requested units ascend."""

    def __init__(self, job: Job, told: Callable[[], float]) -> None:
        self.job, self.size, self.told = job, job.unit, told
        self._start()

    def measure(self, number: int, held: Done) -> tuple[list[tuple[int, xr.Dataset]], int, float] | None:
        """Results of a unit, counted from 0, by first text, without the texts that the run has; the number of its texts
        and its share of all work. None if the unit does not exist.
        """
        if number < self.next:
            self._start()
        while self.next < number:
            if not self._unit():
                return None
        self.wanted, self.share.held, before = number, held, self.told()
        with self.job.measuring():
            results = self._unit()
        if not results:
            return None
        measured = [(first, arrays) for first, arrays in results if arrays is not None]
        return measured, self.share.texts - self.share.starts[number], max(0.0, self.told() - before)

    def end(self) -> tuple[int, list[int], dict[str, str]]:
        """Number of texts, starts of units, and notes, once all texts are read."""
        while self._unit():
            pass
        return self.share.texts, self.share.starts, self.job.notes

    def _start(self) -> None:
        self.next, self.wanted = 0, -1
        self.share = Share(lambda unit: unit == self.wanted, unit=self.size)
        self.walk = each_of(self.job, self.share)

    def _unit(self) -> list[tuple[int, xr.Dataset | None]]:
        """The batches of the next unit, each with its first text."""
        batches = [(self.share.first, results) for results in islice(self.walk, self.size)]
        self.next += bool(batches)
        return batches


#: A part's results of some texts: the part, one of its pieces, and the rows of that; separate results by name.
Rows: TypeAlias = "Callable[[RunFolder, range, slice], tuple[xr.Dataset, dict[str, xr.Dataset]]]"
_PART = re.compile("[0-9]{1,6}-of-[0-9]{1,6}")
_FEW = 12  # units that are named
PIECE_BYTES = 1 << 26  # of results, about, that are put together to one piece


def plain_rows(part: RunFolder, piece: range, chosen: slice) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """Some texts of a piece without separate results."""
    return part.piece(piece).isel(window=chosen), {}


class Parts:
    """The parts of one run, as they are now."""

    def __init__(self, run: Path, signature: Signature | None = None) -> None:
        self.run, self.signature = run, signature
        self.folders: list[RunFolder] = []
        for path in part_folders(run):
            self.signature = self.signature or _signature(path)
            if self.signature is not None:
                self.folders.append(_part(path, self.signature))

    @property
    def done(self) -> list[RunFolder]:
        """The parts of finished tasks."""
        return [part for part in self.folders if part.complete and TEXTS in part.state]

    @property
    def texts(self) -> int:
        """Number of texts in all; 0 while no task is finished, because it is unknown."""
        return max((int(part.state[TEXTS]) for part in self.done), default=0)

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the results, from the first finished part."""
        return self.done[0].state.get("attributes", {}) if self.done else {}

    def lacking(self, run: RunFolder | None = None) -> list[range]:
        """Texts that are neither in a part nor in the run."""
        pieces = [piece for part in (*self.folders, *([run] if run else [])) for piece in part.pieces]
        return list(_gaps(pieces, 0, self.texts))

    def is_whole(self) -> bool:
        """Whether all texts are there."""
        return bool(self.texts) and not self.lacking()

    def rows(self, there: Sequence[range], rows: Rows) -> Iterator[tuple[int, xr.Dataset, dict[str, xr.Dataset]]]:
        """The results of the parts beyond `there`, each text once and in order, with its first text."""
        there, chosen = list(there), list[tuple[range, RunFolder, range]]()
        for part in self.folders:
            for texts in part.pieces:
                for lacking in list(_gaps(there, texts.start, texts.stop)):
                    chosen.append((lacking, part, texts))
                    there.append(lacking)
        for lacking, part, texts in sorted(chosen, key=lambda row: row[0].start):
            yield (lacking.start, *rows(part, texts, slice(lacking.start - texts.start, lacking.stop - texts.start)))

    def gather(self, run: RunFolder, rows: Rows = plain_rows) -> None:
        """Move the results of the parts into the run."""
        waiting = _Waiting(run)
        for first, measured, apart in self.rows(list(run.pieces), rows):
            waiting.add(first, measured, apart)
        waiting.write()

    def results(self) -> xr.Dataset:
        """The results of the parts, in memory."""
        return in_a_row([measured for _, measured, _ in self.rows([], plain_rows)])

    def piece(self, texts: range) -> xr.Dataset | None:
        """A part's results for texts that it stores as one piece; None if no part does."""
        return next((part.piece(texts) for part in self.folders if texts in part.pieces), None)

    def drop(self) -> None:
        """Remove the parts, whose results the run now has, except those to which a process is writing."""
        held: list[RunFolder] = []
        try:
            for part in self.folders:
                part.lock()
                held.append(part)
        except InUseError:
            return
        finally:
            for part in held:
                part.__exit__(None, None, None)
        for path in part_folders(self.run):
            with suppress(AttnscopeError):  # files of others stay
                OwnedFolder(path, self.folders[0].command).look().remove()
        with suppress(OSError):
            parts_of(self.run).rmdir()

    def describe_missing(self, run: RunFolder | None = None) -> str:
        """The missing units and their tasks, in words; empty if all are there."""
        if self.texts and not self.lacking(run):
            return ""
        names = sorted((part.path.name for part in self.folders), key=_numbers)
        if not self.texts:
            return (
                f"none of its tasks ({', '.join(names)}) has come to its end, so nobody knows how many units there "
                "are: let one end, or give its command again"
            )
        starts: Sequence[int] = next(part.state[STARTS] for part in self.done)
        gaps = ((bisect_right(starts, gap.start) - 1, bisect_right(starts, gap.stop - 1)) for gap in self.lacking(run))
        lacking = sorted({unit for first, last in gaps for unit in range(first, last)})
        count = Counter(_numbers(name)[1] for name in names).most_common(1)[0][0]
        tasks = sorted({unit % count + 1 for unit in lacking})
        named = ", ".join(str(unit + 1) for unit in lacking[:_FEW]) + ", ..." * (len(lacking) > _FEW)
        again = ", ".join(f"--task {task}/{count}" for task in tasks[:_FEW]) + ", ..." * (len(tasks) > _FEW)
        return (
            f"{len(lacking)} of {len(starts)} units {'is' if len(lacking) == 1 else 'are'} missing ({named}): give the "
            f"command of {again} again, or wait for {'it' if len(tasks) == 1 else 'them'}"
        )


class _Waiting:
    """Results of adjacent texts, collected until they fill a piece, because few pieces are read faster."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.first = self.stop = self.bytes = 0
        self.measured: list[xr.Dataset] = []
        self.apart: dict[str, list[xr.Dataset]] = {}

    def add(self, first: int, measured: xr.Dataset, apart: dict[str, xr.Dataset]) -> None:
        if first != self.stop or self.bytes > PIECE_BYTES or {*apart} != {*self.apart}:
            self.write()
            self.first = self.stop = first
        self.measured.append(measured)
        for kind, arrays in apart.items():
            self.apart.setdefault(kind, []).append(arrays)
        self.bytes += sum(arrays.nbytes for arrays in (measured, *apart.values()))
        self.stop += measured.sizes["window"]

    def write(self) -> None:
        if self.measured:
            apart = {kind: in_a_row(arrays, "") for kind, arrays in self.apart.items()}
            self.run.append(in_a_row(self.measured), self.first, **apart)
        self.measured, self.apart, self.bytes = [], {}, 0


def _part(path: Path, signature: Signature) -> RunFolder:
    """A part of the run that has this signature."""
    part = RunFolder(path, signature)
    part.look()
    differing = Signature.of(part.state.get("signature", {})).differences(signature)
    if part.state and differing:
        raise AttnscopeError(f"{path} is a part of another run: its {differing[0]}. Choose a new folder with --out")
    return part


def _signature(path: Path) -> Signature | None:
    """The signature of a part; None if it has none yet."""
    manifest = manifest_of(path)
    parts: Any = None if manifest is None else manifest.state.get("signature")
    return None if parts is None else Signature.of(parts)


def part_folders(run: Path) -> list[Path]:
    """The folders that the tasks of a run have, in order."""
    paths = sorted(parts_of(run).glob("*-of-*"))
    return [_no_link(path) for path in paths if _PART.fullmatch(path.name) and path.is_dir()]


def _numbers(name: str) -> tuple[int, int]:
    """Number and count of a part, from its folder's name."""
    number, _, count = name.partition("-of-")
    with suppress(ValueError):
        return int(number), int(count)
    return 0, 1


def _gaps(pieces: Sequence[range], start: int, stop: int) -> Iterator[range]:
    """The texts from `start` to `stop` that no piece has."""
    for texts in sorted(pieces, key=lambda texts: texts.start):
        if texts.start >= stop:
            break
        if texts.start > start:
            yield range(start, texts.start)
        start = max(start, texts.stop)
    if start < stop:
        yield range(start, stop)
