"""The forward passes of one scan, batch after batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from attnscope.capture.forward import forward
from attnscope.capture.loaded import LoadedModel
from attnscope.capture.notes import capture_notes
from attnscope.capture.placement import device_of
from attnscope.capture.verify import is_causal_model, padding_difference, verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.measure.labels import labelled
from attnscope.measure.long_maps import long_block
from attnscope.measure.maps import ROWS, share_room
from attnscope.measure.observer import OBSERVATION, WindowBatch, settings_of
from attnscope.measure.offset_shares import bias_note
from attnscope.measure.passes import StatisticsObserver
from attnscope.measure.pools import in_pools, joined, pooled
from attnscope.measure.questions import ResumePoint
from attnscope.measure.row_samples import RowSample, rows_note
from attnscope.measure.sample import (
    KEYS,
    WEIGHTS,
    WINDOWS,
    MapObserver,
    WordBatch,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.measure.special import has_twice, is_packed
from attnscope.read.chats import ChatTexts
from attnscope.read.encoded import Texts
from attnscope.read.windows import Cutting, Place, Window, Windows, window_name
from attnscope.read.words import WordedWindows, in_words
from attnscope.support.numbers import count
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

_PADDED = 64  # tokens that tell whether padding matters
_MANY_UNKNOWN = 0.05  # share of tokens from which it is said


class Measurement:
    """The forward passes of one scan."""

    def __init__(
        self,
        loaded: LoadedModel,
        windows: Iterable[Window],
        names: Sequence[str],
        band: int,
        reach: int,
        batch_size: int,
        limit: int | None,
        corpus: Texts | ChatTexts,
        progress: Tell | None,
        *,
        show: bool,
        groups: Sequence[str] = (),
        words: WordedWindows | None = None,
        pool: int | None = None,
        seed: int = 0,
        rows: int | None = None,
        observation: int = OBSERVATION,
        chosen: Sequence[int] = (),
    ) -> None:
        self.words = words
        self.observation, self.chosen = observation, chosen
        self.pool, self.seed = pool, seed
        self.rows = rows
        self.groups = groups
        self.loaded, self.windows, self.names, self.band = loaded, windows, names, band
        self.reach = reach
        self.batch_size, self.limit = batch_size, limit
        self.progress = progress or no_progress
        self.shown = list(islice(windows, WINDOWS)) if show else []
        self.first = self.shown[0] if show else next(iter(windows))
        self.again = sum(map(_characters, self.shown))  # what is read once more, for the page
        self.characters = corpus.characters()
        self.seen = self.parts = 0
        self.furthest = -1  # the largest number of a window that the walk has come to
        self.cutting: Cutting | None = None
        self.numbers: list[int] = []  # of the windows that the walk has come to
        self.sites: list[Site] = []
        self.notes: dict[str, str] = {}
        self.tokens = self.unknown = self.doubled = self.packed = 0
        self.is_chat = isinstance(corpus, ChatTexts)

    @property
    def unit(self) -> int:
        """Batches, or pools, that one process measures before the next has its turn, as many in every process."""
        windows = self.characters / max(1, _characters(self.first))
        return batches_per_unit(
            self.loaded.model,
            windows=windows if self.limit is None else min(windows, float(self.limit)),
            length=len(self.first),
            each=self.pool or self.batch_size,
            least=UNIT if self.pool is None else 1,
        )

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset | None]:
        """Measure batch after batch, or pool after pool; None for one that is done."""
        for texts, batch in self.walk():
            if done(texts):
                self.pass_over(batch)
                yield None
            else:
                yield self.measure(batch, texts.start)

    def walk(self, start: ResumePoint | None = None) -> Iterator[tuple[range, list[Window]]]:
        """Read the texts anew: each batch, or pool, and its numbers; each is to be measured or passed over."""
        self.share, self.seen, self.tokens, self.unknown, self.parts = 0.0, 0, 0, 0, 0
        self.doubled = self.packed = 0
        if start is not None:
            self.share, self.tokens, self.unknown = start.share, start.tokens, start.unknown
            self.seen, self.parts = start.place.windows, start.parts
            self.doubled, self.packed = start.doubled, start.packed
        self.furthest = self.seen - 1
        self.notes.pop("unknown", None)
        try:
            for number, part in enumerate(self._parts(start.place if start else Place()), self.parts):
                self.numbers, self.parts = [*part], number + 1
                self.furthest = max(self.furthest, *self.numbers)
                texts = range(self.seen, self.seen + len(part))
                yield texts if self.pool is None else range(number, number + 1), [*part.values()]
                self.seen = texts.stop
        finally:  # also where enough is measured
            self._note_unknown_tokens()
            self._note_special_tokens()
            self._note_words()
            self._note_pools()
        self._tell(self._of_all())

    def standing(self) -> ResumePoint | None:
        """Where the walk stands behind its last batch, or pool, once that is measured or passed over."""
        windows = self.seen + len(self.numbers)
        if self.cutting is None or self.furthest + 1 != windows:
            return None
        place = self.cutting.place(windows)
        return place and ResumePoint(
            self.parts, place, self.share, self.tokens, self.unknown, self.doubled, self.packed
        )

    def measure(self, batch: Sequence[Window], first: int) -> xr.Dataset:
        """Measure a batch, or a pool, of the walk."""
        if self.pool is not None:
            return self._measure_pool(batch, first)
        return self._measure_batch(batch, self.numbers)

    def _parts(self, start: Place) -> Iterator[dict[int, Window]]:
        """Batches, or pools, from a place on: windows by their numbers."""
        windows, self.cutting = self.windows, None
        if isinstance(windows, Windows):
            windows = self.cutting = windows.beginning(start)
        numbered = enumerate(windows, start.windows)
        return _chunked(numbered, self.batch_size) if self.pool is None else in_pools(numbered, self.pool)

    def _measure_pool(self, windows: Sequence[Window], number: int) -> xr.Dataset:
        first = self.seen
        batches: list[xr.Dataset] = []
        for batch in _chunked(zip(self.numbers, windows, strict=True), self.batch_size):
            batches.append(self._measure_batch([*batch.values()], [*batch]))
            self.seen += len(batch)
        self.seen = first
        return pooled(joined(batches).assign_coords(text=self.numbers), number, self.seed)

    def _measure_batch(self, batch: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        results = self._measure(batch, numbers)
        self.pass_over(batch)
        return results

    def pass_over(self, batch: Sequence[Window]) -> None:
        """Count the windows of a batch, and tell how far the scan is."""
        self._count_unknown(batch)
        self.share += sum(_characters(window) for window in batch) / self.characters
        seen = self.seen + len(batch)
        share = max(self.share, seen / self.limit if self.limit else 0.0)
        self.progress(Progress("scan", self._of_all() * min(1.0, share), {"windows": seen}))

    def _of_all(self) -> float:
        """Share of the work that the batches are."""
        return self.characters / (self.characters + self.again)

    def _count_unknown(self, batch: Sequence[Window]) -> None:
        unknown = getattr(self.loaded.tokenizer, "unk_token_id", None)
        for window in (side for pair in batch for side in (pair, pair.target) if side is not None):
            self.tokens += len(window)
            self.unknown += 0 if unknown is None else window.ids.count(unknown)
        self.doubled += sum(has_twice(window) for window in batch)
        if not self.is_chat:
            looks_back = any(site.kind == "causal" for site in self.sites)
            self.packed += sum(
                is_packed(window, self.loaded.tokenizer, looks_back=looks_back) for window in batch
            )

    def _note_unknown_tokens(self) -> None:
        """Say it where the tokenizer knows too little of the text for its numbers to be of this text."""
        if self.unknown > _MANY_UNKNOWN * self.tokens:
            self.notes["unknown"] = (
                f"{self.unknown / self.tokens:.0%} of the tokens are {self.loaded.tokenizer.unk_token}, unknown to the "
                "tokenizer: is the model made for such text?"
            )

    def _note_special_tokens(self) -> None:
        """Say it where special tokens are there twice, or stand between documents in a window."""
        if self.doubled:
            self.notes["doubled"] = (
                f"{count(self.doubled, 'window')} of {self.furthest + 1} begin or end with the same special token "
                "twice, as where a tokenizer adds it to texts that have it already: remove it from the texts."
            )
        if self.packed:
            self.notes["packed"] = (
                f"{count(self.packed, 'window')} of {self.furthest + 1} seem to hold several documents, with a special "
                "token between them, which are read as one text: later documents attend to earlier ones. Give each "
                "document as its own text."
            )

    def _note_words(self) -> None:
        """Say what is measured instead of tokens."""
        if self.words is None:
            return
        across, tokens = self.words.across, self.words.tokens
        over = f" {across} of {tokens} tokens reach over the end of a word: they count to their first."
        self.notes["words"] = (
            f"Tokens are merged to words ({self.words.rule.signature}): their queries averaged, their keys summed. "
            f"Wherever it says tokens, words are meant: lengths, offsets, rows.{over if across else ''}"
        )

    def _note_pools(self) -> None:
        """Say that results are not of single windows."""
        if self.pool is not None:
            apart = ", each of texts of one value" if self.first.by else ""
            self.notes["pool"] = (
                f"Windows are in pools of {self.pool} or more, cut at documents{apart}: wherever it says texts, pools "
                "are meant."
            )

    def _tell(self, share: float) -> None:
        self.progress(Progress("scan", share, {"windows": self.seen}))

    def _reading(self, batch: Sequence[Window]) -> WindowBatch:
        tokenizer = self.loaded.tokenizer
        pad = tokenizer.pad_token_id
        pad_id = pad if pad is not None else tokenizer.eos_token_id or 0
        return WindowBatch.of(batch, pad_id, device_of(self.loaded.model))

    @property
    def heads(self) -> int:
        """The most heads of any layer; known once the model is checked."""
        return max(site.heads for site in self.sites)

    def check(self) -> None:
        """Refuse a model that cannot be measured, on the first window, before anything is written."""
        inputs = self._reading([self.first]).inputs(self.loaded.model)
        self.sites, _ = verify(
            self.loaded.model, inputs, text=window_name(self.first, 0), weights_suffice=True
        )
        self.notes |= capture_notes(self.loaded.model)
        if self.rows is not None:
            self.notes["rows"] = rows_note(self.rows, self.names)
        if "way" in self.notes:
            self._note_capture()
        if is_causal_model(self.loaded.model) and any(site.kind == "self" for site in self.sites):
            self.notes["causality"] = (
                f"{type(self.loaded.model).__name__} is a causal language model by its kind, but its attention sees "
                "later tokens: it is measured as bidirectional."
            )
        if {"band_sum", "bin_sum"} <= set(self.names):
            self.notes |= bias_note(self.loaded.model, inputs)
        if self.batch_size > 1 and self._padding_matters():
            self.batch_size = 1
            self.notes["padding"] = (
                f"{type(self.loaded.model).__name__} gives a text other numbers in a padded batch: windows are "
                "measured one at a time."
            )

    def _note_capture(self) -> None:
        """What a model off the registry shows: its weights, of layers that may have other places than tokens."""
        name = type(self.loaded.model).__name__
        reading = self._reading([self.first])
        pooled: list[Site] = []

        def look(site: Site, call: AttentionCall) -> Tensor:
            tokens = [side.input_ids.shape[1] for side in reading.sides(site.kind)]
            if [call.query.shape[2], call.key.shape[2]] != tokens:
                pooled.append(site)
            return call.query

        with torch.no_grad(), watching(self.loaded.model, look, weights_suffice=True):
            self.loaded.model(**reading.inputs(self.loaded.model))
        if pooled:
            self.batch_size = 1  # which of these places is padding is not known
            layers = ", ".join(str(site.index) for site in pooled)
            self.notes["places"] = (
                f"In layers {layers} of {name} queries or keys are not one for each token (pooled tokens, a prompt): "
                "offsets and lengths are counted in their own places there, and no place is a special token."
            )

    def _padding_matters(self) -> bool:
        """Whether a text beside a longer one differs from itself alone: the first window and a part of it tell."""
        long = _cut(self.first, _PADDED)
        texts = [long, _cut(long, max(1, len(long) // 2))]
        model = self.loaded.model
        alone = [self._reading([text]).inputs(model) for text in texts]
        return len(long) > 1 and padding_difference(model, self._reading(texts).inputs(model), alone) > 1

    @torch.no_grad()
    def _measure(self, batch: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        reading = self._reading(batch)
        words = WordBatch.of(batch, device_of(self.loaded.model)) if batch[0].words else None
        sample = None if self.rows is None else RowSample(self.rows, self.seed, numbers[0])
        observer = StatisticsObserver(
            self.names,
            self.band,
            reading,
            self.reach,
            len(self.groups),
            words,
            sample,
            self.observation,
            self.chosen,
        )
        with watching(self.loaded.model, observer, weights_suffice=True):
            forward(
                self.loaded.model,
                reading.inputs(self.loaded.model),
                lambda text: window_name(batch[text], numbers[text]),
                lambda kind: reading.sides(kind)[0].valid,
            )
        measured = reading if words is None else words.words
        sizes = {"length": measured.text}
        if self.first.target is not None:
            sizes["target_length"] = measured.target
        counts = {name: text.valid.sum(1).cpu().numpy() for name, text in sizes.items()}
        if self.rows is not None:
            counts["sampled_rows"] = np.minimum(counts["length"], self.rows)
        return labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            counts,
            [(window.source, window.start) for window in batch],
            numbers[0],
            self.groups,
            "tokens" if words is None else "words",
            [window.by for window in batch] if batch[0].by else None,
            self.chosen,
        )

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset:
        """The attention over the first windows."""
        model, heads = self.loaded.model, results.sizes["head"]
        shown = [in_words(window) for window in self.shown]
        longest = min(ROWS, max(max(len(window), len(window.target or window)) for window in shown))
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * heads - len(listed[0])
        passes = len(self.shown) * len(self.sites)
        begun = self._of_all()
        layers_done = 0

        def layer_done() -> None:
            nonlocal layers_done
            layers_done += 1
            self._tell(begun + (1 - begun) * layers_done / passes)

        numbers = (
            sum(max(len(window), len(window.target or window)) for window in shown) * len(self.sites) * heads
        )

        last = settings_of(self.names, self.observation).get("observation")
        numbers *= 1 if last is None else 2

        def receiving(of_window: Sequence[tuple[int, int]]) -> Callable[[tuple[int, int]], bool]:
            return lambda place: numbers <= KEYS or place in of_window

        observed: list[MapObserver] = []
        for window, of_window in zip(self.shown, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            words = WordBatch.of([window], device_of(model)) if window.words else None
            observer = MapObserver(
                of_window,
                WEIGHTS,
                tile,
                layer_done,
                words,
                receiving(of_window),
                last=last,
            )
            tokens = max(len(window), len(window.target or window))
            if not observed and tokens > ROWS:
                observer.block = long_block(len(self.sites) * heads, tokens)
            with watching(model, observer, weights_suffice=True):
                model(**self._reading([window]).inputs(model))
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        decoder = model.config.is_encoder_decoder
        return sample_dataset(observed, shown, kinds, heads, asked, with_decoder=decoder)


def _cut(window: Window, length: int) -> Window:
    """The first tokens of a window, and of its target."""
    names = ("ids", "special", "spans", "tokens", "roles", "groups", "words")
    parts = {name: getattr(window, name)[:length] for name in names}
    return replace(window, **parts, target=None if window.target is None else _cut(window.target, length))


def _characters(window: Window) -> int:
    """Characters of the text that a window covers."""
    return max(end for _, end in window.spans) - window.start


def _chunked(windows: Iterable[tuple[int, Window]], size: int) -> Iterator[dict[int, Window]]:
    batch: dict[int, Window] = {}
    for number, window in windows:
        batch[number] = window
        if len(batch) == size:
            yield batch
            batch = {}
    if batch:
        yield batch


_NAMED = 4  # layers, before the rest is left out


def numbering_note(names: Sequence[str]) -> str:
    """Say which of the model's layers are counted, where only some attend (Jamba, Qwen3-Next, LFM2); else nothing."""
    matches = [re.match(r"(.*?\.)?(\d+)(?=\.|$)", name) for name in names]
    stacks = {re.sub(r"\d+", "#", name) for name in names}
    own = [int(match[2]) for match in matches if match is not None]
    if len(stacks) != 1 or len(own) != len(names) or own == list(range(len(own))) or own != sorted(set(own)):
        return ""
    said = [f"{number} is {match[0]}" for number, match in enumerate(matches) if match is not None]
    rest = ", and so on" if len(said) > _NAMED else ""
    return f"Layers are counted by attention: {', '.join(said[:_NAMED])}{rest}."


UNIT = (
    16  # batches, at least: a piece of the run, which has its own cost to be written, read and put together
)
OPERATIONS = (
    2e12  # of a forward pass, at most, where that is more: some 10 s on one core, less on anything larger
)
TURNS = 32  # at least, so that none of some processes waits long for another


def batches_per_unit(model: nn.Module, *, windows: float, length: int, each: int, least: int = UNIT) -> int:
    """How many batches (or pools) of `each` windows are a unit, the same in every process."""
    operations = 2.0 * length * sum(parameter.numel() for parameter in model.parameters())
    wanted = min(OPERATIONS / operations, windows / TURNS)
    return max(least, int(wanted // each))
