"""Sounds: frames of a speech model, transcripts for its decoder, and statistics of each window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from attnscope.capture.encoders import SpeechModel, load_speech_model
from attnscope.capture.families import transcript_length
from attnscope.capture.forward import decoder_start
from attnscope.capture.load import Model
from attnscope.capture.placement import Loading, device_of
from attnscope.capture.processors import hash_of_settings
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall
from attnscope.measure.passes import WindowBatch
from attnscope.measure.quantities import choose
from attnscope.measure.reader import Read, Reader
from attnscope.options import ScanReading
from attnscope.read.encoded import Sources
from attnscope.read.sounds import Sounds
from attnscope.read.texts import Corpus
from attnscope.read.windows import Batch, TargetTokenizer, Window, Windows, collate, shifted
from attnscope.report.signature import Signature, short_hash, tokenizer_sha256
from attnscope.support.errors import AttnscopeError


class SoundReader(Reader):
    """Sounds: pieces differ in length and are read one at a time."""

    accepts = frozenset({"targets"})
    packages = ("scipy",)

    def __init__(self, model: Model, sounds: Sounds, settings: ScanReading) -> None:
        names = choose(settings["statistics"])
        texts = _transcripts(sounds, settings["targets"])
        by: dict[str, Any] = {"processor": settings["tokenizer"], "loading": Loading.of(settings)}
        by |= {"with_decoder": texts is not None, "or_encoder": settings["targets"] is None}
        self.speech = load_speech_model(model, **by)
        super().__init__(self.speech.loaded, self.speech.model, sounds, settings, names)
        self.sounds, self.reader = sounds, {"features": hash_of_settings(self.speech.extractor.to_dict())}
        self.texts = texts if self.loaded.model.config.is_encoder_decoder else None
        self.has_decoder = self.texts is not None
        self.decoder_inputs = None if self.texts is None else decoder_inputs(self.texts, self.speech)
        if self.decoder_inputs is not None:
            for sound in sounds:
                seconds = len(sound.samples) / sound.rate
                if seconds > self.speech.longest:
                    raise AttnscopeError(
                        f"{sound.name} lasts {seconds:.1f} s; with a transcript at most {self.speech.longest} s are "
                        "read: cut sound and transcript, or remove the transcript"
                    )
        if self.speech.tokenizer is not None and self.texts is not None:
            self.reader["sha256"] = tokenizer_sha256(self.speech.tokenizer)
        if self.loaded.model.config.is_encoder_decoder:
            self.attributes["decoder"] = (
                "The decoder read the transcripts."
                if self.has_decoder
                else "No transcripts: only the encoder was measured."
            )
        elif texts is not None:
            self.attributes["decoder"] = (
                f"The transcripts were not read: {type(self.loaded.model).__name__} has no decoder."
            )
        self._find_frames()

    def _find_frames(self) -> None:
        """Count the frames; reject a model whose encoder attends over other positions."""
        counts: list[tuple[int, int, float]] = []
        for piece in self.items():
            heard = self.speech.hear(piece.samples, piece.name)
            counts.append((heard.frames, heard.sounding, piece.left_out))
        self.count, self.reach = len(counts), max(frames for frames, *_ in counts) - 1
        self.band = self.band_within(self.reach, f"windows of {self.reach + 1} frames")
        piece = next(self.items())
        first, each = self.read([piece], [0]), self.speech.hear(piece.samples, piece.name).seconds
        frames = len(first.windows[0])
        self.verify(first)

        def problem(site: Site, call: AttentionCall) -> str | None:
            if site.kind == "causal" or call.key.shape[2] == frames:
                return None
            return f"over {call.key.shape[2]} positions, but its encoder has {frames} frames: their times are unknown"

        self.reject_other_positions(first, problem)
        every, sounding, _ = map(sum, zip(*counts, strict=True))
        rests = [left_out for *_, left_out in counts if left_out]
        note = f"Tokens are frames of {1000 * each:.0f} ms, named by the second at which they begin."
        if sounding < every:
            windows = f"{self.count} window{'s' * (self.count > 1)}"
            note += f" {sounding:,} of {every:,} frames in {windows} are sound; the others count as special tokens."
        if rests:
            note += f" Ends of long sounds under one second are left out: {len(rests):,} ({sum(rests):.2f} s in all)."
        self.notes["sounds"] = note

    @cached_property
    def signature(self) -> Signature:  # pyright: ignore[reportIncompatibleVariableOverride]
        signature = super().signature
        return signature if self.texts is None else replace(signature, target={"sha256": short_hash(self.texts)})

    def name_of(self, window: Window, number: int) -> str:  # noqa: ARG002
        return f"{window.source} from second {window.start}"

    def items(self) -> Iterator[Piece]:
        return islice(pieces_of(self.sounds, self.speech, self.decoder_inputs), self.settings["limit"])

    def read(self, items: Sequence[Piece], numbers: Sequence[int]) -> Read:  # noqa: ARG002
        """One piece: its frames, named by their seconds; frames without sound are special keys and not queries."""
        (piece,) = items
        heard = self.speech.hear(piece.samples, piece.name)
        frames, inputs, device = heard.frames, heard.given, device_of(self.model)
        names = tuple(f"{piece.start + number * heard.seconds:.2f}s" for number in range(frames))
        silent = tuple(number >= heard.sounding for number in range(frames))
        window = Window((0,) * frames, silent, ((0, 0),) * frames, piece.source, piece.start, names, piece.transcript)
        keys = collate([window], 0, device)
        target = queries = Batch(keys.input_ids, keys.valid & ~keys.special, torch.zeros_like(keys.special))
        if piece.transcript is not None:
            target = collate([piece.transcript], 0, device)
            inputs = inputs | {"decoder_input_ids": target.input_ids}
        return Read(WindowBatch(queries, target, inputs, keys), [window])

    def lengths(self, read: Read) -> dict[str, np.ndarray]:
        batch = read.batch
        sides = {"length": batch.text, "target_length": batch.target, "frames": batch.keys or batch.text}
        wanted = ("length", *["target_length"] * self.has_decoder, *["frames"] * self.speech.reads_windows)
        return {name: sides[name].valid.sum(1).cpu().numpy() for name in wanted}


def _transcripts(sounds: Sounds, targets: Sources) -> list[str] | None:
    if targets is None:
        return sounds.transcripts()
    texts = [text.content for text in Corpus.from_sources(targets, by_line=True, blank_lines=True)]
    if len(texts) != len(sounds):
        raise AttnscopeError(
            f"found {len(sounds)} sound{'s' * (len(sounds) != 1)} and {len(texts)} transcript{'s' * (len(texts) != 1)} "
            "(--target); expected one line for each sound"
        )
    return texts


def decoder_inputs(texts: list[str], speech: SpeechModel) -> list[Window]:
    """The decoder's input for each transcript, as in training."""
    tokenizer = TargetTokenizer(speech.tokenizer)
    start = decoder_start(speech.loaded.model)
    length = transcript_length(speech.loaded.model.config) or 1 << 30
    windows: list[Window] = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise AttnscopeError(f"transcript {number} is empty: write it, or leave its sound out")
        (labels, *more) = Windows(Corpus.from_sources([text]), tokenizer, length=length)
        if more:
            raise AttnscopeError(f"transcript {number} has more than {length} tokens: cut sound and transcript")
        inputs = shifted(labels, speech.tokenizer, start)
        if labels.ids[0] == inputs.ids[0]:  # Whisper's tokenizer writes the start token itself
            fields = {name: getattr(labels, name)[:-1] for name in ("ids", "special", "spans", "shown")}
            inputs = replace(labels, **fields)
        windows.append(inputs)
    return windows


_LEAST = 1.0  # second: a shorter rest is left out


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of one sound that a model reads at once."""

    source: str  # name of the sound, and the second at which the piece begins
    start: int
    samples: np.ndarray  # at the model's rate
    transcript: Window | None  # the decoder's input, if there is one
    left_out: float = 0.0  # seconds after it that are not read

    @property
    def name(self) -> str:
        """The name of the piece in an error."""
        return f"{self.source} from second {self.start}"


def pieces_of(sounds: Sounds, speech: SpeechModel, transcripts: list[Window] | None) -> Iterator[Piece]:
    """Cut sounds into pieces of 30 seconds (Whisper: of its window); with transcripts each is one piece."""
    for number, sound in enumerate(sounds):
        samples, size = sound.at_rate(speech.rate), speech.longest * speech.rate
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            rest = max(0, len(samples) - first - size) / speech.rate
            if not first or len(part) >= _LEAST * speech.rate:
                text = None if transcripts is None else transcripts[number]
                yield Piece(sound.name, first // speech.rate, part, text, rest if rest < _LEAST else 0.0)
