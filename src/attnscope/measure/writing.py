"""What a scan does with its batches: keep them in a run folder, a piece at a time, and what it leaves there."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import xarray as xr

from attnscope.measure.documents import called_in
from attnscope.measure.offset_shares import without_profile
from attnscope.measure.over_documents import heads_of_run
from attnscope.measure.pools import Enough, in_order, joined, pools_alone, stretches, windows_alone, windows_of_pools
from attnscope.measure.stored import HEADS, SAMPLE, SUMMARY, WINDOWS, keeps_maps_of, load_scan
from attnscope.store.files import read_as
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import ByRay, CompletedRanges, Parts, Share, Task, by_task, pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from attnscope.measure.questions import ScanSettings
    from attnscope.store.signature import Signature
    from attnscope.store.units import Batches

FLUSH_BYTES = 1 << 26  # results wait in memory for at most so many bytes,
FLUSH_SECONDS = float(os.environ.get("ATTNSCOPE_FLUSH_SECONDS", "5"))  # so many seconds,
FLUSH_SHARE = 0.02  # or this share of the time that the run took so far: a long run has few pieces,
FLUSH_MOST = 60.0  # but no more seconds than that: a kill costs about a unit


@runtime_checkable
class Job(Protocol):
    """The forward passes of one scan."""

    notes: dict[str, str]

    @property
    def unit(self) -> int:
        """Batches that one process measures before the next has its turn, as many in every process."""
        ...

    def batches(self, done: Callable[[range], bool] = ...) -> Iterator[xr.Dataset | None]:
        """Measure batch after batch; None for one that is done."""
        ...

    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first texts; None where it cannot be shown."""
        ...


def measured(
    job: Job,
    asked: ScanSettings,
    signature: Signature,
    kinds: Callable[[xr.Dataset], xr.Dataset] | None,
    attributes: dict[str, str],
) -> xr.Dataset:
    """The results of a scan with the kinds of its heads; in a run folder if one was asked for."""
    attributes = {"signature": signature.to_json(), **attributes}
    folder = asked.folder(signature)
    task = None if isinstance(asked.task, ByRay) else asked.task
    if folder is not None and task is not None and not is_finished(folder):
        return _part(job, asked, task, signature, kinds, attributes, folder)
    if folder is not None:
        with RunFolder(folder, signature, repair=asked.repair) as run:
            return _in_folder(run, job, kinds, attributes, asked)
    results = pools_alone(joined(in_order(_batches(job, asked, signature, attributes, None))))
    if kinds is not None:
        results = results.merge(kinds(results), combine_attrs="no_conflicts")
    results = results.assign_attrs(attributes | job.notes)
    if asked.show is not None:
        results.encoding[SAMPLE] = job.sample(results, asked.show)
    return results


def _part(
    job: Job,
    asked: ScanSettings,
    task: Task,
    signature: Signature,
    kinds: Callable[[xr.Dataset], xr.Dataset] | None,
    attributes: dict[str, str],
    folder: Path,
) -> xr.Dataset:
    """Do one task of a run; where all others are done, put their parts together."""

    def keep(part: RunFolder, batches: Batches, share: Share) -> None:
        _keep(part, (results for results in batches(share) if results is not None))

    def whole(run: RunFolder) -> xr.Dataset:
        # a process that finds its part done has no notes of its own: the parts tell what was noted
        told = attributes | Parts(folder, signature).attributes
        return _in_folder(run, job, kinds, told, asked, whole=True)

    results = by_task(
        task,
        folder,
        signature,
        job.batches,
        whole,
        attributes,
        unit=job.unit,
        notes=job.notes,
        keep=keep,
        repair=asked.repair,
        rows=rows_of_part,
    )
    if results is not None:
        return results
    told = pending(task, folder, signature)
    nothing = xr.Dataset(attrs={name: told[name] for name in ("signature", "task")})
    nothing.encoding["source"] = told["run"]
    return nothing


def rows_of_part(part: RunFolder, piece: range, chosen: slice) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """Some texts of a piece; of pools, with their windows."""
    whole, windows = part.piece(piece), part.apart(WINDOWS, piece)
    apart = {} if windows is None else {WINDOWS: windows_of_pools(windows, whole, chosen)}
    return whole.isel(window=chosen), apart


def _in_folder(
    run: RunFolder,
    job: Job,
    kinds: Callable[[xr.Dataset], xr.Dataset] | None,
    attributes: dict[str, str],
    asked: ScanSettings,
    *,
    whole: bool = False,
) -> xr.Dataset:
    """What the run lacks is measured and kept; the results are read from it, as a later call will."""
    show, held_before = asked.show, bool(run.pieces)
    if not run.complete:
        if not whole:
            _keep(run, _batches(job, asked, run.signature, attributes, run))
        with read_as(run.path) if held_before else nullcontext():
            end(run, kinds, attributes | job.notes)
    results = load_scan(run)
    keeps = show is None or not run.is_writable() or keeps_maps_of(run, show)
    if show is not None and not keeps:
        sample = job.sample(results, show)
        if sample is not None:
            run.save(SAMPLE, sample)
    return results


def end(run: RunFolder, kinds: Callable[[xr.Dataset], xr.Dataset] | None, attributes: dict[str, str]) -> None:
    """Keep what all texts of a run come to, and mark it as complete."""
    if kinds is not None:
        run.save(SUMMARY, kinds(run.results()))
    if "pool" in (run.signature.settings or {}):
        run.save(HEADS, heads_of_run(run))
    run.finish(attributes=attributes)


def _batches(
    job: Job, asked: ScanSettings, signature: Signature, attributes: Mapping[str, str], run: RunFolder | None
) -> Iterator[xr.Dataset]:
    """All that the run lacks, by this process or by Ray's actors; as many as it takes, where that was asked for."""
    held, batches = CompletedRanges(() if run is None else tuple(run.pieces)), job.batches
    if isinstance(asked.task, ByRay):
        batches = asked.task.batches(batches, signature, Share(asked.task.does, held, job.unit, job.notes))
    if asked.until is None:
        yield from (results for results in batches(held) if results is not None)
        return
    enough = Enough(asked.until, run)
    yield from enough.over(results for results in batches(enough.before(held)) if results is not None)
    each = "pools" if asked.pool else called_in(attributes)["windows"]
    job.notes |= enough.note(each)


def _keep(run: RunFolder, batches: Iterable[xr.Dataset]) -> None:
    """Add batches to a run as they come, some at a time."""
    waiting: list[xr.Dataset] = []
    began = last = time.monotonic()
    try:
        for results in batches:
            waiting.append(results)
            now = time.monotonic()
            full = sum(batch.nbytes for batch in waiting) >= FLUSH_BYTES
            if full or now - last > max(FLUSH_SECONDS, min(FLUSH_MOST, FLUSH_SHARE * (now - began))):
                ready, waiting = waiting, []
                _flush(run, ready)
                last = time.monotonic()
    except BaseException:
        _flush(run, waiting)  # what was measured stays, whatever came between
        raise
    _flush(run, waiting)


def _flush(run: RunFolder, waiting: Sequence[xr.Dataset]) -> None:
    """Add what waits to the run, each stretch of texts that follow each other as one piece."""
    for results in stretches(waiting):
        apart = {WINDOWS: windows_alone(results)} if "pooled_window" in results.dims else {}
        run.append(without_profile(pools_alone(results)), int(results.window[0]), **apart)
