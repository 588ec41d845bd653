"""What a model is asked on a batch of windows, and how well it answers: losses, right answers, divergence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture.verify import is_causal_model
from attnscope.measure.passes import WindowBatch
from attnscope.models.loss import IGNORED
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from typing import Any

    from transformers import PreTrainedModel

    from attnscope.read.windows import Window

MASKED = 0.15  # share of words or tokens that is hidden from a masked language model (Devlin et al. 2019)

Kind = Literal["masked", "next", "translation"]


@dataclass(frozen=True, eq=False)
class Questions:
    """A batch of windows, and the tokens that the model shall say."""

    reading: WindowBatch  # what the model reads; of a masked language model with masks in it
    # ``(text, place)``: positions that are asked for, those that fill a row up included
    places: Int[Tensor, "text place"]
    # ``(text, place)``: the right token at each; -100 where the row is only filled up
    labels: Int[Tensor, "text place"]
    windows: Sequence[Window]  # the windows, as they were cut

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.labels)

    def scores(
        self,
        logits: Float[Tensor, "variant text place vocabulary"],
        before: Float[Tensor, "text place vocabulary"] | None = None,
    ) -> dict[str, Float[Tensor, "variant text"]]:
        """How well variants answer, by means over the places of each text."""
        real = self.labels != IGNORED
        right = self.labels.clamp(min=0)[..., None]
        known = None if before is None else _Before.of(before)
        by_name: dict[str, list[Tensor]] = {}
        for variant in logits:  # one variant at a time, which the processor's cache may hold
            wide = variant.to(torch.promote_types(variant.dtype, torch.float32))
            largest, answer = wide.amax(-1), wide.gather(-1, right)[..., 0]
            total = largest + (wide - largest[..., None]).exp_().sum(-1).log()
            scores = {"loss": total - answer, "accuracy": (answer == largest).to(wide.dtype)}
            if known is not None:
                scores["kl"] = known.divergence(wide, total)
            for name, value in scores.items():
                by_name.setdefault(name, []).append(_mean(value, real))
        return {name: torch.stack(values) for name, values in by_name.items()}


@dataclass(frozen=True, eq=False)
class _Before:
    """The predictions of the unchanged model."""

    probabilities: Tensor
    negative_entropy: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> _Before:
        logs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        probabilities = logs.exp()
        return cls(probabilities, (probabilities * logs).sum(-1))

    def divergence(self, logits: Tensor, total: Tensor) -> Tensor:
        """KL divergence from these of the predictions that `logits` make; `total` is their log-sum-exp."""
        crossed = total - (self.probabilities * logits).sum(-1)
        return (self.negative_entropy + crossed).clamp(min=0)


def _mean(values: Tensor, real: Tensor) -> Tensor:
    """Mean over the real places of each text."""
    return torch.where(real, values, 0).sum(-1) / real.sum(-1)


def kind_of_question(model: PreTrainedModel) -> Kind:
    """What a model can be asked: words behind masks, the next token, or a translation."""
    try:
        layer = model.get_output_embeddings()
    except NotImplementedError:
        layer = None
    if layer is None:
        raise AttnscopeError(
            f"{type(model).__name__} makes no logits of tokens, so there are no labels and no loss: load the model "
            "with its language-modelling head (its config's architectures say which class)"
        )
    if model.config.is_encoder_decoder:
        return "translation"
    return "next" if is_causal_model(model) else "masked"


def questions(kind: Kind, windows: Sequence[Window], tokenizer: Any, seed: int, device: torch.device) -> Questions:
    """Ask about a batch of windows."""
    pad = tokenizer.pad_token_id
    pad_id = pad if pad is not None else tokenizer.eos_token_id or 0
    reading = WindowBatch.of(windows, pad_id, device)
    if kind == "masked":
        return _masked(reading, windows, tokenizer, seed)
    said = reading.target
    real = said.valid[:, 1:]
    if not bool(real.any(1).all()):
        short = windows[int((~real.any(1)).nonzero()[0])]
        raise AttnscopeError(
            f"{short.source} has one token, after which nothing is to be predicted: expected 2 or more, leave it out"
        )
    places = torch.arange(real.shape[1], device=device).expand(len(windows), -1)
    labels = torch.where(real, said.input_ids[:, 1:], IGNORED)
    return Questions(reading, places, labels, windows)


def _masked(reading: WindowBatch, windows: Sequence[Window], tokenizer: Any, seed: int) -> Questions:
    if tokenizer.mask_token_id is None:
        raise AttnscopeError(
            "the tokenizer has no mask token, and a masked language model is asked for words behind masks: give one "
            "that has it (--tokenizer)"
        )
    chosen = [_hidden(window, seed) for window in windows]
    most = max(map(len, chosen))
    text, device = reading.text, reading.text.input_ids.device
    places = torch.zeros(len(windows), most, dtype=torch.int64, device=device)
    labels = torch.full_like(places, IGNORED)
    ids = text.input_ids.clone()
    for row, hidden in enumerate(chosen):
        index = torch.from_numpy(hidden).to(device)
        places[row, : len(index)] = index
        labels[row, : len(index)] = text.input_ids[row, index]
        ids[row, index] = tokenizer.mask_token_id
    shown = type(text)(ids, text.valid, text.special)
    return Questions(WindowBatch(shown, shown), places, labels, windows)


def _hidden(window: Window, seed: int) -> np.ndarray:
    """Positions to hide: the same whatever stands beside the window in a batch."""
    words = np.flatnonzero(~np.array(window.special))
    if not len(words):
        raise AttnscopeError(
            f"{window.source} has special tokens alone, so no word can be asked for: leave it out, or give more text"
        )
    name = hashlib.sha256(repr((seed, window.ids)).encode()).digest()
    generator = np.random.default_rng(int.from_bytes(name[:8], "big"))
    count = max(1, round(MASKED * len(words)))
    return np.sort(generator.choice(words, count, replace=False))
