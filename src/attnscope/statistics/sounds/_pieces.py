"""Pieces of sounds, and what a model reads of one: frames as tokens, named by their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attnscope.capture import device_of
from attnscope.corpus import Batch, Window, collate
from attnscope.statistics._reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture import SpeechModel
    from attnscope.corpus import Sounds

_LEAST = 1.0  # second: a shorter rest is left out


@dataclass(frozen=True, eq=False)
class Piece:
    """As much of one sound as a model reads at once.

    Attributes
    ----------
    source, start
        Name of the sound, and from which second on.
    samples
        At the model's rate.
    said
        What the decoder reads; None without one.
    left_out
        Seconds of the sound behind it that are not read.
    """

    source: str
    start: int
    samples: np.ndarray
    said: Window | None
    left_out: float = 0.0

    @property
    def name(self) -> str:
        """What to call it in an error."""
        return f"{self.source} from second {self.start}"


@dataclass(frozen=True)
class SoundReading(Reading):
    """One piece, as `StatisticsObserver` asks of it.

    Attributes
    ----------
    text
        The encoder's frames as queries: those that are no sound do not count.
    target
        What the decoder reads.
    frames
        The encoder's frames as keys: those that are no sound count as special tokens.
    given
        Arguments of the forward pass.
    """

    frames: Batch
    given: dict[str, Tensor]

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


def read_piece(piece: Piece, speech: SpeechModel) -> tuple[SoundReading, Window]:
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
    return SoundReading(queries, target, keys, given), window
