"""Which units of a run a process does, as it is typed or as the environment says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from attnscope.errors import AttnscopeError
from attnscope.store import TASKS

if TYPE_CHECKING:
    from attnscope.store import RunFolder, Signature
    from attnscope.tasks._share import Share

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
    """The folder of the parts of a run.

    Examples
    --------
    >>> parts_of(Path("runs/all")).parent
    PosixPath('runs')
    """
    if run.name in {"", ".."}:
        raise AttnscopeError(
            f"{run} names no folder beside which parts of a run can lie: give the folder's own name"
        )
    return run.with_name(run.name + TASKS)


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
    matched = _IN_NUMBERS.fullmatch(given)
    if matched is None or not 1 <= int(matched[1]) <= int(matched[2]):
        raise AttnscopeError(f"task (--task) is {given[:40]!r}; expected I/N with I from 1 to N, or env")
    return Task(int(matched[1]), int(matched[2]))


def task_in(given: str | Task | None, out: object) -> Task | None:
    """Take a task of a run that is kept in a folder; None where a process does all of it.

    Parameters
    ----------
    given
        A task, or its name such as ``"2/8"``.
    out
        Folder in which the run is kept; None where nobody said.

    Raises
    ------
    AttnscopeError
        It is none, or nobody said where the run is kept.

    Examples
    --------
    >>> task_in("2/8", "runs/all").number, task_in(None, None) is None
    (2, True)
    """
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
