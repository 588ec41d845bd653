"""One scan by many processes: each measures some units of work in a folder of its own; the last puts them together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.statistics._pools import windows_of_pools
from attnscope.statistics._stored import WINDOWS
from attnscope.store import TASKS, RunFolder, Signature, folders_beside, remove_folder

UNIT = 16  # batches that one process measures before the next has its turn
_IN_NUMBERS = re.compile(r"(\d{1,6})/(\d{1,6})")
_TEXTS = "texts"  # how many windows or pools the corpus has, in the state of a task that is done


@dataclass(frozen=True)
class Task:
    """Which part of a scan a process does: every so-many-th unit.

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

    def folder(self, run: Path) -> Path:
        """Where its part is kept, beside the run."""
        return parts_of(run) / f"{self.number}-of-{self.count}"


def task_of(given: str) -> Task:
    """Take a task as it is typed: ``2/3``, or ``env`` for what torchrun or a Slurm array says.

    Raises
    ------
    AttnscopeError
        It is none, or the environment says nothing.

    Examples
    --------
    >>> task_of("4/3")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: task (--task) is '4/3'; expected I/N with I from 1 to N, or env
    """
    if given == "env":
        return _of_environment()
    found = _IN_NUMBERS.fullmatch(given)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise AttnscopeError(f"task (--task) is {given[:40]!r}; expected I/N with I from 1 to N, or env")
    return Task(int(found[1]), int(found[2]))


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


def parts_of(run: Path) -> Path:
    """The folder of the parts of a run."""
    return run.with_name(run.name + TASKS)


class Share:
    """What one task has to do: told of each batch or pool in turn, it says which are not its own or done already.

    A pool is a unit by itself.
    """

    def __init__(self, task: Task, run: RunFolder, *, by_pool: bool) -> None:
        self.task, self.run = task, run
        self.unit = 1 if by_pool else UNIT
        self.batches = self.texts = 0

    def __call__(self, texts: range) -> bool:
        """Whether to pass over the next batch."""
        mine = self.task.does(self.batches // self.unit)
        self.batches += 1
        self.texts = texts.stop
        return not mine or self.run.holds(texts)

    def finish(self) -> None:
        """All of it is measured."""
        self.run.finish(**{_TEXTS: self.texts})


def parts_with_all(folder: Path, signature: Signature) -> list[RunFolder]:
    """The parts of a run, if they have all windows together; else none.

    Raises
    ------
    AttnscopeError
        A part is of another run.
    """
    parts = [RunFolder(path, signature) for path in folders_beside(parts_of(folder), "*-of-*")]
    for part in parts:
        part.look()
        differing = Signature.of(part.state.get("signature", {})).differences(signature)
        if part.state and differing:
            raise AttnscopeError(
                f"{part.path} is a part of another run: its {differing[0]}. Choose a new folder with --out"
            )
    texts = max((int(part.state.get(_TEXTS, 0)) for part in parts), default=0)
    there = [piece for part in parts for piece in part.pieces]
    return parts if texts and not list(_gaps(there, 0, texts)) else []


def gather(run: RunFolder, parts: Sequence[RunFolder]) -> None:
    """Take what the parts have into the run, each window once.

    Raises
    ------
    AttnscopeError
        A part is damaged.
    """
    for part in parts:
        for texts in part.pieces:
            for lacking in list(_gaps(list(run.pieces), texts.start, texts.stop)):
                own = slice(lacking.start - texts.start, lacking.stop - texts.start)
                whole = part.piece(texts)
                results, windows = whole.isel(text=own), part.apart(WINDOWS, texts)
                apart = {} if windows is None else {WINDOWS: windows_of_pools(windows, whole, own)}
                run.append(results, lacking.start, **apart)


def drop_parts(run: Path) -> None:
    """Take the folders of the tasks away: the run has all that they have."""
    remove_folder(parts_of(run))


def _gaps(pieces: Sequence[range], start: int, stop: int) -> Iterator[range]:
    """The windows from `start` to `stop` that are in none of the pieces."""
    for texts in sorted(pieces, key=lambda texts: texts.start):
        if texts.start >= stop:
            break
        if texts.start > start:
            yield range(start, texts.start)
        start = max(start, texts.stop)
    if start < stop:
        yield range(start, stop)


def said(task: Task, signature: Signature, run: Path) -> xr.Dataset:
    """What a task returns that is done before others are: no results yet, and where they will be."""
    note = (
        f"Task {task.number} of {task.count} is done. The last one to finish puts the parts together; where one was "
        "stopped, give its command again."
    )
    nothing = xr.Dataset(attrs={"signature": signature.to_json(), "task": note})
    nothing.encoding["source"] = str(run)
    return nothing
