"""How a process does its task, and puts all together where it is the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnscope.store import InUseError, RunFolder
from attnscope.tasks._parts import Parts, Rows, plain_rows
from attnscope.tasks._share import Share

if TYPE_CHECKING:
    from attnscope.store import Signature
    from attnscope.tasks._task import Task

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
    """Do one task of a run; where all others are done, put their parts together.

    Parameters
    ----------
    task, folder, signature
        Which one, of which run.
    measure
        Adds to the task's part what its share does not pass over, asked of every batch in turn.
    whole
        Makes the results of the run, once it has all texts.
    attributes
        Attributes of the results, as they are when all is measured.
    unit
        How many batches are a unit.
    repair
        Whether to measure again what was damaged in a part that was finished.
    rows
        Reads some texts of a part, with what is kept apart of them.

    Returns
    -------
    What `whole` returns; None where others have still to do theirs, or are putting all together now.

    Raises
    ------
    AttnscopeError
        A part is damaged, in use, or of another run.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> from attnscope.store import Signature
    >>> from attnscope.tasks import Task
    >>> def measure(part, share):
    ...     for texts in (range(2), range(2, 4)):
    ...         if not share(texts):
    ...             part.append(xr.Dataset({"length": ("text", [3, 4])}), texts.start)
    >>> def lengths(run):
    ...     run.finish()
    ...     return run.results().length.values.tolist()
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = Path(place) / "run"
    ...     for number in (1, 2):
    ...         print(by_task(Task(number, 2), run, Signature("scan"), measure, lengths, {}))
    None
    [3, 4, 3, 4]
    """
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
    """Do one task of a run, as `by_task` does, and say what parts there are then.

    Parameters
    ----------
    task
        The task.
    folder, signature
        Folder and signature of the run.
    measure
        Function that measures the task's share into its folder.
    attributes
        Attributes of the results.
    unit
        Number of batches in a unit.
    repair
        Whether what is damaged is made again.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> from attnscope.store import Signature
    >>> from attnscope.tasks import Task
    >>> def measure(part, share):
    ...     for texts in (range(2), range(2, 4)):
    ...         if not share(texts):
    ...             part.append(xr.Dataset({"length": ("text", [3, 4])}), texts.start)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     parts = do_share(Task(1, 2), Path(place) / "run", Signature("scan"), measure, {})
    ...     parts.texts, parts.lacking()  # the first of two tasks has every other batch
    (4, [range(2, 4)])
    """
    measure = task.measuring(measure, signature)
    with RunFolder(task.folder(folder), signature, repair=repair) as part:
        if not part.complete:
            share = Share(task.does, part, unit)
            measure(part, share)
            part.finish(**share.state(), attributes=attributes)
    return Parts(folder, signature)


def pending(task: Task, folder: Path, signature: Signature) -> dict[str, str]:
    """Attributes of what a task returns that is done before others are: no results yet, and where they will be.

    Parameters
    ----------
    task
        The task that is done.
    folder, signature
        Folder and signature of the run.

    Examples
    --------
    >>> from attnscope.store import Signature
    >>> from attnscope.tasks import Task
    >>> attributes = pending(Task(2, 3), Path("runs/all"), Signature("scan"))
    >>> attributes["task"][:22], attributes["run"]
    ('Task 2 of 3 is done. T', 'runs/all')
    """
    note = (
        f"Task {task.number} of {task.count} is done. The last one to finish puts the parts together; where one was "
        "stopped, give its command again."
    )
    return {"signature": signature.to_json(), "task": note, "run": str(folder)}
