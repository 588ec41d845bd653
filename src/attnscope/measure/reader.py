"""One loop for every modality: a reader's inputs through its model, statistics of each window, a run folder."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import xarray as xr
from scipy import stats

from attnscope.capture.forward import forward
from attnscope.capture.load import AS_SAVED, Loading
from attnscope.capture.notes import capture_notes
from attnscope.capture.signature import Hashed, signature_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.measure.documents import FEW, LEAST, called_in, interval, mean_by_document, units_of
from attnscope.measure.kinds import kinds_of
from attnscope.measure.maps import ROWS, long_block, share_room
from attnscope.measure.offset_shares import without_profile
from attnscope.measure.passes import OBSERVATION, StatisticsObserver, WindowBatch, labelled, settings_of
from attnscope.measure.pools import (
    heads_of_run,
    in_order,
    joined,
    pools_alone,
    stretches,
    windows_alone,
    windows_of_pools,
)
from attnscope.measure.row_samples import RowSample
from attnscope.measure.sample import (
    KEYS,
    SAMPLE_WINDOWS,
    WEIGHTS,
    MapObserver,
    WordBatch,
    reject_absent,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.measure.stored import HEADS, SAMPLE, SUMMARY, WINDOWS, keeps_maps_of, load_scan
from attnscope.read.windows import Window
from attnscope.read.words import in_words
from attnscope.store.arrays import in_a_row
from attnscope.store.files import local_folder, read_as
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.signature import Signature
from attnscope.store.units import ByRay, CompletedRanges, Parts, Share, Task, by_task, pending
from attnscope.support.checks import check_real, check_seed, check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.loaded import LoadedModel
    from attnscope.capture.processors import Processor
    from attnscope.capture.watch import Observer, Site
    from attnscope.read.encoded import Sources
    from attnscope.read.groups import Groups
    from attnscope.read.words import Words
    from attnscope.store.units import Batches


BAND = 10  # tokens


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """The arguments of `attnscope.scan`, whatever it reads; see there."""

    # what reads for the model: tokenizer, image processor, feature extractor, or a folder of them
    processor: Processor = None
    out: str | Path | Callable[[Signature], Path] | None = None
    repair: bool = False
    limit: int | None = None
    batch_size: int | None = None
    statistics: Sequence[str] | str | None = None
    band: int | None = None
    observation: int = OBSERVATION
    seed: int = 0
    task: Task | None = None
    pool: int | None = None
    until: float | None = None
    rows: int | None = None
    show: Sequence[tuple[int, int]] | None = None
    progress: Tell | None = None
    loading: Loading = AS_SAVED  # how the model is loaded
    targets: Sources = None
    window: int | None = None
    stride: int | None = None
    field: str | None = None
    by_line: bool = False
    clusters: int | None = None
    groups: Groups | None = None
    chat: bool = False
    chat_template: str | Path | None = None
    words: Words | None = None
    by: str | None = None
    offsets: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_whole(
            1,
            limit=self.limit,
            batch_size=self.batch_size,
            band=self.band,
            pool=self.pool,
            observation=self.observation,
        )
        check_seed(self.seed)
        if self.rows is not None:
            RowSample(self.rows)
            if self.pool is not None:
                raise AttnscopeError("rows (--rows) are drawn of single windows: leave out rows or pool (--pool)")
        if self.until is not None:
            check_real(0.0, 1.0, until=self.until)
            if self.task is not None:
                raise AttnscopeError(
                    "until (--until) looks at all that is measured, and a task (--task) has a part of it: leave out one"
                )

    def band_within(self, reach: int, where: str) -> int:
        """Largest offset of the band, where `reach` is the largest that there is: the one asked for, or 10 at most."""
        if self.band is not None and self.band > reach:
            raise AttnscopeError(f"band (--band) is {self.band}; in {where} the largest offset is {reach}")
        return max(1, min(BAND, reach)) if self.band is None else self.band

    def folder(self, signature: Signature) -> Path | None:
        """Where the run is kept; None keeps none."""
        place = self.out(signature) if callable(self.out) else self.out
        return None if place is None else local_folder(place)


_FIRST = 4  # batches before the first look; each look is at twice as many, so that looking costs little


def widest_interval(results: xr.Dataset) -> float:
    """Width of the widest 95% interval of the mean of any head, over all statistics that are shares."""
    shares = [
        values.transpose("text", "layer", "head").values.reshape(results.sizes["text"], -1)
        for values in _share_statistics(results).data_vars.values()
    ]
    units, _ = units_of(results.source.values.tolist())
    values = np.concatenate(shares, 1)
    _, error, count = mean_by_document(values, units)
    if count < LEAST:
        return float("inf")
    width = float(2 * stats.t.ppf(0.975, count - 1) * np.nanmax(error))
    if count >= FEW:
        return width
    low, high = interval(values, units)  # which is wider where documents are skewed
    return max(width, float(np.nanmax(high - low)))


def is_check(batches: int) -> bool:
    """Whether intervals are looked at after so many batches."""
    return batches >= _FIRST and batches & (batches - 1) == 0


class Enough:
    """Looks at what is measured so far now and then, and ends the scan where it is enough."""

    def __init__(self, until: float, run: RunFolder | None) -> None:
        self.until, self.batches, self.texts = until, 0, 0
        self.parts = [] if run is None or not run.pieces else [_share_statistics(run.results())]

    def before(self, done: Callable[[range], bool]) -> Callable[[range], bool]:
        """Look before a batch is measured."""

        def look(texts: range) -> bool:
            if is_check(self.batches) and self._is_enough(texts.start):
                self.texts = texts.start
                raise EnoughError
            self.batches += 1
            return done(texts)

        return look

    def over(self, batches: Iterator[xr.Dataset]) -> Iterator[xr.Dataset]:
        """Batches until it is enough."""
        try:
            for results in batches:
                self.parts.append(_share_statistics(results))
                yield results
        except EnoughError:
            return

    def note(self, each: str) -> dict[str, str]:
        """What a reader has to know of how wide intervals are, and of a scan that ended before its texts did."""
        whole = in_a_row(self.parts)
        if self.texts:
            whole = whole.isel(text=whole.text.values < self.texts)
        read, width = whole.sizes["text"], widest_interval(whole)
        found = f"the widest 95% interval of a head's mean share is {width:.2g} wide"
        if np.isinf(width):
            found = f"fewer than {LEAST} {each} have no 95% interval"
        if self.texts:
            return {
                "until": f"Stopped after {read} {each}, the first of the corpus: {found}, and {self.until:g} was asked "
                "for. The rest was not read: these intervals tell of it only if texts come in no order."
            }
        first = ", ".join(str(_FIRST << power) for power in range(3))
        looks = f"it is looked at after {first}, ... {'pools' if each == 'pools' else 'batches'}"
        return {
            "until": f"Not stopped, all {read} {each} were read: {found}, and {self.until:g} was asked for ({looks})."
        }

    def _is_enough(self, texts: int) -> bool:
        whole = in_a_row(self.parts)
        return widest_interval(whole.isel(text=whole.text.values < texts)) <= self.until


class EnoughError(Exception):
    """Enough is measured."""


def _share_statistics(results: xr.Dataset) -> xr.Dataset:
    """The statistics that are shares, one a head."""
    names = [
        name
        for name, values in results.data_vars.items()
        if set(values.dims) == {"text", "layer", "head"} and values.attrs.get("units") == "share"
    ]
    if not names:
        raise AttnscopeError(
            "until (--until) is of statistics that are shares of weight, such as first_token or outside: name one with "
            "statistics (--statistics)"
        )
    return results[names]


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
    return whole.isel(text=chosen), apart


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
        apart = {WINDOWS: windows_alone(results)} if "window" in results.dims else {}
        run.append(without_profile(pools_alone(results)), int(results.text[0]), **apart)


UNIT = 16  # batches, at least: a piece of the run, which has its own cost to be written, read and put together


class Read(NamedTuple):
    """Inputs side by side, as the model takes them and as windows of tokens."""

    batch: WindowBatch
    windows: Sequence[Window]
    words: WordBatch | None = None  # the same windows by words, where these are measured instead of tokens


class Reader(ABC):
    """What a scan reads of one modality, and the forward passes over it."""

    reads: str = ""  # the modality, as messages and results name it; "" for plain texts
    accepts: frozenset[str] = frozenset()  # settings of texts that it has a use for
    called: str = "windows"  # its inputs, in progress
    packages: tuple[str, ...] = ()  # whose versions are part of the signature
    unit: int = UNIT  # batches that one process measures before the next has its turn
    shows_received: bool = False  # whether the sample has what each key receives, and blocks of long windows
    has_decoder: bool = False  # whether a decoder beside an encoder is measured
    groups: Sequence[str] = ()  # names of the groups of tokens
    chosen: Sequence[int] = ()  # offsets at which ``weight_at`` is measured
    has_maps: bool = True  # whether the sample has maps from token to token
    band: int
    reach: int  # the largest offset that there is
    count: int  # how many inputs are read

    def __init__(
        self, loaded: LoadedModel, model: PreTrainedModel, source: Hashed, asked: ScanSettings, names: Sequence[str]
    ) -> None:
        self.loaded, self.model, self.source, self.asked, self.names = loaded, model, source, asked, names
        self.watched = model  # the part of the model whose attention is measured
        self.progress = asked.progress or no_progress
        self.sites: list[Site] = []
        self.notes: dict[str, str] = {}
        self.attributes: dict[str, str] = {"model": loaded.name} | ({"reads": self.reads} if self.reads else {})
        self.reader: Mapping[str, str] | None = None  # hashes of what reads for the model

    @abstractmethod
    def items(self) -> Iterable[Any]:
        """The inputs from the first on, each in its own form."""

    @abstractmethod
    def read(self, items: Sequence[Any], numbers: Sequence[int]) -> Read:
        """Put inputs side by side."""

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on beside the model and what it reads."""
        asked = self.asked
        settings = {"limit": asked.limit, "statistics": list(self.names), "band": self.band, "seed": asked.seed}
        return settings | settings_of(self.names, asked.observation)

    def signature(self) -> Signature:
        """All that the numbers depend on."""
        return signature_of(
            "scan", self.loaded, self.source, None, self.settings(), reader=self.reader, packages=self.packages
        )

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        """What finds the kinds of heads in the results; None where something is not measured that they need."""
        return kinds_of(self.settings())

    def scan(self) -> xr.Dataset:
        """Measure all of it, in a run folder if one is given."""
        reject_absent(self.asked.show, len(self.sites), self.heads)
        return measured(self, self.asked, self.signature(), self.kinds(), self.attributes)

    @property
    def heads(self) -> int:
        """The most heads of any layer."""
        return max(site.heads for site in self.sites)

    def name_of(self, window: Window, number: int) -> str:  # noqa: ARG002
        """What to call an input in an error."""
        return window.source

    def verify(self, read: Read) -> None:
        """Reject a model that cannot be measured, on its first input."""
        self.sites, _ = verify(
            self.watched, read.batch.inputs(self.model), text=self.name_of(read.windows[0], 0), weights_suffice=True
        )
        self.notes |= capture_notes(self.watched)

    def reject_other_positions(self, read: Read, problem: Callable[[Site, AttentionCall], str | None]) -> None:
        """Reject a model that attends over other positions than its tokens, for the reason that `problem` gives."""

        def look(site: Site, call: AttentionCall) -> Tensor:
            if reason := problem(site, call):
                raise AttnscopeError(
                    f"layer {site.index} ({site.name}) of {type(self.model).__name__} attends {reason}"
                )
            return output_of(call) if call.key.shape[-1] else call.query

        self.run(read, look)

    @torch.no_grad()
    def run(self, read: Read, observer: Observer, numbers: Sequence[int] = (0,)) -> None:
        """One forward pass with an observer."""
        with watching(self.watched, observer, weights_suffice=True):
            forward(
                self.model,
                read.batch.inputs(self.model),
                lambda at: self.name_of(read.windows[at], numbers[at]),
                lambda kind: read.batch.sides(kind)[0].valid,
            )

    def observe_first(self, observer: Observer) -> Window:
        """Run the first input with an observer; it is returned as a page shows it."""
        read = self.read([next(iter(self.items()))], [0])
        self.run(read, observer)
        return read.windows[0]

    def side_by_side(self) -> Iterator[list[Any]]:
        """The inputs in batches: by default each is read by itself."""
        for item in self.items():
            yield [item]

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset | None]:
        """Measure batch after batch; None for one that is done."""
        stop = 0
        for items in self.side_by_side():
            numbers = range(stop, stop + len(items))
            stop = numbers.stop
            yield None if done(numbers) else self.measure_batch(items, numbers)
            self.progress(Progress("scan", stop / self.count, {self.called: stop}))

    def measure_batch(self, items: Sequence[Any], numbers: Sequence[int]) -> xr.Dataset:
        """The statistics of inputs side by side."""
        read = self.read(items, numbers)
        observer = StatisticsObserver(
            self.names,
            self.band,
            read.batch,
            self.reach,
            len(self.groups),
            read.words,
            self.row_sample(numbers[0]),
            self.asked.observation,
            self.chosen,
        )
        self.run(read, observer, numbers)
        by = [window.by for window in read.windows]
        results = labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            self.lengths(read),
            [(window.source, window.start) for window in read.windows],
            numbers[0],
            self.groups,
            "tokens" if read.words is None else "words",
            by if by[0] else None,
            self.chosen,
        )
        return results.assign(self.sizes(items, numbers))

    def row_sample(self, first: int) -> RowSample | None:  # noqa: ARG002
        """Which rows of a batch are measured, where some represent all."""
        return None

    def lengths(self, read: Read) -> dict[str, np.ndarray]:
        """How many tokens, or words, each window has."""
        text = (read.batch if read.words is None else read.words.words).text
        return {"length": text.valid.sum(1).cpu().numpy()}

    def sizes(self, items: Sequence[Any], numbers: Sequence[int]) -> dict[str, Any]:  # noqa: ARG002
        """More variables of each window."""
        return {}

    def first_items(self) -> list[Any]:
        """The inputs that a page shows."""
        return list(islice(self.items(), SAMPLE_WINDOWS))

    def layer_done(self, passes: int) -> Callable[[], None]:  # noqa: ARG002
        """What is called behind each of the layers that the sample reads."""
        return lambda: None

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first windows; None where it is not from token to token."""
        if not self.has_maps:
            return None
        items, heads = self.first_items(), results.sizes["head"]
        reads = [self.read([item], [number]) for number, item in enumerate(items)]
        windows = [in_words(read.windows[0]) for read in reads]
        tokens = [max(len(window), len(window.target or window)) for window in windows]
        longest = min(ROWS, max(tokens))
        listed = [
            shown_heads(results, asked, longest, count) for count in (1, *[SAMPLE_WINDOWS] * (SAMPLE_WINDOWS - 1))
        ]
        others = len(self.sites) * heads - len(listed[0])
        layer_done = self.layer_done(len(reads) * len(self.sites))
        last = settings_of(self.names, self.asked.observation).get("observation") if self.shows_received else None
        numbers = sum(tokens) * len(self.sites) * heads * (1 if last is None else 2)
        observed: list[MapObserver] = []
        for read, of_window in zip(reads, listed, strict=False):
            observer = MapObserver(
                of_window,
                WEIGHTS,
                tile_size(others, longest) if others and not observed else 0,
                layer_done,
                read.words,
                _receiving(of_window, every=numbers <= KEYS) if self.shows_received else None,
                last=last,
            )
            if self.shows_received and not observed and tokens[0] > ROWS:
                observer.block = long_block(len(self.sites) * heads, tokens[0])
            self.run(read, observer)
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        sample = sample_dataset(observed, windows, kinds, heads, asked, with_decoder=self.has_decoder)
        return self.illustrated(sample, items, reads)

    def illustrated(self, sample: xr.Dataset, items: Sequence[Any], reads: Sequence[Read]) -> xr.Dataset:  # noqa: ARG002
        """The sample with pictures of what was read."""
        return sample


def _receiving(listed: Sequence[tuple[int, int]], *, every: bool) -> Callable[[tuple[int, int]], bool]:
    """Whether the sample has what each key receives from a head."""
    return lambda head: every or head in listed
