"""Which units of a run a process does, as it is typed or as the environment says."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from attnscope.store.arrays import in_a_row
from attnscope.store.files import TASKS, InUseError
from attnscope.store.folder import OwnedFolder, manifest_of
from attnscope.store.runs import RunFolder
from attnscope.store.signature import Signature
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

#: Adds to a part of a run the units that a share does not pass over, asked of every batch in turn.
Measure: TypeAlias = "Callable[[RunFolder, Share], object]"

_IN_NUMBERS = re.compile("([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True)
class Task:
    """Which part of a run a process does: every so-many-th unit.

    Attributes
    ----------
    number, count
        From 1 to `count`.

    Examples
    --------
    >>> task_of("2/3")
    Task(number=2, count=3)
    """

    number: int
    count: int

    def does(self, unit: int) -> bool:
        """Whether a unit of the corpus, counted from 0, is this task's."""
        return unit % self.count == self.number - 1

    def measuring(self, measure: Measure, signature: Signature) -> Measure:  # noqa: ARG002 for those who ask others
        """What measures its units, of those that `measure` is told not to pass over: here, that itself."""
        return measure

    def folder(self, run: Path) -> Path:
        """Where its part is kept, beside the run."""
        return parts_of(run) / f"{self.number}-of-{self.count}"


def parts_of(run: Path) -> Path:
    """The folder of the parts of a run."""
    if run.name in {"", ".."}:
        raise AttnscopeError(
            f"{run} names no folder beside which parts of a run can lie: give the folder's own name"
        )
    return run.with_name(run.name + TASKS)


def task_of(given: str) -> Task:
    """Take a task as it is typed: ``2/3``, or ``env`` for what torchrun or a Slurm array says."""
    if given == "env":
        return _of_environment()
    matched = _IN_NUMBERS.fullmatch(given)
    if matched is None or not 1 <= int(matched[1]) <= int(matched[2]):
        raise AttnscopeError(f"task (--task) is {given[:40]!r}; expected I/N with I from 1 to N, or env")
    return Task(int(matched[1]), int(matched[2]))


def task_in(given: str | Task | None, out: object) -> Task | None:
    """Take a task of a run that is kept in a folder; None where a process does all of it."""
    if given is None:
        return None
    task = given if isinstance(given, Task) else task_of(given)
    if out is None:
        raise AttnscopeError("a task (--task) is a part of a run folder: name it with out")
    return task


def _of_environment() -> Task:
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


TEXTS, STARTS = (
    "texts",
    "units",
)  # in the state of a part that is done: texts in all, and the first of each unit


@runtime_checkable
class Part(Protocol):
    """What takes the results of some texts: a folder, or memory."""

    def holds(self, texts: range) -> bool:
        """Whether the results of these texts are there."""
        ...

    def append(self, results: xr.Dataset, first: int) -> None:
        """Add the results of some texts, numbered from `first`."""
        ...


class Share:
    """What one task has to do: told of each batch in turn, it says which are not its own or done already."""

    def __init__(self, does: Callable[[int], bool], run: Part, unit: int = 1) -> None:
        self.does, self.run, self.unit = does, run, unit
        self.batches = self.texts = 0
        self.starts: list[int] = []

    def __call__(self, texts: range) -> bool:
        """Whether to pass over the next batch."""
        if self.batches % self.unit == 0:
            self.starts.append(texts.start)
        mine = self.does(self.batches // self.unit)
        self.batches += 1
        self.texts = texts.stop
        return not mine or self.run.holds(texts)

    def state(self) -> dict[str, Any]:
        """What is noted of it when all of it is measured."""
        return {TEXTS: self.texts, STARTS: self.starts}


#: What a part has of some texts: the part, one of its pieces, and which rows of that; what is kept apart, by kind.
Rows: TypeAlias = "Callable[[RunFolder, range, slice], tuple[xr.Dataset, dict[str, xr.Dataset]]]"
_PART = re.compile("[0-9]{1,6}-of-[0-9]{1,6}")
_FEW = 12  # units that are named
PIECE_BYTES = 1 << 26  # of results, about, that are put together to one piece


def plain_rows(part: RunFolder, piece: range, chosen: slice) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """Some texts of a piece, of which nothing is kept apart."""
    return part.piece(piece).isel(text=chosen), {}


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
        """Those whose tasks came to their end."""
        return [part for part in self.folders if part.complete and TEXTS in part.state]

    @property
    def texts(self) -> int:
        """How many texts there are in all; 0 where no task has come to its end, and so nobody knows."""
        return max((int(part.state[TEXTS]) for part in self.done), default=0)

    @property
    def attributes(self) -> dict[str, str]:
        """What the first that is done says of the results."""
        return self.done[0].state.get("attributes", {}) if self.done else {}

    def lacking(self, run: RunFolder | None = None) -> list[range]:
        """Texts that no part has, nor the run."""
        there = [piece for part in (*self.folders, *([run] if run else [])) for piece in part.pieces]
        return list(_gaps(there, 0, self.texts))

    def is_whole(self) -> bool:
        """Whether all texts are there."""
        return bool(self.texts) and not self.lacking()

    def gather(self, run: RunFolder, rows: Rows = plain_rows) -> None:
        """Take what the parts have into the run, each text once."""
        there, chosen = list(run.pieces), list[tuple[range, RunFolder, range]]()
        for part in self.folders:
            for texts in part.pieces:
                for lacking in list(_gaps(there, texts.start, texts.stop)):
                    chosen.append((lacking, part, texts))
                    there.append(lacking)
        waiting = _Waiting(run)
        for lacking, part, texts in sorted(chosen, key=lambda row: row[0].start):
            measured, apart = rows(
                part, texts, slice(lacking.start - texts.start, lacking.stop - texts.start)
            )
            waiting.add(lacking.start, measured, apart)
        waiting.write()

    def results(self) -> xr.Dataset:
        """What the parts have, each text once and in order, in memory."""
        there: list[range] = []
        pieces: dict[int, xr.Dataset] = {}
        for part in self.folders:
            for texts in part.pieces:
                for lacking in list(_gaps(there, texts.start, texts.stop)):
                    rows = slice(lacking.start - texts.start, lacking.stop - texts.start)
                    pieces[lacking.start] = part.piece(texts).isel(text=rows)
                    there.append(lacking)
        return in_a_row([pieces[first] for first in sorted(pieces)])

    def piece(self, texts: range) -> xr.Dataset | None:
        """What a part has of texts that it keeps as one piece; None where none does."""
        return next((part.piece(texts) for part in self.folders if texts in part.pieces), None)

    def drop(self) -> None:
        """Take the parts away, as the run has all that they have; but none to which a process is writing."""
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
            with suppress(AttnscopeError):  # what is not ours stays
                OwnedFolder(path, self.folders[0].command).look().remove()
        with suppress(OSError):
            parts_of(self.run).rmdir()

    def describe_missing(self, run: RunFolder | None = None) -> str:
        """What there is not, by units, and whose tasks they are; empty where nothing is missing."""
        if self.texts and not self.lacking(run):
            return ""
        known = sorted((part.path.name for part in self.folders), key=_numbers)
        if not self.texts:
            return (
                f"none of its tasks ({', '.join(known)}) has come to its end, so nobody knows how many units there "
                "are: let one end, or give its command again"
            )
        starts: Sequence[int] = next(part.state[STARTS] for part in self.done)
        lacking = sorted(
            {
                unit
                for gap in self.lacking(run)
                for unit in range(bisect_right(starts, gap.start) - 1, bisect_right(starts, gap.stop - 1))
            }
        )
        count = Counter(_numbers(name)[1] for name in known).most_common(1)[0][0]
        tasks = sorted({unit % count + 1 for unit in lacking})
        named = ", ".join(str(unit + 1) for unit in lacking[:_FEW]) + ", ..." * (len(lacking) > _FEW)
        again = ", ".join(f"--task {task}/{count}" for task in tasks[:_FEW]) + ", ..." * (len(tasks) > _FEW)
        return (
            f"{len(lacking)} of {len(starts)} units {'is' if len(lacking) == 1 else 'are'} missing ({named}): give the "
            f"command of {again} again, or wait for {'it' if len(tasks) == 1 else 'them'}"
        )


class _Waiting:
    """Results of texts that follow each other, until they are enough for a piece: few pieces are read faster."""

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
        self.stop += measured.sizes["text"]

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
        raise AttnscopeError(
            f"{path} is a part of another run: its {differing[0]}. Choose a new folder with --out"
        )
    return part


def _signature(path: Path) -> Signature | None:
    """The signature of a part; None where nothing says so yet."""
    manifest = manifest_of(path)
    parts: Any = None if manifest is None else manifest.state.get("signature")
    return None if parts is None else Signature.of(parts)


def part_folders(run: Path) -> list[Path]:
    """The folders that the tasks of a run have, in order."""
    found = [
        path for path in sorted(parts_of(run).glob("*-of-*")) if _PART.fullmatch(path.name) and path.is_dir()
    ]
    for path in found:
        if path.is_symlink():
            raise AttnscopeError(f"{path} is a link; expected a folder: put there what it leads to")
    return found


def _numbers(name: str) -> tuple[int, int]:
    """Number and count of a part, from its folder's name."""
    number, _, count = name.partition("-of-")
    with suppress(ValueError):
        return int(number), int(count)
    return 0, 1


def _gaps(pieces: Sequence[range], start: int, stop: int) -> Iterator[range]:
    """The texts from `start` to `stop` that are in none of the pieces."""
    for texts in sorted(pieces, key=lambda texts: texts.start):
        if texts.start >= stop:
            break
        if texts.start > start:
            yield range(start, texts.start)
        start = max(start, texts.stop)
    if start < stop:
        yield range(start, stop)


Whole = TypeVar("Whole")


def by_task(
    task: Task,
    folder: Path,
    signature: Signature,
    measure: Callable[[RunFolder, Share], object],
    whole: Callable[[RunFolder], Whole],
    attributes: dict[str, str],
    *,
    unit: int = 1,
    repair: bool = False,
    rows: Rows = plain_rows,
) -> Whole | None:
    """Do one task of a run; where all others are done, put their parts together."""
    parts = do_share(task, folder, signature, measure, attributes, unit=unit, repair=repair)
    if not parts.is_whole():
        return None
    try:
        run = RunFolder(folder, signature, repair=repair).__enter__()
    except InUseError:  # another one that was done at the same moment
        return None
    with run:
        parts.gather(run, rows)
        made = whole(run)
    parts.drop()
    return made


def do_share(
    task: Task,
    folder: Path,
    signature: Signature,
    measure: Callable[[RunFolder, Share], object],
    attributes: dict[str, str],
    *,
    unit: int = 1,
    repair: bool = False,
) -> Parts:
    """Do one task of a run, as `by_task` does, and say what parts there are then."""
    measure = task.measuring(measure, signature)
    with RunFolder(task.folder(folder), signature, repair=repair) as part:
        if not part.complete:
            share = Share(task.does, part, unit)
            measure(part, share)
            part.finish(**share.state(), attributes=attributes)
    return Parts(folder, signature)


def pending(task: Task, folder: Path, signature: Signature) -> dict[str, str]:
    """Attributes of what a task returns that is done before others are: no results yet, and where they will be."""
    note = (
        f"Task {task.number} of {task.count} is done. The last one to finish puts the parts together; where one was "
        "stopped, give its command again."
    )
    return {"signature": signature.to_json(), "task": note, "run": str(folder)}
