"""A live view of a sound: its transcript on a timeline, the times of words by a head, and what the model writes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor

from attnscope.kernels.engines import output_of
from attnscope.kernels.full import row_weights
from attnscope.measure.sounds import SoundReader, decoder_inputs
from attnscope.read.windows import Window
from attnscope.results.page.parts import base64_of
from attnscope.support.errors import AttnscopeError
from attnscope.verbs.edit import edit
from attnscope_live.conversation import Answer, Conversation, Pass, StoppedError
from attnscope_live.copied import Inputs, Source, ids_of, python_with_inputs, view_command
from attnscope_live.pictures import ReadyWindow, ready
from attnscope_live.questions import Code, Look, Times, Transcribe

_PEAKS = 600  # points of the wave that is drawn
_LETTERS = 20  # tokens a second, at most, that a model writes


class SoundConversation(Conversation):
    """A model that answers questions about one sound and its transcript, which is the text that one types."""

    def __init__(self, reader: SoundReader, source: Source) -> None:
        super().__init__(replace(reader.loaded, tokenizer=reader.speech.tokenizer), source)
        self.reader = reader
        (self.piece,) = reader.items()
        self.seconds = len(self.piece.samples) / reader.speech.rate
        self._heard_as: str | None = None  # the transcript of the whole model
        self._heard = reader.speech.hear(self.piece.samples, self.piece.name)

    def another(self) -> Conversation:
        return SoundConversation(self.reader, self.source)

    @property
    def about(self) -> dict[str, Any]:
        samples = self.piece.samples
        size = max(1, -(-len(samples) // _PEAKS))
        peaks = np.maximum.reduceat(np.abs(samples), np.arange(0, len(samples), size))
        file = io.BytesIO()
        largest = max(float(np.abs(samples).max()), 1e-9)
        wavfile.write(file, self.reader.speech.rate, (32767 * samples / largest).astype(np.int16))
        sound = {
            "seconds": self.seconds,
            "frame": self._heard.seconds,
            "peaks": [round(float(peak) / largest, 3) for peak in peaks],
            "source": f"data:audio/wav;base64,{base64_of(file.getvalue())}",
        }
        return super().about | {"decodes": False, "reads": "sounds", "sound": sound}

    def _pass(self, asked: Look, text: str) -> Pass:
        key = text, asked.written
        if key not in self._passes:
            self._keep(key, self._run(self._said(text, asked.written)))
        return self._passes[key]

    def _said(self, text: str, written: Sequence[int]) -> ReadyWindow:
        """The frames of the sound, with a transcript and the tokens that the model wrote after it."""
        (said,) = decoder_inputs([text], self.reader.speech)
        if written:
            said = replace(
                said,
                ids=(*said.ids, *written),
                special=(*said.special, *[False] * len(written)),
                spans=[*said.spans, *[(len(text), len(text))] * len(written)],
                shown=(*said.tokens, *self._names.of([*written])),
            )
        if len(said) > self.length:
            raise AttnscopeError(f"the transcript has {len(said)} tokens; expected {self.length} at most: shorten it")
        read = self.reader.read([replace(self.piece, transcript=said)], [0])
        return ready(read.windows[0], read.batch.inputs(self.reader.model))

    def _inputs(self, window: Window) -> dict[str, Any]:
        assert isinstance(window, ReadyWindow)  # noqa: S101 from `_said`
        return window.arguments

    def _losses(self, looked: Any) -> None:
        """None: a transcript that one types may be another than the right one."""

    def _times(self, asked: Times) -> Answer:
        """When each word begins by a head: dynamic time warping of its weights, as Whisper has it."""
        try:
            from attnscope_relations.warping import filtered, first_frames
        except ImportError as error:
            raise AttnscopeError(
                "times of words are in attnscope-relations: in a copy of the repository, "
                "pip install -r packages/requirements.txt"
            ) from error
        maps, said = self.looked.edited.maps, self.looked.plain.window.target
        call = maps.calls.get(asked.layer)
        if said is None or call is None or asked.head >= call.query.shape[1] or maps.kinds[asked.layer] != "cross":
            return Answer({"words": None})  # a head that does not attend from the transcript to the sound
        first = said.special.index(False) if False in said.special else len(said)
        weights = row_weights(call, slice(None)).weights[0, asked.head, max(0, first - 1) :, : self._heard.sounding]
        rows = weights.float() / weights.float().sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        begins = first_frames(filtered(rows)[None].cpu().numpy())[0] * self._heard.seconds
        words: list[dict[str, Any]] = []
        for position in range(first, len(said)):  # the row before a token predicts it
            token = said.tokens[position]
            if said.special[position] or not token.strip():
                continue
            if words and not token.startswith(" "):
                words[-1]["word"] += token
            else:
                words.append({"word": token.strip(), "position": position, "begin": float(begins[position - first])})
        return Answer({"words": words})

    def _transcribe(self, asked: Transcribe) -> Answer:  # noqa: ARG002
        """The transcript that the model writes, with all heads and without the removed ones."""
        changes = self._changes_of_heads(self.looked)
        if self._heard_as is None:
            self._heard_as = self._written_by({})
        return Answer({"before": self._heard_as, "after": self._written_by(changes) if changes else None})

    def _changes_of_heads(self, looked: Any) -> Mapping[tuple[int, int], Callable[[Tensor], Tensor]]:
        """Functions of the outputs of removed heads, at whichever positions a pass has."""
        by, calls = looked.question.by, looked.plain.maps.calls
        changes: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}
        for layer, head in looked.question.removed:
            if by == "zero":
                changes[layer, head] = torch.zeros_like
                continue
            mean = output_of(calls[layer])[:, head].mean(1, keepdim=True)
            changes[layer, head] = lambda z, mean=mean: mean.to(z).expand_as(z)
        return changes

    @property
    def _settings(self) -> dict[str, Any]:
        """Arguments with which the model writes the likeliest transcript."""
        most = min(self.length - 4, int(_LETTERS * self.seconds) + 8)
        return {"do_sample": False, "num_beams": 1, "max_new_tokens": most}

    def _written_by(self, changes: Mapping[tuple[int, int], Callable[[Tensor], Tensor]]) -> str:
        """The likeliest transcript, token by token."""

        def stop(*_: Any, **__: Any) -> bool:
            if self._stopped():
                raise StoppedError
            return False

        model: Any = self.loaded.model
        inputs = self._inputs(self.looked.plain.window)
        with edit(model, dict(changes), on="z", inputs=inputs) if changes else nullcontext():
            ids = model.generate(**self._heard.given, **self._settings, stopping_criteria=[stop])
        return str(self.loaded.tokenizer.decode(ids[0], skip_special_tokens=True)).strip()

    def _code(self, asked: Code) -> Answer:
        question, said = self.looked.question, cast("Window", self.looked.plain.window.target)
        path = next(map(str, self.reader.sounds.files), "sound.wav")
        imports = [
            "from attnscope.capture.encoders import load_speech_model",
            "from attnscope.capture.placement import Loading",
            "from attnscope.read.sounds import sounds_of",
            "from pathlib import Path",
        ]
        lines = [
            f"speech = load_speech_model({self.source.loading('with_decoder=True')})",
            "model, tokenizer = speech.loaded.model, speech.tokenizer",
            f"(sound,) = sounds_of(Path({path!r}))",
            "heard = speech.hear(sound.at_rate(speech.rate), sound.name).given",
            f"# {question.text!r}",
            f"inputs = {{**heard, {ids_of('decoder_input_ids', said)}}}",
        ]
        generate = ", ".join(f"{name}={value}" for name, value in self._settings.items())
        given = Inputs(lines, generate=f"**heard, {generate}")
        named = [path, "--target", question.text]
        is_plain = not (question.removed or question.written)
        return Answer(
            {
                "python": python_with_inputs(question, self.kind, asked, given, imports),
                "command": view_command(self.source, *named, at=asked) if is_plain else "",
            }
        )
