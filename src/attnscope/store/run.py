"""Run the job of a verb: in memory or in a folder, by one process, by tasks, or by Ray's actors."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import xarray as xr

from attnscope.report.signature import Signature
from attnscope.store.arrays import in_a_row
from attnscope.store.files import InUseError, local_folder, read_as
from attnscope.store.runs import RunFolder, along, is_finished, load_part, load_tree
from attnscope.store.units import ByRay, OnlyPrepare, Parts, PreparedError, Share, Task, completed, each_of, plain_rows
from attnscope.support.errors import AttnscopeError

#: Where a run goes; None is memory.
Out: TypeAlias = "str | Path | Callable[[Signature], Path] | None"


class Batch(NamedTuple):
    """Texts that are measured together."""

    texts: range  # numbers of the texts (windows, pairs, prompts, pools), counted from 0
    inputs: Any = None  # for `Job.measure`


@dataclass(frozen=True)
class Work:
    """The forward passes of a job, for a plan."""

    shapes: Sequence[tuple[int, int]] = ()  # texts and tokens of each batch, padding included
    passes: float = 1.0  # of the whole model over each batch, about; a gradient counts as two
    variants: int = 1  # copies of a batch in one pass
    has_head: bool = False  # whether the logits of all tokens are computed
    has_cache: bool = False  # whether keys and values of all layers are kept
    holds: bool = False  # whether the attention calls of all layers are held
    logits: int = 0  # copies of the logits, besides the model's
    states: int = 0  # states of each block that are held
    gradients: bool = False
    copies: int = 0  # of the weights, besides the model
    need: Any = None  # measures of rows, if any
    waits: int = 0  # bytes of rows that wait for those of other layers
    result: int = 0  # bytes of the results of a text
    kept: int = 0  # bytes of them that pools keep of every text
    reads: Mapping[str, Any] | None = None  # arguments of a pass over one input, if these are not tokens
    part: str = ""  # name of the module that takes them, if not that of the whole model or its body
    unit: str = ""  # what is read, if not that of the verb
    uncounted: str = ""  # passes that are not among these


class Job:
    """One call of a verb: its batches, how each is measured, and the summaries of all.

    `run` does everything else. The result is a tree with a node for the batches and one for each summary, or, without
    a name of that node, the one Dataset that has the name of the verb.
    """

    signature: Signature
    attributes: dict[str, str]  # of the result
    node = ""  # of the tree, with the results of the batches
    dimension = "window"  # of these results, as users see it; batches have ``window``
    unit: int = 1  # batches that one process measures before the next continues
    is_quick = False  # whether a batch takes so short that several are written as one piece
    keeps_batches = True  # whether a finished run has the results of the batches
    folder: RunFolder | None = None  # of the run, once it is open

    @cached_property
    def notes(self) -> dict[str, str]:
        """Attributes that are known once everything is measured."""
        return {}

    def work(self) -> Work:
        """Its forward passes, for a plan."""
        return Work()

    def measuring(self) -> AbstractContextManager[object]:
        """What is set up once for all batches, such as hooks of the model."""
        return nullcontext()

    def batches(self) -> Iterable[Batch]:
        """The batches in order."""
        return ()

    def measure(self, batch: Batch) -> xr.Dataset:
        """The results of a batch along ``window``."""
        raise NotImplementedError

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        """The nodes of the result, from the results of some batches each; `made` computes what the folder lacks."""
        raise NotImplementedError

    def made(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """A node as it is read back from the folder, where it is written if it is missing; in memory, a new one."""
        return make() if self.folder is None else self.folder.made(name, make)

    def joined(self, measured: Iterable[xr.Dataset]) -> xr.Dataset:
        """The node of the batches."""
        return along(in_a_row([*measured]), self.dimension)

    def piece(self, batches: Sequence[xr.Dataset]) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
        """The results of adjacent batches as they are stored, and separate ones by name."""
        return in_a_row(batches), {}

    rows = staticmethod(plain_rows)  # some texts of such a piece

    def result(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> Any:
        """The result in memory."""
        if not self.node:
            return nodes[self.signature.command]
        tree = xr.DataTree.from_dict(nodes)
        tree.attrs = attributes
        return tree

    def state(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> dict[str, Any]:
        """The state of a finished run, by which `stored` finds its nodes."""
        parts = [name for name in nodes if name != self.node]
        if not self.node:
            return {"parts": parts}
        return {"parts": parts, "measured": [self.node, self.dimension], "attributes": attributes}

    def files(self, nodes: dict[str, xr.Dataset]) -> dict[str, bytes]:  # noqa: ARG002
        """Further files of the run."""
        return {}

    def is_complete(self, run: RunFolder) -> bool:
        """Whether a run lacks nothing."""
        return run.complete

    def stored(self, run: RunFolder) -> Any:
        """The result of a finished run, which may complete what only its page needs."""
        return load_tree(run) if self.node else load_part(run)

    def waiting(self, attributes: dict[str, str]) -> Any:
        """The result of a task, as long as others are missing."""
        return xr.DataTree(xr.Dataset(attrs=attributes))


@dataclass(eq=False)
class Once(Job):
    """A result without batches, from one function, which may keep what it made on the way by `Job.made`."""

    make: Callable[[Job], xr.Dataset]
    passes: Callable[[], Work] = Work

    def work(self) -> Work:
        return self.passes()

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:  # noqa: ARG002
        name = self.signature.command
        return {name: self.made(name, lambda: self.make(self).assign_attrs(self.attributes))}


def run(job: Job, out: Out, task: Task | None = None, *, repair: bool = False) -> Any:
    """The result of a job: in memory, or from the folder `out` (or that `out` names), where it is written as it comes.

    A stopped run resumes, and a finished one is read. The last of several tasks joins their parts.
    """
    if isinstance(task, OnlyPrepare):
        raise PreparedError(job)
    named = out(job.signature) if callable(out) else out
    with job.measuring():
        if named is not None:
            return _in_folder(job, local_folder(named), task, repair=repair)
        share = Share(lambda _: True, unit=job.unit, notes=job.notes)
        nodes = job.summarise(filter(_is_measured, _results(job, task, share)))
        return job.result(nodes, job.attributes | job.notes)


def _is_measured(results: xr.Dataset | None) -> TypeGuard[xr.Dataset]:
    """Whether a batch was not skipped."""
    return results is not None


def _in_folder(job: Job, path: Path, task: Task | None, *, repair: bool) -> Any:
    if task is None or (isinstance(task, ByRay) and job.is_quick) or is_finished(path):
        with RunFolder(path, job.signature, repair=repair) as folder:
            parts = None if job.keeps_batches or folder.complete else Parts(path, job.signature)
            if not job.is_complete(folder):
                resumes = bool(folder.pieces)
                job.folder = folder
                if job.keeps_batches:
                    share = Share(lambda _: True, completed(folder), job.unit, job.notes)
                    _keep(job, folder, share, _results(job, task, share))
                with read_as(path) if resumes else nullcontext():
                    _finish(job, folder)
            result = job.stored(folder)
            if parts is not None:
                parts.drop()
            return result
    parts = _share(job, task, path, repair=repair)
    if parts.is_whole():
        with suppress(InUseError):  # another task that was done at the same moment joins the parts
            return _joined(job, parts, RunFolder(path, job.signature, repair=repair).__enter__())
    note = (
        f"Task {task.number} of {task.count} is done. The last task to finish joins the parts; to resume an "
        "interrupted task, repeat its command."
    )
    return job.waiting({"signature": job.signature.to_json(), "task": note, "run": str(path)})


def _results(job: Job, task: Task | None, share: Share) -> Iterator[xr.Dataset | None]:
    """The results of a share by this process, or by Ray's actors; None for batches that are skipped."""
    return task.results(job, share) if isinstance(task, ByRay) else each_of(job, share)


def _finish(job: Job, folder: RunFolder) -> None:
    """Compute and write the summaries of all batches."""
    nodes = job.summarise(folder.piece(texts) for texts in folder.pieces)
    files = job.files(nodes)
    if files:
        folder.write(files)
    folder.finish(**job.state(nodes, job.attributes | job.notes))


def _share(job: Job, task: Task, path: Path, *, repair: bool) -> Parts:
    """Do one task of a run, and return the parts that exist afterwards."""
    with RunFolder(task.folder(path), job.signature, repair=repair) as part:
        if not part.complete:
            share = Share(task.does, completed(part), job.unit, job.notes)
            _keep(job, part, share, _results(job, task, share))
            part.finish(**share.state(), attributes=job.attributes | share.notes)
    return Parts(path, job.signature)


def _joined(job: Job, parts: Parts, folder: RunFolder) -> Any:
    """The result of a run whose parts are all there; they are removed."""
    with folder:
        job.folder = folder
        if job.keeps_batches:
            parts.gather(folder, job.rows)
        if not job.is_complete(folder):
            for name, text in parts.attributes.items():  # a process whose part was done before has no notes
                job.notes.setdefault(name, text)
            _finish(job, folder)
        result = job.stored(folder)
    parts.drop()
    return result


def _flush_seconds() -> float:
    text = os.environ.get("ATTNSCOPE_FLUSH_SECONDS", "5")
    with suppress(ValueError):
        seconds = float(text)
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    raise AttnscopeError(f"ATTNSCOPE_FLUSH_SECONDS is {text[:40]!r}; expected a number of seconds, such as 5")


FLUSH_BYTES = 1 << 26  # results of quick batches wait in memory for at most this number of bytes,
FLUSH_SECONDS = _flush_seconds()  # this number of seconds,
FLUSH_SHARE = 0.02  # or this share of the time of the run so far, so that a long run has few pieces,
FLUSH_MOST = 60.0  # but at most this number of seconds, so that a kill costs about a unit


def _keep(job: Job, folder: RunFolder, share: Share, results: Iterable[xr.Dataset | None]) -> None:
    """Add batches to a folder as they arrive: at once, or several quick ones at a time."""
    waiting: list[tuple[int, xr.Dataset]] = []
    began = last = time.monotonic()
    try:
        for batch in results:
            if batch is None:
                continue
            waiting.append((share.first, batch))
            now = time.monotonic()
            full = not job.is_quick or sum(each.nbytes for _, each in waiting) >= FLUSH_BYTES
            if full or now - last > max(FLUSH_SECONDS, min(FLUSH_MOST, FLUSH_SHARE * (now - began))):
                ready, waiting = waiting, []
                _write(job, folder, ready)
                last = time.monotonic()
    finally:
        _write(job, folder, waiting)  # measured batches stay, whatever happened


def _write(job: Job, folder: RunFolder, waiting: list[tuple[int, xr.Dataset]]) -> None:
    """Add waiting batches to the folder, each stretch of adjacent texts as one piece."""
    stretches: list[list[tuple[int, xr.Dataset]]] = []
    stop = -1
    for first, batch in sorted(waiting, key=lambda each: each[0]):
        if first != stop:
            stretches.append([])
        stretches[-1].append((first, batch))
        stop = first + batch.sizes["window"]
    for stretch in stretches:
        results, apart = job.piece([batch for _, batch in stretch])
        folder.append(results, stretch[0][0], **apart)
