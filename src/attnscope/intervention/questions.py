"""The tokens, labels or embeddings to predict on a batch of windows, and the loss of predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.families import returns_embedding
from attnscope.capture.verify import is_causal_model
from attnscope.capture.weights import output_layer
from attnscope.measure.passes import WindowBatch
from attnscope.models.common import IGNORED
from attnscope.read.windows import Window, padded
from attnscope.support.errors import AttnscopeError

MASKED = 0.15  # share of tokens that is masked for a masked language model (Devlin et al. 2019)
Kind = Literal["masked", "next", "translation", "label", "output"]


@dataclass(frozen=True, eq=False)
class Questions:
    """A batch of windows, and the tokens that the model has to predict."""

    batch: WindowBatch  # input of the model, with masks for a masked language model
    positions: Int[Tensor, "row prediction"]  # positions to predict, padded
    labels: Int[Tensor, "row prediction"]  # the right token at each position; -100 for padding and what is not asked
    windows: Sequence[Window]  # the windows without masks
    # the wrong answers next to the right ones, where these are asked for; several are padded with -100
    wrongs: Int[Tensor, "text id"] | None = None
    rights: Int[Tensor, "text id"] | None = None  # all right answers, if they are several of one token each

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def rows(self) -> int:
        """Rows of each text: 2 if answers of several tokens follow, the right and the wrong one; else 1."""
        return len(self.labels) // len(self)

    def at(self, logits: Float[Tensor, "row *position vocabulary"]) -> Float[Tensor, "row prediction vocabulary"]:
        """Logits at the positions to predict; of a model with one prediction for each text, that is position 0."""
        if logits.ndim == 2:  # noqa: PLR2004
            return logits[:, None]
        return logits.gather(1, self.positions[..., None].expand(-1, -1, logits.shape[-1]))

    def scores(
        self,
        logits: Float[Tensor, "variant row prediction vocabulary"],
        before: Float[Tensor, "row prediction vocabulary"] | None = None,
    ) -> dict[str, Float[Tensor, "variant text"]]:
        """Loss, accuracy and KL divergence of variants: means over the predictions of each text."""
        real = self.labels != IGNORED
        right = self.labels.clamp(min=0)[..., None]
        logs = torch.zeros(0, dtype=torch.float32) if before is None else as_float32(before).log_softmax(-1)
        chances = logs.exp()
        negative_entropy = (chances * logs).sum(-1)
        by_name: dict[str, list[Tensor]] = {}
        for variant in logits:  # one variant at a time, which may fit the processor's cache
            wide = as_float32(variant)
            largest, answer = wide.amax(-1), wide.gather(-1, right)[..., 0]
            # the log of the summed exponentials, about the largest logit, so that none overflows
            total = largest + (wide - largest[..., None]).exp_().sum(-1).log()
            is_right = answer == largest
            if self.rights is not None:
                answer = log_of_sum(wide[:, 0], self.rights)[:, None]
                is_right = largest == wide.gather(-1, self.rights.clamp(min=0)[:, None]).amax(-1)
            scores = {"loss": total - answer, "accuracy": is_right.to(wide.dtype)}
            if self.wrongs is not None:
                scores["metric"] = answer - log_of_sum(wide[:, 0], self.wrongs)[:, None]
            if before is not None:
                # sum of p ln p - p ln q, where ln q = logit - total; below 0 by rounding alone
                scores["kl"] = (negative_entropy + (total - (chances * wide).sum(-1))).clamp(min=0)
            for name, value in scores.items():
                by_name.setdefault(name, []).append(torch.where(real, value, 0).sum(-1) / real.sum(-1))
        means = {name: torch.stack(values) for name, values in by_name.items()}
        if self.rows > 1:
            sums = (-means["loss"] * real.sum(-1)).unflatten(1, (-1, 2))
            means = {name: values[:, :: self.rows] for name, values in means.items()}
            means["metric"] = sums[..., 0] - sums[..., 1]
        return means


@dataclass(frozen=True, eq=False)
class Embeddings(Questions):
    """A batch of texts for an encoder without a head: its loss is the share of the embedding that is lost.

    That is 1 minus the projection of a run's embedding on that of the unchanged model, in units of the latter's length.
    """

    unchanged: Float[Tensor, "row width"] = field(default_factory=lambda: torch.empty(0, 0))  # of the unchanged model

    def at(self, logits: Float[Tensor, "row ..."]) -> Float[Tensor, "row 1 width"]:
        return embeddings(logits, self.batch.text.valid)[:, None]

    def scores(
        self, logits: Float[Tensor, "variant row 1 width"], before: Tensor | None = None
    ) -> dict[str, Float[Tensor, "variant text"]]:
        """The loss; there is no accuracy and no KL divergence."""
        projection = (as_float32(logits[..., 0, :]) * self.unchanged).sum(-1) / (self.unchanged**2).sum(-1)
        names = ("accuracy", *([] if before is None else ["kl"]))
        return {"loss": 1 - projection} | dict.fromkeys(names, torch.full_like(projection, torch.nan))


def embeddings(states: Float[Tensor, "row ..."], valid: Tensor) -> Float[Tensor, "row width"]:
    """The embedding of each text: the model's own, or the mean of the last layer over tokens."""
    wide = as_float32(states)
    if wide.ndim == 2:  # noqa: PLR2004
        return wide
    if valid.shape != wide.shape[:2]:
        return wide.flatten(1, -2).mean(1)
    real = valid[..., None].to(wide)
    return (wide * real).sum(1) / real.sum(1)


def log_of_sum(
    logits: Float[Tensor, "*variant text vocabulary"], ids: Int[Tensor, "text id"]
) -> Float[Tensor, "*variant text"]:
    """The log of the summed exponentials of the logits of some tokens, padded with -100."""
    chosen = as_float32(logits.gather(-1, ids.clamp(min=0).expand(*logits.shape[:-1], ids.shape[1])))
    return chosen.masked_fill(ids == IGNORED, -torch.inf).logsumexp(-1)


def as_float32(logits: Tensor) -> Tensor:
    """In float32 or wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def kind_of_question(model: PreTrainedModel) -> Kind:
    """Tokens that a model predicts (masked words, the next token, a translation), labels, or its embedding."""
    if output_layer(model) is None:
        return "output" if returns_embedding(model) else "label"
    if model.config.is_encoder_decoder:
        return "translation"
    return "next" if is_causal_model(model) else "masked"


def class_of(label: str | int, model: PreTrainedModel, where: str) -> int:
    """The number of a class, by its name in the config or as a number."""
    names: dict[int, str] = dict(model.config.id2label or {})  # pyright: ignore[reportAssignmentType]
    numbers = {str(name): number for number, name in names.items()}
    numbers = {str(number): number for number in names} | numbers
    if str(label) not in numbers:
        few = ", ".join(map(repr, [*names.values()][:8])) + ", ..." * (len(names) > 8)  # noqa: PLR2004
        raise AttnscopeError(
            f"{where}: the model has no label {label!r}; expected one of {few} (id2label of its config), or a number "
            f"from 0 to {len(names) - 1}"
        )
    return numbers[str(label)]


def pad_of(tokenizer: Any) -> int:
    """The id of padding."""
    return tokenizer.eos_token_id or 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def questions(
    kind: Kind,
    windows: Sequence[Window],
    tokenizer: Any,
    seed: int,
    device: torch.device,
    parts: Sequence[np.ndarray] = (),
) -> Questions:
    """The predictions to make on a batch of windows: of all tokens, or of those in a part of each."""
    batch = WindowBatch.of(windows, pad_of(tokenizer), device)
    if kind == "masked":
        return _masked(batch, windows, tokenizer, seed, parts)
    target = batch.target
    real = target.valid[:, 1:]
    if not bool(real.any(1).all()):
        short = windows[int((~real.any(1)).nonzero()[0])]
        raise AttnscopeError(
            f"{short.source} has one token, so there is nothing to predict; expected 2 or more. Leave it out"
        )
    positions = torch.arange(real.shape[1], device=device).expand(len(windows), -1)
    if parts:
        real = real & padded([part[1:].tolist() for part in parts]).bool().to(device)
    return Questions(batch, positions, torch.where(real, target.input_ids[:, 1:], IGNORED), windows)


def answered(
    kind: Kind,
    windows: Sequence[Window],
    answers: Sequence[list[list[int]]],
    tokenizer: Any,
    device: torch.device,
    *,
    are_several: bool = False,
) -> Questions:
    """Each text asks for its answer, or for one of several: at its mask, or after its last token."""
    last, mask = list[int](), tokenizer.mask_token_id
    for window in windows:
        text = window.target or window if kind == "translation" else window
        wanted = np.array(text.ids) == mask if kind == "masked" else ~np.array(text.special)
        marked = np.flatnonzero(wanted).tolist() or ([] if kind == "masked" else [len(text) - 1])
        if not marked or (kind == "masked" and len(marked) > 1):
            raise AttnscopeError(f"{window.source} has {len(marked)} masks; expected one, where the answer belongs")
        last.append(marked[-1])
    padded, positions, each = padded_answers(answers, last, device)
    if are_several:
        batch, rights, wrongs = WindowBatch.of(windows, pad_of(tokenizer), device), *padded.unbind(1)
        return Questions(batch, positions[::each, :1], rights[:, :1], windows, wrongs, rights)
    texts = zip(windows, last, answers, strict=True)
    rows = [_followed(window, position + 1, ids) for window, position, both in texts for ids in both[:each]]
    batch = WindowBatch.of(rows, pad_of(tokenizer), device)
    positions = positions.clamp(max=batch.target.input_ids.shape[1] - 1)
    return Questions(batch, positions, padded[:, :each].flatten(0, 1), windows, padded[:, 1] if each == 1 else None)


def padded_answers(
    answers: Sequence[list[list[int]]], last: Sequence[int], device: torch.device
) -> tuple[Int[Tensor, "text 2 token"], Int[Tensor, "row token"], int]:
    """Token ids of right and wrong answers, the positions that predict them, and the rows that each text needs."""
    most = max(1, *(len(ids) for both in answers for ids in both))  # a metric of one's own needs no answers
    padded = torch.tensor([[ids + [IGNORED] * (most - len(ids)) for ids in both] for both in answers], device=device)
    positions = torch.tensor(last, device=device)[:, None] + torch.arange(most, device=device)
    return padded, positions.repeat_interleave(min(most, 2), 0), min(most, 2)


def _followed(window: Window, end: int, ids: list[int]) -> Window:
    """A window with all tokens of an answer but the last one, from a position on."""
    if window.target is not None:
        return replace(window, target=_followed(window.target, end, ids))
    more = dict[str, Any](ids=ids[:-1], special=[False] * (len(ids) - 1))
    fields = {name: getattr(window, name) for name in more}
    return replace(window, **{name: (*fields[name][:end], *added, *fields[name][end:]) for name, added in more.items()})


def _masked(
    batch: WindowBatch, windows: Sequence[Window], tokenizer: Any, seed: int, parts: Sequence[np.ndarray]
) -> Questions:
    restores = any(window.target for window in windows)
    mask_id: Any = tokenizer.mask_token_id
    if not restores and mask_id is None:
        raise AttnscopeError(
            "the tokenizer has no mask token, which a masked language model needs. Choose another with --tokenizer"
        )
    within = parts or [np.ones(len(window), bool) for window in windows]
    both = zip(windows, within, strict=True)
    chosen = [_replaced(window, part) if restores else _hidden(window, part, seed) for window, part in both]
    most = max(map(len, chosen))
    text, device = batch.text, batch.text.input_ids.device
    positions = torch.zeros(len(windows), most, dtype=torch.int64, device=device)
    labels = torch.full_like(positions, IGNORED)
    ids = text.input_ids.clone()
    for row, hidden in enumerate(chosen):
        index = torch.from_numpy(hidden).to(device)
        positions[row, : len(index)] = index
        labels[row, : len(index)] = batch.target.input_ids[row, index]
        if not restores:
            ids[row, index] = int(mask_id)
    with_masks = type(text)(ids, text.valid, text.special)
    return Questions(WindowBatch(with_masks, with_masks), positions, labels, windows)


def _replaced(window: Window, part: np.ndarray) -> np.ndarray:
    """Positions of a part where the target has another token."""
    positions = np.flatnonzero((np.array(window.ids) != np.array((window.target or window).ids)) & part)
    if not len(positions):
        raise AttnscopeError(
            f"{window.source} equals its target, so there is nothing to predict; expected another word. Leave it out"
        )
    return positions


def _hidden(window: Window, part: np.ndarray, seed: int) -> np.ndarray:
    """Positions of a part to mask; they do not depend on the rest of the batch."""
    words = np.flatnonzero(~np.array(window.special) & part)
    if not len(words):
        raise AttnscopeError(
            f"{window.source} has only special tokens, so there is nothing to predict. Leave it out, or add more text"
        )
    name = hashlib.sha256(repr((seed, window.ids)).encode()).digest()
    generator = np.random.default_rng(int.from_bytes(name[:8], "big"))
    return np.sort(generator.choice(words, max(1, round(MASKED * len(words))), replace=False))
