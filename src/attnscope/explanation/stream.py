"""The residual stream of a model: where heads read and write it, and the norms on the way, found in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import is_attention, is_norm, related
from attnscope.capture.placement import in_memory
from attnscope.capture.watch import Site
from attnscope.capture.weights import blocks_of, output_layer
from attnscope.explanation.inputs import Inputs, observed_pass
from attnscope.explanation.profiles import check_tokens
from attnscope.explanation.projections import SAME, LayerRun, Projections, factor_of, projections
from attnscope.explanation.sublayers import BlockRun, Kind, sublayers
from attnscope.explanation.tables import word_embedding
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of


@dataclass(frozen=True, eq=False)
class Fold:
    """A norm without its denominator, which is one number for each token: centre the row, then multiply."""

    gain: Float[np.ndarray, " width"]
    centred: bool  # LayerNorm; False for RMSNorm

    def rows(self, rows: Float[np.ndarray, "... width"]) -> Float[np.ndarray, "... width"]:
        """Rows after the norm."""
        return (rows - rows.mean(-1, keepdims=True) if self.centred else rows) * self.gain

    def columns(self, matrix: Float[np.ndarray, "... width r"]) -> Float[np.ndarray, "... width r"]:
        """The matrix that does both: norm, then `matrix`."""
        matrix = matrix * self.gain[:, None]
        return matrix - matrix.mean(-2, keepdims=True) if self.centred else matrix

    def of(self, states: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """The same for tensors."""
        gain = torch.from_numpy(self.gain).to(states)
        return (states - states.mean(-1, keepdim=True) if self.centred else states) * gain

    @torch.no_grad()
    def frozen(self, norm: nn.Module, received: Tensor, returned: Tensor) -> tuple[Tensor, Tensor]:
        """Factor of each row after the fold, ``(..., 1)``, at its actual denominator, and the bias of the norm."""
        rows, like = self.of(received), next(norm.parameters(), received)
        device = rows.device if like.is_meta else like.device  # the norm may be on another device than the rows
        bias = norm.forward(torch.zeros(1, rows.shape[-1], dtype=like.dtype, device=device))[0].double().to(rows.device)
        # the least-squares factor from the folded rows to what the norm returned
        size = ((returned - bias) * rows).sum(-1, keepdim=True) / (rows * rows).sum(-1, keepdim=True).clamp(min=1e-300)
        return size, bias


@torch.no_grad()
def fold_of(norm: nn.Module, width: int) -> Fold | None:
    """The fold of a norm, read off its outputs; None if it is neither a LayerNorm nor an RMSNorm."""
    with in_memory(norm):
        # not copied: hooks, and that of accelerate, which knows all weights
        hook, hooks = vars(norm).get("_hf_hook"), vars(norm)["_forward_hooks"]
        norm = deepcopy(norm, {id(hook): hook, id(hooks): type(hooks)()}).cpu().double()
    # rows so large that the norm's epsilon does not matter; negated too, so that a bias cancels in the difference; and
    # moved by a constant, which a LayerNorm takes out and an RMSNorm does not
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(1e4 * np.stack([rng.permutation(np.resize([1.0, -1.0], width)), rng.normal(size=width)]))
    out = type(norm).forward(norm, torch.cat([rows, -rows, rows + 1e4]))
    centred = bool((out[4:] - out[:2]).abs().max() < 1e-4 * out.abs().max())
    base = rows - rows.mean(-1, keepdim=True) if centred else rows
    base = base / base.square().mean(-1, keepdim=True).sqrt()
    odd = (out[:2] - out[2:4]) / 2
    gain = odd[0] / base[0]
    if not bool((odd[1] - gain * base[1]).abs().max() <= 1e-4 * odd.abs().max()):
        return None
    return Fold(gain.double().numpy(), centred)


@dataclass(eq=False)
class Point:
    """A point at which a stream is read: by a layer, by cross-attention, or by the unembedding."""

    stream: str
    order: int  # number of layers that wrote before
    states: Tensor
    at: int  # number of events before it
    norm: LayerRun | None = None
    fold: Fold | None = None

    @property
    def before(self) -> Tensor:
        return self.states if self.norm is None or not len(self.norm.received) else self.norm.received


@dataclass(eq=False)
class Layer:
    """One attention call on its stream."""

    matrices: Projections
    query: Point
    key: Point  # of keys and values
    branch: LayerRun | None = None  # norm of its output, before it is added
    written: Fold | None = None
    factor: float = 1.0  # of its output as it is added
    # modules whose outputs the stream adds after it: kinds of sublayers, runs and factors
    added: list[tuple[Kind, LayerRun, float]] = field(default_factory=list[Any])
    after: LayerRun | None = None  # norm of the sum of stream and output (post-norm)
    after_fold: Fold | None = None
    reader: LayerRun | None = None  # norm that reads the sum of stream and output

    @property
    def output(self) -> np.ndarray | None:
        """W_O of each head, behind a gate if there is one."""
        return self.matrices.output if self.matrices.gated is None else self.matrices.gated


@dataclass(eq=False)
class Stream:
    """Readers and writers of the residual stream."""

    layers: list[Layer]
    ends: dict[str, Point]  # by stream
    embedded: Fold | None  # norm of the embeddings that no layer reads as it is (BLOOM, ALBERT)
    is_linear: bool  # whether the unembedding reads the stream, through a norm at most
    unverified: list[int] = field(default_factory=list[int])  # layers after which the stream adds something unknown
    # what blocks ahead of all attention add, by stream: kinds of sublayers, runs and factors
    ahead: dict[str, list[tuple[Kind, LayerRun, float]]] = field(default_factory=dict[str, Any])
    unknown_ahead: dict[str, str] = field(default_factory=dict[str, str])  # such a block that adds something else
    calls: dict[int, AttentionCall] = field(default_factory=dict[int, "AttentionCall"])
    # output of the last block, of a classifier or an encoder without a head, with its number among runs of the module
    last: tuple[Point, str, int] | None = None

    def between(self, stream: str, first: int, last: Point) -> list[Fold]:
        """Norms on the stream from the output of layer `first` (-1: the embeddings) to the norm of `last`."""
        layers = [layer for layer in self.layers if layer.query.stream == stream]
        folds: list[Fold | None] = []
        for number in range(first, last.order):
            after = layers[number].after if number >= 0 else None
            following = layers[number + 1] if number + 1 < last.order else None
            point = last if following is None else following.query
            if after is not None and point.norm is not after:
                folds.append(layers[number].after_fold)
            if following is not None and following.after is not None and following.query.norm is not None:
                folds.append(following.query.fold)
        return [fold for fold in folds if fold is not None]

    def unknown(self, before: Mapping[str, Sequence[Layer]]) -> str:
        """Why a stream behind some of its layers is no sum of heads and modules; empty if it is."""
        blocks = [self.unknown_ahead[name] for name in before if name in self.unknown_ahead]
        if blocks:
            return f"{blocks[0]}, ahead of the first attention layer, adds to the residual stream"
        for layer in (layer for layers in before.values() for layer in layers):
            number = layer.matrices.site.index
            if layer.output is None:
                return f"no linear layer reads the output of the heads of layer {number}"
            folds = (layer.branch, layer.written), (layer.after, layer.after_fold), (layer.query.norm, layer.query.fold)
            odd = any(norm is not None and fold is None for norm, fold in folds)
            if number in self.unverified or not layer.factor or odd:
                return f"after layer {number} the residual stream changes in a way that attnscope does not know"
        return ""


def components(layers: Sequence[Layer], ahead: Iterable[str]) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Kind, layer and head of each component that adds to the stream up to some layers, and names.

    `ahead` are the kinds of what blocks before the first of them add, whose layer is -1.
    """
    parts = [(kind, -1, -1) for kind in ("embedding", "position", "bias", *dict.fromkeys(ahead))]
    for layer in layers:
        number, heads = layer.matrices.site.index, 0 if layer.output is None else len(layer.output)
        parts += [("head", number, head) for head in range(heads)]
        parts += [(kind, number, -1) for kind in dict.fromkeys(kind for kind, *_ in layer.added)]
    names = {"head": "{1}.{2}", "mlp": "mlp {1}", "mixer": "mixer {1}", "layer embedding": "layer embedding {1}"}
    at_start = {kind: f"{kind} ahead" for kind in names}
    return parts, [(at_start if one[1] < 0 else names).get(one[0], "{0}").format(*one) for one in parts]


def position_part(
    start: Tensor,
    word: Tensor,
    tables: Sequence[Tensor],
    others: Sequence[Tensor] = (),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The position part of the stream at its start; 0 if no sum of words, a table and other tables is found.

    `dtype` is that in which the model computed the sum.
    """
    limit = SAME[dtype] if dtype.itemsize < torch.float32.itemsize else SMALL
    for table in tables:
        for rest in (start, start - sum(others)):
            both = torch.stack([word, table]).flatten(1)
            # least squares on two columns; words may be scaled before positions are added
            factors = torch.linalg.pinv(both @ both.T) @ (both @ rest.flatten())
            if float((rest.flatten() - factors @ both).abs().max()) <= limit * float(rest.abs().max()):
                return factors[1] * table
    return torch.zeros_like(start)


@torch.no_grad()
def residual_stream(model: PreTrainedModel, inputs: Inputs, length: int | None = None) -> Stream:
    """Find how heads read and write the residual stream, from one pass over one text.

    `length` is the number of positions, of an image or a sound.
    """
    layers = projections(model, inputs)
    blocks = sublayers(model, inputs, {site.name for site in layers})
    length = inputs["input_ids"].shape[-1] if length is None else length
    recorder = _Recorder(length, {layer.names.get("output", "") for layer in layers.values()})
    unembedding = output_layer(model)
    observed_pass(model, inputs, recorder.hooks(model, unembedding), recorder.observe)
    assembler = _Assembler(recorder.events, layers, blocks)
    for site, call, query_states, key_states, at in recorder.calls:
        in_encoder = model.config.is_encoder_decoder and site.kind == "self"
        assembler.add(site, "encoder" if in_encoder else "decoder", query_states, key_states, at)
        assembler.stream.calls[site.index] = call
    if "input_ids" in inputs:
        assembler.stream.embedded = assembler.embedded(word_embedding(model)[1].embedding_dim)
    if unembedding is None:
        assembler.end_blocks(model)
    assembler.end(unembedding)
    return assembler.stream


@dataclass(eq=False)
class _Recorder:
    """Every module outside attention, and every attention call."""

    length: int
    outputs: set[str]
    events: list[LayerRun] = field(default_factory=list)
    calls: list[tuple[Site, AttentionCall, Tensor, Tensor, int]] = field(default_factory=list)

    def hooks(self, model: PreTrainedModel, unembedding: nn.Module | None) -> Iterator[Any]:
        inside = tuple(f"{name}." for name, module in model.named_modules() if is_attention(module))
        for name, module in model.named_modules():
            if module is unembedding or is_norm(module) or name in self.outputs or not name.startswith(inside):
                yield module.register_forward_hook(partial(self._note, name))

    def _note(self, name: str, module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
        received = arguments[0] if arguments and isinstance(arguments[0], Tensor) else None
        returned = returned[0] if isinstance(returned, tuple) and returned else returned
        self.events.append(LayerRun(name, module, self._rows(received), self._rows(returned)))

    def _rows(self, states: Any) -> Tensor:
        """States ``(token, width)``; of anything else, nothing."""
        is_rows = (
            isinstance(states, Tensor) and states.is_floating_point() and states.shape[:1] in {(1,), (self.length,)}
        )
        if not is_rows or states.numel() % self.length:
            return torch.empty(0)
        return states.detach().cpu().reshape(self.length, -1).clone()

    def observe(self, site: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        for states in (query_states, key_states):
            check_tokens(site, states, self.length)
        rows = [states.detach().cpu().reshape(self.length, -1).clone() for states in (query_states, key_states)]
        self.calls.append((site, call, rows[0], rows[1], len(self.events)))
        return output_of(call)


SMALL = 1e-5  # rounding of sums in single precision, as a share of the largest entry


class _Written(NamedTuple):
    """The stream before and after a layer."""

    layer: Layer
    base: Tensor  # stream that it adds to
    total: Tensor  # stream after it
    at: int  # number of events before it
    writers: dict[str, Kind]  # what blocks add up to the next attention, by name

    def leads_to(self, events: list[LayerRun], point: Point) -> bool:
        """Whether the stream at a point is that after this layer, plus what one module adds."""
        after = self.layer.after
        if point.norm is not None and (point.norm is after or point.fold is None):
            return point.fold is not None
        if self._is_before(events, point, self.total):
            return True
        # the norm of a later sublayer, in a pre-norm layer whose own input has no norm (the first of ModernBERT)
        if after is not None and self._is_before(events, point, after.received):
            query = self.layer.query
            self.layer.after = self.layer.after_fold = query.norm = query.fold = None
            return True
        return False

    def _is_before(self, events: list[LayerRun], point: Point, total: Tensor) -> bool:
        target = point.before
        if target.shape != total.shape:
            return False
        if float((target - total).abs().max()) <= SMALL * float(target.abs().max()):
            return True
        for stream in (total, self.base):
            for event in events[self.at : point.at]:
                factor = _factor(target, stream, event.returned)
                if factor is not None:
                    around = [name for name in self.writers if related(name, event.name)]
                    kind: Kind = self.writers[around[0]] if around else "mlp"
                    self.layer.added = [(kind, event, factor)]
                    self.layer.factor *= stream is total  # what is added instead of its output
                    return True
        return self._adds_several(events[: point.at], target, total)

    def _adds_several(self, events: list[LayerRun], target: Tensor, total: Tensor) -> bool:
        """Whether the stream is that after this layer plus what several modules add."""
        added = _what_adds_up(events, self.writers, total, target)
        self.layer.added = added or self.layer.added
        return added is not None


def _what_adds_up(
    events: list[LayerRun], writers: Mapping[str, Kind], start: Tensor, end: Tensor
) -> list[tuple[Kind, LayerRun, float]] | None:
    """The modules, with factors, whose outputs lead from one state of the stream to another; None if none do."""
    ran = {one.name: one for one in events if one.name in writers}
    ran = [one for one in ran.values() if one.returned.shape == end.shape]
    if not ran or start.shape != end.shape:
        return None
    columns = torch.stack([one.returned.double().flatten() for one in ran], 1)
    rest = (end - start).double().flatten()
    factors = torch.linalg.lstsq(columns, rest).solution
    if float((rest - columns @ factors).abs().max()) > SMALL * float(end.abs().max()):
        return None
    return [(writers[one.name], one, float(factor)) for one, factor in zip(ran, factors, strict=True)]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and factor_of(one, other) is not None


@dataclass(eq=False)
class _Assembler:
    """Puts the events of a pass in order along each stream."""

    events: list[LayerRun]
    matrices: dict[Site, Projections]
    blocks: list[BlockRun]
    stream: Stream = field(default_factory=lambda: Stream([], {}, None, is_linear=False))
    written: dict[str, _Written] = field(default_factory=dict[str, _Written])  # the latest layer of each stream
    folds: dict[int, Fold | None] = field(default_factory=dict[int, Any])  # by identity of the norm

    def fold(self, event: LayerRun | None) -> Fold | None:
        """The fold of a norm that ran, which layers may share."""
        if event is None or not len(event.received):
            return None
        if id(event.module) not in self.folds:
            self.folds[id(event.module)] = fold_of(event.module, event.received.shape[1])
        return self.folds[id(event.module)]

    def point(self, name: str, states: Tensor, at: int) -> Point:
        """The next point of a stream, which reads some states after `at` events: through a norm, if one made them."""
        order = sum(layer.query.stream == name for layer in self.stream.layers)
        norms = (event for event in reversed(self.events[:at]) if is_norm(event.module))
        norm = next((event for event in norms if _same(states, event.returned)), None)
        return Point(name, order, states, at, norm, self.fold(norm))

    def follows(self, name: str, point: Point) -> bool:
        """Whether a point reads what the latest layer of a stream left; the layer is unverified if it does not."""
        if name not in self.written or self.written[name].leads_to(self.events, point):
            return True
        self.stream.unverified.append(self.written[name].layer.matrices.site.index)
        return False

    def add(self, site: Site, name: str, query_states: Tensor, key_states: Tensor, at: int) -> None:
        """Add an attention layer to a stream: what it reads, and where its output is added."""
        query = self.point(name, query_states, at)
        self.follows(name, query)
        key = query
        if site.kind == "cross":
            if "encoder" not in self.stream.ends:
                self.stream.ends["encoder"] = self.point("encoder", key_states, at)
                self.follows("encoder", self.stream.ends["encoder"])
            key = self.stream.ends["encoder"]
        layer = Layer(self.matrices[site], query, key)
        self.stream.layers.append(layer)
        output_name = self.matrices[site].names.get("output", "")
        output_at = next((i for i in range(at, len(self.events)) if self.events[i].name == output_name), None)
        if output_at is None or self.events[output_at].returned.shape != query.before.shape:
            self.stream.unverified.append(site.index)
            self.written.pop(name, None)
            return
        base, total = self._add_output(layer, output_at)
        ahead, writers = _around(self.blocks, site.name)
        if not query.order and ahead:
            self._add_ahead(name, query, ahead)
        self.written[name] = _Written(layer, base, total, output_at, writers)

    def _add_ahead(self, name: str, query: Point, blocks: list[BlockRun]) -> None:
        """Find what blocks ahead of the first attention layer add to the embeddings."""
        writers: dict[str, Kind] = {one.writer: one.kind for block in blocks for one in block.sublayers}
        starts = (event.received for event in self.events[: query.at] if event.name == blocks[0].name)
        added = _what_adds_up(self.events[: query.at], writers, next(starts, torch.empty(0)), query.before)
        if added is None:
            self.stream.unknown_ahead[name] = blocks[0].name
        else:
            self.stream.ahead[name] = added

    def _add_output(self, layer: Layer, output_at: int) -> tuple[Tensor, Tensor]:
        """The stream before and after the output of a layer is added, with the norms of the output and of the sum."""
        query, output = layer.query, self.events[output_at].returned
        norms = [event for event in self.events[output_at:] if is_norm(event.module) and len(event.received)]
        layer.branch = next((norm for norm in norms[:2] if _same(norm.received, output)), None)
        if layer.branch is not None:
            layer.written, output = self.fold(layer.branch), layer.branch.returned
        for norm in norms:
            factor = None if query.norm is None else _factor(norm.received, query.before, output)
            if factor is not None:  # pre-norm: the next norm reads the sum
                layer.factor, layer.reader = factor, norm
                return query.before, norm.received
            if _factor(norm.received, query.states, output) is not None:  # post-norm: the sum itself is normed
                layer.after, layer.after_fold, layer.reader = norm, self.fold(norm), norm
                return query.states, norm.returned
        return query.before, query.before + output

    def embedded(self, width: int) -> Fold | None:
        """The norm of the embeddings, of that width, if no layer reads it as it is (BLOOM, ALBERT)."""
        layer = self.stream.layers[0]
        first = layer.query
        for event in self.events:
            if is_norm(event.module) and len(event.received) and event is not first.norm:
                narrow = event.received.shape[1] == width != first.states.shape[1]
                if narrow or (layer.after is None and _same(first.before, event.returned)):
                    return self.fold(event)
        return None

    def end(self, unembedding: nn.Module | None) -> None:
        """Find the end of the decoder, which the unembedding reads."""
        reads = (event for event in reversed(self.events) if event.module is unembedding and len(event.received))
        read = next(reads, None)
        if read is not None and "decoder" in self.written:
            end = self.point("decoder", read.received, len(self.events))
            self.stream.is_linear = self.written["decoder"].leads_to(self.events, end)
            self.stream.ends["decoder"] = end

    def end_blocks(self, model: PreTrainedModel) -> None:
        """Find the output of the last block, which a classifier or an embedding reads."""
        attention, blocks = self.stream.layers[-1].matrices.site.name, blocks_of(model)
        around = next((name for name in blocks if attention.startswith(f"{name}.")), "")
        names = [name for name in blocks if name.rpartition(".")[0] == around.rpartition(".")[0]]
        runs = [event for event in self.events if names and event.name == names[-1]]
        if runs and "decoder" in self.written:
            end = self.point("decoder", runs[-1].returned, len(self.events))
            if self.written["decoder"].leads_to(self.events, end):
                self.stream.last = end, names[-1], len(runs) - 1


def _around(blocks: list[BlockRun], attention: str) -> tuple[list[BlockRun], dict[str, Kind]]:
    """Blocks of the same list ahead of all attention, and what blocks add from that of a layer to the next layer."""
    same = [block for block in blocks if attention.startswith(f"{block.name.rpartition('.')[0]}.")]
    containing = [number for number, block in enumerate(same) if attention.startswith(f"{block.name}.")]
    if len(containing) != 1:  # blocks that run several times (ALBERT)
        return [], {}
    attending = [number for number, block in enumerate(same) if block.of("attention")]
    end = next((number for number in attending if number > containing[0]), len(same))
    ahead = [block for block in same[: min(attending, default=0)] if block.sublayers]
    written = [one for block in same[containing[0] : end] for one in block.of("mlp", "mixer", "layer embedding")]
    return ahead, {one.writer: one.kind for one in written}


def _factor(received: Tensor, stream: Tensor, output: Tensor) -> float | None:
    """The factor of the output of a layer if a norm receives the stream plus that; else None."""
    if received.shape != stream.shape or received.shape != output.shape:
        return None
    rest, whole = (received - stream).double(), float(received.double().abs().max())
    wide = output.double()
    power = float((wide * wide).sum())
    factor = float((rest * wide).sum()) / power if power else 1.0
    return factor if factor > 0 and float((rest - factor * wide).abs().max()) <= SMALL * whole else None
