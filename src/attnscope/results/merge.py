"""Merging the parts of a run by several tasks, if no task did."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

from attnscope.catalogue import function_of
from attnscope.measure.pools import part_rows
from attnscope.measure.scan import finish_scan
from attnscope.results.open import known_run
from attnscope.store.files import InUseError, local_folder, read_as
from attnscope.store.folder import manifest_of
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import Parts, parts_of
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    path: Path  #: the run
    command: str  #: the command of the run
    texts: int  #: number of texts (windows, pools, pairs)
    tasks: int  #: number of parts; 0 if the run was already complete
    complete: bool  #: whether it is finished


@checked
def merge(path: str | Path) -> Merged:
    """Merge the parts that the tasks of a run have measured.

    Use it if the last task was interrupted, or if parts were copied from several machines: ``RUN.tasks/1-of-4``,
    ``RUN.tasks/2-of-4``, ... next to ``RUN``. It can be called at any time and repeatedly, also while tasks run.

    Parameters
    ----------
    path
        Folder of the run; it need not exist yet.

    Raises
    ------
    AttnscopeError
        If work units are missing, another process is merging the run, a part is damaged or belongs to another run, or
        there are no parts.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(folder) / "run", task="2/2")
    ...     merge(Path(folder) / "run")
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: ...run is not whole: 1 of 1 units is missing (1): give the command of ...
    """
    folder = local_folder(path)
    parts = Parts(folder)
    if parts.signature is None:
        return _without_parts(folder)
    whole = RunFolder(folder, parts.signature)
    whole.look()
    lacking = "" if whole.complete else parts.describe_missing(whole)
    if lacking:
        raise AttnscopeError(f"{folder} is not whole: {lacking}")
    if whole.command == "explain" and not whole.complete:  # it merges the parts itself, with the model loaded
        return Merged(folder, whole.command, parts.texts, len(parts.folders), complete=False)
    with _opened(whole) as run:
        if not run.complete:
            with read_as(parts_of(folder)):
                parts.gather(run, part_rows)
                if run.command == "scan":
                    finish_scan(run, parts.attributes)
        parts.drop()
        return Merged(folder, run.command, run.texts, len(parts.folders), run.complete)


def _opened(run: RunFolder) -> RunFolder:
    try:
        return run.__enter__()
    except InUseError:
        raise InUseError(f"another process is merging {run.path}: wait until it has finished") from None


def _without_parts(folder: Path) -> Merged:
    manifest = manifest_of(folder)
    if manifest is not None:
        name = manifest.command
        if "task" not in inspect.signature(function_of(name)).parameters:
            raise AttnscopeError(f"{folder} is a run of {name}, which has no parts; expected a run with --task")
    if not is_finished(folder):
        raise AttnscopeError(
            f"{parts_of(folder)} contains no parts of a run; expected folders such as 1-of-4, made with --task"
        )
    run = known_run(folder)
    return Merged(folder, run.command, run.windows, 0, complete=True)
