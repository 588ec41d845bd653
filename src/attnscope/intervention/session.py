"""A model, the texts that it is asked about, and what is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import decoder_start
from attnscope.capture.loaded import LoadedModel
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.verify import padding_difference, verify
from attnscope.capture.watch import Site
from attnscope.intervention.measured_effects import variants_at_once
from attnscope.intervention.passes.attend import unread_sites
from attnscope.intervention.passes.pairs import EncodedPairs, Pair
from attnscope.intervention.passes.questions import Kind, Questions, kind_of_question, questions
from attnscope.intervention.passes.replacements import HeadMeans, Outputs, real_queries, replacement
from attnscope.intervention.passes.skipping import same_without_what_is_skipped
from attnscope.intervention.passes.stack import StackedPasses, stacked_passes
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.reference import masked_softmax
from attnscope.read.encoded import EncodedTexts, Texts, windows_of
from attnscope.read.pairs import LinePairs
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window, window_name
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

TOKENS = 1024  # of a batch


@dataclass(eq=False)
class PredictionSession:
    """One model and the windows that it is asked about."""

    loaded: LoadedModel  # the model with its tokenizer
    windows: Sequence[Window]  # at least one; those of an encoder-decoder with what its decoder reads
    kind: Kind  # what it is asked
    seed: int = 0  # seed of the words that are hidden from a masked language model
    batch_size: int | None = None
    skips: bool = True  # whether passes leave out what does not differ: so where that was seen to give the same numbers
    sites: list[Site] = field(default_factory=list)

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, without its tokenizer."""
        return self.loaded.model

    @cached_property
    def documents(self) -> list[str]:
        """The text that each window was cut from."""
        return [window.source for window in self.windows]

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Every head, as (layer, head)."""
        return [(layer, head) for layer, heads in enumerate(self.heads) for head in range(heads)]

    @cached_property
    def heads(self) -> list[int]:
        """How many heads each attention call has."""
        return [output.shape[1] for output in self._few_outputs]

    def slices(self) -> list[slice]:
        """The windows of each batch: about 1,024 tokens' worth, and 2 at least, as heads are resampled within one."""
        longest = max(max(len(window), len(window.target or window)) for window in self.windows)
        size = self.batch_size or max(2, TOKENS // longest)
        starts = list(range(0, len(self.windows), size))
        if len(starts) > 1 and len(self.windows) - starts[-1] == 1:
            starts.pop()  # a last text that would be alone joins the batch before
        ends = [*starts[1:], len(self.windows)]
        return [slice(start, end) for start, end in zip(starts, ends, strict=True)]

    def batch(self, place: slice) -> Questions:
        """What the model is asked about some of the windows."""
        return questions(self.kind, self.windows[place], self.loaded.tokenizer, self.seed, self.model.device)

    def batches(self) -> Iterator[Questions]:
        """All windows, batch after batch."""
        return map(self.batch, self.slices())

    def name(self, first: int = 0) -> _Name:
        """What to call a text of a batch that begins at window `first`."""
        return _Name(self.windows, first)

    def check(self) -> None:
        """Refuse a model whose heads cannot be taken out, before anything is measured."""
        first = self.batch(slice(0, 1))
        inputs = first.reading.inputs(self.model)
        self.sites, _ = verify(self.model, inputs, text=window_name(self.windows[0], 0))
        check_read(self.loaded, inputs)
        if len({len(window) for window in self.windows}) > 1:
            self._check_padding()
        self.skips = same_without_what_is_skipped(self.model, inputs, first.places)

    def _check_padding(self) -> None:
        by_length = sorted(self.windows, key=len)
        texts = [by_length[-1], by_length[0]]
        both = questions(self.kind, texts, self.loaded.tokenizer, self.seed, self.model.device)
        alone = [
            questions(self.kind, [text], self.loaded.tokenizer, self.seed, self.model.device).reading.inputs(self.model)
            for text in texts
        ]
        if padding_difference(self.model, both.reading.inputs(self.model), alone) > 1:
            raise AttnscopeError(
                f"{type(self.model).__name__} gives a text other numbers beside a longer one: give texts that are all "
                f"equally long, such as full windows of --window {len(by_length[0])}"
            )

    @cached_property
    def _few_outputs(self) -> Outputs:
        with stacked_passes(self.model, skips=False) as passes:
            passes.plain(self.batch(slice(0, 1)).reading.inputs(self.model))
            return passes.outputs

    @cached_property
    @torch.no_grad()
    def means(self) -> HeadMeans:
        """Mean output of every head over all texts: one pass over them."""
        means = HeadMeans()
        with stacked_passes(self.model, skips=False) as passes:
            for place in self.slices():
                asked = self.batch(place)
                passes.plain(asked.reading.inputs(self.model), asked.places, self.name(place.start))
                means.add(passes.outputs, real_queries(asked, passes.sites))
        return means

    def stand_ins(
        self, asked: Questions, outputs: Outputs, sites: Sequence[Site], ablation: str, means: HeadMeans | None
    ) -> list[torch.Tensor]:
        """What stands in for every head of every call of a batch."""
        real = real_queries(asked, sites)
        return [
            replacement(ablation, output, None if means is None else means.of(call), valid)  # pyright: ignore[reportArgumentType]
            for call, (output, valid) in enumerate(zip(outputs, real, strict=True))
        ]


@dataclass(frozen=True)
class _Name:
    windows: Sequence[Window]
    first: int

    def __call__(self, number: int) -> str:
        return window_name(self.windows[self.first + number], self.first + number)


def check_read(loaded: LoadedModel, inputs: dict[str, torch.Tensor]) -> None:
    """Refuse a model with a layer of which no linear layer reads the heads."""
    few = {key: value[:, :32] for key, value in inputs.items()}
    for site in unread_sites(loaded.model, few):
        raise AttnscopeError(
            f"{loaded.name}, layer {site.index} ({site.name}): no linear layer reads what its heads give, so "
            "no head's own part can be taken out of it. Choose another model"
        )


@validated
def prediction_session(
    loaded: LoadedModel,
    corpus: Texts,
    target: Corpus | None = None,
    *,
    window: int,
    limit: int,
    seed: int = 0,
    batch_size: int | None = None,
) -> PredictionSession:
    """Cut texts into windows and say what the model is asked about them."""
    kind = kind_of_question(loaded.model)
    if kind == "translation" and (target is None or isinstance(corpus, EncodedTexts)):
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder, and what it shall say is not known: give translations "
            "(targets, --target), line i beside line i"
        )
    if target is not None and not isinstance(corpus, EncodedTexts):
        start = decoder_start(loaded.model)
        pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=window, limit=limit)
        pairs.check()
        windows = list(islice(pairs, limit))
    else:
        windows = list(windows_of(corpus, loaded.tokenizer, length=window, limit=limit))
    return PredictionSession(loaded, windows, kind, seed, batch_size)


@torch.no_grad()
def lacks_predictions(model: PreTrainedModel, inputs: dict[str, Any]) -> str:
    """Why a model predicts nothing; empty where it gives logits, for each token or for the text."""
    output = model(**inputs)
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim in {2, 3}:
        return ""
    return f"{type(model).__name__} has no head that predicts: its output is hidden states, not logits"


def check_predictions(model: PreTrainedModel, inputs: dict[str, Any], what: str) -> None:
    """Refuse a model that predicts nothing, where predictions are compared."""
    if reason := lacks_predictions(model, inputs):
        raise AttnscopeError(
            f"{what} compares predictions, and {reason}. Give a model with its head, such as BertForMaskedLM"
        )


def log_probabilities(
    logits: Float[Tensor, "batch *position outcome"], positions: Int[Tensor, " prediction"] | None = None
) -> Float[Tensor, "batch prediction outcome"]:
    """Log probabilities, nats, at some positions; a model that gives one prediction a text has position 0."""
    by_position = logits[:, None] if logits.ndim == 2 else logits  # noqa: PLR2004
    chosen = by_position if positions is None else by_position[:, positions]
    return chosen.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


Direction = Literal["noising", "denoising"]
DIRECTIONS: tuple[Direction, ...] = ("noising", "denoising")


@dataclass(frozen=True, eq=False)
class Runs:
    """Both runs of some pairs; the plain pass of the one that is patched was the last."""

    passes: StackedPasses  # passes of the run that is patched
    encoded: EncodedPairs  # the pairs
    donors: Sequence[Tensor]  # what heads and blocks gave in the other run
    donor_states: Sequence[Tensor]
    logits: Tensor  # ``(pair, 1, token)``: of the run that is patched
    source: Tensor  # ``(pair,)``: answer minus wrong answer in the other run, and in the one that is patched
    base: Tensor

    def variants(self, most: int | None) -> int:
        """How many variants stand side by side: those asked for, or what the device is quickest with."""
        return most or variants_at_once(self.logits, self.encoded.clean.numel(), self.donors)


@contextmanager
def both_runs(
    loaded: LoadedModel, encoded: EncodedPairs, direction: Direction, *, skips: bool = True
) -> Generator[Runs]:
    """Run clean and corrupted texts as they are; the model is watched until the end of the context."""
    turned = encoded if direction == "denoising" else encoded.turned()
    with borrowed(loaded.model), stacked_passes(loaded.model, skips=skips) as passes, torch.no_grad():
        source = encoded.difference(passes.plain({"input_ids": turned.clean}, encoded.places))
        donors, states = passes.outputs, passes.states
        logits = passes.plain({"input_ids": turned.corrupted}, encoded.places)
        yield Runs(passes, encoded, donors, states, logits, source, encoded.difference(logits))


def differences(
    runs: Runs, dims: Sequence[str], values: np.ndarray, direction: Direction, coords: Mapping[str, Any]
) -> xr.Dataset:
    """What was measured of each pair, ``(pair, *dims)``, beside the two runs as they are."""
    ends = (runs.source, runs.base) if direction == "denoising" else (runs.base, runs.source)
    clean, corrupted = (end.double().cpu().numpy() for end in ends)
    logits = {"units": "logits"}
    return xr.Dataset(
        {
            "difference": (("pair", *dims), values, {"long_name": "Answer minus wrong answer", **logits}),
            "clean": ("pair", clean, {"long_name": "The same of the clean run", **logits}),
            "corrupted": ("pair", corrupted, {"long_name": "The same of the corrupted run", **logits}),
        },
        coords=dict(coords),
        attrs={"direction": direction},
    )


def head_coordinates(runs: Runs) -> dict[str, Any]:
    """Labels of layers and heads."""
    widest = max(output.shape[1] for output in runs.donors)
    return {**layer_coordinates(runs.passes.sites), "head": np.arange(widest)}


def ends_of(pairs: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Of each pair, the difference of answers in the run that activations come from, and in the one they go into."""
    ends = pairs.clean, pairs.corrupted
    return ends if pairs.attrs["direction"] == "denoising" else (ends[1], ends[0])


def with_recovered(pairs: xr.Dataset) -> xr.Dataset:
    """Add how far the mean over pairs went from the run that was patched (0) to the other (1)."""
    check_pairs_differ(pairs)
    source, base = (float(end.mean()) for end in ends_of(pairs))
    recovered = (pairs.difference.mean("pair", skipna=False) - base) / (source - base)
    attrs = {"long_name": "Way from the patched run to the other", "units": "share"}
    return pairs.assign(recovered=recovered.assign_attrs(attrs))


def check_pairs_differ(pairs: xr.Dataset) -> None:
    """Refuse pairs of which the model says the same, clean or corrupted."""
    source, base = ends_of(pairs)
    if not abs(float((source - base).mean())) > 1e-6 * float((abs(source) + abs(base)).mean()):
        raise AttnscopeError(
            "clean and corrupted texts give the same difference of answers, so nothing can be brought back: give pairs "
            "on which the model answers differently"
        )


def encoded_pairs(loaded: LoadedModel, pairs: Iterable[Pair], numbers: Sequence[int] | None = None) -> EncodedPairs:
    """Pairs as this model reads them."""
    return EncodedPairs.of(
        pairs, loaded.tokenizer, masked=is_masked(loaded), device=loaded.model.device, numbers=numbers
    )


def is_masked(loaded: LoadedModel) -> bool:
    """Whether the model is asked at a mask, not after the last token."""
    kind = kind_of_question(loaded.model)
    if kind == "translation":
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder; pairs are of texts that one stack reads: give a causal or a masked "
            "language model"
        )
    return kind == "masked"


_WEIGHTS_AT_ONCE = 1 << 22  # 16 MiB in float32, all heads of some rows


def weights_of(call: AttentionCall, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
    """A of all heads of a call: softmax of scale, soft cap, bias, mask and sinks; float32 or wider."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    first, last, _ = rows.indices(call.query.shape[2])
    query, key = call.query[:, :, first:last].to(wide), call.key.to(wide)
    grouped = query.unflatten(1, (key.shape[1], call.group))
    scores = (call.scale * grouped @ key[:, :, None].transpose(-2, -1)).flatten(1, 2)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias[:, :, first:last].to(wide)
    mask = None if call.mask is None else call.mask[:, :, first:last]
    if call.causal:
        index = torch.arange(key.shape[2], device=key.device)
        past = index <= torch.arange(first, last, device=key.device)[:, None]
        mask = past if mask is None else mask & past
    sinks = None if call.sinks is None else call.sinks.to(wide)[:, None, None]
    return masked_softmax(scores, mask, sinks)


def weight_tiles(call: AttentionCall) -> Iterator[tuple[slice, Float[Tensor, "head row key"]]]:
    """A of the first text, so many rows of all heads at a time that no layer's matrices are held."""
    _, heads, queries, _ = call.query.shape
    height = max(1, _WEIGHTS_AT_ONCE // (heads * call.key.shape[2]))
    for first in range(0, queries, height):
        rows = slice(first, min(queries, first + height))
        yield rows, weights_of(call, rows)[0]


def values_of(call: AttentionCall) -> Float[Tensor, "batch head key value_width"]:
    """V of every head, where several share one too; float32 or wider."""
    wide = torch.promote_types(call.value.dtype, torch.float32)
    return call.value.to(wide).repeat_interleave(call.group, 1)


def attended(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query key"]]:
    """Output, in the query's type, and weights of a call, with gradients from one to the other."""
    weights = weights_of(call)
    return (weights @ values_of(call)).to(call.query.dtype), weights


@torch.no_grad()
def output_by_rows(call: AttentionCall) -> Float[Tensor, "1 head query value_width"]:
    """The output of a call of one text, in the query's type, with no more weights in memory than `weight_tiles`
    makes.
    """
    values = values_of(call)[0]
    return torch.cat([tile @ values for _, tile in weight_tiles(call)], 1)[None].to(call.query.dtype)


def visible_keys(call: AttentionCall, head: int) -> Bool[Tensor, "query key"]:
    """Which keys the queries of one head may look at, in the first text."""
    return call.allowed(0, head)


def band_of(matrix: Float[Tensor, "*head row key"], first: int, band: int) -> Float[Tensor, "*head row offset"]:
    """The entries of rows at offsets ``-band..band`` from themselves, 0 beyond the text; `first` is the first row."""
    rows, keys = matrix.shape[-2:]
    offset = torch.arange(-band, band + 1, device=matrix.device)
    at = torch.arange(first, first + rows, device=matrix.device)[:, None] + offset
    there = (at >= 0) & (at < keys)
    return matrix.gather(-1, at.clamp(0, keys - 1).expand(*matrix.shape[:-2], -1, -1)) * there


@dataclass(frozen=True, eq=False)
class Sides:
    """Where the tokens of either text stand, in matrices over both: first the source, then the target."""

    source: int  # tokens of each
    target: int

    @property
    def tokens(self) -> int:
        """How many tokens both sides have together."""
        return self.source + self.target

    @property
    def predicting(self) -> slice:
        """The tokens at which the model predicts: a decoder's, where there is one."""
        return slice(self.source, self.tokens) if self.target else slice(0, self.source)

    def of(self, kind: str) -> tuple[slice, slice]:
        """Queries and keys of an attention call: beside an encoder, only a decoder looks back or across."""
        source, target = slice(0, self.source), slice(self.source, self.tokens)
        if not self.target:
            return source, source
        return source if kind == "self" else target, target if kind == "causal" else source


def sides_of(inputs: dict[str, Tensor]) -> Sides:
    """How many tokens there are of either text."""
    target = inputs.get("decoder_input_ids")
    return Sides(inputs["input_ids"].shape[1], 0 if target is None else target.shape[1])
