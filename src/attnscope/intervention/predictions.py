"""Predictions of a model on its windows: plain passes, and those of variants."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import result_of
from attnscope.capture.placement import device_of, is_empty
from attnscope.capture.verify import TOLERANCE, padding_difference, verify
from attnscope.capture.watch import Site
from attnscope.intervention import stack
from attnscope.intervention.calls import unread_sites
from attnscope.intervention.metrics import Metric, unit_of_loss
from attnscope.intervention.questions import (
    Embeddings,
    Kind,
    Questions,
    answered,
    class_of,
    embeddings,
    pad_of,
    questions,
)
from attnscope.intervention.replacements import ABLATIONS, Ablation
from attnscope.measure.passes import WindowBatch
from attnscope.models.common import IGNORED
from attnscope.read.windows import Window, window_name
from attnscope.store.run import Work
from attnscope.support.errors import AttnscopeError, explaining

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
            return answered(self.kind, self.windows[part], self.answers[part], *how, **several)
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
