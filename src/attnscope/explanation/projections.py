"""The weight matrices of every head, found by matching the outputs of linear layers with the inputs of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import is_norm, is_rotary
from attnscope.capture.watch import Site
from attnscope.capture.weights import Affine, affine_of, linear_layers
from attnscope.explanation.inputs import Inputs, observed_pass
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.positions import Rotation, rotation
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True, eq=False, kw_only=True)
class Projections:
    r"""Matrices that multiply X in one attention layer, by head; float64, in the convention ``q = x @ W + b``."""

    site: Site  # which attention call
    form: str  # what a score is
    reason: str  # why the form is normalised or unknown; else empty
    scale: float  # factor of the scores, every factor of queries and keys included: apply it once
    query: Float[np.ndarray, "head width r"] | None = None  # ``(head, width, r)`` and ``(head, r)``
    query_bias: Float[np.ndarray, "head r"] | None = None
    # ``(kv_head, key_width, r)`` and ``(kv_head, r)``: head h reads key head ``h // group``
    key: Float[np.ndarray, "kv_head key_width r"] | None = None
    key_bias: Float[np.ndarray, "kv_head r"] | None = None
    value: Float[np.ndarray, "kv_head key_width value_width"] | None = None
    value_bias: Float[np.ndarray, "kv_head value_width"] | None = None
    # ``(head, value_width, model_width)`` and ``(model_width,)``: the layer adds up ``head_output @ output[h]``
    output: Float[np.ndarray, "head value_width model_width"] | None = None
    output_bias: Float[np.ndarray, " model_width"] | None = None
    rotation: Rotation | None  # rotation of queries and keys, for the positions of the window
    # largest difference of the scores made of these matrices and those captured, as a share of the largest; NaN for
    # unknown forms
    error: float
    names: dict[str, str]  # modules by role: ``query``, ``key``, ``value``, ``output``
    group: int
    norms: dict[str, str] = field(default_factory=dict[str, str])  # norms between matrix and score, by role
    # the same as `output` where a gate multiplies the output of the heads first (Qwen3-Next); `output` is then None
    gated: Float[np.ndarray, "head value_width model_width"] | None = None
    rounding: float = 0.0  # largest error of a product with these matrices, as a share: layers may round their input

    def of_head(
        self, head: int
    ) -> tuple[
        Float[np.ndarray, "width r"], Float[np.ndarray, " r"], Float[np.ndarray, "key_width r"], Float[np.ndarray, " r"]
    ]:
        """``W_Q, b_Q, W_K, b_K`` of one head."""
        if self.query is None or self.query_bias is None or self.key is None or self.key_bias is None:
            raise AttnscopeError(
                f"the query and key matrices of layer {self.site.index} ({self.site.name}) are not known: {self.reason}"
            )
        other = head // self.group
        return self.query[head], self.query_bias[head], self.key[other], self.key_bias[other]


@torch.no_grad()
def projections(model: PreTrainedModel, inputs: Inputs) -> dict[Site, Projections]:
    """Find the query, key, value and output matrices of every head, and the form of the scores."""
    recorder = _Recorder()
    observed_pass(model, inputs, recorder.hooks(model), recorder.observe)
    recorder.close()
    return recorder.projections


@dataclass(eq=False)
class _Recorder:
    """Record the linear layers of one forward pass, and match them at each attention call."""

    projections: dict[Site, Projections] = field(default_factory=dict)
    linears: list[LayerRun] = field(default_factory=list)
    norms: list[LayerRun] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)
    waiting: tuple[Callable[[LayerRun | None], Projections], Tensor] | None = None  # for the output projection

    def hooks(self, model: PreTrainedModel) -> Iterator[Any]:
        for name, module in linear_layers(model):
            yield module.register_forward_hook(self._note(name, self.linears, self._find_output))
        for name, module in model.named_modules():
            if is_norm(module):
                yield module.register_forward_hook(self._note(name, self.norms))
            elif is_rotary(module):
                yield module.register_forward_hook(self._note_rotation)

    def _note(self, name: str, events: list[LayerRun], then: Callable[[LayerRun], None] | None = None) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
            if arguments and isinstance(arguments[0], Tensor) and isinstance(returned, Tensor):
                event = LayerRun(name, module, arguments[0], returned)
                events.append(event)
                if then is not None:
                    then(event)

        return hook

    def _note_rotation(self, _: nn.Module, __: Any, returned: Any) -> None:
        if isinstance(returned, tuple) and len(returned) == 2:  # noqa: PLR2004 cosines and sines
            self.rotations += _rotations(*returned)

    def _find_output(self, event: LayerRun) -> None:
        if self.waiting is not None and event.received.numel() == self.waiting[1].numel():
            finish, output = self.waiting
            received = event.received.reshape(output.shape)
            # the output projection is the layer that receives the heads side by side, whatever its name
            plainly = factor_of(received, output) == 1.0
            if (plainly or _gates(received, output)) and event.affine is not None:
                matched = finish(event)
                matched = matched if plainly else replace(matched, output=None, gated=matched.output)
                self.projections[matched.site] = matched
                self.waiting = None

    def close(self) -> None:
        """Conclude the previous call, whose output projection must have run by now."""
        if self.waiting is not None:
            matched = self.waiting[0](None)
            self.projections[matched.site] = matched
            self.waiting = None

    def observe(self, site: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        self.close()
        if call.query.shape[2] < 2:  # noqa: PLR2004
            raise AttnscopeError(
                "a window of 1 token shows no form of the scores: give one of 2 tokens or more, a dozen is enough"
            )
        within = site.name + "."
        linears = [event for event in self.linears if event.name.startswith(within)]
        norms = [event for event in self.norms if event.name.startswith(within)]
        search = PathSearch(linears, norms, self._candidates(call))
        matches = {
            "query": search.match(call.query, groups=call.key.shape[1]),
            "key": search.match(call.key, groups=None),
            "value": search.match(call.value, groups=None, plain=True),
        }
        output = output_of(call)

        def finish(event: LayerRun | None) -> Projections:
            return _assemble(site, call, matches, event, (query_states, key_states), output.shape)

        self.projections[site] = finish(None)  # keeps the order of the calls
        self.waiting = (finish, output.transpose(1, 2).flatten(2))
        self.linears.clear()
        self.norms.clear()
        return output

    def _candidates(self, call: AttentionCall) -> list[Rotation]:
        """Rotations of this model: from its own module, else RoPE in its plain form."""
        length, width = call.query.shape[2], call.query.shape[3]
        fitting = [
            table for table in self.rotations if table.cos.shape[0] >= length and 2 * table.cos.shape[1] <= width
        ]
        return [*fitting, *[_to(rotation(length, width, layout=layout), call.query) for layout in ("half", "pairs")]]


def _gates(received: Tensor, output: Tensor) -> bool:
    """Whether a layer receives the output of the heads times positive factors, which differ by number."""
    product = received * output
    return bool((product >= 0).all()) and float((product > 0).double().mean()) > _ALMOST


_ALMOST = 0.99  # a gate may round to 0


def _to(turn: Rotation, like: Tensor) -> Rotation:
    return Rotation(turn.cos.to(like.device), turn.sin.to(like.device), turn.layout)


def _rotations(cos: Any, sin: Any) -> Iterator[Rotation]:
    """Both layouts of a rotary module's output: every angle twice (in one of two orders), or once."""
    if not (isinstance(cos, Tensor) and isinstance(sin, Tensor)) or cos.shape != sin.shape or cos.ndim not in {2, 3}:
        return
    if cos.ndim == 3:  # noqa: PLR2004
        cos, sin = cos[0], sin[0]
    half = cos.shape[1] // 2
    # transformers repeats the angles: behind each other (Llama) or each twice (GPT-J)
    if cos.shape[1] % 2 == 0 and torch.equal(cos[:, :half], cos[:, half:]):
        cos, sin = cos[:, :half], sin[:, :half]
    elif cos.shape[1] % 2 == 0 and torch.equal(cos[:, ::2], cos[:, 1::2]):
        cos, sin = cos[:, ::2], sin[:, ::2]
    for layout in ("half", "pairs"):
        yield Rotation(cos.double(), sin.double(), layout)


def _assemble(
    site: Site,
    call: AttentionCall,
    matches: dict[str, Match | None],
    output: LayerRun | None,
    states: tuple[Tensor, Tensor],
    shape: torch.Size,
) -> Projections:
    form, reason = _form(matches, states)
    if matches["value"] is not None and not _reads(matches["value"], states[1]):
        matches = matches | {"value": None}  # as in MLA, whose values come from a latent
    known = {role: match for role, match in matches.items() if match is not None}
    names, parts = {role: match.event.name for role, match in known.items()}, dict[str, np.ndarray]()
    for role, match in known.items():
        parts |= {role: match.weight, f"{role}_bias": match.bias}
    events = [match.event for match in known.values()]
    if output is not None:
        names["output"] = output.name
        as_match = Match(output, np.arange(output.returned.shape[-1]).reshape(1, -1), 1.0)
        parts["output"] = as_match.weight[0].reshape(shape[1], shape[3], -1)  # (head, value_width, model_width)
        parts["output_bias"] = as_match.bias[0]
        events.append(output)
    factor = known["query"].factor * known["key"].factor if form in {"bilinear", "rope"} else 1.0
    layer = Projections(
        site=site,
        form=form,
        reason=reason,
        scale=call.scale * factor,
        **parts,
        rotation=known["query"].rotation if form in {"rope", "normalised"} else None,
        error=float("nan"),
        names=names,
        group=call.group,
        norms={role: match.normalised for role, match in known.items() if match.normalised},
        rounding=max((event.affine.error for event in events if event.affine is not None), default=0),
    )
    if form not in {"bilinear", "rope"}:
        return layer
    error = _error(layer, call, states)
    if error > 10 * max(SAME.get(call.query.dtype, 2e-5), layer.rounding):
        worse = f"its scores differ from those captured by {error:.0e} of the largest"
        return replace(layer, form="unknown", reason=worse, error=error)
    return replace(layer, error=error)


def _form(matches: dict[str, Match | None], states: tuple[Tensor, Tensor]) -> tuple[str, str]:
    query, key = matches["query"], matches["key"]
    for role, match, layer_input in (("query", query, states[0]), ("key", key, states[1])):
        if match is None:
            return "unknown", f"no linear layer gives its {role}"
        if not _reads(match, layer_input):
            return ("unknown", f"its {role} comes from {match.event.name}, which does not read the layer's input")
    assert query is not None  # noqa: S101 checked above
    assert key is not None  # noqa: S101
    if query.normalised or key.normalised:
        return "normalised", f"{query.normalised or key.normalised} normalises in between"
    if (query.rotation is None) != (key.rotation is None):
        return "unknown", "only one of query and key is turned by its position"
    return ("bilinear" if query.rotation is None else "rope"), ""


def _reads(match: Match, states: Tensor) -> bool:
    """Whether a linear layer reads the layer's input."""
    received = match.event.received
    return received.numel() == states.numel() and factor_of(received.reshape(states.shape), states) == 1.0


def _error(layer: Projections, call: AttentionCall, states: tuple[Tensor, Tensor]) -> float:
    """Largest difference between scores from X and the matrices and those captured, as a share of the largest."""
    worst = largest = 0.0
    # one text is enough: the match before held on all
    query_input, key_input = (side[0].double().cpu().numpy() for side in states)
    for head in range(call.query.shape[1]):
        W_Q, b_Q, W_K, b_K = layer.of_head(head)
        query, key = (torch.from_numpy(side) for side in (query_input @ W_Q + b_Q, key_input @ W_K + b_K))
        if layer.rotation is not None:
            turn = Rotation(layer.rotation.cos.cpu(), layer.rotation.sin.cpu(), layer.rotation.layout)
            query, key = turn(query), turn(key)
        computed = layer.scale * query @ key.T
        captured = call.scale * call.query[0, head].double().cpu() @ call.key[0, head // call.group].double().cpu().T
        worst = max(worst, float((computed - captured).abs().max()))
        largest = max(largest, float(captured.abs().max()))
    return worst / largest if largest else worst


# Largest difference of two computations of one number, as a share of the largest; in float64, models may still turn
# queries and keys in float32
SAME = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(eq=False)
class LayerRun:
    """One linear layer or norm that ran."""

    name: str
    module: nn.Module
    received: Tensor
    returned: Tensor

    @cached_property
    def affine(self) -> Affine | None:
        """The map of a linear layer, read in the pass; None if it is not linear."""
        return affine_of(self.module, self.received, self.returned)


@dataclass(frozen=True, eq=False)
class Match:
    """The source of a query, key or value."""

    event: LayerRun
    columns: np.ndarray  # (head, r): of the linear layer's output
    factor: float
    rotation: Rotation | None = None
    normalised: str = ""  # the norm in between

    @property
    def weight(self) -> np.ndarray:
        """``(head, width, r)``."""
        return np.ascontiguousarray(np.moveaxis(_numbers(self._affine.matrix)[:, self.columns], 1, 0))

    @property
    def bias(self) -> np.ndarray:
        """``(head, r)``, zero where the layer has none."""
        return _numbers(self._affine.bias)[self.columns]

    @property
    def _affine(self) -> Affine:
        assert self.event.affine is not None  # noqa: S101 checked where the match was found
        return self.event.affine


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


@dataclass(eq=False)
class PathSearch:
    """The linear layers and norms within one attention module, and their possible paths to a query or key."""

    linears: list[LayerRun]
    norms: list[LayerRun]
    rotations: list[Rotation]

    def match(self, target: Tensor, *, groups: int | None, plain: bool = False) -> Match | None:
        """Find the source of `target` ``(batch, head, position, r)``."""
        match = self._linear(target, groups, [None])
        if match is not None or plain:
            return match
        return self._linear(target, groups, self.rotations) or self._norm(target, groups)

    def _linear(self, target: Tensor, groups: int | None, turns: Sequence[Rotation | None]) -> Match | None:
        batch, heads, length, width = target.shape
        for event in self.linears:
            if event.returned.numel() % (batch * length):
                continue
            returned = event.returned.reshape(batch, length, -1)
            for columns in slices_of(returned.shape[2], heads, width, groups):
                candidate = returned[:, :, torch.from_numpy(columns).to(returned.device)].transpose(1, 2)
                for turn in turns:
                    if turn is not None and not _same_norms(candidate, target):
                        continue
                    factor = factor_of(target, candidate if turn is None else turn(candidate))
                    if factor is not None and event.affine is not None:
                        return Match(event, columns, factor, turn)
        return None

    def _norm(self, target: Tensor, groups: int | None) -> Match | None:
        """A norm between the linear layer and the query."""
        for norm in self.norms:
            if norm.returned.numel() != target.numel():
                continue
            after, before = (_by_head(states, target.shape) for states in (norm.returned, norm.received))
            for turn in (None, *self.rotations):
                if factor_of(target, after if turn is None else turn(after)) is None:
                    continue
                match = self._linear(before, groups, [None])
                if match is not None:
                    return Match(match.event, match.columns, match.factor, turn, norm.name)
        return None


def _by_head(tensor: Tensor, shape: torch.Size) -> Tensor:
    """``(batch, head, position, r)``, in any order of the norm's input."""
    batch, heads, length, width = shape
    if tensor.shape == shape:
        return tensor
    return tensor.reshape(batch, length, heads, width).transpose(1, 2)


def _same_norms(candidate: Tensor, target: Tensor) -> bool:
    """Whether norms agree up to one factor, as under a rotation: a cheap check before every angle is tried."""
    limit = max(1e-5, 10 * SAME.get(target.dtype, 2e-5))
    return factor_of(target.double().norm(dim=-1), candidate.double().norm(dim=-1), limit) is not None


def factor_of(target: Tensor, candidate: Tensor, limit: float | None = None) -> float | None:
    """The factor from `candidate` to `target`; None if there is none."""
    limit = SAME.get(target.dtype, 2e-5) if limit is None else limit
    wide_target, wide = target.double(), candidate.double()
    power = float((wide * wide).sum())
    largest = float(wide_target.abs().max())
    if power == 0 or largest == 0:  # a planted layer may be zero: zero is zero
        return 1.0 if power == 0 and largest == 0 else None
    # some models scale queries before the attention call (1 / sqrt(r), muP)
    factor = float((wide_target * wide).sum()) / power  # by least squares, checked at the largest difference
    if factor <= 0 or float((wide_target - factor * wide).abs().max()) > limit * largest:
        return None
    return 1.0 if abs(factor - 1) < limit else factor


def slices_of(out: int, heads: int, width: int, groups: int | None) -> Iterator[np.ndarray]:
    """Columns ``(head, r)`` of a linear layer's output that could be one of query, key and value."""
    whole = np.arange(heads * width).reshape(heads, width)
    for start in range(0, out - heads * width + 1, width):  # side by side: q of all heads, then k, then v
        yield start + whole
    for blocks in {heads, groups or heads}:  # head by head (GPT-NeoX), or with the keys of a group after its queries
        block = out // blocks
        if out % blocks or block == heads // blocks * width or block < heads // blocks * width:
            continue
        inner = np.arange(heads // blocks * width).reshape(heads // blocks, width)
        for start in range(0, block - inner.size + 1, width):
            yield np.concatenate([block * number + start + inner for number in range(blocks)])
