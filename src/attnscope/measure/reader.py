"""One loop for every modality: a reader's inputs through its model, statistics of each window, a run folder."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
import torch
import xarray as xr

from attnscope.capture.forward import forward
from attnscope.capture.load import Hashed, signature_of
from attnscope.capture.notes import capture_notes
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import held, watching
from attnscope.kernels.bins import bin_ranges
from attnscope.kernels.call import AttentionCall, checked_at_the_end
from attnscope.kernels.engines import output_of
from attnscope.measure import pools
from attnscope.measure.labels import kinds_of
from attnscope.measure.maps import KEPT, ROWS, long_block, share_room
from attnscope.measure.offset_shares import without_profile
from attnscope.measure.passes import (
    StatisticsObserver,
    WindowBatch,
    labelled,
    planned_need,
    settings_of,
    stacked,
    waiting_bytes,
)
from attnscope.measure.quantities import EQUAL, EVERY_WEIGHT, KNOWN, dimensions
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
from attnscope.measure.stored import EXAMPLES, HEADS, SAMPLE, SUMMARY, WINDOWS, keeps_maps_of, load_scan
from attnscope.options import OBSERVATION, ScanReading
from attnscope.plan import planned
from attnscope.read.windows import Window
from attnscope.read.words import in_words
from attnscope.report import registry
from attnscope.report.signature import Signature
from attnscope.statistics.intervals import FEW, interval, mean_by_document
from attnscope.statistics.units import LEAST, called_in, overlap_of, units_of
from attnscope.store.arrays import in_a_row
from attnscope.store.run import Batch, Job, Work, run
from attnscope.store.runs import RunFolder
from attnscope.support.checked import left_out
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, no_progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.watch import Observer, Site
    from attnscope.store.units import Task


BAND = 10  # tokens

_FIRST = 4  # batches before the first check of `until`; checks double, so that they cost little


def widest_interval(results: xr.Dataset, overlap: int = 1) -> float:
    """Width of the widest 95% interval of the mean of any head, over all statistics that are shares."""
    shares = [
        values.transpose("window", "layer", "head").values.reshape(results.sizes["window"], -1)
        for values in _share_statistics(results).data_vars.values()
    ]
    units, _ = units_of(results.source.values.tolist(), overlap)
    values = np.concatenate(shares, 1)
    _, error, count = mean_by_document(values, units)
    if count < LEAST:
        return float("inf")
    width = float(2 * scipy.special.stdtrit(count - 1, 0.975) * np.nanmax(error))
    if count >= FEW:
        return width
    low, high = interval(values, units)  # wider for skewed documents
    return max(width, float(np.nanmax(high - low)))


class Enough:
    """Whether all intervals are at most `until` wide, checked before the 4th, 8th, 16th, ... batch."""

    def __init__(self, until: float, each: str, overlap: int, stored: xr.Dataset | None) -> None:
        self.until, self.each, self.overlap = until, each, overlap
        self.parts = [] if stored is None else [_share_statistics(stored)]
        self.count = self.read = 0  # batches so far; texts, if these are enough

    def add(self, results: xr.Dataset) -> None:
        """Count the results of a batch."""
        self.parts.append(_share_statistics(results))

    def before(self, first: int) -> bool:
        """Whether the texts before this one are enough."""
        if self.count >= _FIRST and self.count & (self.count - 1) == 0:
            whole = in_a_row(self.parts)
            if widest_interval(whole.isel(window=whole.window.values < first), self.overlap) <= self.until:
                self.read = first
                return True
        self.count += 1
        return False

    def note(self) -> str:
        """When the scan ended, and why."""
        whole, each, until = in_a_row(self.parts), self.each, self.until
        if self.read:
            whole = whole.isel(window=whole.window.values < self.read)
        read, width = whole.sizes["window"], widest_interval(whole, self.overlap)
        width_now = f"the widest 95% interval of a head's mean share is {width:.2g} wide"
        if np.isinf(width):
            width_now = f"fewer than {LEAST} {each} have no 95% interval"
        if self.read:
            return (
                f"Stopped after the first {read} {each}: {width_now} (--until {until:g}). These intervals hold for the "
                "rest of the corpus only if texts are in random order."
            )
        first = ", ".join(str(_FIRST << power) for power in range(3))
        checks = f"checked after {first}, ... {'pools' if each == 'pools' else 'batches'}"
        return f"Read all {read} {each} without stopping: {width_now} (--until {until:g}, {checks})."


def _share_statistics(results: xr.Dataset) -> xr.Dataset:
    """The statistics that are shares, with one number a head."""
    shares = ((name, values) for name, values in results.data_vars.items() if values.attrs.get("units") == "share")
    names = [name for name, values in shares if set(values.dims) == {"window", "layer", "head"}]
    if not names:
        raise AttnscopeError(
            "until (--until) needs a statistic that is a share of weight: add first_token or outside (--statistics)"
        )
    return results[names]


def summaries(run: RunFolder, kinds: Callable[[xr.Dataset], xr.Dataset] | None) -> dict[str, xr.Dataset]:
    """The results over all texts of a run, computed and written if they are missing."""
    nodes: dict[str, xr.Dataset] = {}
    if kinds is not None:
        nodes[SUMMARY] = run.made(SUMMARY, lambda: kinds(run.results()))
    if "pool" in (run.signature.settings or {}):
        nodes[HEADS] = run.made(HEADS, lambda: pools.heads_of_run(run))
    return nodes


UNIT = 16  # batches, at least: a piece of the run, which has its own cost of writing and reading


class Read(NamedTuple):
    """A batch of inputs, for the model and as windows of tokens."""

    batch: WindowBatch
    windows: Sequence[Window]
    words: WordBatch | None = None  # the same windows by words, if these are measured instead of tokens


def scan_settings(reading: Mapping[str, Any], **others: Any) -> ScanReading:
    """The options of a verb that reads as `scan` does, with others, and the defaults of `scan` for the rest."""
    defaults: Any = left_out(ScanReading) | {"observation": OBSERVATION}
    return defaults | reading | others


def heads_to_show(show: Any) -> Sequence[tuple[int, int]] | None:
    """The heads that a page shows beyond those of its rankings; None without a page."""
    return (() if show else None) if isinstance(show, bool) else show


class Reader(Job, ABC):
    """The inputs of a scan in one modality, and the forward passes over them."""

    is_quick = True
    rows = staticmethod(pools.part_rows)

    command: str = "scan"  # verb that measures
    origin: Any = None  # the model as a caller names it
    accepts: frozenset[str] = frozenset()  # settings of texts that it uses
    called: str = "windows"  # name of its inputs in the progress
    packages: tuple[str, ...] = ()  # packages whose versions are part of the signature
    unit: int = UNIT  # batches that one process measures before the next continues
    shows_received: bool = False  # whether the sample has the attention that keys receive, and blocks of long windows
    has_decoder: bool = False  # whether the decoder of an encoder-decoder is measured
    groups: Sequence[str] = ()  # names of the groups of tokens
    chosen: Sequence[int] = ()  # offsets of ``weight_at``
    has_maps: bool = True  # whether the sample has maps from token to token
    target: Hashed | None = None  # the decoder's input, besides the source
    band: int
    reach: int  # the largest possible offset
    count: int  # number of inputs
    batch_size: int = 1
    seen: int = 0  # inputs so far, in this process
    overflows = False  # whether a batch had numbers that are not finite, on a GPU
    enough: Enough | None = None  # of a scan that may end before all inputs are read

    def __init__(
        self, loaded: LoadedModel, model: PreTrainedModel, source: Hashed, settings: ScanReading, names: Sequence[str]
    ) -> None:
        self.loaded, self.model, self.source, self.settings, self.names = loaded, model, source, settings, names
        self.show = heads_to_show(settings["show"])  # on the page, in addition to the first of the rankings
        self.watched = model  # the part of the model whose attention is measured
        self.progress = settings["progress"] or no_progress
        self.sites: list[Site] = []
        self.notes |= getattr(source, "notes", {})
        self.attributes: dict[str, str] = {"model": loaded.name}
        called = getattr(source, "called", "")
        if called:  # the modality; plain texts have none
            self.attributes["reads"] = called
        self.reader: Mapping[str, str] | None = None  # hashes of the tokenizer or processor

    def band_within(self, reach: int, where: str) -> int:
        """Largest offset of the band: the setting, or at most 10; `reach` is the largest possible offset."""
        band = self.settings["band"]
        if band is not None and band > reach:
            raise AttnscopeError(f"band (--band) is {band}; in {where} the largest offset is {reach}")
        return max(1, min(BAND, reach)) if band is None else band

    def measuring(self) -> AbstractContextManager[None]:
        return held(self.watched)

    def shapes(self) -> list[tuple[int, int]]:
        """Inputs and tokens of each batch, for a plan."""
        tokens = len(self.read([next(iter(self.items()))], [0]).windows[0])
        return [(1, tokens) for _ in self.items()]

    def work(self) -> Work:
        """One pass over each batch, and the numbers of a window."""
        need = planned_need(self.names, self.band, self.reach)
        bins, sites = len(bin_ranges(self.band, self.reach)), self.sites
        along = {"offset": 2 * self.band + 1, "offset_bin": bins, "part": 3, "chosen_offset": len(self.chosen)}
        along |= {"head": max(site.heads for site in sites), "every_offset": 2 * self.reach + 1, "kept": len(KEPT)}
        along |= dict.fromkeys(("group_query", "group_key"), len(self.groups))
        every = [*self.names, *(f"{EQUAL}{name}" for name in self.names if KNOWN[name].has_equal)]
        sizes_of = {name: math.prod(along.get(dim, 1) for dim in dimensions(name)[2:]) for name in every}
        of_heads = [size for name, size in sizes_of.items() if dimensions(name)[2:] == ("head",)]
        result, kept = 8 * sum(sizes_of.values()) * len(sites), 4 * sum(of_heads) * len(sites)
        return Work(self.shapes(), need=need, waits=waiting_bytes(self.model), result=result, kept=kept)

    @abstractmethod
    def items(self) -> Iterable[Any]:
        """The inputs from the first on."""

    @abstractmethod
    def read(self, items: Sequence[Any], numbers: Sequence[int]) -> Read:
        """A batch of inputs."""

    def signature_settings(self) -> dict[str, Any]:
        """The settings behind the numbers, besides model and inputs."""
        limit, seed = self.settings["limit"], self.settings["seed"]
        signed = {"limit": limit, "statistics": list(self.names), "band": self.band, "seed": seed}
        signed |= settings_of(self.names, self.settings["observation"])
        return signed | registry.signed("statistic", self.names)

    @cached_property
    def signature(self) -> Signature:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The signature: everything behind the numbers."""
        settings = self.signature_settings()
        return signature_of(
            self.command, self.loaded, self.source, self.target, settings, reader=self.reader, packages=self.packages
        )

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        """The function that labels heads in the results; None without the statistics that it needs."""
        return kinds_of(self.signature_settings())

    def scan(self, task: Task | None) -> Any:
        """Measure all inputs: in memory, into a run folder, or one task of a run; in a dry run, plan it."""
        if self.settings["dry_run"]:
            return planned(self.command, self.origin, self.loaded, self.work(), self.settings)
        if self.show:
            reject_absent(self.show, len(self.sites), max(site.heads for site in self.sites))
        self.attributes = {"signature": self.signature.to_json()} | self.attributes
        if not {*self.names}.isdisjoint(registry.registered("statistic")):
            self._try_statistics()
        return run(self, self.settings["out"], task, repair=self.settings["repair"])

    def _try_statistics(self) -> None:
        """Measure the first input, for the errors of registered statistics, before a run folder is made."""
        self.measure_batch([next(iter(self.items()))], [0])
        whole = [name for name in self.names if name in KNOWN and EVERY_WEIGHT in KNOWN[name].needs]
        if whole:
            self.notes["weights"] = (
                f"Statistics of every weight ({', '.join(whole)}): the scores of each layer are computed once more, in "
                "blocks of at most 64 MiB."
            )

    def piece(self, batches: Sequence[xr.Dataset]) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
        results = pools.joined(batches)
        apart = {WINDOWS: pools.windows_alone(results)} if "pooled_window" in results.dims else {}
        return without_profile(pools.pools_alone(results)), apart

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        kinds = self.kinds()
        if self.folder is not None:
            return summaries(self.folder, kinds)
        ordered = sorted(measured, key=lambda part: int(part.window[0]))  # tasks of Ray end in any order
        whole = pools.pools_alone(pools.joined(ordered))
        whole = whole if kinds is None else whole.merge(kinds(whole), combine_attrs="no_conflicts")
        return {self.command: whole}

    def result(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> xr.Dataset:
        whole = nodes[self.command].assign_attrs(attributes)
        if self.show is not None:
            whole.encoding[SAMPLE] = self.sample(whole, self.show)
            whole.encoding[EXAMPLES] = self.examples(whole)
        return whole

    def state(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> dict[str, Any]:  # noqa: ARG002
        return {"attributes": attributes}

    def stored(self, run: RunFolder) -> xr.Dataset:
        """The results of a finished run; adds the sample of its page if it is missing."""
        results, show = load_scan(run), self.show
        if show is None or not run.is_writable():
            return results
        if not keeps_maps_of(run, show) and (sample := self.sample(results, show)) is not None:
            run.save(SAMPLE, sample)
        if run.load(EXAMPLES) is None and (examples := self.examples(results)) is not None:
            run.save(EXAMPLES, examples)
        return results

    def waiting(self, attributes: dict[str, str]) -> xr.Dataset:
        results = xr.Dataset(attrs={name: attributes[name] for name in ("signature", "task")})
        results.encoding["source"] = attributes["run"]
        return results

    def examples(self, results: xr.Dataset) -> xr.Dataset | None:  # noqa: ARG002
        """The examples of heads on the page; None by default."""
        return None

    def name_of(self, window: Window, number: int) -> str:  # noqa: ARG002
        """The name of an input in an error."""
        return window.source

    def verify(self, read: Read) -> None:
        """Reject a model that cannot be measured, on its first input."""
        self.sites = verify(
            self.watched, read.batch.inputs(self.model), text=self.name_of(read.windows[0], 0), weights_suffice=True
        )
        self.notes |= capture_notes(self.watched)

    def reject_other_positions(self, read: Read, problem: Callable[[Site, AttentionCall], str | None]) -> None:
        """Reject a model that attends over other positions than its tokens, with the reason from `problem`."""

        def look(site: Site, call: AttentionCall) -> Tensor:
            reason = problem(site, call)
            if reason:
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
                with_head=False,
            )

    def observe_first(self, observer: Observer) -> Window:
        """Run the first input with an observer, and return it as a window."""
        read = self.read([next(iter(self.items()))], [0])
        self.run(read, observer)
        return read.windows[0]

    def views_of_first(self) -> list[dict[str, Any]]:
        """Pictures among the tokens of the first input, for a page."""
        return []

    def parts(self) -> Iterator[dict[int, Any]]:
        """The numbers of the inputs, in batches or pools; by default one at a time."""
        for number, item in enumerate(self.items()):
            yield {number: item}

    def batches(self) -> Iterator[Batch]:
        """Batches or pools; of a scan that may end early, until enough is measured."""
        self.seen, self.furthest, settings = 0, -1, self.settings
        if settings["until"] is not None:
            each = "pools" if settings["pool"] else called_in(self.attributes)["windows"]
            stored = self.folder.results() if self.folder is not None and self.folder.pieces else None
            self.enough = Enough(settings["until"], each, overlap_of(settings["window"], settings["stride"]), stored)
        whole = False
        try:
            for number, part in enumerate(self.parts()):
                self.furthest = max(self.furthest, *part)
                first = self.seen
                texts = range(first, first + len(part)) if settings["pool"] is None else range(number, number + 1)
                if self.enough is not None and self.enough.before(texts.start):
                    break
                yield Batch(texts, part)
                self.pass_over([*part.values()][self.seen - first :])  # pools count theirs as they are measured
            else:
                whole = True
        finally:
            self.note_read(whole=whole)
        if self.enough is not None:
            self.notes["until"] = self.enough.note()

    def measure(self, batch: Batch) -> xr.Dataset:
        """The statistics of a batch or a pool."""
        part: dict[int, Any] = batch.inputs
        if self.settings["pool"] is None:
            results = self.measure_batch([*part.values()], [*part])
        else:
            measured: list[xr.Dataset] = []
            for some in chunked(part.items(), self.batch_size):
                measured.append(self.measure_batch([*some.values()], [*some]))
                self.pass_over([*some.values()])
            windows = pools.joined(measured).assign_coords(window=[*part])
            results = pools.pooled(windows, batch.texts.start, self.settings["seed"])
        if self.enough is not None:
            self.enough.add(results)
        return results

    def note_read(self, *, whole: bool) -> None:
        """Add notes on the inputs, all or a part."""

    def pass_over(self, items: Sequence[Any]) -> None:
        """Count inputs and report progress."""
        self.seen += len(items)
        self.progress(Progress("scan", self.seen / self.count, {self.called: self.seen}))

    def measure_batch(self, items: Sequence[Any], numbers: Sequence[int]) -> xr.Dataset:
        """The statistics of a batch."""
        read, settings = self.read(items, numbers), self.settings
        sample = None if settings["rows"] is None else RowSample(settings["rows"], settings["seed"], numbers[0])
        options = len(self.groups), read.words, sample, settings["observation"], self.chosen

        def observed() -> list[dict[str, Tensor]]:
            observer = StatisticsObserver(self.names, self.band, read.batch, self.reach, *options)
            self.run(read, observer, numbers)
            return observer.layers()

        is_waited_for = device_of(self.watched).type != "cpu" and not self.overflows
        layers = checked_at_the_end(observed) if is_waited_for else None
        if layers is None:
            self.overflows = is_waited_for or self.overflows
            layers = observed()
        by = [window.by for window in read.windows]
        sources = [(window.source, window.start) for window in read.windows]
        named = numbers[0], self.groups, "tokens" if read.words is None else "words", by if by[0] else None, self.chosen
        arrays, lengths = stacked(layers), self.lengths(read)
        return labelled(arrays, self.sites, self.band, self.reach, lengths, sources, *named)

    def lengths(self, read: Read) -> dict[str, np.ndarray]:
        """The number of tokens or words of each window."""
        return {"length": (read.batch if read.words is None else read.words.words).text.valid.sum(1).cpu().numpy()}

    def first_items(self) -> list[Any]:
        """The inputs on the page."""
        return list(islice(self.items(), SAMPLE_WINDOWS))

    def layer_done(self, passes: int) -> Callable[[], None]:  # noqa: ARG002
        """A callback after each layer of the sample."""
        return lambda: None

    @torch.no_grad()
    def sample(self, results: xr.Dataset, show: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first windows; None if it is not from token to token."""
        if not self.has_maps:
            return None
        items, heads = self.first_items(), results.sizes["head"]
        reads = [self.read([item], [number]) for number, item in enumerate(items)]
        windows = [in_words(read.windows[0]) for read in reads]
        tokens = [max(len(window), len(window.target or window)) for window in windows]
        longest = min(ROWS, max(tokens))
        listed = shown_heads(results, show, longest)
        every_head = {(site.index, head) for site in self.sites for head in range(heads)}
        others = len(every_head) - len(listed[0])
        layer_done = self.layer_done(len(reads) * len(self.sites))
        last = settings_of(self.names, self.settings["observation"]).get("observation") if self.shows_received else None
        numbers = sum(tokens) * len(self.sites) * heads * (1 if last is None else 2)
        observed: list[MapObserver] = []
        for read, of_window in zip(reads, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            receiving = None if not self.shows_received else set(of_window) if numbers > KEYS else every_head
            observer = MapObserver(of_window, WEIGHTS, tile, layer_done, read.words, receiving, last=last)
            if self.shows_received and not observed and tokens[0] > ROWS:
                observer.block = long_block(len(every_head), tokens[0])
            self.run(read, observer)
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        sample = sample_dataset(observed, windows, kinds, heads, show, with_decoder=self.has_decoder)
        return self.illustrated(sample, items, reads)

    def illustrated(self, sample: xr.Dataset, items: Sequence[Any], reads: Sequence[Read]) -> xr.Dataset:  # noqa: ARG002
        """The sample with pictures of the inputs."""
        return sample


def chunked(numbered: Iterable[tuple[int, Any]], size: int) -> Iterator[dict[int, Any]]:
    """Batches of input numbers."""
    each = iter(numbered)
    while batch := dict(islice(each, size)):
        yield batch
