"""A scan of sounds: a folder of WAV files through a model, statistics per window, kinds, signature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import torch

from attnscope.capture.encoders import SpeechModel, load_speech_model
from attnscope.capture.families import transcript_length
from attnscope.capture.forward import decoder_start, forward
from attnscope.capture.notes import capture_notes
from attnscope.capture.placement import device_of
from attnscope.capture.signature import signature_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.engines import output_of
from attnscope.measure.labels import labelled
from attnscope.measure.maps import ROWS, share_room
from attnscope.measure.measurement import UNIT
from attnscope.measure.observer import WindowBatch, settings_of
from attnscope.measure.passes import StatisticsObserver
from attnscope.measure.quantities import choose
from attnscope.measure.questions import BY_DEFAULT, ScanSettings
from attnscope.measure.sample import (
    WEIGHTS,
    WINDOWS,
    MapObserver,
    reject_absent,
    sample_dataset,
    shown_heads,
    tile_size,
)
from attnscope.measure.sides import one_by_one
from attnscope.measure.summary import kinds_of
from attnscope.measure.writing import measured
from attnscope.read.pairs import TargetTokenizer, shifted
from attnscope.read.texts import Corpus
from attnscope.read.windows import Batch, Window, collate, cut_windows
from attnscope.store.signature import short_hash, tokenizer_sha256
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import xarray as xr
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Observer, Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.measure.questions import ScanSettings
    from attnscope.read.encoded import Sources
    from attnscope.read.sounds import Sounds


def scan_sounds(
    model: Model,
    sounds: Sounds,
    asked: ScanSettings = BY_DEFAULT,
    *,
    targets: Sources = None,
) -> xr.Dataset:
    """Measure where every attention head of a model of sounds looks; `attnscope.scan` calls this for sounds."""
    names = choose(asked.statistics)
    speech, texts, said, unread = loaded_for(model, sounds, asked, targets)
    name, has_decoder = type(speech.loaded.model).__name__, speech.loaded.model.config.is_encoder_decoder
    job = SoundMeasurement(speech, sounds, said, names, asked)
    reject_absent(asked.show, len(job.sites), max(site.heads for site in job.sites))
    settings = {"limit": asked.limit, "statistics": list(names), "band": job.band, "seed": asked.seed}
    settings |= settings_of(names, asked.observation)
    reader = {"features": speech.processing()}
    if speech.tokenizer is not None and texts is not None:
        reader["sha256"] = tokenizer_sha256(speech.tokenizer)
    signature = signature_of(
        "scan", speech.loaded, sounds, None, settings, reader=reader, packages=("scipy",)
    )
    if texts is not None:
        signature = replace(signature, target={"sha256": short_hash(texts)})
    attributes = {"model": speech.loaded.name, "reads": "sounds"}
    if unread:
        attributes["decoder"] = f"The transcripts beside the sounds were not read: {name} has no decoder."
    if has_decoder:
        read = (
            "The decoder read the transcripts."
            if texts
            else "No transcripts: the encoder alone was measured."
        )
        attributes["decoder"] = read
    return measured(job, asked, signature, kinds_of(settings), attributes)


def loaded_for(
    model: Model,
    sounds: Sounds,
    asked: ScanSettings,
    targets: Sources,
) -> tuple[SpeechModel, list[str] | None, list[Window] | None, bool]:
    """The model, the transcripts that its decoder reads, as texts and as windows, and whether some are not read."""
    texts = _transcripts(sounds, targets)
    speech = load_speech_model(
        model,
        processor=asked.processor,
        with_decoder=texts is not None,
        or_encoder=targets is None,
        loading=asked.loading,
    )
    if not speech.loaded.model.config.is_encoder_decoder:
        return speech, None, None, texts is not None
    said = None if texts is None else _said(texts, speech)
    if said is not None:
        _reject_long(sounds, speech.longest)
    return speech, texts, said, False


def _transcripts(sounds: Sounds, targets: Sources) -> list[str] | None:
    """What is said in each sound."""
    if targets is None:
        return sounds.transcripts()
    texts = [text.content for text in Corpus.from_sources(targets, by_line=True, blank_lines=True)]
    if len(texts) != len(sounds):
        raise AttnscopeError(
            f"found {len(sounds)} sound{'s' * (len(sounds) != 1)} and {len(texts)} transcript{'s' * (len(texts) != 1)} "
            "(--target): line i must be what sound i says"
        )
    return texts


def _said(texts: list[str], speech: SpeechModel) -> list[Window]:
    """What the decoder reads of each transcript, as in training."""
    tokenizer = TargetTokenizer(speech.tokenizer)
    start = decoder_start(speech.loaded.model)
    length = transcript_length(speech.loaded.model.config) or 1 << 30
    windows: list[Window] = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise AttnscopeError(f"transcript {number} is empty: leave its sound out, or write what it says")
        (said, *more) = cut_windows(Corpus.from_sources([text]), tokenizer, length=length)
        if more:
            raise AttnscopeError(
                f"transcript {number} has more than {length} tokens: cut sound and transcript"
            )
        read = shifted(said, speech.tokenizer, start)
        if said.ids[0] == read.ids[0]:  # Whisper's tokenizer writes the start token itself
            kept = {name: getattr(said, name)[:-1] for name in ("ids", "special", "spans", "tokens")}
            read = replace(said, **kept)
        windows.append(read)
    return windows


def _reject_long(sounds: Sounds, longest: int) -> None:
    for sound in sounds:
        seconds = len(sound.samples) / sound.rate
        if seconds > longest:
            raise AttnscopeError(
                f"{sound.name} lasts {seconds:.1f} s, and beside a transcript {longest} s are read: cut sound and "
                "transcript, or take the transcript away"
            )


class SoundMeasurement:
    """The forward passes of one scan of sounds: pieces have lengths of their own, and are read one at a time."""

    unit = UNIT

    def __init__(
        self,
        speech: SpeechModel,
        sounds: Sounds,
        said: list[Window] | None,
        names: Sequence[str],
        asked: ScanSettings,
    ) -> None:
        self.speech, self.sounds, self.said, self.limit = speech, sounds, said, asked.limit
        self.names, self.progress = names, asked.progress or no_progress
        self.observation = asked.observation
        self.notes: dict[str, str] = {}
        counts: list[tuple[int, int]] = []
        rests: list[float] = []
        for piece in self.pieces():
            heard = speech.hear(piece.samples, piece.name)
            counts.append((heard.frames, heard.sounding))
            rests += [piece.left_out] if piece.left_out else []
        self.count, self.reach = len(counts), max(frames for frames, _ in counts) - 1
        self.band = asked.band_within(self.reach, f"windows of {self.reach + 1} frames")
        first = next(self.pieces())
        reading, _ = read_piece(first, speech)
        self.sites, _ = verify(
            speech.model,
            reading.inputs(speech.model),
            text=first.name,
            weights_suffice=True,
        )
        self.notes |= capture_notes(speech.model)
        self._check_frames(reading)
        every, sounding = (sum(part) for part in zip(*counts, strict=True))
        self.is_padded = sounding < every
        each = 1000 * speech.hear(first.samples, first.name).seconds
        note = f"Tokens are frames of {each:.0f} ms, named by the second at which they begin."
        if self.is_padded:
            windows = f"{self.count} window{'s' * (self.count > 1)}"
            note += (
                f" Of the {every:,} frames that the encoder reads in {windows}, {sounding:,} are sound: only these "
                "count as queries; as keys the others count as special tokens."
            )
        if rests:
            note += (
                f" Ends of long sounds that are shorter than a second are left out: {len(rests):,} "
                f"({sum(rests):.2f} s in all)."
            )
        self.notes["sounds"] = note

    @torch.no_grad()
    def _check_frames(self, reading: SoundBatch) -> None:
        """Refuse a model whose encoder attends over other places than its frames."""
        model, frames = self.speech.model, reading.frames.valid.shape[1]

        def look(site: Site, call: AttentionCall) -> Tensor:
            if site.kind != "causal" and call.key.shape[2] != frames:
                raise AttnscopeError(
                    f"layer {site.index} ({site.name}) of {type(model).__name__} attends over {call.key.shape[2]} "
                    f"places, and its encoder makes {frames} frames: their times are not known"
                )
            return output_of(call) if call.key.shape[-1] else call.query

        with watching(model, look, weights_suffice=True):
            model(**reading.inputs(model))

    def pieces(self) -> Iterator[Piece]:
        """The pieces that are measured."""
        return islice(pieces_of(self.sounds, self.speech, self.said), self.limit)

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Measure piece after piece, but those that are done."""
        return one_by_one(self.pieces(), self._measure, done, self.progress, count=self.count)

    @torch.no_grad()
    def _measure(self, piece: Piece, number: int) -> xr.Dataset:
        reading, _ = read_piece(piece, self.speech)
        observer = StatisticsObserver(
            self.names, self.band, reading, self.reach, observation=self.observation
        )
        model = self.speech.model
        with watching(model, observer, weights_suffice=True):
            forward(
                model, reading.inputs(model), lambda _: piece.name, lambda kind: reading.sides(kind)[0].valid
            )
        sizes = {"length": reading.text} | ({} if self.said is None else {"target_length": reading.target})
        sizes |= {"frames": reading.frames} if self.is_padded else {}
        return labelled(
            observer.stacked(),
            self.sites,
            self.band,
            self.reach,
            {name: side.valid.sum(1).cpu().numpy() for name, side in sizes.items()},
            [(piece.source, piece.start)],
            number,
        )

    @torch.no_grad()
    def watch_first(self, observer: Observer) -> Window:
        """Run the first piece with an observer; it is returned as a page shows it."""
        reading, window = read_piece(next(self.pieces()), self.speech)
        with watching(self.speech.model, observer, weights_suffice=True):
            self.speech.model(**reading.inputs(self.speech.model))
        return window

    @torch.no_grad()
    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first pieces."""
        read = [read_piece(piece, self.speech) for piece in islice(self.pieces(), WINDOWS)]
        windows = [window for _, window in read]
        longest = min(ROWS, max(max(len(window), len(window.target or window)) for window in windows))
        listed = [
            shown_heads(results, asked, longest, windows) for windows in (1, *[WINDOWS] * (WINDOWS - 1))
        ]
        others = len(self.sites) * results.sizes["head"] - len(listed[0])
        observed: list[MapObserver] = []
        model = self.speech.model
        for (reading, _), of_window in zip(read, listed, strict=False):
            tile = tile_size(others, longest) if others and not observed else 0
            observer = MapObserver(of_window, WEIGHTS, tile, lambda: None)
            with watching(model, observer, weights_suffice=True):
                model(**reading.inputs(model))
            observed.append(observer)
            share_room([every.maps for every in observed], WEIGHTS)
        kinds = [site.kind for site in self.sites]
        return sample_dataset(
            observed, windows, kinds, results.sizes["head"], asked, with_decoder=self.said is not None
        )


_LEAST = 1.0  # second: a shorter rest is left out


@dataclass(frozen=True, eq=False)
class Piece:
    """As much of one sound as a model reads at once."""

    source: str  # name of the sound, and from which second on
    start: int  # name of the sound, and from which second on
    samples: np.ndarray  # at the model's rate
    said: Window | None  # what the decoder reads; None without one
    left_out: float = 0.0  # seconds of the sound behind it that are not read

    @property
    def name(self) -> str:
        """What to call it in an error."""
        return f"{self.source} from second {self.start}"


@dataclass(frozen=True)
class SoundBatch(WindowBatch):
    """One piece, as `StatisticsObserver` asks of it."""

    frames: Batch  # the encoder's frames as keys: those that are no sound count as special tokens
    given: dict[str, Tensor]  # arguments of the forward pass

    def sides(self, kind: str) -> tuple[Batch, Batch]:
        """What queries and keys of a site of that kind are made of."""
        return self.text if kind == "self" else self.target, self.target if kind == "causal" else self.frames

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:  # noqa: ARG002
        """Arguments of the forward pass."""
        return self.given


def pieces_of(sounds: Sounds, speech: SpeechModel, said: list[Window] | None) -> Iterator[Piece]:
    """Cut sounds into pieces of 30 seconds (Whisper: of its window); with transcripts each is one piece."""
    for number, sound in enumerate(sounds):
        samples, size = sound.at_rate(speech.rate), speech.longest * speech.rate
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            rest = max(0, len(samples) - first - size) / speech.rate
            if not first or len(part) >= _LEAST * speech.rate:
                text = None if said is None else said[number]
                yield Piece(sound.name, first // speech.rate, part, text, rest if rest < _LEAST else 0.0)


def read_piece(piece: Piece, speech: SpeechModel) -> tuple[SoundBatch, Window]:
    """What the model reads of a piece, and its frames as a page shows them, named by their seconds."""
    heard = speech.hear(piece.samples, piece.name)
    frames, given = heard.frames, heard.given
    names = tuple(f"{piece.start + number * heard.seconds:.2f}s" for number in range(frames))
    silent = tuple(number >= heard.sounding for number in range(frames))
    window = Window((0,) * frames, silent, ((0, 0),) * frames, piece.source, piece.start, names, piece.said)
    keys = collate([window], 0).to(device_of(speech.model))
    queries = Batch(keys.input_ids, keys.valid & ~keys.special, torch.zeros_like(keys.special))
    target = queries
    if piece.said is not None:
        target = collate([piece.said], 0).to(device_of(speech.model))
        given = given | {"decoder_input_ids": target.input_ids}
    return SoundBatch(queries, target, keys, given), window
