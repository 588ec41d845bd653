"""Sounds as a probe for roles: the frames of an encoder, and of a decoder with a transcript its attention to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.modalities import modality_of
from attnscope.capture.outline import reject_absent
from attnscope.detection.probes import Probe
from attnscope.detection.role import ROLES, Nearness, TextCalls
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attend_in_full
from attnscope.measure.reader import scan_settings
from attnscope.measure.scan import reader_of
from attnscope.measure.sounds import Piece, SoundReader
from attnscope.opened import Opened
from attnscope.read.sounds import Sounds
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Window


@dataclass(frozen=True, eq=False)
class SoundCalls(TextCalls):
    """A call over a sound; frames after its end are no queries."""

    order: Tensor  # ``(1, head)``: rank correlation of the mean time of the rows with their order; 0 where it falls


@dataclass(frozen=True, eq=False, kw_only=True)
class SoundProbe(Probe):
    """Sounds, one at a time."""

    reader: SoundReader
    pieces: Sequence[Piece]

    def inputs(self, model: PreTrainedModel, numbers: Sequence[int]) -> dict[str, Tensor]:
        return self.reader.read([self.pieces[numbers[0]]], numbers).batch.inputs(model)

    def measured(self, site: Site, numbers: Sequence[int], call: AttentionCall) -> SoundCalls | None:
        """The measurements of a call; None for a decoder's attention to its own tokens."""
        if site.kind == "causal":
            return None
        special = self.windows[numbers[0]].special
        sounding = torch.tensor([not silent for silent in special], device=call.query.device)
        is_whole = site.kind == "cross" or not any(special)
        rows: TextCalls = self.look(numbers, call if is_whole else call.take(sounding.nonzero().T))
        order = torch.zeros(1, call.query.shape[1], dtype=torch.float64)
        if site.kind == "cross":
            weights = attend_in_full(call)[1][0, :, self._predicting(numbers[0])][..., sounding]
            order = torch.from_numpy(_order(weights.double().cpu().numpy()))[None]
        return SoundCalls(rows.call, output_of(call), rows.rows, rows.reach, order)

    def _predicting(self, number: int) -> slice:
        """The rows of a decoder that predict the tokens of the text: one before each."""
        special = (self.pieces[number].transcript or self.windows[number]).special
        first = special.index(False) if False in special else 1
        return slice(max(0, first - 1), len(special) - 1)


def _order(weights: np.ndarray) -> np.ndarray:
    """Rank correlation of the mean frame of rows with their order, ``(head,)``, from ``(head, row, frame)``."""
    whole = weights.sum(-1)
    means = (weights * np.arange(weights.shape[-1])).sum(-1) / np.where(whole > 0, whole, 1.0)
    ranks = stats.rankdata(means.round(_EQUAL), axis=-1)
    ranks -= ranks.mean(-1, keepdims=True)
    order = np.arange(ranks.shape[-1]) - (ranks.shape[-1] - 1) / 2
    size = np.sqrt((ranks**2).sum(-1) * (order**2).sum())
    return np.divide(ranks @ order, size, out=np.zeros(len(ranks)), where=size > 0).clip(0)


_EQUAL = 6  # digits of a frame to which equal means are equal
_LEAST = 8  # frames of a sound from which offsets and sinks mean something
_REASONS = {
    "repeated": "sounds are no random tokens that repeat",
    "needle": "the model does not continue texts, so no head can copy tokens",
}


def open_sounds(
    verb: str,
    model: Model | None,
    reading: Mapping[str, Any],
    texts: Any,
    heads: Sequence[tuple[int, int]] | None,
    **others: Any,
) -> tuple[Opened, SoundReader] | None:
    """A session of one verb over sounds, and their reader; None for other input. Options of texts are rejected."""
    if texts is None:
        return None
    model = MODEL if model is None else model
    sounds = modality_of(model, texts, field=reading["field"], revision=reading["revision"])
    if not isinstance(sounds, Sounds):
        return None
    if reading.get("dry_run"):
        raise AttnscopeError(f"a dry run (--dry-run) plans runs over texts: {verb} a few sounds instead (--limit)")
    reader: Any = reader_of(model, sounds, scan_settings(reading, statistics="entropy", **others))
    reject_absent(heads or (), reader.sites, "heads, --heads")
    session = Opened.of(model, texts)
    session.model, session.corpus = replace(reader.loaded, model=reader.model), sounds
    return session, reader


def notes_on(reader: SoundReader) -> dict[str, str]:
    """Notes on sounds for the result."""
    notes = {**reader.notes}
    if reader.has_decoder:
        notes["decoder"] = "The decoder read the transcripts. Its attention to its own tokens has no roles here."
    elif "decoder" in reader.attributes:
        notes["decoder"] = reader.attributes["decoder"]
    return notes


def sound_probe(reader: SoundReader, windows: Sequence[Window], reach: Nearness) -> SoundProbe:
    """The sounds of a reader with 8 frames or more."""
    pieces = [*reader.items()]
    used = [at for at, window in enumerate(windows) if window.special.count(False) >= _LEAST]
    if not used:
        raise AttnscopeError(f"found no sound of {_LEAST} frames or more, which roles need: give longer sounds")

    def look(_: Sequence[int], call: AttentionCall) -> TextCalls:
        return TextCalls.of(call, torch.zeros(1, call.key.shape[2], device=call.key.device), reach)

    chosen = [pieces[at] for at in used]
    return SoundProbe("text", tuple(windows[at] for at in used), look, 1, reader=reader, pieces=chosen)


def sites_of_sounds(reader: SoundReader) -> list[Site]:
    """The layers that attend to a sound: those of the encoder, and cross-attention."""
    return [site for site in reader.sites if site.kind != "causal"]


def not_of_sounds(names: Sequence[str]) -> dict[str, str]:
    """Roles that mean nothing in sounds, each with the reason."""
    reasons = {name: _REASONS[ROLES[name].probe] for name in names if ROLES[name].probe in _REASONS}
    reasons |= {name: "its function reads tokens, and these are sounds" for name in names if ROLES[name].expecting}
    return reasons | {name: "frames of a sound have no punctuation" for name in names if name == "delimiter"}
