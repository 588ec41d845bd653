"""Predictions of a model on batches of windows, their loss, and replacements of head outputs."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import getdoc
from itertools import groupby, pairwise
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.bundled import NOUNS, SENTENCES
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import result_of, returns_embedding
from attnscope.capture.load import Model
from attnscope.capture.placement import device_of, is_empty
from attnscope.capture.verify import TOLERANCE, is_causal_model, padding_difference, verify
from attnscope.capture.watch import Site
from attnscope.capture.weights import output_layer
from attnscope.explanation.study import DEFAULT_TEXTS
from attnscope.intervention import stack
from attnscope.intervention.calls import unread_sites
from attnscope.intervention.media import Media, open_media
from attnscope.intervention.metrics import Metric, unit_of_loss
from attnscope.measure.passes import WindowBatch
from attnscope.measure.texts import first_windows
from attnscope.models.common import IGNORED
from attnscope.opened import Heads, Opened
from attnscope.options import StudyReading
from attnscope.read.encoded import EncodedTexts, Sources, Texts
from attnscope.read.spans import field_of_part, tokens_of_part
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window, padded, window_name
from attnscope.report import registry
from attnscope.store.run import Work
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count

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
            total = largest + (wide - largest[..., None]).exp_().sum(-1).log()
            is_right = answer == largest
            if self.rights is not None:
                answer = log_of_sum(wide[:, 0], self.rights)[:, None]
                is_right = largest == wide.gather(-1, self.rights.clamp(min=0)[:, None]).amax(-1)
            scores = {"loss": total - answer, "accuracy": is_right.to(wide.dtype)}
            if self.wrongs is not None:
                scores["metric"] = answer - log_of_sum(wide[:, 0], self.wrongs)[:, None]
            if before is not None:
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


def _answered(
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


Ablation = str  # its name


@dataclass(frozen=True)
class Replacement:
    """The replacement of a head's output by an ablation."""

    meaning: str  # of its effect
    # from the outputs of the heads of a call, ``(text, head, query, value_width)``, the batch, the call, and the mean
    # of each head over all texts, if that was measured, to outputs of the same shape
    of: Callable[[Tensor, Questions, Site, Tensor | None], Tensor]


def _zero(output: Tensor, *_: Any) -> Tensor:
    return torch.zeros_like(output)


def _mean(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
    assert mean is not None  # noqa: S101 `PredictionSession.passes` measures it
    return mean.to(output)[None, :, None].expand_as(output)


def _resample(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
    index = donor_positions(questions.batch.sides(site.kind, output.device)[0].valid, questions.rows)
    return output.roll(questions.rows, 0).gather(2, index[:, None, :, None].expand_as(output))


#: Ablations by name; a caller's own follow.
ABLATIONS: dict[Ablation, Replacement] = {
    "zero": Replacement("change of the loss when the head's output is zero", _zero),
    "mean": Replacement("change of the loss when the head's output is its mean", _mean),
    "resample": Replacement("change of the loss when the head's output is that on another text", _resample),
}


def register_ablation(function: Callable[[Tensor], Tensor], name: str) -> None:
    """Add an ablation of a caller's own to `ABLATIONS`, from a function of the output of one head on one text."""
    is_tried = False

    def of(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
        nonlocal is_tried
        others = output.clone()
        for text, real in enumerate(questions.batch.sides(site.kind, output.device)[0].valid):
            for head in range(output.shape[1]):
                own = output[text, head, real][None]
                others[text, head, real] = _ablated(name, function, own, tries=not is_tried)[0].to(output)
                is_tried = True
        return others

    doc = " ".join((getdoc(function) or "").split())
    meaning = f"change of the loss under the ablation {name}" + (f": {doc}" if doc else "")
    registry.register("ablation", name, Replacement(meaning, of), ABLATIONS, function, words={"meaning": meaning})


@checked
def stored_ablation(name: str, *, meaning: str) -> tuple[dict[Ablation, Replacement], Replacement]:  # noqa: ARG001
    """An ablation of a caller's own as a run stores it, without its function; and its table."""
    return ABLATIONS, Replacement(meaning, _zero)


def _ablated(name: str, function: Callable[[Tensor], Tensor], output: Tensor, *, tries: bool) -> Tensor:
    """The result of a function of a head's output, ``(1, query, value_width)``, checked; called twice if it `tries`."""
    with explaining(f"the ablation {name} failed", "Correct its function"):
        other: Any = function(output.clone())
        again: Any = function(output.clone()) if tries else other
    if not isinstance(other, Tensor) or other.shape != output.shape:
        what = f"shape {tuple(other.shape)}" if isinstance(other, Tensor) else f"a {type(other).__name__}"
        raise AttnscopeError(f"the ablation {name} returns {what}; expected a tensor of shape {tuple(output.shape)}")
    if not bool(other.isfinite().all()):
        raise AttnscopeError(f"the ablation {name} returns NaN or an infinite number: expected finite ones")
    if tries and not torch.equal(other, again):
        raise AttnscopeError(f"the ablation {name} returns other numbers for the same output: remove random numbers")
    return other


def donor_positions(valid: Tensor, rows: int = 1) -> Tensor:
    """Position in the previous text of the batch that replaces each position, ``(text, query)``."""
    if len(valid) < 2 * rows:
        raise AttnscopeError(
            "found one text; the ablation 'resample' needs 2 or more. Add more text, or leave out 'resample'"
        )
    return torch.arange(valid.shape[1], device=valid.device) % valid.sum(1).roll(rows)[:, None]


LONGEST = 512  # default limit of tokens in a window: every head of every window needs a pass
TOKENS = 1024  # of a batch


@dataclass(eq=False)
class PredictionSession:
    """One model, and the windows on which it predicts."""

    loaded: LoadedModel  # the model with its tokenizer
    windows: Sequence[Window]  # at least one; with targets for an encoder-decoder
    kind: Kind  # what it predicts
    seed: int = 0  # seed of the masks of a masked language model
    batch_size: int | None = None
    skips: bool = True  # whether passes skip what all variants share, if that was found to give the same numbers
    sites: list[Site] = field(default_factory=list)
    answers: Sequence[list[list[int]]] = ()  # tokens of right and wrong answer of each window, if these are asked for
    are_several: bool = False  # whether the answers on a side are several of one token each
    parts: Sequence[np.ndarray] = ()  # which tokens of each window may be predicted, if not all
    metric: Metric | None = None  # of one's own
    labels: Sequence[str | int] = ()  # of each window, for a classifier; by default those that it predicts
    given: Sequence[Mapping[str, Tensor]] = ()  # inputs of each window, if these are not its tokens
    notes: dict[str, str] = field(default_factory=dict[str, str])  # on windows that were left out
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # by which a verb read its texts

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, without its tokenizer."""
        return self.loaded.model

    @property
    def measured(self) -> dict[str, str]:
        """Name, unit and better direction of what is measured in place of the loss; empty for the loss."""
        if self.metric is not None:
            return self.metric.attributes
        if not self.answers:
            return {}
        unit = "nats" if any(len(ids) > 1 for both in self.answers for ids in both) else "logits"
        return {"metric": "answer minus wrong answer", "unit": unit, "better": "higher"}

    @property
    def unit(self) -> str:
        """The unit of the loss."""
        return unit_of_loss({"prediction": self.kind})

    @cached_property
    def documents(self) -> list[str]:
        return [window.source for window in self.windows]

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Every head, as (layer, head)."""
        return [(layer, head) for layer, heads in enumerate(self.heads) for head in range(heads)]

    @cached_property
    def heads(self) -> list[int]:
        """Number of heads of each attention call."""
        if is_empty(self.model):
            return [site.heads for site in self.sites]
        with stack.stacked_passes(self.model, skips=False) as passes:
            passes.plain(self.inputs(slice(0, 1)).inputs(self.model))
        return [output.shape[1] for output in passes.outputs]

    def slices(self) -> list[slice]:
        """The windows of each batch: about 1,024 tokens, and at least 2 windows, because resampling needs them."""
        longest = max(max(len(window), len(window.target or window)) for window in self.windows)
        size = self.batch_size or max(2, TOKENS // longest)
        shapes = [[*map(tuple, map(np.shape, inputs.values()))] for inputs in self.given] or [[]] * len(self.windows)
        slices: list[slice] = []
        for _, group in groupby(range(len(self.windows)), shapes.__getitem__):  # images or sounds of one size
            numbers = [*group]
            starts = numbers[::size]
            if len(starts) > 1 and numbers[-1] == starts[-1]:
                starts.pop()  # a single last text joins the previous batch
            slices += [slice(*ends) for ends in pairwise([*starts, numbers[-1] + 1])]
        return slices

    def work(self, variants: int | None = 1, **more: Any) -> Work:
        """Passes over each batch, for a plan; None stands for as many variants as run side by side."""
        windows = [self.windows[part] for part in self.slices()]
        shapes = [(len(some), max(len(one.target or one) for one in some)) for some in windows]
        if variants is None:
            variants = stack.planned_variants(self.model, shapes[0])
        return Work(shapes, variants=variants, holds=True, **more)

    def inputs(self, part: slice) -> WindowBatch:
        """Some of the windows as the model reads them."""
        windows, device = self.windows[part], device_of(self.model)
        if self.given:
            names = self.given[0]
            arguments = {name: torch.cat([one[name] for one in self.given[part]]) for name in names}
            return WindowBatch.with_arguments(arguments, windows, device)
        return self.texts(windows)

    def texts(self, windows: Sequence[Window]) -> WindowBatch:
        """Texts as the model reads them; the decoder of a classifier makes its own inputs (BART)."""
        batch = WindowBatch.of(windows, pad_of(self.loaded.tokenizer), device_of(self.model))
        own = self.kind == "label" and self.model.config.is_encoder_decoder
        return replace(batch, arguments=batch.text.arguments(self.model.dtype)) if own else batch

    @cached_property
    @torch.no_grad()
    def unchanged(self) -> list[Tensor]:
        """The labels that a classifier predicts for each window, of the text or of its tokens; or the embedding."""
        windows: list[Tensor] = []
        for part in self.slices():
            batch = self.inputs(part)
            result = self._result(batch.inputs(self.model))
            windows += result.argmax(-1) if self.kind == "label" else embeddings(result, batch.text.valid)
        return windows

    def _result(self, inputs: dict[str, Any]) -> Tensor:
        name = type(self.model).__name__
        with explaining(f"{name} cannot read these texts", "Load the model with another head, or its base model"):
            output = self.model(**inputs)
        logits = result_of(self.model, output)
        if self.kind == "label" and getattr(output, "logits", None) is None and self.metric is None:
            raise AttnscopeError(
                f"{name} returns neither labels nor an embedding ({', '.join(output)}): give a function as metric, or "
                "load the base model alone (AutoModel)"
            )
        if self.kind == "label" and logits.shape[-1] == 1 and self.metric is None:
            raise AttnscopeError(
                f"{name} has one label, so its output is a number, not a choice: give a function as metric, such as "
                "lambda logits, inputs: logits[:, 0]"
            )
        return logits

    def batch(self, part: slice) -> Questions:
        """The predictions to make on some of the windows."""
        if self.kind in {"label", "output"}:
            return self._of_whole(part)
        how = self.loaded.tokenizer, device_of(self.model)
        if self.answers:
            several = {"are_several": self.are_several}
            return _answered(self.kind, self.windows[part], self.answers[part], *how, **several)
        return questions(self.kind, self.windows[part], how[0], self.seed, how[1], self.parts[part])

    def _of_whole(self, part: slice) -> Questions:
        """The label of each text, or of each of its tokens; of an encoder without a head, its embedding."""
        batch, unchanged, windows = self.inputs(part), torch.stack(self.unchanged[part]), self.windows[part]
        positions = torch.zeros(len(windows), 1, dtype=torch.int64, device=unchanged.device)
        if self.kind == "output":
            return Embeddings(batch, positions, positions, windows, unchanged=unchanged)
        if self.answers:
            right, wrong = torch.tensor(self.answers[part], device=unchanged.device)[..., 0].T
            return Questions(batch, positions, right[:, None], windows, wrong[:, None])
        if self.labels:
            return Questions(batch, positions, self._numbers[part, None].to(unchanged.device), windows)
        if unchanged.ndim == 1:
            return Questions(batch, positions, unchanged[:, None], windows)
        every = torch.arange(unchanged.shape[1], device=unchanged.device).expand_as(unchanged)
        text = batch.text
        is_token = text.valid & ~text.special if text.valid.shape == unchanged.shape else torch.ones_like(every).bool()
        return Questions(batch, every, torch.where(is_token, unchanged, IGNORED), windows)

    @cached_property
    def _numbers(self) -> Tensor:
        """The label of each window as the number of its class."""
        if self.unchanged[0].ndim:
            raise AttnscopeError(
                f"{type(self.model).__name__} labels each token, and there is one label for each text: leave out "
                "labels (--labels), so that its own predictions are the labels"
            )
        each = zip(self.labels, self.windows, strict=True)
        return torch.tensor([class_of(label, self.model, window.source) for label, window in each])

    @contextmanager
    def passes(self, part: slice, ablations: Sequence[Ablation] = ()) -> Generator[PredictionBatch]:
        """Some of the windows after a plain pass, ready for variants, with replacements of the heads."""
        questions = self.batch(part)
        means = self.means if "mean" in ablations else []
        with stack.stacked_passes(self.model, skips=self.skips) as passes, torch.no_grad():
            returns_all = self.metric is not None or self.kind == "output"
            inputs, positions = questions.batch.inputs(self.model), None if returns_all else questions.positions
            whole = passes.plain(inputs, positions, self.name(part.start))
            before = questions.at(whole) if returns_all else whole
            replacements: dict[Ablation, list[Tensor]] = {
                name: _replacements(name, questions, passes, means) for name in ablations
            }
            yield PredictionBatch(questions, passes, before, replacements, whole, self.metric, returns_all)

    def name(self, first: int = 0) -> Callable[[int], str]:
        """Names of the texts of a batch that begins at window `first`."""
        return lambda number: window_name(self.windows[first + number], first + number)

    def check(self, *, ablates: bool = True) -> None:
        """Raise an error if the model's heads cannot be captured, or ablated, before anything is measured."""
        at, longest = max(enumerate(self.windows), key=lambda numbered: len(numbered[1]))
        if is_empty(self.model):
            self.sites = verify(self.model, {}, text=window_name(longest, at))
            return
        shortest = min(self.windows, key=len)
        first = self.batch(slice(at, at + 1))
        inputs = first.batch.inputs(self.model)
        self.sites = verify(self.model, inputs, text=window_name(longest, at))
        if len(longest) > len(shortest) and not self.given:
            both, *alone = map(self._padded, ((longest, shortest), (longest,), (shortest,)))
            if padding_difference(self.model, both, alone) > 1:
                raise AttnscopeError(
                    f"{type(self.model).__name__} gives other numbers if a text is padded. Use texts of equal length, "
                    f"such as full windows of --window {len(shortest)}"
                )
            if self.metric is not None:
                self._reject_padding(self.metric, both, alone[1])
        if ablates:
            check_read(self.loaded, inputs)
            self.skips = stack.same_without_what_is_skipped(self.model, inputs, first.positions)

    def _padded(self, windows: Sequence[Window]) -> dict[str, Tensor]:
        """Inputs of some windows, padded to the longest."""
        if self.kind in {"label", "output"}:
            return self.texts(windows).inputs(self.model)
        asked = questions(self.kind, windows, self.loaded.tokenizer, self.seed, device_of(self.model))
        return asked.batch.inputs(self.model)

    @torch.no_grad()
    def _reject_padding(self, metric: Metric, both: dict[str, Tensor], short: dict[str, Tensor]) -> None:
        """Raise an error if the metric of the shorter of two texts differs in a batch with the longer one."""
        if "attention_mask" in both:
            short = {"attention_mask": torch.ones_like(short["input_ids"])} | short
        beside = metric.of_texts(result_of(self.model, self.model(**both)), both, 2)[1]
        alone = metric.of_texts(result_of(self.model, self.model(**short)), short, 1)[0]
        limit = 10 * TOLERANCE.get(self.model.dtype, 1e-4)  # the padding moves the logits by as much as one
        if abs(float(beside - alone)) > limit * max(1.0, abs(float(alone))):
            raise metric.depends_on_padding()

    @cached_property
    @torch.no_grad()
    def means(self) -> list[Float[Tensor, "head value_width"]]:
        """Mean output of every head of each call over all positions of all texts, from one pass over them."""
        sums, counts = defaultdict[int, Any](float), Counter[int]()
        with stack.stacked_passes(self.model, skips=False) as passes:
            for part in self.slices():
                questions = self.batch(part)
                passes.plain(questions.batch.inputs(self.model), questions.positions, self.name(part.start))
                for call, (site, output) in enumerate(zip(passes.sites, passes.outputs, strict=True)):
                    valid = questions.batch.sides(site.kind, output.device)[0].valid
                    sums[call] += torch.where(valid[:, None, :, None], output, 0).sum((0, 2), dtype=torch.float64)
                    counts[call] += int(valid.sum())
        return [(total / counts[call]).float() for call, total in sums.items()]


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """A batch after a plain pass, with its predictions and the passes of its variants."""

    questions: Questions
    passes: stack.StackedPasses
    before: Float[Tensor, "row prediction vocabulary"]  # logits of the unchanged model
    replacements: dict[Ablation, list[Tensor]]  # by ablation and call, ``(text, head, query, value_width)``
    whole: Tensor  # logits of the unchanged model as passes return them: at all positions with a metric of one's own
    metric: Metric | None
    returns_all: bool  # whether passes return all that the model returns, for a metric of one's own or an embedding

    def scores(self, logits: Float[Tensor, "variant row ..."]) -> dict[str, Float[Tensor, "variant text"]]:
        """Loss, accuracy, KL divergence and the metric of variants."""
        if self.metric is None:
            return self.questions.scores(self.asked(logits), self.before)
        return self.questions.scores(self.asked(logits), self.before) | {"metric": self._own(logits)}

    def asked(self, logits: Tensor) -> Tensor:
        """Logits at the positions to predict, if passes return all."""
        return torch.stack([self.questions.at(one) for one in logits]) if self.returns_all else logits

    def _own(self, logits: Tensor) -> Float[Tensor, "variant text"]:
        assert self.metric is not None  # noqa: S101
        inputs = self.questions.batch.inputs(self.passes.model)
        return torch.stack([self.metric.of_texts(one, inputs, len(self.questions)) for one in logits])

    def heads_of(self, cells: Collection[tuple[int, int]] | None) -> list[list[int]]:
        """The heads of each attention call that are among `cells`, or all."""
        counts = [output.shape[1] for output in self.passes.outputs]
        return [
            [head for head in range(count) if cells is None or (call, head) in cells]
            for call, count in enumerate(counts)
        ]

    @cached_property
    def loss(self) -> Float[Tensor, "1 text"]:
        return self.questions.scores(self.before[None])["loss"]

    @property
    def most(self) -> int:
        """Number of variants that run together."""
        return stack.variants_at_once(self.whole, self.questions.batch.text.input_ids.numel(), self.passes.outputs)

    def loss_change(self, logits: Float[Tensor, "variant row ..."]) -> Float[Tensor, "variant text"]:
        return self.questions.scores(self.asked(logits))["loss"] - self.loss

    def metric_change(self, logits: Float[Tensor, "variant row ..."]) -> Float[Tensor, "variant text"]:
        return self._metric(logits) - self._unchanged

    def _metric(self, logits: Tensor) -> Tensor:
        return self.questions.scores(logits)["metric"] if self.metric is None else self._own(logits)

    @cached_property
    def _unchanged(self) -> Tensor:
        return self._metric(self.whole[None])


def _replacements(
    name: Ablation, questions: Questions, passes: stack.StackedPasses, means: list[Tensor]
) -> list[Tensor]:
    both = enumerate(zip(passes.outputs, passes.sites, strict=True))
    of = ABLATIONS[name].of
    return [of(output, questions, site, means[call] if means else None) for call, (output, site) in both]


def check_read(loaded: LoadedModel, inputs: dict[str, torch.Tensor]) -> None:
    """Raise an error if no linear layer reads the heads of some layer."""
    few = {key: value if value.is_floating_point() else value[:, :32] for key, value in inputs.items()}
    for site in unread_sites(loaded.model, few):
        raise AttnscopeError(
            f"{loaded.name}, layer {site.index} ({site.name}): no linear layer reads the output of its heads, so heads "
            "cannot be ablated one at a time. Choose another model"
        )


def chosen_ablations(names: Sequence[str]) -> list[Ablation]:
    """The ablations of these names, in their order; an error for those that do not exist."""
    if not {*names} <= {*ABLATIONS}:
        registry.load_records()
    unknown = [name for name in names if name not in ABLATIONS]
    if unknown or not names:
        named = repr(unknown[0] if unknown else names)
        expected = ", ".join(map(repr, ABLATIONS))  # quoted: these are not translated
        raise AttnscopeError(
            f"found ablations (--ablations) {named}; expected one or more of {expected} (one of your own once its "
            "module is imported)"
        )
    added = registry.registered("ablation")
    return [name for name in (*(one for one in ABLATIONS if one not in added), *added) if name in names]


def open_predictions(
    verb: str,
    model: Model | None,
    texts: Sources,
    reading: StudyReading,
    *,
    batch_size: int | None,
    heads: Heads,
    option: str,
    splits_scores: bool = False,
    labels: str | Sequence[str | int] | None = None,
    part: str | None = None,
) -> tuple[Opened, PredictionSession]:
    """A session of a verb, and what its model predicts on its texts."""
    media = None if splits_scores else open_media(model, texts, reading, heads)
    if media is not None:
        return media.opened, media_session(media, labels, batch_size=batch_size, seed=reading["seed"])
    targets = NOUNS if texts is SENTENCES and reading["targets"] is None else reading["targets"]
    spans = field_of_part(part)
    if labels is not None and part is not None:
        raise AttnscopeError("labels (--labels) are of whole texts: leave out part (--part)")
    if spans is not None and (targets is not None or texts is None):
        raise AttnscopeError(
            f"part (--part) is {part!r}, a span of the texts by name: it needs texts with spans, and no translations. "
            "Choose first-half, second-half or after:TEXT, or other texts"
        )
    by = labels if isinstance(labels, str) else spans
    opened = Opened.open(verb, model, reading, texts, targets, in_pairs=True, by=by, heads=heads, option=option)
    length = min(reading["window"] or LONGEST, opened.length(reading["window"]))
    kind = kind_of_question(opened.model.model)
    if kind == "output" and opened.model.model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{opened.model.name} is an encoder-decoder without a language-modelling head: load the model with it, or "
            "its encoder alone (model.get_encoder())"
        )
    if splits_scores:
        kind = "translation" if opened.model.model.config.is_encoder_decoder else "next"
    settings: Any = {"window": length, "limit": reading["limit"] or DEFAULT_TEXTS}
    settings |= {"seed": reading["seed"], "batch_size": batch_size}
    side = int(reading["field"] == "corrupted")  # of pairs
    how: Any = {"kind": kind, "part": part, "side": side}
    session = prediction_session(opened.model, opened.corpus, opened.target, **how, **settings)
    session.settings = settings
    if labels is not None:
        session.labels = labels_of(session, labels)
    return opened, session


def media_session(
    media: Media, labels: str | Sequence[str | int] | None, *, batch_size: int | None, seed: int
) -> PredictionSession:
    """A session over images or sounds."""
    kind = kind_of_question(media.loaded.model)
    if kind not in {"label", "output"}:
        raise AttnscopeError(
            f"{type(media.loaded.model).__name__} writes texts about {media.opened.corpus.called}: only classifiers "
            "and encoders of them are measured"
        )
    session = PredictionSession(media.loaded, media.windows, kind, seed, batch_size, given=media.inputs)
    session.settings = media.settings | {"seed": seed, "batch_size": batch_size}
    if labels is not None:
        session.labels = labels_of(session, labels)
    return session


def labels_of(session: PredictionSession, labels: str | Sequence[str | int]) -> Sequence[str | int]:
    """The label of each window: from a field of its text, from the folder of its file, or as listed."""
    if session.kind != "label":
        raise AttnscopeError(
            f"{type(session.model).__name__} predicts no labels of texts: leave out labels (--labels), or load a "
            "classifier"
        )
    if not isinstance(labels, str):
        if len(labels) != len(session.windows):
            raise AttnscopeError(
                f"found {len(labels)} labels and {len(session.windows)} inputs; expected a label for each"
            )
        return labels
    if not session.given:
        return [window.by for window in session.windows]
    if labels != "folder":
        raise AttnscopeError(
            f"found the labels (--labels) {labels!r}; expected folder, which is the name of the folder of each file, "
            "or in Python a list"
        )
    folders = [PurePath(window.source).parent.name for window in session.windows]
    if not all(folders):
        raise AttnscopeError(f"{session.windows[folders.index('')].source} is in no folder of its own, by its label")
    return folders


def prediction_session(
    loaded: LoadedModel,
    corpus: Texts,
    target: Corpus | None = None,
    *,
    window: int,
    limit: int,
    seed: int = 0,
    batch_size: int | None = None,
    kind: Kind | None = None,
    part: str | None = None,
    side: int = 0,
) -> PredictionSession:
    """Cut texts into windows, and choose what the model predicts on them: all, or a part (see `tokens_of_part`)."""
    kind = kind or kind_of_question(loaded.model)
    if kind == "translation" and (target is None or isinstance(corpus, EncodedTexts)):
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder and needs translations (targets, --target), matched line by line"
        )
    windows = first_windows(loaded, corpus, target, length=window, limit=limit, restores=kind == "masked")
    notes = dict[str, str]()
    if part is not None and kind in {"label", "output"}:
        raise AttnscopeError(f"{type(loaded.model).__name__} predicts no tokens: leave out part (--part)")
    if part is not None and isinstance(corpus, EncodedTexts):
        raise AttnscopeError("part (--part) is of texts, and these are token ids: give texts")
    read = [window if kind == "masked" else window.target or window for window in windows]
    parts = [] if part is None else [tokens_of_part(window, part, side=side) for window in read]
    asked = [
        at
        for at, window in enumerate(windows)
        if (target is not None or _has_question(kind, window)) and (not parts or _asks(kind, window, parts[at]))
    ]
    if part is not None and not asked:
        raise AttnscopeError(
            f"found nothing to predict in the part {part!r} (--part) of {count(len(windows), 'window')}"
        )
    if 0 < len(asked) < len(windows):  # with none, the error says why
        left = len(windows) - len(asked)
        notes["left_out"] = f"{left} of {count(len(windows), 'window')} left out: nothing to predict."
        windows, parts = [windows[at] for at in asked], [parts[at] for at in asked if parts]
    if part is not None:
        notes["part"] = part
    return PredictionSession(loaded, windows, kind, seed, batch_size, parts=parts, notes=notes)


def _asks(kind: Kind, window: Window, part: np.ndarray) -> bool:
    """Whether a part of a window has a token to predict."""
    if kind == "masked" and window.target is not None:
        return bool(part[np.array(window.ids) != np.array(window.target.ids)].any())
    return bool((part & ~np.array(window.special)).any() if kind == "masked" else part[1:].any())


def _has_question(kind: Kind, window: Window) -> bool:
    """Whether a window without a target has a token, label or embedding to predict."""
    if kind in {"label", "output"}:
        return True
    return not all(window.special) if kind == "masked" else len(window) > 1
