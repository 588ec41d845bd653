"""`watch` and `measure_weights`: results for forward passes that a caller runs, and for existing weights."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Self, cast

import numpy as np
import torch
import transformers
import xarray as xr
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from attnscope.capture.forward import check_finite
from attnscope.capture.functional import CapturedCall, ModuleCalls, PackedTexts, calls_inside
from attnscope.capture.verify import TOLERANCE
from attnscope.capture.watch import Site
from attnscope.kernels.call import call_of_weights
from attnscope.measure.generation_pass import GenerationCall, together
from attnscope.measure.generation_rows import GivenSpans
from attnscope.measure.labels import NEEDED, summarize
from attnscope.measure.passes import Marks, labelled, measure_call, stacked
from attnscope.measure.pools import joined
from attnscope.measure.quantities import EQUAL, STATISTICS
from attnscope.support.checks import check_kind, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.state import own_state, replaced


@dataclass(eq=False)
class MeasuredPass:
    """The measurements of the calls of one forward pass."""

    sites: list[Site] = field(default_factory=list)  # each call
    measured: list[dict[str, Tensor]] = field(default_factory=list)  # statistics of each call, from `measure_call`
    queries: list[Tensor] = field(default_factory=list)  # ``(batch,)`` for each call: its queries that are real tokens
    packed: PackedTexts = field(default_factory=PackedTexts)
    reach: int = 0  # the largest offset

    def add(self, site: Site, measured: dict[str, Tensor], queries: Tensor, reach: int) -> None:
        """Add a call."""
        self.sites.append(site)
        self.measured.append(measured)
        self.queries.append(queries.sum(1).cpu())
        self.reach = max(self.reach, reach)

    @property
    def texts(self) -> int:
        """The number of texts in the batch."""
        return len(self.queries[0])


def collected(passes: Sequence[MeasuredPass], names: Sequence[str], band: int) -> xr.Dataset:
    """Passes as one Dataset over texts, with labels of heads if their statistics were measured."""
    reach = max(run.reach for run in passes)
    layered = any(not torch.equal(queries, run.queries[0]) for run in passes for queries in run.queries)
    parts: list[xr.Dataset] = []
    first = 0
    for run in passes:
        sources = [(f"text {first + number + 1}", 0) for number in range(run.texts)]
        arrays = stacked(_alike([layer for each in passes for layer in each.measured], run.measured))
        part = labelled(arrays, run.sites, band, reach, {"length": run.queries[0].numpy()}, sources, first)
        if layered:
            queries = np.stack([counts.numpy() for counts in run.queries], axis=1)
            part["queries"] = (("window", "layer"), queries, {"long_name": "Queries of a layer", "units": "tokens"})
        parts.append(part)
        first += run.texts
    results = joined(parts)
    if set(NEEDED) <= set(names):
        results = results.merge(summarize(results), combine_attrs="no_conflicts")
    return results


_SIDES = {"offset_bin", "every_offset"}


def _alike(every: Sequence[dict[str, Tensor]], own: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Layers padded with 0 to the largest number of offsets or bins."""
    sided = [name for name in own[0] if _SIDES & {*STATISTICS[name.removeprefix(EQUAL)].along}]
    most = {name: max(layer[name].shape[-1] for layer in every) for name in sided}

    def widened(name: str, value: Tensor) -> Tensor:
        missing = (most[name] - value.shape[-1]) // 2 if name in most else 0
        return torch.nn.functional.pad(value, (missing, missing)) if missing else value

    return [{name: widened(name, value) for name, value in layer.items()} for layer in own]


class WatchedCalls:
    """The measurements of `watch` so far."""

    def __init__(self, module: nn.Module, names: Sequence[str], band: int) -> None:
        self._watched, self._module, self._names, self._band = module, type(module).__name__, names, band
        self._passes: list[MeasuredPass] = []
        self._now = MeasuredPass()
        self._without = 0  # passes without captured calls
        self._written: list[xr.Dataset] = []
        self._calls: ModuleCalls | None = None

    @contextmanager
    def during(self, spans: GivenSpans | None) -> Generator[Self]:
        """Measure every pass of the module within the context."""
        hooks = self._measure, self._done, self._lost
        with (
            calls_inside(self._watched, *hooks) as self._calls,
            _generating(self._watched, self._calls, spans, self._written.extend),
        ):
            yield self

    def __len__(self) -> int:
        """The number of texts that were read, or written by ``generate()``."""
        return sum(each.texts for each in self._passes) + len(self._written)

    def result(self) -> xr.Dataset:
        """All passes so far, in the form of `attnscope.scan`, or all texts of ``generate()``; see `watch`."""
        if self._written:
            if self._passes:
                raise AttnscopeError(
                    f"captured both plain passes and generate() of {self._module}, which give different results: use a "
                    "new `watch` for each"
                )
            return together(self._written).assign_attrs(model=self._module, capture="generate()")
        if not self._passes:
            what = "was not called in the context" if not self._without else "made no attention call that PyTorch names"
            raise AttnscopeError(
                f"{self._module} {what}, so nothing was captured. "
                "Hand-written attention is not captured: pass its weights to attnscope.measure_weights (or use "
                "attnscope_lineage.walk for one module of attention)"
            )
        results = collected(self._passes, self._names, self._band)
        notes = self._uncaptured() | self._packed()
        return results.assign_attrs(model=self._module, capture="function calls", **notes)

    def _packed(self) -> dict[str, str]:
        """The note on texts whose parts attend to themselves alone in every layer."""
        packed = sum(run.packed.count() for run in self._passes)
        if not packed:
            return {}
        return {
            "packed": f"Parts of {packed} of {len(self)} texts do not attend to each other (packed documents), but "
            "each text counts as one: the first token is that of its first part. Pass each document as a text, or use "
            "attnscope.scan, which separates them."
        }

    def _uncaptured(self) -> dict[str, str]:
        """The note that names modules without a captured call."""
        calls, names = self._calls, {site.name for site in self._passes[0].sites}
        unseen = {} if calls is None else calls.uncaptured(names)
        if not unseen:
            return {}
        named = ", ".join(f"{name} ({kind})" for name, kind in list(unseen.items())[:3])
        more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""  # noqa: PLR2004
        return {
            "uncaptured": f"No attention call was captured in {named}{more}: if these modules compute attention by "
            "hand, the result is incomplete."
        }

    def _measure(self, site: Site, captured: CapturedCall) -> None:
        where = f"layer {site.index} ({site.name})"
        self._check_order(where, site, captured)
        call = captured.call
        reach = max(call.query.shape[2], call.key.shape[2]) - 1
        marks = Marks(captured.queries, captured.keys, torch.zeros_like(captured.keys))
        with own_state(gradients=False):
            output, of_call = measure_call(call, self._names, self._band, reach, marks)
        measured = {name: value.cpu() for name, value in of_call.items()}
        first = len(self)
        theirs = captured.output
        states = output if theirs is None else theirs
        check_finite(where, states.transpose(1, 2), lambda text: f"text {first + text + 1}", captured.queries)
        for name, value in measured.items():
            nothing = value.isnan().all(1) if value.ndim == 2 else None  # noqa: PLR2004 text, head
            if nothing is not None and not name.startswith(EQUAL) and bool(nothing.any()):
                text = first + int(nothing.nonzero()[0]) + 1
                raise AttnscopeError(f"text {text}: {where} masks every key of every token: leave that text out")
        if theirs is not None:
            _check_output(where, output, theirs, captured.queries)
        self._now.add(site, measured, captured.queries, reach)
        self._now.packed.add(captured)

    def _check_order(self, where: str, site: Site, captured: CapturedCall) -> None:
        """Reject a call that does not match those before it."""
        texts = captured.call.query.shape[0]
        if self._now.queries and texts != self._now.texts:
            raise AttnscopeError(
                f"{where} has a batch of {texts}, the layers before it {self._now.texts}: it folds other dimensions "
                "into the batch (windows, axes). Watch the part of the module that does not"
            )
        if not self._passes:
            return
        first = self._passes[0]
        index = site.index
        heads = captured.call.query.shape[1]
        was = first.sites[index] if index < len(first.sites) else None
        now = (site.name, site.kind, heads)
        expected = None if was is None else (was.name, was.kind, _heads(first.measured[index]))
        if now != expected:
            before = "was missing" if expected is None else "was {}, {}, {} heads".format(*expected)
            raise AttnscopeError(
                f"{where}, {site.kind} attention of {heads} heads, {before} in the first pass: passes differ. Switch "
                "off the cache of keys (or let generate() use it), and use a new `watch` for each type of pass"
            )

    def _done(self, calls: int) -> None:
        now, self._now = self._now, MeasuredPass()
        if not calls:
            self._without += 1
            return
        if self._passes and calls != len(self._passes[0].sites):
            raise AttnscopeError(
                f"a pass has {calls} attention calls, the first one had {len(self._passes[0].sites)}: passes differ. "
                "Use a new `watch` for each type of pass"
            )
        self._passes.append(now)

    def _lost(self) -> None:
        self._now = MeasuredPass()


@contextmanager
def _generating(
    module: nn.Module, calls: ModuleCalls, spans: GivenSpans | None, keep: Callable[[Sequence[xr.Dataset]], None]
) -> Generator[None]:
    """Watch ``generate()`` of each model of transformers within a module, called from outside."""

    def wrapped(model: PreTrainedModel) -> Callable[..., Any]:
        inner: Any = model.generate

        @wraps(inner)
        def generate(*positional: Any, **named: Any) -> Any:
            if calls.running:
                raise AttnscopeError(
                    f"{calls.running[-1]} calls generate() of {type(model).__name__} within its own pass: watch that "
                    "model, and call its generate() yourself"
                )
            with replaced(vars(calls), is_aside=True):
                output, texts = GenerationCall(model, inner, positional, named).run(spans)
            keep(texts)
            return output

        return generate

    models = [
        part
        for part in module.modules()
        if isinstance(part, transformers.PreTrainedModel) and isinstance(part, transformers.GenerationMixin)
    ]
    with ExitStack() as hooks:
        for model in models:
            hooks.enter_context(replaced(vars(model), generate=wrapped(model)))
        yield


def _heads(measured: dict[str, Tensor]) -> int:
    return next(value.shape[1] for name, value in measured.items() if not name.startswith(EQUAL))


def _check_output(where: str, ours: Tensor, theirs: Tensor, valid: Tensor) -> None:
    """Reject a call whose arguments do not reproduce the module's output."""
    if ours.shape != theirs.shape:
        raise AttnscopeError(
            f"{where}: the module's attention returns shape {tuple(theirs.shape)}; expected {tuple(ours.shape)}"
        )
    computed, other = (output.transpose(1, 2)[valid].double() for output in (ours, theirs))
    if not len(computed):
        return
    away, largest = float((computed - other).abs().amax()), float(other.abs().amax())
    if away > TOLERANCE[theirs.dtype] * max(1.0, largest):
        raise AttnscopeError(
            f"{where}: the captured call does not reproduce the module's output (difference {away:.2g}): the module "
            "computes more than the softmax of scaled products"
        )


Weights = Float[Tensor, "batch head query key"] | Float[np.ndarray, "batch head query key"]
Mask = Sequence[Sequence[int]] | Tensor | np.ndarray
Tokens = Sequence[Sequence[str]]


_FOUR, _FIVE = 4, 5  # batch, head, query, key; a layer before them
#: Tolerance of row sums and of zeros for rounding, by type.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@torch.no_grad()
def measured_weights(
    layers: Sequence[Layer], names: Sequence[str], real: Tensor, special: Tensor, *, causal: bool | None, band: int
) -> xr.Dataset:
    """Statistics of weights; which tokens are real and which are special, ``(text, position)``."""
    run = MeasuredPass()
    for index, layer in enumerate(layers):
        weights = layer.weights
        where = f"layer {index} of the weights"
        queries, keys = (real[:, :count].to(weights.device) for count in weights.shape[2:])
        if layer.is_cross:
            queries = torch.ones_like(queries)
        queries = queries & (torch.arange(weights.shape[2], device=weights.device) >= layer.first)
        wide = weights.detach().double().where(queries[:, None, :, None], 0.0)
        slack = _ROUNDING.get(weights.dtype, _ROUNDING[torch.float64])
        mass = _checked(where, wide, slack, keys)
        kind = "cross" if layer.is_cross else _kind(where, wide, causal, slack)
        shares = wide / torch.where(mass > 0, mass, 1.0)[..., None]
        mass = torch.where((mass - 1).abs() <= slack, (mass > 0).double(), mass)
        mark = special[:, : weights.shape[3]].to(weights.device)
        reach = max(weights.shape[2:]) - 1
        marks = Marks(queries, keys, mark, special_queries=mark if mark.shape == queries.shape else None)
        _, measured = measure_call(call_of_weights(shares), names, band, reach, marks, mass)
        measured = {name: value.cpu() for name, value in measured.items()}
        run.add(Site(index, f"layer {index}", kind), measured, queries, reach)
    return collected([run], names, band).assign_attrs(capture="weights")


def layers_of(weights: Any, *, causal: bool | None) -> list[Layer]:
    """The layers of weights, of a cache of TransformerLens, or of the steps of ``generate``, put together."""
    weights = _patterns(weights) if hasattr(weights, "keys") else weights
    return _in_one_pass(weights) if are_steps(weights) else [_placed(layer, causal) for layer in _layers(weights)]


def are_steps(weights: Any) -> bool:
    """Whether weights are those of the steps of ``generate``."""
    return isinstance(weights, list | tuple) and any(isinstance(step, list | tuple) for step in weights)


def _patterns(cache: Any) -> list[Any]:
    """The weights of all layers in a cache of TransformerLens, with or without its batch dimension."""
    cached = {str(name) for name in cache.keys() if str(name).endswith(".attn.hook_pattern")}  # noqa: SIM118
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(len(cached) or 1)]
    missing = [name for name in names if name not in cached]
    if missing:
        raise AttnscopeError(
            f"found {len(cached)} times blocks.LAYER.attn.hook_pattern, but not {missing[0]}; "
            "expected every layer from 0. Cache all layers, or pass a list of arrays"
        )
    patterns = [cache[name] for name in names]
    return [pattern if len(pattern.shape) == _FOUR else pattern[None] for pattern in patterns]


@dataclass(frozen=True)
class Layer:
    """Weights of a layer, the number of missing rows at the beginning, and whether it is cross-attention."""

    weights: Tensor
    first: int
    is_cross: bool


def _placed(layer: Tensor, causal: bool | None) -> Layer:
    """One layer; rows of the last tokens are padded to a square."""
    queries, keys = layer.shape[2:]
    if queries < keys and (causal or (causal is None and queries == 1)):
        return Layer(pad(layer, (0, 0, keys - queries, 0)), keys - queries, is_cross=False)
    return Layer(layer, 0, is_cross=queries != keys)


def _in_one_pass(steps: Any) -> list[Layer]:
    """The rows of all steps, layer by layer."""
    layers = [_layers(step) for step in steps]
    if len({len(step) for step in layers}) != 1:
        raise AttnscopeError(
            f"the steps have {[len(step) for step in layers]!s:.80} layers; expected the same number in each, as "
            "returned by generate(output_attentions=True)"
        )
    if len(layers) == 1:
        return [_placed(layer, None) for layer in layers[0]]
    return [_of_steps(index, of_layer) for index, of_layer in enumerate(zip(*layers, strict=True))]


def _of_steps(index: int, own: Sequence[Tensor]) -> Layer:
    keys, begun = [step.shape[3] for step in own], own[0].shape[2]
    grows = all(step.shape[3] - before == step.shape[2] for before, step in zip(keys, own[1:], strict=False))
    if len({step.shape[:2] for step in own}) != 1 or not (grows or len(set(keys)) == 1):
        raise AttnscopeError(
            f"layer {index}: the steps have the shapes {[tuple(step.shape) for step in own]!s:.120}; expected the same "
            "texts and heads, and one more key for each new query (or a constant number)"
        )
    whole = torch.cat([pad(step, (0, keys[-1] - step.shape[3])) for step in own], 2)
    rows = whole.shape[2]
    if grows:
        return Layer(pad(whole, (0, 0, keys[-1] - rows, 0)), keys[-1] - rows, is_cross=False)
    if rows <= keys[-1] and not bool(whole[:, :, begun:].triu(begun + 1).any()):  # a cache of a fixed length
        return Layer(whole[..., :rows], 0, is_cross=False)
    return Layer(whole, 0, is_cross=True)


def check_alike(layers: Sequence[Layer], *, whole: bool) -> None:
    """Reject layers with other texts or lengths than the first, whose tokens are unknown."""
    texts = len(layers[0].weights)
    keys = next((layer.weights.shape[3] for layer in layers if whole or not layer.is_cross), 0)
    for index, layer in enumerate(layers):
        if len(layer.weights) != texts:
            raise AttnscopeError(
                f"layer {index} of the weights has {len(layer.weights)} texts; expected {texts}, as in layer 0"
            )
        if (whole or not layer.is_cross) and layer.weights.shape[3] != keys:
            raise AttnscopeError(
                f"layer {index} of the weights has {layer.weights.shape[3]} keys; expected {keys}, as in earlier "
                "layers of self-attention: measure them one by one"
            )


def reject_left_padding(layers: Sequence[Layer]) -> None:
    """Reject texts whose first tokens get no weight in any layer, except rows of padding (all values equal)."""
    firsts: list[Tensor] = []
    for layer in layers:
        weights = layer.weights
        if layer.is_cross or weights.shape[3] == 1:
            continue
        # softmax over scores that are all masked with one finite number gives a row of equal weights
        is_padding = (weights == weights[..., :1]).all(-1).all(1)  # (text, query)
        weighted = (weights != 0).any(1) & ~is_padding[..., None]
        missing = (weighted.any(1).cumsum(1) == 0).sum(1)  # keys at the beginning without weight
        # a text whose rows all are padding in this layer shows nothing
        firsts.append(missing.where(~is_padding.all(1), 0).cpu())
    if not firsts:
        return
    least = torch.stack(firsts).amin(0)
    if int(least.amax()):
        text = int(least.argmax())
        raise AttnscopeError(
            f"text {text + 1}: its first {int(least[text])} tokens get no weight, like padding on the left: give mask "
            "(1 on real tokens, 0 on padding)"
        )


def _layers(weights: Any) -> list[Tensor]:
    """Tensors (batch, head, query, key), one a layer."""
    if isinstance(weights, torch.Tensor | np.ndarray):
        if weights.ndim != _FIVE:
            raise AttnscopeError(
                f"one array of weights has the shape {tuple(weights.shape)}; expected (layer, batch, head, query, "
                "key), or a list over layers of (batch, head, query, key)"
            )
        weights = list(weights)
    check_kind("a list over layers of (batch, head, query, key)", list, tuple, weights=weights)
    tensors: list[Tensor] = []
    for index, layer in enumerate(cast("Sequence[Any]", weights)):
        check_kind("a torch tensor or a NumPy array", torch.Tensor, np.ndarray, **{f"layer {index}": layer})
        tensor = torch.as_tensor(layer)
        if tensor.ndim != _FOUR or 0 in tensor.shape or not tensor.is_floating_point():
            raise AttnscopeError(
                f"layer {index} of the weights has the shape {tuple(tensor.shape)} in {tensor.dtype}; expected "
                "(batch, head, query, key) of floats, none of length 0"
            )
        tensors.append(tensor)
    if not tensors:
        raise AttnscopeError("the weights have no layer; expected at least one (batch, head, query, key)")
    return tensors


def real_tokens(
    mask: Mask | None, lengths: Sequence[int] | None, tokens: Tokens | None, texts: int, longest: int, *, more: bool
) -> Tensor:
    """``(text, position)``: which tokens are real. With `more`, a mask of prompts is extended by real tokens."""
    if tokens is not None:
        counted = [len(text) for text in tokens]
        if lengths is not None and list(lengths) != counted:
            raise AttnscopeError(f"found lengths {shortly(lengths)} and tokens of {shortly(counted)}: pass one of them")
        lengths = counted
    if mask is not None:
        real = torch.as_tensor(mask).cpu()
        width = real.shape[-1] if real.ndim else 0
        fits = real.ndim == 2 and len(real) == texts and (width == longest or (more and width < longest))  # noqa: PLR2004
        if not fits or not bool(((real == 0) | (real == 1)).all()) or not bool(real.any(1).all()):
            raise AttnscopeError(
                f"mask has the shape {tuple(real.shape)}; expected ({texts}, {longest}), 1 on real tokens and 0 on "
                "padding, with a real token in each text"
            )
        real = pad(real.bool(), (0, longest - width), value=True)
        if lengths is not None and real.sum(1).tolist() != list(lengths):
            raise AttnscopeError("mask does not match the lengths or tokens: give one of them")
        return real
    sizes = [longest] * texts if lengths is None else [int(length) for length in lengths]
    if len(sizes) != texts or not all(1 <= length <= longest for length in sizes):
        raise AttnscopeError(
            f"found texts of {shortly(sizes)} tokens; the weights have {texts} of 1 to {longest}. Correct "
            f"{'lengths' if tokens is None else 'tokens'}: they include special tokens, but no padding"
        )
    return torch.arange(longest) < torch.tensor(sizes)[:, None]


def special_tokens(special: Sequence[Sequence[bool]] | None, real: Tensor) -> Tensor:
    """``(text, position)``: which tokens are special."""
    whole = torch.zeros_like(real)
    if special is None:
        return whole
    marked = [[bool(mark) for mark in text] for text in special]
    lengths = real.sum(1).tolist()
    if [len(text) for text in marked] != lengths:
        raise AttnscopeError(
            f"special marks {[len(text) for text in marked]} tokens of the texts; expected one for each of {lengths}"
        )
    whole[real] = torch.tensor([mark for text in marked for mark in text], dtype=torch.bool)
    return whole


def _checked(where: str, real: Tensor, slack: float, keys: Tensor) -> Tensor:
    """Sums of the rows, checked to be weights; 0 for padding."""
    if not bool(real.isfinite().all()):
        raise AttnscopeError(f"{where} has NaN or infinity; expected weights from 0 to 1")
    if float(real.amin()) < 0:
        raise AttnscopeError(f"{where} has {float(real.amin()):.4g}; expected weights from 0 to 1, after the softmax")
    mass = real.sum(-1)
    if float(mass.amax()) > 1 + slack:
        raise AttnscopeError(
            f"{where} has a row that sums to {float(mass.amax()):.4f}; expected 1 or less. Are the dimensions "
            "(batch, head, query, key), the softmax over keys?"
        )
    beyond = float(real.where(~keys[:, None, None], 0.0).amax())
    if beyond > slack:
        raise AttnscopeError(
            f"{where} has a weight of {beyond:.4f} on padding; expected 0: mask it, or give mask instead of lengths if "
            "it is on the left"
        )
    return mass


def _kind(where: str, weights: Tensor, causal: bool | None, slack: float) -> str:
    queries = weights.shape[2]
    future = float(weights.triu(1).amax())
    if causal and future > slack:
        raise AttnscopeError(f"{where} has a weight of {future:.4f} on a later token, so it is not causal")
    return "causal" if causal or (causal is None and future == 0 and queries > 1) else "self"
