"""One loop for every modality: a reader's inputs through its model, statistics of each window, the sample of a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from attnscope.capture.forward import forward
from attnscope.capture.notes import capture_notes
from attnscope.capture.signature import Hashed, signature_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.measure.labels import labelled
from attnscope.measure.long_maps import long_block
from attnscope.measure.maps import ROWS, share_room
from attnscope.measure.observer import WindowBatch, settings_of
from attnscope.measure.passes import StatisticsObserver
from attnscope.measure.questions import ScanSettings
from attnscope.measure.sample import (
    KEYS,
    WEIGHTS,
    WINDOWS,
    MapObserver,
    WordBatch,
    reject_absent,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.measure.summary import kinds_of
from attnscope.measure.writing import measured
from attnscope.read.windows import Window
from attnscope.read.words import in_words
from attnscope.store.signature import Signature
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, no_progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.loaded import LoadedModel
    from attnscope.capture.watch import Observer, Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.measure.row_samples import RowSample

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
        return list(islice(self.items(), WINDOWS))

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
        listed = [shown_heads(results, asked, longest, count) for count in (1, *[WINDOWS] * (WINDOWS - 1))]
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
