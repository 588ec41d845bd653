"""`edges`: attribution of the edges between heads, MLPs and logits, and circuits of the edges that matter most."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import OWN_STATES, is_norm, other_name, related, result_of, without_cache
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import blocks_of, in_single_precision, linear_layers, logits_at
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.projections import projections
from attnscope.explanation.stream import SMALL, Fold, fold_of
from attnscope.explanation.sublayers import sublayers
from attnscope.intervention.calls import output_with_gradient
from attnscope.intervention.edit import output_affine
from attnscope.intervention.gradients import check_gradients, embeddings_moved, inputs_moved
from attnscope.intervention.metrics import subject_of
from attnscope.intervention.pairs import EncodedPairs
from attnscope.intervention.patch import PatchJob, check_pairs_differ
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.statistics.effects import by_document, effect_variables
from attnscope.statistics.units import LEAST, numbered
from attnscope.store.run import Work
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell
from attnscope.support.state import frozen
from attnscope_circuits.stream_parts import SEVERAL

SIDES = ("query", "key", "value")
WITHOUT_GRADIENTS = 'use method="exact" (--method exact), which patches every edge'
ORDERS = ("raising", "changing", "random")
_NAMES = {"mlp": "m", "mixer": "mixer", "layer embedding": "embedding"}  # of parts without heads, by kind
_ADDS_UP = 1e-3  # rounding of the sum of all parts, as a share of the largest difference


def measured_edges(
    job: PatchJob, method: str, steps: int, sizes: Sequence[float], draws: int, seed: int, tell: Tell
) -> xr.Dataset:
    """Scores of all edges, and circuits of the best and of random ones."""
    if method != "exact":
        check_gradients(job.loaded.model, WITHOUT_GRADIENTS)
    graph, circuits = Graph(job.loaded.model, job.encoded[0][1]), list[Any]()
    if job.heads is not None:
        graph.choose(job.heads)
    rng = np.random.default_rng(seed)
    pair_texts = [(pair.clean, pair.corrupted) for pair in job.pairs]
    unit, count = numbered(pair_texts)  # equal pairs are in one half
    half_of = (rng.permutation(count) % 2 if count >= LEAST else np.zeros(count, dtype=int))[unit]
    parts = product(job.encoded, (0, 1))
    halves = [(half, [number for number in numbers if half_of[number - 1] == half]) for (numbers, _), half in parts]
    halves = [(half, numbers) for half, numbers in halves if numbers]
    of_scores = {"exact": int(graph.exist.sum()), "eap_ig": steps}.get(method, 1)
    is_part = job.heads is not None or bool(job.positions)  # all else keeps the clean activations
    whole = len(halves) * (of_scores + (2 + draws) * len(sizes) + is_part)  # passes
    done = iter(range(1, whole + 1))

    def passed() -> None:
        at = next(done)
        tell(Progress("edges", at / whole, {"passes": f"{at:,} of {whole:,}"}))

    runs: list[EdgeRuns] = []
    for _, numbers in halves:
        some = [job.pairs[number - 1] for number in numbers]
        encoded = EncodedPairs.of(some, job.loaded, numbers, job.metric, job.media, job.positions)
        runs.append(EdgeRuns(graph, encoded, passed))
    each = [one.exact() if method == "exact" else one.attributed(steps * (method == "eap_ig")) for one in runs]
    scores, edges = np.where(graph.exist, np.concatenate(each), np.nan), np.flatnonzero(graph.exist)
    numbers = np.concatenate([numbers for _, numbers in halves])
    units = [pair_texts[number - 1] for number in numbers]
    half, at_random = half_of[numbers - 1], [rng.permutation(edges) for _ in range(draws)]
    counts = [round(size * edges.size) for size in sizes]
    for passes, (tested, _) in zip(runs, halves, strict=True):
        score = scores[(half != tested) | (count < LEAST)].mean(0).flat[edges]  # of the other half
        orders = [edges[np.argsort(score)], edges[np.argsort(-abs(score))], *at_random]
        circuits.append([[passes.circuit(order[:size]) for size in counts] for order in orders])
    values = np.moveaxis(np.concatenate([np.array(one) for one in circuits], -1), -1, 0)  # (pair, order, size)
    values = np.concatenate([values[:, :2], values[:, 2:].mean(1, keepdims=True)], 1)
    sides = zip(("clean", "corrupted"), zip(*units, strict=True), strict=True)
    labels = {f"{side}_text": ("pair", np.array(texts, dtype=object)) for side, texts in sides}
    for name in ("answer", "wrong"):
        answers = [job.pairs[number - 1].text(name) for number in numbers]
        labels[f"{name}_text"] = ("pair", np.array(answers, dtype=object))
    subject = subject_of(job.attributes_of_answers)
    ends = {"clean": [one.clean[1] for one in runs], "corrupted": [one.corrupted[1] for one in runs]}
    results = xr.Dataset(
        {
            "difference": (("pair", "order", "size"), values),
            **{name: ("pair", np.concatenate(end)) for name, end in ends.items()},
            **effect_variables(
                scores, units, ("sender", "receiver"), f"Change of {subject}", name="score",
                unit=job.scale, corrected="all edges", seed=seed,
            ),
        },
        {
            "sender": graph.senders, "receiver": graph.receivers, "size": [*sizes], "order": [*ORDERS],
            "pair": numbers, "half": ("pair", half), **labels, **graph.stacks,
        },
        {"model": job.loaded.name, "method": method, "direction": "noising", "pairs": len(job.pairs)},
    )  # fmt: skip
    check_pairs_differ(results)
    if is_part:
        results["without"] = "pair", np.concatenate([one.circuit(np.array([], dtype=int)) for one in runs])
    gaps = (results.clean - base_of(results)).values
    rest = (results.difference - base_of(results)).transpose("pair", ...)
    curve = by_document(rest.values, units, over=gaps, seed=seed)
    area = by_document(np.trapezoid(rest, sizes), units, over=gaps, seed=seed)
    for end, of_curve, of_area in zip(("", "_low", "_high"), curve[:3], area[:3], strict=True):
        results[f"faithfulness{end}"] = ("order", "size"), of_curve
        results[f"cpr{end}"] = "order", of_area
    return results.assign(cmd=("order", np.trapezoid(abs(1 - curve.mean), sizes)))


def work_of(job: PatchJob, method: str, steps: int, sizes: int, draws: int) -> Work:
    """Passes over each pair: both runs, the scores of edges, and circuits. Whatever reads a head reads a head alone."""
    senders, edges = 1, 0  # of blocks with attention before an MLP
    for site in job.sites:
        edges += senders * (site.heads + 2 * site.heads // site.group) + senders + site.heads
        senders += site.heads + 1
    scores = {"exact": edges + senders, "eap_ig": 3 * steps}.get(method, 3)
    passes = 2 + scores + (2 + draws) * sizes
    # states of each block: both runs of all batches hold what senders wrote, their messages, what two parts read, and
    # queries, keys and values; a pass holds what it wrote, and the difference of two runs takes four times that
    written = 1 + max(site.heads for site in job.sites)
    states = 2 * len(job.shapes) * (2 * written + 5) + 5 * written
    has_head, gradients = job.metric is not None, method != "exact"
    return Work(job.shapes, passes, has_head=has_head, holds=True, states=states, gradients=gradients)


def base_of(results: xr.Dataset) -> xr.DataArray:
    """The metric of each pair with none of the edges: of chosen heads or positions, else that of the corrupted run."""
    return results.without if "without" in results else results.corrupted


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
    end: nn.Module | None = None  # without either, the module whose output a head reads, maybe at one position
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
        # resume at the part that was asked for last, or at the input of the stream
        first, messages = self.latest.get(start, (at + 1, self.reads[start]))
        if first > at:
            first, messages = start, self.reads[start][None]
        messages = messages.to(self.reads[at].device)  # layers may be on several
        for part in range(first, at):
            if part in self.written:
                messages = torch.cat([messages, self.written[part].to(messages.device)])
            if part in self.norms:
                fold, size, bias = self.norms[part]
                messages = fold.of(messages) * size.to(messages.device)
                messages[0] += bias.to(messages.device)
        if all(part in self.written for part in range(start, at)):  # a parallel layer reads before the other writes
            self.latest[start] = at, messages
        return messages

    def changes(self, other: Trace, at: int, read: slice) -> Float[Tensor, "sender pair position width"]:
        """Changes of these outputs to another run, for some senders: the first ones of the stream."""
        count = read.stop - read.start
        return other.messages(at)[:count] - self.messages(at)[:count]


class Graph:
    """Senders and receivers of a model whose residual stream is the sum of its parts, normed or not."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, encoded: EncodedPairs) -> None:
        """Find the parts of a model in a pass, and check on these pairs that they add up, in float32."""
        self.model = model
        inputs = {name: ids[:1] for name, ids in encoded.inputs[0].items()}
        with in_single_precision(model):
            # one token alone shows no form of the scores, so it is repeated
            several = {name: ids.repeat(1, 2) if ids.shape[1:] == (1,) else ids for name, ids in inputs.items()}
            layers = projections(model, several)
            if any(layer.gated is not None for layer in layers.values()):
                raise AttnscopeError(
                    f"{type(model).__name__} has no edges: a gate, which reads too, multiplies its heads"
                )
            outputs = {site.name: layer.names.get("output", "") for site, layer in layers.items()}
            self.parts = _parts(model, inputs, outputs)
            self.end = next((at for at, part in enumerate(self.parts) if part.ends), -1)
            senders_before = self._name_parts()
            rounding = max(SEVERAL * layer.rounding for layer in layers.values())
            self._find_what_parts_read(encoded, senders_before, rounding)
        self.exist = np.zeros((len(self.senders), len(self.receivers)), dtype=bool)
        for receiver, point in enumerate(self.points):
            self.exist[self.parts[point].read, receiver] = True
        self.always = np.zeros_like(self.exist)  # edges of every circuit

    def choose(self, heads: Sequence[tuple[int, int]]) -> None:
        """Score edges from these heads alone; all others are in every circuit."""
        attention = [name for name in dict.fromkeys(self.senders) if ".h" in name]
        layers = [*dict.fromkeys(name.partition(".")[0] for name in attention)]
        named = {f"{layers[layer]}.h{head}" for layer, head in heads if layer < len(layers)}
        chosen = np.array([name in named for name in self.senders])
        self.exist, self.always = self.exist & chosen[:, None], self.exist & ~chosen[:, None]

    def _name_parts(self) -> list[int]:
        """Name senders, receivers and their stacks; returns the number of senders before each part."""
        self.senders = ["input"]
        self.receivers, self.points = list[str](), list[int]()  # a point: the part whose input a receiver reads
        senders_before, stack_of = [1], {"input": "encoder"}
        counts = defaultdict[str, int](int)
        for at, part in enumerate(self.parts):
            kind = "a" if part.output else _NAMES.get(part.kind, "")
            name = f"{kind}{counts[kind]}" if kind else "logits"
            counts[kind] += 1
            first = len(self.receivers)
            self.receivers += [f"{name}.h{head}<{side[0]}>" if side else name for side, head in part.columns]
            self.points += [self.end if part.cross and side != "query" else at for side, _ in part.columns]
            part.receivers = slice(first, len(self.receivers))
            if part.output:
                self.senders += [f"{name}.h{head}" for head in range(part.heads[0])]
            elif part.kind:
                self.senders.append(name)
            elif part.ends:
                self.senders.append("target")
            stack = "encoder" if at < self.end else "cross" if part.cross else "decoder"
            stack_of |= dict.fromkeys([*self.senders[senders_before[-1] :], *self.receivers[first:]], stack)
            senders_before.append(len(self.senders))
        named = {"sender": self.senders, "receiver": self.receivers} if self.end >= 0 else {}
        self.stacks = {f"{side}_stack": (side, [stack_of[name] for name in names]) for side, names in named.items()}
        return senders_before

    def _find_what_parts_read(self, encoded: EncodedPairs, senders_before: list[int], rounding: float) -> None:
        """Find the last sender that each part reads: the one up to which changes of senders add up to its change."""
        (_, clean), (_, other) = (self.run(inputs, encoded.predicting) for inputs in encoded.inputs)
        for at, part in enumerate(self.parts):
            start = self.end + 1 if at > self.end else 0
            first = senders_before[start] - 1
            change = other.reads[at] - clean.reads[at]
            changes = clean.changes(other, at, slice(0, len(self.senders)))
            whole, size = float(change.abs().max()), float(other.reads[at].abs().max())
            rests = {
                stop: float((change - changes[: stop - first].sum(0)).abs().max())
                for stop in senders_before[start : at + 1]
            }
            least = min(rests.values())
            fits = [stop for stop, rest in rests.items() if rest <= max(_ADDS_UP * whole, 2 * least)]
            # of texts that hardly differ, the change is little more than rounding of what is read
            if least > max(_ADDS_UP, rounding) * whole + min(rounding * size, whole / 10):
                name = "cross-attention" if part.ends else self.receivers[part.receivers.start]
                raise AttnscopeError(_unlike(self.model, f"{name} reads another sum"))
            part.read = slice(first, fits[-1])

    def run(
        self,
        inputs: dict[str, Tensor],
        predicting: Int[Tensor, "row token"] | None,
        circuit: tuple[Bool[np.ndarray, "sender receiver"], Trace] | None = None,
        *,
        leaves: bool = False,
        within: Bool[Tensor, "row position"] | None = None,
    ) -> tuple[Tensor, Trace]:
        """Logits of a pass at some positions, or all, and what its parts read and wrote.

        Edges beyond a circuit carry those of another run, `within` some positions, by default everywhere.

        With `leaves`, zeros are added to what each part reads, as leaves of the graph.
        """
        run = _Run(self, inputs, Trace(self.end), circuit, leaves, within)
        hooks = (hook for at, part in enumerate(self.parts) for hook in run.hooks(at, part))
        # `watching` comes first, because `patch_heads` calls the module within its own hook
        # the output layer computes some positions behind the hooks, which may read all of its input
        with watching(self.model, run.attend), attached(hooks), logits_at(self.model, predicting) as chosen:
            logits = chosen(result_of(self.model, self.model(**without_cache(self.model), **inputs)))
        return logits, run.trace


@dataclass(eq=False)
class _Run:
    """The hooks of one pass through the parts of a graph; each has the number of its part as first argument."""

    graph: Graph
    inputs: dict[str, Tensor]
    trace: Trace
    circuit: tuple[np.ndarray, Trace] | None  # its edges, and the run whose activations all other edges carry
    leaves: bool
    within: Tensor | None = None  # positions ``(row, position)`` where the circuit lacks edges; None: all
    latest: AttentionCall | None = None
    # queries, keys and values of a circuit that replace those of the next call; None while they are computed
    patched: dict[str, list[Tensor]] | None = field(default_factory=dict[str, list[Tensor]])

    def hooks(self, at: int, part: Part) -> Iterator[Any]:
        """Hook the modules by which one part reads and writes."""
        for module in part.readers if part.norm is None else [part.norm]:
            yield module.register_forward_pre_hook(partial(self.read, at))
        for module in part.modules if part.branch is None or not part.kind else [part.branch]:
            yield module.register_forward_hook(partial(self.add_output, at))
        norm = part.after or (None if part.kind else part.branch)
        if norm is not None:
            yield norm.register_forward_hook(partial(self.apply_norm, at))
        if part.end is not None:
            yield part.end.register_forward_hook(partial(self.read_end, at))
        if part.output is None:
            return
        module = self.graph.model.get_submodule(part.name)
        if part.norm is None:
            yield module.register_forward_pre_hook(partial(self.read_unnormed, at), with_kwargs=True)
        if self.circuit is not None:
            yield module.register_forward_pre_hook(partial(self.patch_heads, at), with_kwargs=True)

    def carried(self, receiver: int) -> Tensor:
        """Input of a receiver, with the other run's activations on the edges that the circuit lacks."""
        assert self.circuit is not None  # noqa: S101 called in a circuit only
        edges, other = self.circuit
        at = self.graph.points[receiver]
        senders = self.graph.parts[at].read
        missing = torch.from_numpy(~edges[senders, receiver]).to(self.trace.reads[at])
        change = torch.einsum("s,sptw->ptw", missing, self.trace.changes(other, at, senders))
        if self.within is not None:
            change = torch.where(self.within.to(change.device)[..., None], change, 0)
        return self.trace.reads[at] + change

    def read(self, at: int, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor] | None:
        """Record what a part reads, and change it where the pass asks for it."""
        part = self.graph.parts[at]
        texts = len(next(iter(self.inputs.values())))
        states = arguments[0].reshape(texts, -1, arguments[0].shape[-1])  # OPT flattens texts and positions
        self.trace.reads[at] = states.detach()
        if self.leaves:
            leaf = self.trace.leaves.setdefault(at, torch.zeros_like(states, requires_grad=True))
            return ((states + leaf.to(states.device)).reshape(arguments[0].shape),)
        if self.circuit is None or part.output or part.ends:
            return None
        return (self.carried(part.receivers.start).reshape(arguments[0].shape),)

    def read_end(self, at: int, module: nn.Module, _: Any, returned: Any) -> Any:
        """The same for the end of the stream, of which a pooler or a classifier may read one position (BERT, CLIP)."""
        whole = returned if isinstance(returned, tuple) else (returned,)
        states = self.read(at, module, whole[:1])
        if states is None:
            return None
        return (*states, *whole[1:]) if isinstance(returned, tuple) else states[0]

    def read_unnormed(self, at: int, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Record what attention without a norm of its own reads: its states, and those of the encoder (BERT, BART)."""
        states = self.read(at, module, arguments[:1] or (options[OWN_STATES],))
        name = other_name(options) if self.graph.parts[at].cross else ""
        encoder_states = self.read(self.graph.end, module, (options[name],)) if name else None
        if states is not None:
            arguments, options = with_states(*states, arguments, options)
        if encoder_states is not None:
            options = options | {name: encoder_states[0]}
        return arguments, options

    def add_output(self, at: int, _: nn.Module, __: Any, returned: Any) -> None:
        """Record what a module of an MLP adds, or what the norm of its output makes of it."""
        output = (returned[0] if isinstance(returned, tuple) else returned).detach().clone()  # Falcon adds to it
        self.trace.written[at] = self.trace.written.get(at, 0) + output.reshape(1, *self.trace.reads[at].shape)

    def patch_heads(self, at: int, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Compute queries, keys and values of each head from its own edges: a call of the module for each input."""
        assert self.circuit is not None  # noqa: S101 hooked in a circuit only
        part, edges = self.graph.parts[at], self.circuit[0]
        self.patched = None
        calls: dict[tuple[int, bytes], AttentionCall] = {}  # receivers with the same edges share a call
        patched: dict[str, list[Tensor]] = {}
        for receiver, (side, head) in enumerate(part.columns, part.receivers.start):
            point = self.graph.parts[self.graph.points[receiver]]
            same_edges = self.graph.points[receiver], edges[point.read, receiver].tobytes()
            if same_edges not in calls:
                norm: Any = point.norm
                states = self.carried(receiver)
                if norm is not None:
                    states = norm.forward(states)
                if point is part:
                    call_arguments, call_options = with_states(states, arguments, options)
                else:
                    call_arguments, call_options = arguments, options | {other_name(options): states}
                module.forward(*call_arguments, **call_options)
                assert self.latest is not None  # noqa: S101 the module attends
                calls[same_edges] = self.latest
            patched.setdefault(side, []).append(getattr(calls[same_edges], side)[:, head])
        self.patched = patched

    def attend(self, site: Site, call: AttentionCall) -> Tensor:
        """The output of a call, which is recorded by head as the output matrix adds it to the stream."""
        self.latest = call
        if self.patched is None:  # only queries, keys and values are needed
            return call.query.new_zeros(*call.query.shape[:3], call.value.shape[3])
        at = next(at for at, part in enumerate(self.graph.parts) if part.name == site.name)
        part = self.graph.parts[at]
        call = replace(call, **{side: torch.stack(heads, 1) for side, heads in self.patched.items()})
        self.trace.calls[at] = call
        output = output_with_gradient(call)
        assert part.output is not None  # noqa: S101
        states = output.detach()
        matrix, bias = output_affine(part.output, states.transpose(1, 2).flatten(2), part.heads[0])
        # each head adds its share of the bias: a constant, but not behind a norm
        self.trace.written[at] = (states @ matrix + bias / part.heads[0]).detach().transpose(0, 1)
        return output

    def apply_norm(self, at: int, norm: nn.Module, arguments: tuple[Any, ...], returned: Tensor) -> None:
        """Norm each sender's part alone: the fold of the norm, with the denominators of the whole sum."""
        fold: Any = self.graph.parts[at].fold
        factor_and_bias = fold.frozen(norm, arguments[0].detach().double(), returned.detach().double())
        size, bias = (tensor.to(returned) for tensor in factor_and_bias)
        if self.graph.parts[at].after:
            self.trace.norms[at] = fold, size, bias
        else:
            self.trace.written[at] = fold.of(self.trace.written[at]) * size


def with_states(
    states: Tensor, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an attention module with other states."""
    return ((states, *arguments[1:]), options) if arguments else (arguments, options | {OWN_STATES: states})


def with_own_layers(model: PreTrainedModel) -> PreTrainedModel:
    """The same function without modules that several layers share (ALBERT): a copy with modules of its own for each."""
    if not hasattr(getattr(model.base_model, "encoder", None), "albert_layer_groups"):
        return model
    copied, count = copy.deepcopy(model), model.config.num_hidden_layers
    stack: Any = copied.base_model.encoder
    groups = [*stack.albert_layer_groups]
    shared = {id(stack.config): stack.config}  # one configuration for all copies
    layers = (copy.deepcopy(groups[at * len(groups) // count], dict(shared)) for at in range(count))
    stack.albert_layer_groups = nn.ModuleList(layers)
    stack.config.num_hidden_groups = count
    return copied


def _unlike(model: PreTrainedModel, why: str) -> str:
    return f"{type(model).__name__} has no edges: its residual stream is not the sum of what its parts add ({why})"


def _parts(model: PreTrainedModel, inputs: dict[str, Tensor], outputs: dict[str, str]) -> list[Part]:
    """Attention layers, MLPs and logits in the order in which they run, each with its norms.

    `outputs` has the layer that reads the heads, by attention module.
    """
    blocks = sublayers(model, inputs, outputs)
    unknown = next((f"{block.name}: {block.unknown}" for block in blocks if block.unknown), "")
    if unknown:
        raise AttnscopeError(_unlike(model, unknown))
    attention = [part.name for block in blocks for part in block.of("attention")]
    for name, output in outputs.items():
        if not any(related(name, other) or other == output for other in attention):
            raise AttnscopeError(_unlike(model, f"no block adds the output of {name}"))
    groups: dict[nn.Module, tuple[str, int | str]] = {}  # modules of one MLP are one part
    for number, block in enumerate(blocks):
        for part in block.sublayers:
            if part.kind != "attention":
                groups[part.module] = part.kind, number if part.kind == "mlp" else part.name
    recorder = _PartRecorder(model, outputs, groups)
    with attached(recorder.hooks()), watching_inputs(model, recorder.attends):
        model(**without_cache(model), **inputs)
    return recorder.closed()


@dataclass(eq=False)
class _PartRecorder:
    """Parts in the order in which they run in one pass, and the norms between them."""

    model: PreTrainedModel
    outputs: dict[str, str]
    groups: dict[nn.Module, tuple[str, int | str]]  # kind and number of the part of each module beside attention
    parts: list[Part] = field(default_factory=list[Part])
    readers: list[nn.Module] = field(default_factory=list[nn.Module])  # linear layers that read the latest stream
    normed: list[tuple[nn.Module, Tensor]] = field(default_factory=list[Any])  # norms and their outputs
    stream: Tensor | None = None  # latest input of attention, or output of a norm of the sum
    added: Tensor | None = None  # what the latest part adds to it

    def __post_init__(self) -> None:
        named = self.model.named_modules()
        self.inside = tuple(f"{name}." for name, module in named if module in self.groups or name in self.outputs)
        self.linears = {module for _, module in linear_layers(self.model)}
        self.body = {*self.model.base_model.modules()}

    def hooks(self) -> Iterator[Any]:
        """Hook norms, linear layers and the modules of parts."""
        for name, module in self.model.named_modules():
            if module in self.linears or is_norm(module) or module in self.groups:
                yield module.register_forward_hook(partial(self.ran, name))

    def attends(self, site: Site, call: AttentionCall, states: Tensor, others: Tensor) -> Tensor:
        """Record the part of an attention call, and before the first of a decoder the end of its encoder."""
        cross = site.kind == "cross"
        decodes = self.model.config.is_encoder_decoder and site.kind != "self"
        if decodes and not any(part.ends for part in self.parts):
            self.parts.append(Part(ends=True))
        if cross:
            for end in (part for part in self.parts if part.ends):
                end.norm = self._norm_of(others)
        heads = [side.shape[1] for side in (call.query, call.key, call.value)]
        output = self.model.get_submodule(self.outputs[site.name]) if self.outputs[site.name] else None
        self.parts.append(Part(self._norm_of(states), site.name, output=output, heads=heads, cross=cross))
        self.stream = states
        self.readers.clear()  # queries, keys and values
        return output_of(call)

    def ran(self, name: str, module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
        """Record a module that ran: as reader, as part, or as norm of an output or of a sum."""
        received = arguments[0] if arguments else None
        returned = returned[0] if isinstance(returned, tuple) else returned
        if module in self.linears and self.stream is not None and received is self.stream:
            self.readers.append(module)
        if module in self.groups:
            latest = self.parts[-1].modules[:1] if self.parts else []
            if not latest or self.groups[latest[0]] != self.groups[module]:
                self._begin(self.groups[module][0])
            self.parts[-1].modules.append(module)
            self.readers.clear()
        if module in self.groups or name in self.outputs.values():
            self.added = returned
        elif is_norm(module) and module in self.body:
            if self.added is not None and received is self.added:
                self.parts[-1].branch = module
            elif self._is_sum(received):
                self.parts[-1].after = module
                self.stream, self.added = returned, None
            elif not name.startswith(self.inside):
                self.normed.append((module, returned))

    def closed(self) -> list[Part]:
        """All parts, the logits last, with the folds of their norms; an error if two parts share a norm."""
        self._begin("")
        parts, stream = self.parts, self.stream
        summed = any(part.after for part in parts)  # each norm takes the sum of the stream and what a part adds (BERT)
        for part in parts:
            part.norm = None if summed else part.norm
            norm: Any = part.branch or part.after
            part.fold = fold_of(norm, stream.shape[-1]) if norm and stream is not None else None
        if summed:
            used: list[Any] = [
                module for part in parts for module in (part.output, part.after, *part.modules, *part.readers) if module
            ]
            complete = [part.ends or (part.fold and (part.output or part.readers)) for part in parts[:-1]]
            if not parts[-1].readers:
                parts[-1].end = parts[-2].after
            complete.append(parts[-1].readers or parts[-1].end)
        else:
            end, width = parts[-1], 0 if stream is None else stream.shape[-1]
            if stream is not None and end.norm and self.normed[-1][1].numel() // width != stream.numel() // width:
                end.norm, end.end = None, [*blocks_of(self.model).values()][-1]  # it reads one position alone
            used = [part.norm or part.end for part in parts]
            complete = [
                (part.norm or part.end) and (part.output or not part.heads) and (part.fold or not part.branch)
                for part in parts
            ]
        if not all(complete) or len({*map(id, used)}) < len(used):
            raise AttnscopeError(_unlike(self.model, "two parts read it through one norm, or one has none"))
        return parts

    def _begin(self, kind: str) -> None:
        """Begin a part without heads, which reads through the latest norm."""
        norm = self.normed[-1][0] if self.normed else None
        self.parts.append(Part(norm, kind=kind, readers=[*self.readers]))

    def _norm_of(self, states: Tensor) -> nn.Module | None:
        return next((norm for norm, output in self.normed if output is states), None)

    def _is_sum(self, received: Tensor | None) -> bool:
        """Whether a module receives the stream plus what the latest part adds."""
        if received is None or self.stream is None or self.added is None:
            return False
        if not received.shape == self.stream.shape == self.added.shape:
            return False
        rest = received - self.stream.to(received.device) - self.added.to(received.device)
        return float(rest.abs().max()) <= SMALL * float(received.abs().max())


class EdgeRuns:
    """The runs of some pairs of one length, each with its answer minus wrong answer."""

    def __init__(self, graph: Graph, encoded: EncodedPairs, passed: Callable[[], None] = lambda: None) -> None:
        self.graph, self.encoded, self.passed = graph, encoded, passed
        spans = [*encoded.spans.values()]
        self.within = torch.stack(spans).any(0) if spans else None
        self.corrupted = self.run(encoded.inputs[1])

    @torch.no_grad()
    def run(self, inputs: dict[str, Tensor], *circuit: Any) -> tuple[Trace, Float[np.ndarray, " pair"]]:
        """A pass, of a circuit with corrupted activations on all edges that it lacks."""
        logits, trace = self.graph.run(inputs, self.encoded.predicting, *circuit, within=self.within)
        return trace, self.encoded.measure(logits, inputs).double().cpu().numpy()

    @cached_property
    def clean(self) -> tuple[Trace, Float[np.ndarray, " pair"]]:
        """The clean run."""
        return self.run(self.encoded.inputs[0])

    def attributed(self, steps: int) -> Float[np.ndarray, "pair sender receiver"]:
        """EAP, or with steps EAP-IG: gradients at `steps` inputs between the clean and the corrupted one."""
        graph, clean = self.graph, self.clean[0] if steps else None
        clean_inputs, corrupted_inputs = self.encoded.inputs
        scores = torch.zeros(len(self.encoded), *graph.exist.shape, device=device_of(graph.model))
        for share in [(step + 0.5) / steps for step in range(steps)] or [None]:
            others = {} if share is None else corrupted_inputs
            inputs, others = inputs_moved(clean_inputs, others, share or 0.0)
            moved = embeddings_moved(graph.model, inputs, others, share or 0.0)
            with frozen(graph.model), torch.enable_grad(), moved:
                logits, trace = graph.run(inputs, self.encoded.predicting, leaves=True)
                end = self.encoded.measure(logits, inputs)
                if clean is None:  # without steps, this is the clean run
                    clean = Trace(graph.end, trace.reads, written=trace.written, norms=trace.norms)
                    self.clean = clean, end.detach().double().cpu().numpy()
                for part, slopes in zip(graph.parts, self._slopes(trace, end.sum()), strict=True):
                    points = graph.points[part.receivers]
                    # receivers of one part read at two points in cross-attention: the decoder, and the encoder
                    for point in dict.fromkeys(points):
                        read = graph.parts[point].read
                        numbers = [number for number, other in enumerate(points) if other == point]
                        changes = clean.changes(self.corrupted[0], point, read)
                        if self.within is not None:
                            changes = torch.where(self.within.to(changes.device)[..., None], changes, 0)
                        stacked = torch.stack([slopes[number] for number in numbers])
                        # (u' - u) · dm/dv, summed over positions and width
                        products = torch.einsum("sptw,rptw->psr", changes, stacked)
                        first = part.receivers.start + numbers[0]
                        columns = slice(first, first + len(numbers))
                        scores[:, read, columns] += self.encoded.by_pair(products).to(scores.device) / max(steps, 1)
            self.passed()
            del logits, trace, end  # before the next pass, as they hold the graph of this one
        return scores.double().cpu().numpy()

    def _slopes(self, trace: Trace, end: Tensor) -> Iterator[list[Tensor]]:
        """Gradients of the answer by the input of each receiver, part by part."""
        graph = self.graph
        reads = [
            [getattr(trace.calls[at], side) for side in SIDES] if part.output else [trace.leaves[at]]
            for at, part in enumerate(graph.parts)
        ]
        slopes = iter(torch.autograd.grad(end, list(chain(*reads)), retain_graph=True))
        for part, tensors in zip(graph.parts, reads, strict=True):
            of_part = list(islice(slopes, len(tensors)))
            if part.output:
                # from queries, keys and values back to the stream, with all heads but one set to 0
                alone = [
                    (tensor, of_head)
                    for tensor, slope in zip(tensors, of_part, strict=True)
                    for of_head in torch.diag_embed(slope.movedim(1, -1)).movedim((-2, -1), (0, 2))
                ]
                of_part = [
                    torch.autograd.grad(tensor, trace.leaves[point], of_head, retain_graph=True)[0]
                    for (tensor, of_head), point in zip(alone, graph.points[part.receivers], strict=True)
                ]
            yield of_part

    def exact(self) -> Float[np.ndarray, "pair sender receiver"]:
        """The change of the answer when each edge alone carries the corrupted activation."""
        scores, edges = np.zeros((len(self.encoded), self.graph.exist.size)), np.flatnonzero(self.graph.exist)
        for edge in edges:
            scores[:, edge] = self.circuit(edges[edges != edge]) - self.clean[1]
        return scores.reshape(-1, *self.graph.exist.shape)

    def circuit(self, edges: np.ndarray) -> Float[np.ndarray, " pair"]:
        """Answer minus wrong answer of a circuit of some edges, by their numbers."""
        chosen = self.graph.always.copy()
        chosen.flat[edges] = True
        self.passed()
        return self.run(self.encoded.inputs[0], (chosen, self.corrupted[0]))[1]
