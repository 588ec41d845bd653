"""`attribute`: direct logit attribution and the logit lens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import logit_cap, result_of, without_cache
from attnscope.capture.placement import device_of
from attnscope.capture.verify import TOLERANCE
from attnscope.capture.weights import affine_alone
from attnscope.explanation.inputs import FOR_MATCHING, model_inputs, token_ids
from attnscope.explanation.projections import LayerRun, factor_of
from attnscope.explanation.stream import Layer, Point, Stream, residual_stream
from attnscope.intervention.activations import Activation
from attnscope.intervention.calls import checked_heads
from attnscope.intervention.edit import Anatomy
from attnscope.intervention.gradients import check_gradients
from attnscope.intervention.metrics import Metric
from attnscope.intervention.pairs import one_token
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import Embeddings, Questions, as_float32, class_of, pad_of
from attnscope.kernels.full import values_of, weights_of
from attnscope.measure.passes import WindowBatch
from attnscope.models.common import IGNORED
from attnscope.read.shown import IdNames
from attnscope.statistics.effects import by_document, effect_variables, interval_variables
from attnscope.statistics.units import units_of
from attnscope.store.run import Batch, Job
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell
from attnscope_circuits.output_layers import OutputLayers
from attnscope_circuits.score_parts import ScoreParts, shares_of
from attnscope_circuits.stream_parts import StreamParts, rows_of

if TYPE_CHECKING:
    from attnscope.kernels.call import AttentionCall

REST = "rest"  # part of all but chosen heads
BEHIND = "output layers"  # part of the layers behind the last block
_AT_ONCE = 1 << 22  # logits of a lens at a time
_LENS = {"logit": "logits", "metric": "1", "probability": "share", "rank": "1"}
_ELSE = "use attnscope intervene or attnscope patch (--steps 0)"


@dataclass(eq=False)
class AttributionJob(Job):
    """The windows whose predictions, or whose scores, are split."""

    session: PredictionSession
    split: Attribution | ScoreParts
    tell: Tell

    def __post_init__(self) -> None:
        self.node = "predictions" if isinstance(self.split, Attribution) else "scores"

    def batches(self) -> Iterator[Batch]:
        for part in self.session.slices():
            yield Batch(range(part.start, part.stop), part)
            self.tell(Progress("attribution", part.stop / len(self.session.windows)))

    def measure(self, batch: Batch) -> xr.Dataset:
        return self.split.of_batch(batch.inputs)

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        whole = self.joined(measured)
        of_logits: Any = {"parts": parts_of, "lens": lens_of}
        makers = of_logits if isinstance(self.split, Attribution) else {"parts": shares_of}
        parts = {name: partial(make, whole, seed=self.session.seed) for name, make in makers.items()}
        return {self.node: whole} | {name: self.made(name, make) for name, make in parts.items()}


def _by_keys(call: AttentionCall, vectors: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
    """Mean product of each key's part of heads with vectors ``(prediction, head, r)``: ``(text, head, key)``."""
    weights, values = weights_of(call).double(), values_of(call).double()
    means: list[Tensor] = []
    for text in range(len(values)):
        in_text = at[0] == text
        products = torch.einsum("nhr,hjr->hnj", vectors[in_text], values[text])
        means.append((products * weights[text][:, at[1][in_text]]).mean(1))
    return torch.stack(means)


def resid_of(model: PreTrainedModel, site: str) -> Activation:
    """The activation of this name, which must be the residual stream of a decoder or of a model with one stack."""
    activation = Anatomy(model).activations.find(site)
    if "resid" not in activation.name or activation.name.startswith("encoder."):
        raise AttnscopeError(f"found the site {site}; expected the residual stream, such as 3.resid_post")
    return activation


def point_at(model: PreTrainedModel, stream: Stream, activation: Activation) -> Point | None:
    """The point of the stream where an activation is, of which no later layer is part; None if it is not known."""
    activations = Anatomy(model).activations
    prefix, _, name = activation.name.rpartition(".")
    is_mid, names = name.startswith("resid_mid"), [*activations.blocks]
    number = names.index(prefix)
    earlier = names[: number + (name not in {"resid_pre", "resid_mid", "resid_mid_cross"})]
    blocks = tuple(f"{activations.blocks[one]}." for one in earlier)
    within = f"{activations.blocks[prefix]}." if is_mid else ""

    def is_before(layer: Layer) -> bool:
        site = layer.matrices.site
        is_there = bool(within) and site.name.startswith(within) and (name != "resid_mid" or site.kind != "cross")
        return is_there or site.name.startswith(blocks)

    def is_added(kind: str, run: LayerRun) -> bool:
        return run.name.startswith(blocks) or (bool(within) and kind == "mixer" and run.name.startswith(within))

    layers = [layer for layer in stream.layers if layer.query.stream == "decoder"]
    before = [layer for layer in layers if is_before(layer)]
    if not before or len({*activations.blocks.values()}) < len(names):
        return None
    last = before[-1]
    is_normed = bool(earlier) and f"{earlier[-1]}.normalized_resid_post" in activations.by_name and name != "resid_post"
    is_last = len(before) == len(layers)
    if (is_mid and last.after is not None) or (is_last and not is_mid and not (stream.is_linear or stream.last)):
        return None
    kept = [one for one in last.added if is_added(*one[:2])]
    stream.layers[stream.layers.index(last)] = replace(last, added=kept)
    if is_normed and not is_mid:  # behind the norm that ends the block before
        return None if is_last else replace(layers[len(before)].query, order=len(before))
    return Point("decoder", len(before), last.query.states, last.query.at)


#: What is split of a model without logits of tokens, by kind.
_BY_DEFAULT: dict[str, dict[str, Any]] = {
    "label": {
        "name": "logit of the label",
        "unit": "logits",
        "better": "higher",
        "meaning": "It is less that of the other label, or else less the mean over all labels. Without one named, the "
        "label is the one that the model predicts.",
    },
    "output": {
        "name": "projection of the embedding",
        "unit": "share",
        "meaning": "The embedding is projected on itself, so that its parts add up to 1; of pairs, on the way from the "
        "corrupted to the clean one, in its length. It is the model's own, or the mean of its last layer over tokens.",
    },
    "product": {"name": "product of the embedding", "meaning": "It is that with the direction."},
}


@dataclass(eq=False)
class Attribution:
    """The parts of the logits of tokens, of what reads the stream in one direction, or of labels and embeddings."""

    session: PredictionSession
    # the token or label of each window, and the one whose logit is subtracted
    words: Sequence[tuple[str | None, str | None]]
    direction: Tensor | None
    site: str | None  # of the stream whose product with the direction is split; None: the input of the unembedding
    by_position: bool = False
    heads: Sequence[tuple[int, int]] | None = None  # whose parts are of interest; all others are one part
    metric: Metric | None = None  # whose gradient times the logits is split, in place of a logit
    spans: Mapping[str, np.ndarray] = field(default_factory=dict[str, Any])  # ``(window, key)``, by name
    corrupted: Sequence[Tensor] = ()  # embeddings of the corrupted texts of pairs, for an encoder
    scale: float | None = None  # of logits after the unembedding

    @torch.no_grad()
    def __post_init__(self) -> None:
        session, self.output_layers = self.session, None
        model, name = session.model, session.loaded.name
        self.tokens, self.against = self._numbers_of_words()
        self.is_whole = session.kind in {"label", "output"} and self.site is None  # of texts, not of tokens
        stream = self._stream()
        unread = [layer for layer in stream.layers if layer.output is None]
        reason = (
            stream.unknown({"": unread}) or "its unembedding does not read a sum of heads and modules through one norm"
        )
        self.activation = None if self.site is None else resid_of(model, self.site)
        end = stream.ends.get("decoder") if stream.is_linear else None
        if self.activation is not None:
            end = point_at(model, stream, self.activation)
        if self.is_whole:
            reason = stream.unknown({"": unread}) or "its last block is no known sum of heads and modules"
            if stream.last is not None:
                end, self.output, run = stream.last
                self.output_layers = OutputLayers(model, self.output, run)
            kind = "product" if self.direction is not None else session.kind
            self.metric = self.metric or Metric(self._value, **_BY_DEFAULT[kind])
        if end is not None:
            self.end, self.parts = end, StreamParts(model, stream, [end])
            reason = stream.unknown(self.parts.before)
        if self.site is not None and end is None:
            raise AttnscopeError(
                f"{name} has no direct attribution at {self.site}: the stream there is not a known sum of heads and "
                "modules. Choose another site, such as the resid_post of a block"
            )
        if reason:
            raise AttnscopeError(
                f"{name} has no direct attribution: {reason}. attnscope patch and attnscope intervene measure effects "
                "in any model"
            )
        self.by_keys = self.by_position or bool(self.spans)
        if self.by_keys and any(one.matrices.gated is not None for one in self.parts.layers):
            raise AttnscopeError(
                f"a gate multiplies the output of the heads of {name}, so parts by key are not known: leave out "
                "by_position or positions"
            )
        width = self.end.states.shape[1]
        if self.direction is not None:
            width = len(session.unchanged[0]) if self.is_whole else width
        if self.direction is not None and len(self.direction) != width:
            shape = tuple(self.direction.shape)
            raise AttnscopeError(f"found a direction of shape {shape}; expected {(width,)}")
        self.factor = (
            1.0 if self.end.norm is None else factor_of(self.end.states, cast("Any", self.end.norm.returned)) or 1.0
        )
        if self.is_whole:
            check_gradients(model, _ELSE)
        elif self.activation is None:
            self.unembedding: Any = model.get_output_embeddings()
            affine = affine_alone(model, self.unembedding, width)
            self.table, self.constant = affine.matrix.T.detach(), affine.bias.detach().double()
            self.output = next(name for name, module in model.named_modules() if module is self.unembedding)
            self.cap = logit_cap(model.config)
        else:
            self.output, self.scale = self.activation.modules[0], 1.0
        self.most = max(self.questions(part).labels.shape[1] for part in self.session.slices())
        sources, names = [*self.parts.sources], [*self.parts.names]
        if self.is_whole:
            sources, names = [*sources, (BEHIND, -1, -1)], [*names, BEHIND]
        if self.heads is not None:
            of_heads = {(layer, head): at for at, (kind, layer, head) in enumerate(sources) if kind == "head"}
            self.chosen = [of_heads[cell] for cell in checked_heads(self.heads, [*of_heads], "heads, --heads")]
            sources = [*(sources[at] for at in self.chosen), (REST, -1, -1)]
            names = [*(names[at] for at in self.chosen), REST]
        columns = zip(("kind", "layer", "head"), zip(*sources, strict=True), strict=True)
        self.components = {"component": names} | {name: ("component", [*part]) for name, part in columns}
        self.mean: tuple[Tensor, Tensor] | None = None
        if self.direction is None and self.metric is None and self.against[0] is None:
            sides = [window.target or window for window in self.session.windows]
            # the mean token of the texts, by frequency, takes the place of a token to subtract
            pairs = [pair for side in sides for pair in zip(side.ids, side.special, strict=True)]
            ids = [token for token, is_special in pairs if not is_special]
            share = torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=len(self.table)).to(self.constant)
            share = share / share.sum()
            self.mean = (share.to(self.table) @ self.table).double(), share @ self.constant

    def _numbers_of_words(self) -> list[list[int | None]]:
        """Tokens or labels of all windows, and those that are subtracted, as numbers."""
        model, tokenizer = self.session.model, self.session.loaded.tokenizer
        named = {word for both in self.words for word in both if word is not None}
        if self.session.kind == "label":
            numbers = {word: class_of(word, model, "the label (--token, --against)") for word in named}
        else:
            numbers = {word: one_token(tokenizer, word, "the token whose logit is split") for word in named}
        return [[numbers.get(word or "") for word in side] for side in zip(*self.words, strict=True)]

    def _stream(self) -> Stream:
        """The residual stream of the model, from its longest input, or the beginning of that."""
        session, windows = self.session, self.session.windows
        at = windows.index(max(windows, key=len))
        if self.is_whole or session.given:
            batch = session.inputs(slice(at, at + 1))
            inputs = {name: value for name, value in batch.inputs(session.model).items() if name != "attention_mask"}
            return residual_stream(session.model, inputs, len(windows[at]))
        start = token_ids([windows[at].ids[:FOR_MATCHING]])
        return residual_stream(session.model, model_inputs(session.model, start))

    def pooled(self, parts: Tensor) -> Tensor:
        """Parts ``(prediction, component)`` of the chosen heads, and the sum of all others."""
        if self.heads is None:
            return parts
        chosen = parts[:, self.chosen]
        return torch.cat([chosen, (parts.sum(1) - chosen.sum(1))[:, None]], 1)

    def questions(self, part: slice) -> Questions:
        """The predictions of some windows: those of the session, or the chosen token at masks or after the text."""
        session, windows = self.session, self.session.windows[part]
        if self.metric is not None:  # all positions may count
            asked = session.batch(part)
            ids, valid = asked.batch.target.input_ids, asked.batch.target.valid
            every = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
            return replace(asked, positions=every, labels=torch.where(valid, ids, IGNORED))
        if self.tokens[0] is None:
            return session.batch(part)
        tokenizer = session.loaded.tokenizer
        batch = WindowBatch.of(windows, pad_of(tokenizer), device_of(session.model))
        ids, last = batch.target.input_ids, batch.target.valid.sum(1, keepdim=True) - 1
        chosen = ids == tokenizer.mask_token_id
        if session.kind != "masked":  # nothing follows the end token
            ended = (ids.gather(1, last) == tokenizer.eos_token_id) & (last > 0)
            chosen = torch.arange(ids.shape[1], device=ids.device) == last - ended.long()
        if not bool(chosen.any(1).all()):
            raise AttnscopeError(f"found a text without {tokenizer.mask_token}, where the token (--token) goes")
        at = chosen.long().argsort(dim=1, descending=True, stable=True)[:, : int(chosen.sum(1).max())]
        tokens = torch.tensor(self.tokens[part], device=ids.device)[:, None]
        return Questions(batch, at, torch.where(chosen.gather(1, at), tokens, IGNORED), windows)

    @torch.no_grad()
    def of_batch(self, part: slice) -> xr.Dataset:
        """Parts and lens of some windows."""
        asked = self.questions(part)
        texts, numbers = (asked.labels != IGNORED).nonzero(as_tuple=True)
        self.at = texts, asked.positions[texts, numbers]
        final, logits = self._run(asked, part)
        tokens = [(1.0, asked.labels[texts, numbers])]
        if self.against[0] is not None:
            tokens.append((-1.0, torch.tensor(self.against[part], device=texts.device)[texts]))
        scale = self.scale or 1.0
        if self.output_layers is not None:
            parts, reads, total = self._behind(self.output_layers, final, asked, part)
        elif self.metric is not None:
            self.of_texts, row, bias, terms = self._gradient(self.metric, asked, logits)
            total = terms.sum(1)
            parts, reads = self._parts(row, bias, total, terms.abs().sum(1))
        elif self.direction is not None:
            row: Any = self.direction.to(final).expand_as(final)
            total: Any = (final * row).sum(1)
            parts, reads = self._parts(row / scale, row[:, 0] * 0, total, 0.0)
        else:
            row = sum(sign * self.table[token].double() for sign, token in tokens)
            bias: Any = sum(sign * self.constant[token] for sign, token in tokens)
            terms = [sign * logits.gather(1, token[:, None])[:, 0].double() for sign, token in tokens]
            total = sum(terms)
            subtracted: Any = sum(term.abs() for term in terms)  # two logits that are nearly equal keep their rounding
            parts, reads = self._parts(row, bias, total, subtracted)
        split = {"part": self.pooled(parts), "total": total}
        if self.mean is not None:
            row, bias = self.mean
            of_mean = scale * (final @ row + bias)
            split["random"] = self._parts(row.expand_as(final), bias.expand(len(final)), of_mean, 0.0)[0]
            split["random"] = self.pooled(split["random"])
        layers = sorted(reads) if self.by_keys else ()
        by_key = [_by_keys(self.parts.calls[layer][0], reads[layer], self.at) for layer in layers]
        if self.metric is not None:  # one number of all its predictions, so that parts by key are sums too
            by_key = [one * torch.bincount(texts, minlength=len(asked)).to(one)[:, None, None] for one in by_key]
        return self._dataset(part, asked, (texts, numbers), split, self._lens(final, tokens, asked, part), by_key)

    def _run(self, asked: Questions, part: slice) -> tuple[Tensor, Tensor]:
        """One forward pass: what the unembedding reads at the predictions, and logits before they are capped."""
        self.shape = len(asked), asked.batch.target.input_ids.shape[1]
        inputs, with_head = asked.batch.inputs(self.session.model), self.activation is None
        layers = self.output_layers
        with nullcontext() if layers is None else layers.hooked():
            whole = self.parts.run(inputs, self.session.name(part.start), [self.output], with_head=with_head)
            self.whole = whole.to(self.at[0].device)  # layers may be on several
        if layers is not None and layers.states is not None:
            self.whole_states = layers.states.detach()
            return self._rows(self.whole_states), self.whole
        if self.activation is not None:
            received, *_, returned = self.parts.runs[self.output][self.activation.run or 0]
            return self._rows(returned if self.activation.side == "returned" else received), self.whole
        logits = self.whole[self.at]
        final = self._rows(self.parts.runs.pop(self.output)[0][0])
        # the model returns capped logits (Gemma 2), whose parts do not add up: they are computed before the cap
        uncapped = self._logits(final if self.cap else final[:1])
        if self.scale is None:
            self.scale = factor_of(logits[:1], self._capped(uncapped[:1]), TOLERANCE[logits.dtype])
            if self.scale is None or (self.cap and self.scale != 1.0):
                raise AttnscopeError(
                    f"{self.session.loaded.name} changes its logits in a way that attnscope does not know, so they are "
                    "no sum of parts"
                )
        return final, uncapped if self.cap else logits

    def _value(self, result: Tensor, inputs: dict[str, Any]) -> Tensor:
        """What is split by default of each text: see `_BY_DEFAULT`."""
        part: slice = inputs["part"]
        asked = self.session.batch(part)
        logits = as_float32(asked.at(result))
        if isinstance(asked, Embeddings):
            embedding = logits[:, 0]
            if self.direction is not None:
                return embedding @ self.direction.to(embedding)
            way = asked.unchanged - torch.stack([*self.corrupted[part]]) if self.corrupted else asked.unchanged
            return (embedding * way).sum(1) / (way**2).sum(1)
        labels, real = asked.labels, asked.labels != IGNORED
        if self.tokens[0] is not None:
            labels = torch.tensor(self.tokens[part], device=real.device)[:, None].expand_as(labels)
        margin = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        if self.against[0] is not None:
            other = torch.tensor(self.against[part], device=real.device)[:, None].expand_as(labels)
            margin = margin - logits.gather(-1, other[..., None])[..., 0]
        elif logits.shape[-1] > 1:
            margin = margin - logits.mean(-1)
        return torch.where(real, margin, 0).sum(1) / real.sum(1)

    def _inputs(self, asked: Questions, part: slice) -> dict[str, Any]:
        """The inputs of a metric."""
        inputs = asked.batch.inputs(self.session.model)
        return inputs | ({"part": part} if self.metric is not None and self.metric.function == self._value else {})

    def _behind(
        self, layers: OutputLayers, final: Tensor, asked: Questions, part: slice
    ) -> tuple[Tensor, dict[int, Tensor], Tensor]:
        """Parts of a metric behind layers of any kind, by its gradient at the output of the last block.

        The last part is that of the layers themselves: their biases, and what their tangent leaves.
        """
        assert self.metric is not None  # noqa: S101
        assert layers.states is not None  # noqa: S101
        self.of_texts, slopes = self.metric.gradient(self.whole, self._inputs(asked, part), len(asked), _ELSE)
        gradient = torch.autograd.grad(self.whole, layers.states, slopes)[0].to(slopes.device)
        if bool(gradient.reshape(*self.shape, -1)[asked.labels == IGNORED].any()):
            raise self.metric.depends_on_padding()
        whole = (slopes * self.whole.detach()).reshape(len(asked), -1).double().sum(1)
        row = self._rows(gradient)
        products = (row * final).sum(1)
        parts, reads = self._parts(row, row[:, 0] * 0, products, 0.0)

        def of_text(values: Tensor) -> Tensor:
            return torch.zeros_like(whole).index_add(0, self.at[0], values.to(whole))[self.at[0]]

        # the rest is counted at the positions that are read
        is_read = (row != 0).any(1).double()
        is_read = torch.where(of_text(is_read) > 0, is_read, 1.0)
        behind = (whole[self.at[0]] - of_text(products)) * is_read / of_text(is_read)
        return torch.cat([parts, behind[:, None]], 1), reads, products + behind

    def _gradient(self, metric: Metric, asked: Questions, logits: Tensor) -> tuple[Tensor, ...]:
        """The metric of each text; of each prediction its gradient in the stream, the bias, and all terms of it."""
        inputs = asked.batch.inputs(self.session.model)
        value, slopes = metric.gradient(self.whole, inputs, len(asked), _ELSE)
        if bool(slopes[asked.labels == IGNORED].any()):
            raise metric.depends_on_padding()
        slope = slopes[self.at].to(self.table)
        if self.cap:  # from capped logits to those before
            slope = slope * (1 - (self._capped(logits) / self.cap) ** 2).to(slope)
        return value, (slope @ self.table).double(), slope.double() @ self.constant, slope.double() * logits.double()

    def _rows(self, states: Tensor) -> Tensor:
        """States at the predictions, ``(prediction, width)``."""
        return rows_of(states, self.shape, self.at)[:, 0]

    def _logits(self, final: Tensor) -> Tensor:
        return (self.scale or 1.0) * self.unembedding(final.to(self.session.model.dtype))

    def _capped(self, logits: Tensor) -> Tensor:
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    def _parts(
        self, direction: Tensor, bias: Tensor, total: Tensor, subtracted: Tensor | float
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Parts ``(prediction, component)``, and what reads the heads of each layer; their sums must be the total.

        `subtracted` is the size of the logits whose difference the total is.
        """
        scale = self.scale or 1.0
        matrix, number = scale * self.factor * direction[..., None], self.parts.layers[-1].matrices.site.index
        products, vectors = self.parts.split(self.end, matrix, scale * bias[:, None, None], number, self.shape, self.at)
        parts = products[..., 0, 0].T
        apart, size = (parts.sum(1) - total).abs(), parts.abs().sum(1) + subtracted
        if bool((apart > self.parts.rounding * size).any()):
            raise AttnscopeError(
                f"the parts of {self.session.loaded.name} do not add up to its logits (by {float(apart.max()):.1e}). "
                "Try dtype float32 (--dtype float32)"
            )
        return parts, vectors

    def _result_of(self, layers: OutputLayers, final: Tensor, asked: Questions) -> Tensor:
        """The result of a pass whose last block returns other states."""
        assert self.whole_states is not None  # noqa: S101
        device = self.at[0].device
        states = self.whole_states.reshape(*self.shape, -1).to(device, copy=True)
        states[self.at] = final.to(states)
        with layers.hooked(states.reshape(self.whole_states.shape).to(self.whole_states.device)):
            inputs = {**without_cache(layers.model), **asked.batch.inputs(layers.model)}
            return result_of(layers.model, layers.model(**inputs)).to(device)

    def _lens(
        self, final: Tensor, tokens: list[tuple[float, Tensor]], asked: Questions, part: slice
    ) -> dict[str, Tensor]:
        """Logit, probability and rank ``(prediction, depth)``, or the metric of texts, if the stream ended there."""
        lens, labels = defaultdict[str, list[Tensor]](list), tokens[0][1]
        norm: Any = self.end.norm
        before = [self.parts.read_by(layer.query, layer.matrices.site.index) for layer in self.parts.layers]
        streams = [*map(self._rows, before), final if norm is None else self._rows(self.parts.ran(norm)[0])]
        for states in streams:
            final = states.to(self.session.model.dtype)
            final = final if norm is None else self.factor * norm.module(final)
            if self.output_layers is not None and self.metric is not None:
                result = self._result_of(self.output_layers, final, asked)
                value = self.metric.of_texts(result, self._inputs(asked, part), len(asked))
                lens["metric"].append(value.double())
                continue
            if self.metric is not None:
                whole = self.whole.clone()
                whole[self.at] = self._capped(self._logits(final)).to(whole)
                inputs = asked.batch.inputs(self.session.model)
                lens["metric"].append(self.metric.of_texts(whole, inputs, len(asked)).double())
                continue
            if self.direction is not None:
                lens["logit"].append(final.double() @ self.direction.to(states))
                continue
            columns = defaultdict[str, list[Tensor]](list)
            for some in torch.arange(len(labels), device=labels.device).split(max(1, _AT_ONCE // len(self.table))):
                logits = self._logits(final[some]).float()
                taken = [logits.gather(1, token[some, None]) for _, token in tokens]
                signed: Any = sum(sign * logit[:, 0] for (sign, _), logit in zip(tokens, taken, strict=True))
                columns["logit"].append(signed)
                columns["probability"].append(self._capped(logits).softmax(-1).gather(1, labels[some, None])[:, 0])
                columns["rank"].append((logits > taken[0]).sum(1) + 1)
            for name, values in columns.items():
                lens[name].append(torch.cat(values).double())
        return {name: torch.stack(values, 1) for name, values in lens.items()}

    def _dataset(
        self, part: slice, asked: Questions, at: tuple[Tensor, Tensor], split: dict[str, Tensor],
        lens: dict[str, Tensor], by_key: list[Tensor],
    ) -> xr.Dataset:  # fmt: skip
        """Means over the predictions of each window, and the lens at each."""
        rows = tuple(index.cpu().numpy() for index in at)

        def at_predictions(values: Tensor) -> np.ndarray:
            whole = np.full((len(asked), self.most, *values.shape[1:]), np.nan)
            whole[rows] = values.cpu().numpy()
            return whole

        of_window = np.nanmean if self.metric is None else np.nansum  # a metric is one number of all its predictions
        names, dims = np.full((len(asked), self.most), "", dtype=object), ("window", "position", "component")
        names_of = IdNames(self.session.loaded.tokenizer).of if not self.session.given else lambda ids: [""] * len(ids)
        names[rows] = names_of(asked.labels[at].tolist())
        variables: dict[str, Any] = {
            name: ((dims[0], *dims[2:][: values.ndim - 1]), of_window(at_predictions(values), 1))
            for name, values in split.items()
        }
        differences = (split["part"].sum(1) - split["total"]).abs()
        variables["difference"] = "window", np.nanmax(at_predictions(differences), 1)
        if self.metric is not None:
            variables["metric"] = "window", self.of_texts.double().cpu().numpy()
            variables["lens_metric"] = ("window", "depth"), lens.pop("metric").cpu().numpy()
        variables |= {f"lens_{name}": ((*dims[:2], "depth"), at_predictions(values)) for name, values in lens.items()}
        variables |= {"query": (dims[:2], at_predictions(asked.positions[at].double())), "token": (dims[:2], names)}
        windows = [window.target or window for window in self.session.windows]
        longest = max(map(len, (*windows, *self.session.windows)))
        keys = self._keys_of_heads(by_key, longest) if self.by_keys else np.empty(0)
        if self.spans:
            within = np.stack([np.pad(rows[part], ((0, 0), (0, longest)))[:, :longest] for rows in self.spans.values()])
            sums = [np.where(np.isnan(keys).all(-1), np.nan, np.nansum(keys * at[:, None], -1)) for at in within]
            variables["by_span"] = ("window", "component", "span"), np.stack(sums, -1)
        if self.by_position:
            words = [[*names_of([*window.ids]), *[""] * (longest - len(window))] for window in windows[part]]
            variables["part_at"] = dims, at_predictions(split["part"])
            variables |= {"by_key": (("window", "component", "key"), keys), "key_token": (("window", "key"), words)}
        coordinates = self.components | {
            "window": np.arange(part.start, part.stop),
            "source": ("window", np.array(self.session.documents[part], dtype=object)),
            "position": np.arange(self.most),
            "depth": np.arange(len(self.parts.layers) + 1),
            **({"span": [*self.spans]} if self.spans else {}),
        }
        return xr.Dataset(variables, coordinates, {} if self.metric is None else self.metric.attributes)

    def _keys_of_heads(self, by_key: list[Tensor], longest: int) -> np.ndarray:
        """Parts by key of the components that are heads, ``(window, component, key)``, from those of each layer."""
        wide = [nn.functional.pad(layer, (0, longest - layer.shape[2]), value=np.nan) for layer in by_key]
        of_heads = torch.cat(wide, 1).cpu().numpy()
        rank = np.cumsum([kind == "head" for kind, _, _ in self.parts.sources]) - 1  # among all heads
        of_heads = of_heads if self.heads is None else of_heads[:, rank[self.chosen]]
        keys = np.full((len(of_heads), len(self.components["component"]), longest), np.nan)
        keys[:, np.array(self.components["kind"][1]) == "head"] = of_heads
        return keys


def parts_of(measured: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean part of each component with its interval over documents, and its excess over the mean token."""
    units, called = units_of(measured.source.values.tolist())
    part = measured.part.values
    excess = part - measured.random.values if "random" in measured else part
    both = ("part", "Part of the logit", part), ("excess", "Part of the logit less that of the mean token", excess)
    variables: dict[str, Any] = {}
    rest = measured.kind.values == REST  # all that was not chosen is not tested
    for name, words, values in both:
        prefix = "" if name == "excess" else "part_"
        options: Any = {"seed": seed, "name": name, "prefix": prefix, "corrected": "all components"}
        options["unit"] = measured.attrs.get("unit", "logits")
        tested = np.where(rest, np.nan, values)
        variables |= effect_variables(tested, units, ("component",), words, **options)
        variables[name][1][rest] = values.mean(0)[rest]
    coordinates = {name: measured[name] for name in ("component", "kind", "layer", "head")}
    return xr.Dataset(variables, coordinates, {"intervals_over": called, "windows": measured.sizes["window"]})


def lens_of(measured: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean logit, probability and rank of the token by depth, with intervals over documents."""
    units, _ = units_of(measured.source.values.tolist())
    variables: dict[str, Any] = {}
    for name, unit in _LENS.items():
        if f"lens_{name}" in measured:
            values = measured[f"lens_{name}"]
            values = values.mean("position") if "position" in values.dims else values
            means = by_document(values.values, units, seed=seed)
            in_unit = measured.attrs.get("unit", unit) if name == "metric" else unit
            variables |= interval_variables(means, ("depth",), f"Mean {name}", name=name, unit=in_unit)
    return xr.Dataset(variables, {"depth": measured.depth})
