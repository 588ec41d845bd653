"""`edges`: attribution of the edges between heads, MLPs and logits, and circuits of the edges that matter most."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Any, Literal, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.eager import without_cache
from attnscope.capture.families import OWN_STATES, is_norm, main_output, other_name, related
from attnscope.capture.load import Model, load_model, signature_of
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.capture.weights import in_single_precision, linear_layers
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.projections import projections
from attnscope.explanation.stream import SMALL, Fold, fold_of
from attnscope.explanation.sublayers import sublayers
from attnscope.intervention.calls import output_with_gradient
from attnscope.intervention.edit import output_affine
from attnscope.intervention.gradients import check_gradients, embeddings_moved
from attnscope.intervention.pairs import EncodedPairs, Pairs, PairTexts
from attnscope.intervention.patch import PatchJob, check_pairs_differ, given_pairs
from attnscope.intervention.stream_parts import SEVERAL
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.options import ModelReading, loading
from attnscope.statistics.effects import by_document, effect_variables
from attnscope.statistics.units import LEAST, numbered
from attnscope.store.run import Job, Once, run
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import frozen

SIDES = ("query", "key", "value")
ORDERS = ("raising", "changing", "random")
SIZES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of the edges, as in MIB
_NAMES = {"mlp": "m", "mixer": "mixer", "layer embedding": "embedding"}  # of parts without heads, by kind
_ADDS_UP = 1e-3  # rounding of the sum of all parts, as a share of the largest difference


def edges(
    model: Model | None,
    pairs: Pairs | None,
    *,
    answer: str | None,
    wrong: str | None,
    method: Literal["eap", "eap_ig", "exact"],
    steps: int,
    sizes: Sequence[float],
    draws: int,
    batch_size: int | None,
    **reading: Unpack[ModelReading],
) -> xr.Dataset:
    """The work of `attnscope.edges`."""
    check_whole(1, 1000, draws=draws)
    if not sizes or sorted(sizes) != [*sizes] or not 0 <= sizes[0] <= sizes[-1] <= 1:
        raise AttnscopeError(f"found sizes {[*sizes]}; expected shares of the edges from 0 to 1, the smallest first")
    given = given_pairs(pairs, model, answer, wrong)
    loaded = load_model(model, **loading(reading))
    loaded = replace(loaded, model=with_own_layers(loaded.model))
    job = PatchJob(loaded, given, "heads", False, "noising", None, 0, None, no_progress)
    job.read(batch_size)
    settings = {"method": method, "steps": steps, "sizes": [*sizes], "draws": draws, "batch_size": batch_size}
    settings |= {"seed": reading["seed"]}
    signature = signature_of("edges", loaded, PairTexts(tuple(given)), None, settings)
    how = method, steps, sizes, draws, reading["seed"], reading["progress"] or no_progress

    def measured(_: Job) -> xr.Dataset:
        with borrowed(loaded.model):
            return _measured(job, *how).assign_attrs(signature=signature.to_json(), unit=job.scale)

    return run(Once(signature, measured), reading["out"], repair=reading["repair"])


def _measured(
    job: PatchJob, method: str, steps: int, sizes: Sequence[float], draws: int, seed: int, tell: Tell
) -> xr.Dataset:
    """Scores of all edges, and circuits of the best and of random ones."""
    if method != "exact":
        check_gradients(job.loaded.model, 'method="exact" (--method exact), which patches every edge')
    graph, circuits = Graph(job.loaded.model, job.encoded[0][1]), list[Any]()
    rng = np.random.default_rng(seed)
    pair_texts = [(pair.clean, pair.corrupted) for pair in job.pairs]
    unit, count = numbered(pair_texts)  # equal pairs are in one half
    half_of = (rng.permutation(count) % 2 if count >= LEAST else np.zeros(count, dtype=int))[unit]
    parts = product(job.encoded, (0, 1))
    halves = [(half, own) for (at, _), half in parts if (own := [one for one in at if half_of[one - 1] == half])]
    of_scores = {"exact": int(graph.exist.sum()), "eap_ig": steps}.get(method, 1)
    whole = len(halves) * (of_scores + (2 + draws) * len(sizes))  # passes
    done = iter(range(1, whole + 1))

    def passed() -> None:
        tell(Progress("edges", (at := next(done)) / whole, {"passes": f"{at:,} of {whole:,}"}))

    runs = [
        EdgeRuns(graph, EncodedPairs.of([job.pairs[at - 1] for at in own], job.loaded, own), passed)
        for _, own in halves
    ]
    each = [one.exact() if method == "exact" else one.attributed(steps * (method == "eap_ig")) for one in runs]
    scores, edges = np.where(graph.exist, np.concatenate(each), np.nan), np.flatnonzero(graph.exist)
    numbers = np.concatenate([own for _, own in halves])
    units = [pair_texts[at - 1] for at in numbers]
    half, at_random = half_of[numbers - 1], [rng.permutation(edges) for _ in range(draws)]
    counts = [round(size * edges.size) for size in sizes]
    for passes, (own, _) in zip(runs, halves, strict=True):
        score = scores[(half != own) | (count < LEAST)].mean(0).flat[edges]  # of the other half
        orders = [edges[np.argsort(score)], edges[np.argsort(-abs(score))], *at_random]
        circuits.append([[passes.circuit(order[:size]) for size in counts] for order in orders])
    values = np.moveaxis(np.concatenate([np.array(one) for one in circuits], -1), -1, 0)  # (pair, order, size)
    values = np.concatenate([values[:, :2], values[:, 2:].mean(1, keepdims=True)], 1)
    sides = zip(("clean", "corrupted"), zip(*units, strict=True), strict=True)
    labels = {f"{side}_text": ("pair", np.array(own, dtype=object)) for side, own in sides}
    ends = {"clean": [one.clean[1] for one in runs], "corrupted": [one.corrupted[1] for one in runs]}
    found = xr.Dataset(
        {
            "difference": (("pair", "order", "size"), values),
            **{name: ("pair", np.concatenate(end)) for name, end in ends.items()},
            **effect_variables(
                scores, units, ("sender", "receiver"), "Change of answer minus wrong answer", name="score",
                unit=job.scale, corrected="all edges", seed=seed,
            ),
        },
        {
            "sender": graph.senders, "receiver": graph.receivers, "size": [*sizes], "order": [*ORDERS],
            "pair": numbers, "half": ("pair", half), **labels, **graph.stacks,
        },
        {"model": job.loaded.name, "method": method, "direction": "noising", "pairs": len(job.pairs)},
    )  # fmt: skip
    check_pairs_differ(found)
    gaps, rest = (found.clean - found.corrupted).values, (found.difference - found.corrupted).transpose("pair", ...)
    curve = by_document(rest.values, units, over=gaps, seed=seed)
    area = by_document(np.trapezoid(rest, sizes), units, over=gaps, seed=seed)
    for end, of_curve, of_area in zip(("", "_low", "_high"), curve[:3], area[:3], strict=True):
        found[f"faithfulness{end}"] = ("order", "size"), of_curve
        found[f"cpr{end}"] = "order", of_area
    return found.assign(cmd=("order", np.trapezoid(abs(1 - curve.mean), sizes)))


@dataclass(eq=False)
class Part:
    """A sublayer, or the logits: it reads the residual stream and adds to it."""

    norm: nn.Module | None = None  # of its own, through which it reads
    name: str = ""  # of the module that attends
    kind: str = ""  # of its modules: ``mlp``, ``mixer`` or ``layer embedding``; empty for attention and the logits
    modules: list[nn.Module] = field(default_factory=list[nn.Module])  # whose outputs it adds
    output: nn.Module | None = None  # linear layer that reads the heads; None without heads
    heads: Sequence[int] = ()  # numbers of heads that make queries, keys and values
    ends: bool = False  # whether it is the end of an encoder, which cross-attention reads through `norm`
    cross: bool = False  # whether its keys and values read the end of the encoder
    branch: nn.Module | None = None  # norm of what it adds (Gemma 2)
    readers: Sequence[nn.Module] = ()  # without a norm: the linear layers of an MLP or the logits that read
    after: nn.Module | None = None  # norm of the sum of stream and what it adds (BERT)
    fold: Fold | None = None  # of `branch` or `after`
    read: slice = field(init=False)  # senders that it reads
    receivers: slice = field(init=False)

    @property
    def columns(self) -> list[tuple[str, int]]:
        """Side and head of each receiver."""
        if self.ends:
            return []
        sides = zip(SIDES, self.heads, strict=True) if self.heads else ()
        return [(side, head) for side, count in sides for head in range(count)] or [("", 0)]


@dataclass(eq=False)
class Trace:
    """The streams as one pass read and wrote them, by part."""

    end: int  # number of the end of the encoder; -1 without one
    reads: dict[int, Tensor] = field(default_factory=dict)  # ``(pair, position, width)``, before the norm
    leaves: dict[int, Tensor] = field(default_factory=dict)  # zeros that were added to it
    calls: dict[int, AttentionCall] = field(default_factory=dict)
    written: dict[int, Tensor] = field(default_factory=dict)  # ``(sender, pair, position, width)``
    norms: dict[int, tuple[Fold, Tensor, Tensor]] = field(default_factory=dict)  # of the sum: factor and bias
    latest: dict[int, tuple[int, Tensor]] = field(default_factory=dict)  # messages to a part, by first part of a stream

    def messages(self, at: int) -> Float[Tensor, "sender pair position width"]:
        """Output of each sender of its stream so far, as part `at` reads it; biases of norms belong to the input."""
        start = self.end + 1 if at > self.end else 0
        first, found = self.latest.get(start, (at + 1, self.reads[start]))
        first, found = (first, found) if first <= at else (start, self.reads[start][None])
        for part in range(first, at):
            found = torch.cat([found, self.written[part]]) if part in self.written else found
            if part in self.norms:
                fold, size, bias = self.norms[part]
                found = fold.of(found) * size
                found[0] += bias
        if all(part in self.written for part in range(start, at)):  # a parallel layer reads before the other writes
            self.latest[start] = at, found
        return found

    def changes(self, other: Trace, at: int, read: slice) -> Float[Tensor, "sender pair position width"]:
        """Changes of these outputs to another run, for some senders: the first ones of the stream."""
        count = read.stop - read.start
        return other.messages(at)[:count] - self.messages(at)[:count]


class Graph:
    """Senders and receivers of a model whose residual stream is the sum of its parts, normed or not."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, encoded: EncodedPairs) -> None:
        """Find the parts of a model in a pass, and check on these pairs that they add up, in float32."""
        with in_single_precision(model):
            self._find(model, encoded)

    def _find(self, model: PreTrainedModel, encoded: EncodedPairs) -> None:
        self.model, inputs = model, {name: ids[:1] for name, ids in encoded.inputs[0].items()}
        made = projections(
            model, {name: ids.repeat(1, 2) if ids.shape[1] == 1 else ids for name, ids in inputs.items()}
        )
        outputs = {site.name: one.names.get("output", "") for site, one in made.items()}
        if any(one.gated is not None for one in made.values()):
            raise AttnscopeError(f"{type(model).__name__} has no edges: a gate, which reads too, multiplies its heads")
        rounding = max(SEVERAL * one.rounding for one in made.values())
        parts = _parts(model, inputs, outputs)
        self.parts, self.senders = parts, ["input"]
        self.receivers, self.points = list[str](), list[int]()  # a point: the part whose input a receiver reads
        self.end = next((at for at, part in enumerate(parts) if part.ends), -1)
        stops, stacks = [1], {"input": "encoder"}  # number of senders before each part
        counts = defaultdict[str, int](int)
        for at, part in enumerate(self.parts):
            kind = "a" if part.output else _NAMES.get(part.kind, "")
            name = f"{kind}{counts[kind]}" if kind else "logits"
            counts[kind] += 1
            first = len(self.receivers)
            self.receivers += [f"{name}.h{head}<{side[0]}>" if side else name for side, head in part.columns]
            self.points += [self.end if part.cross and side != "query" else at for side, _ in part.columns]
            part.receivers = slice(first, len(self.receivers))
            own = [f"{name}.h{head}" for head in range(part.heads[0])] if part.heads else [name]
            self.senders += own if part.output or part.kind else ["target"] if part.ends else []
            stack = "encoder" if at < self.end else "cross" if part.cross else "decoder"
            stacks |= dict.fromkeys([*self.senders[stops[-1] :], *self.receivers[first:]], stack)
            stops.append(len(self.senders))
        named = {"sender": self.senders, "receiver": self.receivers} if self.end >= 0 else {}
        self.stacks = {f"{side}_stack": (side, [stacks[one] for one in own]) for side, own in named.items()}
        self.exist = np.zeros((len(self.senders), len(self.receivers)), dtype=bool)
        (_, clean), (_, other) = map(self.run, encoded.inputs)
        for at, part in enumerate(self.parts):
            start, first = (self.end + 1, stops[self.end + 1] - 1) if at > self.end else (0, 0)
            change, changes = other.reads[at] - clean.reads[at], clean.changes(other, at, slice(0, len(self.senders)))
            whole = float(change.abs().max())
            rests = {
                stop: float((change - changes[: stop - first].sum(0)).abs().max()) for stop in stops[start : at + 1]
            }
            least = min(rests.values())
            fits = [stop for stop, rest in rests.items() if rest <= max(_ADDS_UP * whole, 2 * least)]
            if least > max(_ADDS_UP, rounding) * whole:
                name = "cross-attention" if part.ends else self.receivers[part.receivers.start]
                raise AttnscopeError(_unlike(self.model, f"{name} reads another sum"))
            part.read = slice(first, fits[-1])
        for receiver, point in enumerate(self.points):
            self.exist[parts[point].read, receiver] = True

    def run(
        self,
        inputs: dict[str, Tensor],
        circuit: tuple[Bool[np.ndarray, "sender receiver"], Trace] | None = None,
        *,
        leaves: bool = False,
    ) -> tuple[Tensor, Trace]:
        """Logits of a pass, and what its parts read and wrote; edges beyond a circuit carry those of another run.

        With `leaves`, zeros are added to what each part reads, as leaves of the graph.
        """
        made = Trace(self.end)
        first, last = inputs["input_ids"], [*inputs.values()][-1]
        kept, other = circuit or (self.exist, made)
        seen: list[AttentionCall] = []
        sides: dict[str, list[Tensor]] | None = {}  # queries, keys and values of a circuit; None while they are made
        numbers = {part.name: at for at, part in enumerate(self.parts)}

        def altered(receiver: int) -> Tensor:
            at = self.points[receiver]
            read = self.parts[at].read
            missing = torch.from_numpy(~kept[read, receiver]).to(made.reads[at])
            return made.reads[at] + torch.einsum("s,sptw->ptw", missing, made.changes(other, at, read))

        def read(at: int, _: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor] | None:
            part, ids = self.parts[at], last if at > self.end else first
            states = given[0].reshape(*ids.shape, -1)  # OPT flattens texts and positions
            made.reads[at] = states.detach()
            if leaves:
                made.leaves.setdefault(at, torch.zeros_like(states, requires_grad=True))
                return ((states + made.leaves[at]).reshape(given[0].shape),)
            if circuit is None or part.output or part.ends:
                return None
            return (altered(part.receivers.start).reshape(given[0].shape),)

        def enter(at: int, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            states = read(at, module, given[:1] or (named[OWN_STATES],))
            name = other_name(named) if self.parts[at].cross else ""
            others = read(self.end, module, (named[name],)) if name else None
            given, named = (given, named) if states is None else with_states(*states, given, named)
            return given, named if others is None else named | {name: others[0]}

        def keep(at: int, _: nn.Module, __: Any, returned: Any) -> None:
            output = (returned[0] if isinstance(returned, tuple) else returned).detach().clone()  # Falcon adds to it
            made.written[at] = made.written.get(at, 0) + output.reshape(1, *made.reads[at].shape)

        def attend(at: int, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            nonlocal sides
            part, sides = self.parts[at], None
            known: dict[tuple[int, bytes], AttentionCall] = {}
            every: dict[str, list[Tensor]] = {}
            for receiver, (side, head) in enumerate(part.columns, part.receivers.start):
                point = self.parts[self.points[receiver]]
                form = self.points[receiver], kept[point.read, receiver].tobytes()
                if form not in known:
                    norm: Any = point.norm
                    states = altered(receiver) if norm is None else norm.forward(altered(receiver))
                    own = with_states(states, given, named)
                    own = own if point is part else (given, named | {other_name(named): states})
                    module.forward(*own[0], **own[1])
                    known[form] = seen[-1]
                every.setdefault(side, []).append(getattr(known[form], side)[:, head])
            sides = every

        def observe(site: Site, call: AttentionCall) -> Tensor:
            at = numbers[site.name]
            part = self.parts[at]
            seen[:] = [call]
            if sides is None:  # only queries, keys and values are wanted
                return call.query.new_zeros(*call.query.shape[:3], call.value.shape[3])
            call = replace(call, **{side: torch.stack(heads, 1) for side, heads in sides.items()})
            made.calls[at], output = call, output_with_gradient(call)
            assert part.output is not None  # noqa: S101
            states = output.detach()
            matrix, bias = output_affine(part.output, states.transpose(1, 2).flatten(2), part.heads[0])
            # the bias is a constant, but not behind a norm
            made.written[at] = (states @ matrix + bias / part.heads[0]).detach().transpose(0, 1)
            return output

        def through(at: int, norm: nn.Module, given: tuple[Any, ...], returned: Tensor) -> None:
            fold: Any = self.parts[at].fold
            both = fold.frozen(norm, given[0].detach().double(), returned.detach().double())
            size, bias = (one.to(returned) for one in both)
            if self.parts[at].after:
                made.norms[at] = fold, size, bias
            else:
                made.written[at] = fold.of(made.written[at]) * size

        with ExitStack() as hooks:
            hooks.enter_context(watching(self.model, observe))  # first: `attend` calls the module within its own hook
            for at, part in enumerate(self.parts):
                for module in part.readers if part.norm is None else [part.norm]:
                    hooks.enter_context(module.register_forward_pre_hook(partial(read, at)))
                for module in part.modules if part.branch is None or not part.kind else [part.branch]:
                    hooks.enter_context(module.register_forward_hook(partial(keep, at)))
                if norm := part.after or (None if part.kind else part.branch):
                    hooks.enter_context(norm.register_forward_hook(partial(through, at)))
                module = self.model.get_submodule(part.name) if part.output else None
                for hook in (enter if part.norm is None else None, attend if circuit else None):
                    if module and hook:
                        hooks.enter_context(module.register_forward_pre_hook(partial(hook, at), with_kwargs=True))
            return main_output(self.model(**without_cache(self.model), **inputs)), made


def with_states(
    states: Tensor, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an attention module with other states."""
    return ((states, *given[1:]), named) if given else (given, named | {OWN_STATES: states})


def with_own_layers(model: PreTrainedModel) -> PreTrainedModel:
    """The same function without modules that several layers share (ALBERT): a copy with modules of its own for each."""
    if not hasattr(getattr(model.base_model, "encoder", None), "albert_layer_groups"):
        return model
    copied, count = copy.deepcopy(model), model.config.num_hidden_layers
    stack: Any = copied.base_model.encoder
    groups = [*stack.albert_layer_groups]
    same = {id(stack.config): stack.config}
    own = (copy.deepcopy(groups[at * len(groups) // count], dict(same)) for at in range(count))
    stack.albert_layer_groups = nn.ModuleList(own)
    stack.config.num_hidden_groups = count
    return copied


def _unlike(model: PreTrainedModel, why: str) -> str:
    return f"{type(model).__name__} has no edges: its residual stream is not the sum of what its parts add ({why})"


def _adds_up(whole: Tensor, one: Tensor, other: Tensor) -> bool:
    if not whole.shape == one.shape == other.shape:
        return False
    return float((whole - one - other).abs().max()) <= SMALL * float(whole.abs().max())


def _parts(model: PreTrainedModel, inputs: dict[str, Tensor], outputs: dict[str, str]) -> list[Part]:
    """Attention layers, MLPs and logits in the order in which they run, each with its norms."""
    blocks, group_of = sublayers(model, inputs, outputs), dict[nn.Module, tuple[Any, ...]]()
    if unknown := next((f"{block.name}: {block.unknown}" for block in blocks if block.unknown), ""):
        raise AttnscopeError(_unlike(model, unknown))
    attention = [one.name for block in blocks for one in block.of("attention")]
    for name, output in outputs.items():
        if not any(related(name, one) or one == output for one in attention):
            raise AttnscopeError(_unlike(model, f"no block adds the output of {name}"))
    for number, one in ((number, one) for number, block in enumerate(blocks) for one in block.sublayers):
        if one.kind != "attention":  # modules of one MLP are one part
            group_of[one.module] = one.kind, number if one.kind == "mlp" else one.name
    inside = tuple(f"{name}." for name, module in model.named_modules() if module in group_of or name in outputs)
    linears = {module for _, module in linear_layers(model)}
    parts, readers, body = list[Part](), list[nn.Module](), {*model.base_model.modules()}
    stream, added = list[Tensor](), list[Tensor]()  # the latest: input of attention, and what a part adds
    normed = list[tuple[nn.Module, Tensor]]()

    def norm_of(states: Tensor) -> nn.Module | None:
        return next((norm for norm, made in normed if made is states), None)

    def attends(site: Site, call: AttentionCall, states: Tensor, others: Tensor) -> Tensor:
        cross = site.kind == "cross"
        if model.config.is_encoder_decoder and site.kind != "self" and not any(part.ends for part in parts):
            parts.append(Part(ends=True))
        for end in (part for part in parts if part.ends and cross):
            end.norm = norm_of(others)
        counts = [side.shape[1] for side in (call.query, call.key, call.value)]
        output = model.get_submodule(outputs[site.name]) if outputs[site.name] else None
        parts.append(Part(norm_of(states), site.name, output=output, heads=counts, cross=cross))
        stream[:] = [states]
        readers.clear()  # queries, keys and values
        return output_of(call)

    def ran(name: str, module: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        made = returned[0] if isinstance(returned, tuple) else returned
        if module in linears and stream and given[0] is stream[0]:
            readers.append(module)
        if module in group_of:
            if not parts or not parts[-1].modules or group_of[parts[-1].modules[0]] != group_of[module]:
                norm = normed[-1][0] if normed else None
                parts.append(Part(norm, kind=group_of[module][0], readers=[*readers]))
            parts[-1].modules.append(module)
            readers.clear()
        if module in group_of or name in outputs.values():
            added[:] = [made]
        elif is_norm(module) and module in body:
            if added and given[0] is added[0]:
                parts[-1].branch = module
            elif stream and added and _adds_up(given[0], stream[0], added[0]):
                parts[-1].after = module
                stream[:], added[:] = [made], []
            elif not name.startswith(inside):
                normed.append((module, made))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if module in linears or is_norm(module) or module in group_of:
                hooks.enter_context(module.register_forward_hook(partial(ran, name)))
        hooks.enter_context(watching_inputs(model, attends))
        model(**without_cache(model), **inputs)
    parts.append(Part(normed[-1][0] if normed else None, readers=[*readers]))
    summed = any(part.after for part in parts)  # each norm takes the sum of the stream and what a part adds (BERT)
    for part in parts:
        part.norm = None if summed else part.norm
        norm: Any = part.branch or part.after
        part.fold = fold_of(norm, stream[0].shape[-1]) if norm and stream else None
    used: list[Any] = [part.norm for part in parts]
    known = all(part.norm and (part.output or not part.heads) and (part.fold or not part.branch) for part in parts)
    if summed:
        used = [one for part in parts for one in (part.output, part.after, *part.modules, *part.readers) if one]
        known = (
            all(part.ends or (part.fold and (part.output or part.readers)) for part in parts[:-1]) and parts[-1].readers
        )
    if not known or len({*map(id, used)}) < len(used):
        raise AttnscopeError(_unlike(model, "two parts read it through one norm, or one has none"))
    return parts


class EdgeRuns:
    """The runs of some pairs of one length, each with its answer minus wrong answer."""

    def __init__(self, graph: Graph, encoded: EncodedPairs, passed: Callable[[], None] = lambda: None) -> None:
        self.graph, self.encoded, self.passed = graph, encoded, passed
        self.corrupted = self.run(encoded.inputs[1])

    @torch.no_grad()
    def run(self, inputs: dict[str, Tensor], *circuit: Any) -> tuple[Trace, Float[np.ndarray, " pair"]]:
        """A pass, of a circuit with corrupted activations on all edges that it lacks."""
        logits, made = self.graph.run(inputs, *circuit)
        return made, self.difference(logits).double().cpu().numpy()

    @cached_property
    def clean(self) -> tuple[Trace, Float[np.ndarray, " pair"]]:
        """The clean run."""
        return self.run(self.encoded.inputs[0])

    def difference(self, logits: Tensor) -> Float[Tensor, " pair"]:
        """Answer minus wrong answer."""
        index = self.encoded.positions[..., None].expand(-1, -1, logits.shape[-1])
        return self.encoded.difference(logits.gather(1, index))

    def attributed(self, steps: int) -> Float[np.ndarray, "pair sender receiver"]:
        """EAP, or with steps EAP-IG."""
        graph, known, (clean, corrupted) = self.graph, self.clean if steps else None, self.encoded.inputs
        scores = torch.zeros(len(self.encoded), *graph.exist.shape, device=device_of(graph.model))
        for share in [(step + 0.5) / steps for step in range(steps)] or [None]:
            moved = embeddings_moved(graph.model, clean, {} if share is None else corrupted, share or 0.0)
            with frozen(graph.model), torch.enable_grad(), moved:
                logits, made = graph.run(clean, leaves=True)
                end = self.difference(logits)
                if known is None:  # this is the clean run
                    self.clean = known = (
                        Trace(graph.end, made.reads, written=made.written, norms=made.norms),
                        end.detach().double().cpu().numpy(),
                    )
                reads = [
                    [getattr(made.calls[at], side) for side in SIDES] if part.output else [made.leaves[at]]
                    for at, part in enumerate(graph.parts)
                ]
                slopes = iter(torch.autograd.grad(end.sum(), list(chain(*reads)), retain_graph=True))
                for at, part in enumerate(graph.parts):
                    found, points = list(islice(slopes, len(reads[at]))), graph.points[part.receivers]
                    if part.output:  # from queries, keys and values of each head back to the stream
                        each = [
                            (tensor, alone)
                            for tensor, slope in zip(reads[at], found, strict=True)
                            for alone in torch.diag_embed(slope.movedim(1, -1)).movedim((-2, -1), (0, 2))
                        ]
                        found = [
                            torch.autograd.grad(tensor, made.leaves[point], alone, retain_graph=True)[0]
                            for (tensor, alone), point in zip(each, points, strict=True)
                        ]
                    for point in dict.fromkeys(points):
                        read = graph.parts[point].read
                        own = [number for number, one in enumerate(points) if one == point]
                        changes = known[0].changes(self.corrupted[0], point, read)
                        sums = torch.einsum("sptw,rptw->psr", changes, torch.stack([found[number] for number in own]))
                        first = part.receivers.start + own[0]
                        scores[:, read, first : first + len(own)] += self.encoded.by_pair(sums) / max(steps, 1)
            self.passed()
        return scores.double().cpu().numpy()

    def exact(self) -> Float[np.ndarray, "pair sender receiver"]:
        """The change of the answer when each edge alone carries the corrupted activation."""
        scores, edges = np.zeros((len(self.encoded), self.graph.exist.size)), np.flatnonzero(self.graph.exist)
        for edge in edges:
            scores[:, edge] = self.circuit(edges[edges != edge]) - self.clean[1]
        return scores.reshape(-1, *self.graph.exist.shape)

    def circuit(self, edges: np.ndarray) -> Float[np.ndarray, " pair"]:
        """Answer minus wrong answer of a circuit of some edges, by their numbers."""
        kept = np.zeros_like(self.graph.exist)
        kept.flat[edges] = True
        self.passed()
        return self.run(self.encoded.inputs[0], (kept, self.corrupted[0]))[1]
