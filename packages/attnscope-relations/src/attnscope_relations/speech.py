"""How heads of a speech decoder follow the sound: weights of each token over the frames, and the time of its word.

The times of words from cross-attention are those of Whisper (Radford et al. 2022): weights of some heads, standardised,
filtered, averaged, and a path through them by dynamic time warping.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.detection.roles import control
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attend_in_full
from attnscope.measure.sounds import Piece, SoundReader
from attnscope.read.shown import ShownTokens
from attnscope.read.windows import Window
from attnscope.store.arrays import in_a_row
from attnscope.store.run import Work
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.ablation import Head, check_outputs, silenced
from attnscope_relations.shown import shown_sounds
from attnscope_relations.speech_summary import summary_of_order, summary_of_times
from attnscope_relations.warping import filtered, first_frames
from attnscope_relations.word_times import READERS, Said, said_in

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.options import ScanReading
    from attnscope.read.sounds import Sounds

NEAR = 0.1  # seconds around a word that count as its sound: frames and marks of its ends are not more exact
SHIFTS = (*np.arange(-10, 11) / 10,)  # seconds: candidates for the best shift of a constant pace
_OTHERS = 2  # sounds with which each exchanges its times
RELATION = "sound of the word"


@dataclass(frozen=True, eq=False)
class Spoken:
    """The tokens of a transcript, and the time of the word of each."""

    first: int  # number of the first token of the text in the decoder's input
    words: np.ndarray  # of each token after it, the number of its word; -1 for punctuation
    begins: np.ndarray  # (word,) seconds; empty without times
    ends: np.ndarray

    @classmethod
    def of(cls, said: Said, window: Window) -> Spoken:
        """By the characters of the tokens."""
        special = window.special
        first = special.index(False) if False in special else len(special)
        text, spans = window.text, window.spans
        words: list[int] = []
        for number in range(first, len(window)):
            start, end = spans[number]
            letters = [at for at in range(start, end) if text[at : at + 1].isalnum()]
            words.append(_word_at(said, letters[0], len(words)) if letters and not special[number] else -1)
        times = np.array(said.times).reshape(-1, 2)
        return cls(first, np.array(words, int), times[:, 0], times[:, 1])

    @property
    def has_times(self) -> bool:
        """Whether the times of its words are known."""
        return len(self.begins) > 0

    @property
    def known(self) -> np.ndarray:
        """The tokens of words, by their numbers after the first one."""
        return np.flatnonzero(self.words >= 0)

    @property
    def times(self) -> np.ndarray:
        """Begin and end of the word of each known token, ``(token, 2)``."""
        words = self.words[self.known]
        return np.stack([self.begins[words], self.ends[words]], 1)

    @property
    def order(self) -> np.ndarray:
        """The middle of the word of each known token, else its order: mean times of weights should rise with it."""
        return self.times.mean(1) if self.has_times else np.arange(len(self.known), dtype=float)

    def begin_errors(self, maps: np.ndarray, seconds: float) -> np.ndarray:
        """Sum over the words of the error of their begins in ms, ``(map,)``, by weights ``(map, token, frame)``."""
        words, begins = self.begins_by(maps, seconds)
        return 1000 * np.abs(begins - self.begins[words]).sum(-1)

    def begins_by(self, maps: np.ndarray, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the words with tokens, ``(word,)``, and their begins by weights, ``(map, word)``, in seconds."""
        words, at = np.unique(self.words[self.known], return_index=True)
        return words, first_frames(maps)[:, self.known[at]] * seconds


def _word_at(said: Said, character: int, order: int) -> int:
    """The number of the word with a character; without words, that of the token."""
    if not said.words:
        return order
    return next((number for number, (start, end) in enumerate(said.words) if start <= character < end), -1)


class SpeechReader(SoundReader):
    """Sounds with transcripts: of each head of the decoder, how its weights follow the words in time."""

    command = "relations"

    def __init__(
        self, model: Model, sounds: Sounds, settings: ScanReading, *, untrained: bool, ablate: bool = False
    ) -> None:
        beside = sounds.beside(".wav")
        names = [f"sound {number}" if path is None else path.stem for number, path in enumerate(beside, start=1)]
        self.said = [said_in(path, name) for path, name in zip(beside, names, strict=True)]
        timed = sum(bool(said.times) for said in self.said)
        if 0 < timed < len(self.said):
            raise AttnscopeError(
                f"{count(timed, 'sound')} of {len(self.said)} have times of words; expected times for all, or for none"
            )
        if ablate and not timed:
            raise AttnscopeError(
                f"ablate (--ablate) measures errors of times, and no sound has times of words next to it "
                f"({', '.join(READERS)}): add them, or leave it out"
            )
        self.untrained, self.has_times, self.ablate = untrained, timed > 0, ablate
        super().__init__(model, sounds, _with_targets(settings, self.said))
        if ablate:
            check_outputs(self.model)
        self.origin, self.show = model, ()
        generation: Any = getattr(self.loaded.model, "generation_config", None)
        if generation is not None:  # an export merges its heads into it
            self.attributes["generation_config"] = generation.to_json_string()
        self.sites = [site for site in self.sites if site.kind == "cross"]
        if not self.has_decoder or not self.sites:
            raise AttnscopeError(
                f"{self.loaded.name} has no decoder that attends to the sound. Use an encoder-decoder such as Whisper"
            )
        pieces = [*super().items()]
        self.seconds = self.speech.hear(pieces[0].samples, pieces[0].name).seconds
        self.durations = [len(piece.samples) / self.speech.rate for piece in pieces]
        self.decoder_inputs = self._prompts(pieces)
        self.spoken = [Spoken.of(said, window) for said, window in zip(self.said, self.decoder_inputs, strict=True)]
        self._check_times(pieces)
        self.exchanged = self._exchanged() if self.has_times else []
        if not self.has_times and None in map(self._other, range(len(self.durations))):
            self.notes["exchanged"] = (
                "All sounds have one transcript, so that none can be exchanged: no head is shown to follow the sound."
            )

    def _check_times(self, pieces: Sequence[Piece]) -> None:
        for piece, spoken, duration in zip(pieces, self.spoken, self.durations, strict=False):
            if not len(spoken.known):
                raise AttnscopeError(f"{piece.source} has no token of a word in its transcript")
            if spoken.has_times and spoken.ends.max() > duration + 1.0:
                raise AttnscopeError(
                    f"{piece.source} lasts {duration:.1f} s, and a word ends at {spoken.ends.max():.1f} s: are these "
                    "the times of another sound?"
                )

    def _prompts(self, pieces: Sequence[Piece]) -> list[Window]:
        """The decoder's input of each transcript: for Whisper a space before the text, and the detected language."""
        assert self.decoder_inputs is not None  # noqa: S101 checked above
        generation: Any = getattr(self.loaded.model, "generation_config", None)
        if getattr(generation, "no_timestamps_token_id", None) is None:
            return self.decoder_inputs
        languages: list[int] = []
        if getattr(generation, "lang_to_id", None):
            for piece in pieces:
                with torch.no_grad():
                    heard = self.speech.hear(piece.samples, piece.name).given["input_features"]
                    model: Any = self.loaded.model
                    languages.append(int(model.detect_language(input_features=heard)[0]))
        self.notes |= _languages(languages, generation)
        languages += [-1] * (len(self.said) - len(languages))
        tokenizer = self.speech.tokenizer
        return [
            _prompt(window, said.text, tokenizer, generation, language)
            for window, said, language in zip(self.decoder_inputs, self.said, languages, strict=True)
        ]

    def _exchanged(self) -> list[list[np.ndarray]]:
        """For each sound the times of the words of others, of the nearest number of tokens, at the same share of it."""
        sizes = [len(spoken.known) for spoken in self.spoken]
        exchanged: list[list[np.ndarray]] = []
        for number in range(len(self.durations)):
            others = [other for other in range(len(self.durations)) if self.said[other] != self.said[number]]
            others.sort(key=lambda other: (abs(sizes[other] - sizes[number]), other))
            exchanged.append([self._scaled(other, number) for other in others[:_OTHERS]])
        return exchanged

    def _other(self, number: int) -> int | None:
        """The sound of the nearest duration among those with another transcript; None without one."""
        others = [other for other, said in enumerate(self.said[: len(self.durations)]) if said != self.said[number]]
        apart = {other: round(abs(self.durations[other] - self.durations[number]), 3) for other in others}
        return min(others, key=lambda other: (apart[other], other), default=None)

    def _with_other_sound(self, number: int) -> Piece | None:
        """The transcript of a sound with another sound, which has other words."""
        other = self._other(number)
        if other is None:
            return None
        sound = self.sounds[other]
        return Piece(sound.name, 0, sound.at_rate(self.speech.rate), self.decoder_inputs[number])

    def _scaled(self, other: int, number: int) -> np.ndarray:
        """The times of the words of another sound for the tokens of one, ``(token, 2)``, over its duration."""
        times, size = self.spoken[other].times, len(self.spoken[number].known)
        at = np.linspace(0, len(times) - 1, size).round().astype(int)
        return times[at] * self.durations[number] / self.durations[other]

    def signature_settings(self) -> dict[str, Any]:
        signed = super().signature_settings()
        times = hashlib.sha256(json.dumps([[said.words, said.times] for said in self.said]).encode()).hexdigest()[:16]
        return {name: signed[name] for name in ("limit", "seed")} | {
            "times": times,
            "untrained": self.untrained,
            **({"ablate": True} if self.ablate else {}),
        }

    def work(self) -> Work:
        """A pass over the sounds, one with fresh weights, and two more for sets of heads or one for other sounds."""
        copies = 1 if self.model.dtype.itemsize > 2 else 3  # noqa: PLR2004
        passes = 3.0 + self.untrained if self.has_times else 2.0 * (1 + self.untrained)
        passes += self.ablate * (1 + max(site.heads for site in self.sites))
        return replace(super().work(), passes=passes, copies=copies)

    def rows_of(self, piece: Piece, number: int, look: Callable[[Tensor], None], without: Head | None = None) -> int:
        """Hand on the rows of each layer, ``(head, token, frame)``; returns the number of frames with sound.

        Row i predicts token i of the text, and the last row its end. Each adds up to 1 over the frames with sound. The
        output of a head may be set to 0 (`without`).
        """
        read = self.read([piece], [number])
        frames = read.windows[0].special.count(False)
        rows = slice(max(0, self.spoken[number].first - 1), None)

        def observe(site: Site, call: AttentionCall) -> Tensor:
            if site.kind != "cross":
                return output_of(call)
            output, weights = attend_in_full(call)
            of_rows = weights[0, :, rows, :frames].float()
            look(of_rows / of_rows.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny))
            return silenced(site, output, without)

        self.run(read, observe, [number])
        return frames

    def measure_batch(self, items: Sequence[Piece], numbers: Sequence[int]) -> xr.Dataset:
        (piece,), (number,) = items, numbers
        spoken = self.spoken[number]
        layers: list[dict[str, np.ndarray]] = []

        def look(rows: Tensor) -> None:
            of_tokens = rows[:, spoken.known].cpu().numpy().astype(np.float64)
            layers.append({"correlation": _correlation(of_tokens, spoken.order)})
            if self.has_times:
                layers[-1] |= self._timed(of_tokens, number)
                layers[-1]["error"] = spoken.begin_errors(filtered(rows).cpu().numpy(), self.seconds)

        frames = self.rows_of(piece, number, look)
        if not self.has_times:
            self._add_exchanged(layers, number)
        size = max(site.heads for site in self.sites)
        of_heads = {name: np.stack([_wide(layer[name], size) for layer in layers]) for name in layers[0]}
        names = ("correlation", "exchanged_correlation", "error")
        apart = {name: of_heads.pop(name) for name in names if name in of_heads}
        variables: dict[str, Any] = {
            f"window_{name}": (("window", "layer", "head"), values[None]) for name, values in apart.items()
        }
        if self.has_times:
            variables |= {
                f"window_{name}": (("window", "relation", "layer", "head"), values[None, None])
                for name, values in of_heads.items()
            }
            variables |= self._controls(number, frames)
            variables["window_words"] = ("window", np.array([float(len(np.unique(spoken.words[spoken.known])))]))
        return xr.Dataset(
            variables | {"length": ("window", [frames]), "tokens": ("window", [len(spoken.known)])},
            coords=layer_coordinates(self.sites)
            | {
                "decoder_layer": ("layer", np.arange(len(self.sites))),
                "relation": np.array([RELATION], dtype=object),
                "head": np.arange(size),
                "offset": np.array(SHIFTS),
                "window": np.array(numbers),
                "source": ("window", np.array([piece.source], dtype=object)),
            },
        )

    def _add_exchanged(self, layers: Sequence[dict[str, np.ndarray]], number: int) -> None:
        """Add the correlation of each head with the order of the tokens, if the decoder attends to another sound."""
        spoken, piece = self.spoken[number], self._with_other_sound(number)
        correlations = [np.full(len(layer["correlation"]), np.nan) for layer in layers]
        if piece is not None:
            correlations.clear()

            def look(rows: Tensor) -> None:
                of_tokens = rows[:, spoken.known].cpu().numpy().astype(np.float64)
                correlations.append(_correlation(of_tokens, spoken.order))

            self.rows_of(piece, number, look)
        for layer, of_layer in zip(layers, correlations, strict=True):
            layer["exchanged_correlation"] = of_layer

    def _timed(self, rows: np.ndarray, number: int) -> dict[str, np.ndarray]:
        """Sums over the tokens of words: of heads ``(head,)``, from rows ``(head, token, frame)``."""
        sums: dict[str, np.ndarray] = {}
        largest = (rows.argmax(-1) + 0.5) * self.seconds
        for prefix, several in (("", [self.spoken[number].times]), ("exchanged_", self.exchanged[number])):
            right = np.zeros(len(rows))
            weight = np.zeros(len(rows))
            for times in several:
                right += _is_near(largest, times).sum(-1)
                weight += (rows * self._near(times, rows.shape[-1])).sum((-1, -2))
            sums |= {f"{prefix}right": right, f"{prefix}weight": weight}
        return sums

    def _near(self, times: np.ndarray, frames: int) -> np.ndarray:
        """Which frames are near the word of each token, ``(token, frame)``."""
        return _is_near((np.arange(frames) + 0.5) * self.seconds, times[:, None])

    def _controls(self, number: int, frames: int) -> dict[str, Any]:
        """Sums over the tokens of what needs no weights."""
        times = self.spoken[number].times
        near = self._near(times, frames).mean(-1).sum()
        pace = (np.arange(len(times)) + 0.5) / len(times) * self.durations[number]
        at_shifts = _is_near(pace[:, None] + np.array(SHIFTS), times[:, None]).sum(0)
        of_layers = np.full((1, 1, len(self.sites)), near)
        each = {"queries": len(times), "exchanged_queries": sum(map(len, self.exchanged[number]))}
        return {f"window_{name}": (("window", "relation"), [[float(size)]]) for name, size in each.items()} | {
            "window_chance": (("window", "relation", "layer"), of_layers),
            "window_uniform": (("window", "relation", "layer"), of_layers),
            "window_at_offset": (("window", "relation", "offset"), at_shifts[None, None].astype(float)),
        }

    def maps(self, members: np.ndarray, without: Head | None = None) -> Iterator[np.ndarray]:
        """The mean of each sound over sets of heads, ``(set, layer, head)``, of filtered rows: ``(set, token, frame)``.

        The sounds are read again, so that memory holds these means alone; `without` the output of a head, if one is
        given.
        """
        shares = torch.tensor(members / members.sum((1, 2), keepdims=True), dtype=torch.float32)
        for number, piece in enumerate(self.items()):
            parts: list[Tensor] = []

            def look(rows: Tensor, parts: list[Tensor] = parts) -> None:
                of_layer = shares[:, len(parts), : len(rows)].to(rows.device)
                parts.append(torch.einsum("sh,htf->stf", of_layer, filtered(rows)).cpu())

            self.rows_of(piece, number, look, without)
            yield torch.stack(parts).sum(0).numpy()

    @property
    def published(self) -> list[tuple[int, int]]:
        """The heads that the model's generation config lists; empty if it lists none."""
        listed: Any = getattr(getattr(self.loaded.model, "generation_config", None), "alignment_heads", None)
        return [(int(layer), int(head)) for layer, head in listed or ()]

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        def summed_up(results: xr.Dataset) -> xr.Dataset:
            untrained = self._untrained() if self.untrained else None
            summary = summary_of_times if self.has_times else summary_of_order
            return summary(results, untrained, self)

        return summed_up

    def sample(self, results: xr.Dataset, show: Sequence[tuple[int, int]]) -> xr.Dataset | None:  # noqa: ARG002
        return shown_sounds(self, results)

    def _untrained(self) -> xr.Dataset | None:
        """The same sums with fresh weights; None for weights that cannot be replaced."""
        try:
            with control(self.loaded.model, "initialised", self.settings["seed"]):
                return in_a_row([self.measure_batch([piece], [number]) for number, piece in enumerate(self.items())])
        except AttnscopeError as error:
            self.notes["untrained"] = f"No untrained copy was measured: {error}."
            return None


def reject_for_sounds(**options: Any) -> None:
    """Reject options of texts."""
    flags = {"query": "--from", "key": "--to", "only": "--only", "together": "--together"}
    for name, value in options.items():
        if value is not None and value is not False:
            raise AttnscopeError(f"{name} ({flags[name]}) needs texts, but the input is sounds: leave it out")


def _with_targets(settings: ScanReading, said: Sequence[Said]) -> ScanReading:
    if settings["targets"] is not None:
        raise AttnscopeError("the words of sounds are read from the files next to them: leave out targets (--target)")
    with_targets: Any = {**settings, "targets": [one.text for one in said]}
    return with_targets


def _prompt(window: Window, text: str, tokenizer: Any, generation: Any, language: int) -> Window:
    """What Whisper's decoder reads: its marks, with the language where they lack it, and the text after a space."""
    coded = tokenizer(f" {text}", add_special_tokens=False, return_offsets_mapping=True)
    marks = [id_ for id_, special in zip(window.ids, window.special, strict=True) if special]
    present = {*getattr(generation, "lang_to_id", {}).values()} & {*marks}
    if language >= 0 and not present:
        marks[1:1] = [language, int(generation.task_to_id["transcribe"])]
    ids = (*marks, *coded["input_ids"])
    spans = [(0, 0)] * len(marks) + [(max(0, first - 1), max(0, last - 1)) for first, last in coded["offset_mapping"]]
    special = (True,) * len(marks) + (False,) * len(coded["input_ids"])
    shown = ShownTokens(lambda: tokenizer.convert_ids_to_tokens(ids))
    return replace(window, ids=ids, special=special, spans=spans, shown=shown, text=text)


def _languages(languages: Sequence[int], generation: Any) -> Mapping[str, str]:
    """A note on the languages that the model detected."""
    if not languages:
        return {}
    names = {id_: name.strip("<|>") for name, id_ in generation.lang_to_id.items()}
    found = ", ".join(f"{names[id_]} {languages.count(id_)}" for id_ in dict.fromkeys(languages))
    return {"languages": f"The decoder reads the language that the model detects in each sound: {found}."}


def _is_near(seconds: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Whether seconds are in the sound of words, ``(..., 2)`` begin and end."""
    return (seconds >= times[..., 0] - NEAR) & (seconds <= times[..., 1] + NEAR)


def _correlation(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Rank correlation of the mean frame of each token with an order, ``(head,)``; 0 where either does not vary."""
    ranks = stats.rankdata((rows * np.arange(rows.shape[-1])).sum(-1), axis=-1)
    other = stats.rankdata(order)
    ranks, other = ranks - ranks.mean(-1, keepdims=True), other - other.mean()
    size = np.sqrt((ranks**2).sum(-1) * (other**2).sum())
    return np.divide((ranks * other).sum(-1), size, out=np.zeros(len(rows)), where=size > 0)


def _wide(values: np.ndarray, size: int) -> np.ndarray:
    """Values of a layer's heads, with NaN for those that it lacks."""
    return np.pad(values, (0, size - len(values)), constant_values=np.nan)
