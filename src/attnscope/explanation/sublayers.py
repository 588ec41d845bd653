"""The residual stream of each block: attention, mixers and MLPs that add to it, read off the graph of one pass.

A sublayer is a module whose output reaches the output of its block through additions, constant factors and norms alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel

from attnscope.capture.families import adds_embeddings, is_norm, other_states, related, without_cache
from attnscope.capture.watching import attached
from attnscope.capture.weights import blocks_of, is_linear
from attnscope.support.state import frozen

#: ``attention``; ``mixer``: reads several tokens without attention (Mamba, convolutions); ``mlp``: reads one token;
#: ``layer embedding``: adds an embedding of its own to a block (Gemma 4).
Kind = Literal["attention", "mixer", "mlp", "layer embedding"]

# Functions of PyTorch's graph: sums, products of which one factor is constant, and changes of shape or type
_SUMS = ("Add", "Sub")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Squeeze", "Unsqueeze")
_SAME = ("Mul", "Div", "ToCopy", *_VIEWS)


class Sublayer(NamedTuple):
    """A module whose output a block adds to the residual stream."""

    kind: Kind
    name: str
    module: nn.Module
    writer: str  # module whose output is added: the norm behind it, or itself
    run: ModuleRun
    written: ModuleRun  # of the writer
    is_cross: bool  # whether it attends to another text


@dataclass(eq=False)
class BlockRun:
    """One run of a block."""

    name: str
    sublayers: list[Sublayer] = field(default_factory=list[Sublayer])
    unknown: str = ""  # why the block does not add up the outputs of modules; empty if it does
    runs: list[ModuleRun] = field(default_factory=list["ModuleRun"])  # within it, then its own, as they return
    walk: Walk | None = None  # from its output to its input

    def of(self, *kinds: Kind) -> list[Sublayer]:
        return [one for one in self.sublayers if one.kind in kinds]


def sublayers(model: PreTrainedModel, inputs: dict[str, Any], attending: Collection[str]) -> list[BlockRun]:
    """The modules that each run of a block adds to the residual stream, in the order of one pass over one text.

    `attending` names the modules that call attention.
    """
    return pass_graph(model, inputs, attending).blocks


def pass_graph(model: PreTrainedModel, inputs: dict[str, Any], attending: Collection[str]) -> PassGraph:
    """The graph of one pass over one text, with the runs of all modules."""
    graph, blocks = PassGraph(attending), blocks_of(model)

    def hooks() -> Iterator[Any]:
        for name, module in model.named_modules():
            yield module.register_forward_hook(partial(graph.note, name), with_kwargs=True)
        for name, block in blocks.items():
            yield block.register_forward_pre_hook(partial(graph.enter, name), with_kwargs=True)

    with attached(hooks()), frozen(model), torch.enable_grad():
        graph.output = model(**without_cache(model), **inputs)
    return graph


class ModuleRun(NamedTuple):
    """One run of a module."""

    name: str
    module: nn.Module
    received: GradientEdge | None
    returned: GradientEdge
    like: Tensor  # of the shape that it returns
    number: int  # of earlier runs of the module in the pass
    is_cross: bool  # whether it got the states of another text

    def mixes(self) -> bool:
        """Whether the first and last tokens of its output depend on the tokens between them."""
        if self.received is None:
            return False
        # the gradient of the sum of the first and the last row reaches the rows between them only through mixing
        ends = torch.zeros_like(self.like)
        rows = ends.view(-1, ends.shape[-1])
        rows[0] = rows[-1] = 1
        how: Any = {"retain_graph": True, "allow_unused": True}
        slopes: Any = torch.autograd.grad([self.returned], [self.received], [ends], **how)
        return slopes[0] is not None and bool(slopes[0].flatten(0, -2)[1:-1].any())


@dataclass(eq=False)
class PassGraph:
    """The graph of one pass, with the modules whose output each of its nodes computes."""

    attending: Collection[str]
    blocks: list[BlockRun] = field(default_factory=list[BlockRun])
    runs: dict[Any, list[ModuleRun]] = field(default_factory=dict[Any, Any])  # by the node of what they return
    order: list[ModuleRun] = field(default_factory=list[ModuleRun])  # as they return
    counts: Counter[str] = field(default_factory=Counter[str])  # of runs, by module
    output: Any = None  # of the model
    start: Any = None  # node of the input of the current block
    entered: int = 0  # number of runs before it

    def enter(self, name: str, _: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A block starts."""
        self.blocks.append(BlockRun(name, unknown="it runs without gradients"))
        first = first_states((arguments, options))
        self.start = None if first is None else first.grad_fn
        self.entered = len(self.order)

    def note(
        self, name: str, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], returned: Any
    ) -> Any:
        """A module returns. Its first tensor gets a node of its own if it has none."""
        first, received = first_states(returned), first_states((arguments, options))
        if first is None or not torch.is_grad_enabled():
            return None
        own_node = first if first.grad_fn is not None else first.detach().requires_grad_().clone()
        before = None if received is None or not received.requires_grad else get_gradient_edge(received)
        node, is_cross = get_gradient_edge(own_node), other_states(options) is not None
        run = ModuleRun(name, module, before, node, own_node.detach(), self.counts[name], is_cross)
        self.runs.setdefault(own_node.grad_fn, []).append(run)
        self.order.append(run)
        self.counts[name] += 1
        if self.blocks and name == self.blocks[-1].name:
            self._conclude(self.blocks[-1], own_node.grad_fn)
        return (
            None
            if own_node is first
            else pytree.tree_map_only(Tensor, lambda one: own_node if one is first else one, returned)
        )

    def _conclude(self, block: BlockRun, end: Any) -> None:
        """A block ends: follow its output back to its input."""
        block.runs = self.order[self.entered :]
        block.walk = walk = Walk(self, block.name, self.start, end)
        reaches, parts, unknown = walk.follow(end)
        if not reaches:
            unknown = "its output is not its input plus the outputs of modules"
        elif unknown:
            unknown = f"{unknown} changes what it adds"
        block.unknown = unknown
        writers = dict(parts)
        block.sublayers = [walk.sublayer(node, writers[node]) for node in self.runs if node in writers]

    def inside(self, block: str, node: Any) -> list[ModuleRun]:
        """Runs of modules within a block that return the tensor of a node, from the inside out."""
        return [run for run in self.runs.get(node, ()) if run.name.startswith(f"{block}.")]


class _Sum(NamedTuple):
    """A tensor as a sum of outputs of modules."""

    reaches: bool  # whether the input of the block is a part of it
    nodes: Sequence[tuple[Any, Any]] = ()  # of the modules, and of the norms behind them
    unknown: str = ""  # a function in between that is no sum


@dataclass(eq=False)
class Walk:
    """The way back from the output of a block to its input."""

    graph: PassGraph
    block: str
    start: Any
    end: Any
    sums: dict[Any, _Sum] = field(default_factory=dict[Any, _Sum])
    added: set[Any] = field(default_factory=set[Any])  # nodes of tensors that a sum reads as they are
    normed: set[Any] = field(default_factory=set[Any])  # nodes of sums that a norm on the stream reads

    def follow(self, node: Any) -> _Sum:
        """The sum that a node computes."""
        if node is self.start:
            return _Sum(reaches=True)
        if node not in self.sums:
            self.sums[node] = self._sum(node)
        return self.sums[node]

    def _sum(self, node: Any) -> _Sum:
        runs = self.graph.inside(self.block, node)
        if runs and is_norm(runs[0].module):
            before = runs[0].received
            total = _Sum(reaches=False) if before is None else self.follow(before.node)
            is_known = not total.reaches and total.nodes and not total.unknown and self.outermost(node) is runs[0]
            if is_known:
                total = total._replace(nodes=[(one, node) for one, _ in total.nodes])
            if total.reaches and before is not None:
                self.normed.add(before.node)
            return total if total.reaches or is_known else _Sum(False, [(node, node)])
        function = node.name().removesuffix("0").removesuffix("Backward")
        parts = _parts(node)
        if function.startswith(_SUMS) or (function.startswith(_SAME) and len(parts) == 1):
            if function.startswith(_SUMS) or (function.startswith(_VIEWS) and node in self.added):
                self.added |= {*parts}
            each = [self.follow(one) for one in parts]
            unknown = next((one.unknown for one in each if one.unknown), "")
            total = _Sum(
                any(one.reaches for one in each), [node_pair for one in each for node_pair in one.nodes], unknown
            )
        else:
            total = _Sum(False, [], function)
        return _Sum(False, [(node, node)]) if runs and not total.reaches else total

    def summed(self, node: Any) -> frozenset[Any] | None:
        """Nodes of the modules whose outputs a node of the residual stream adds up so far; None if it is not of it."""
        total = _Sum(reaches=True) if node is self.start else self.sums.get(node)
        return None if total is None or not total.reaches else frozenset(one for one, _ in total.nodes)

    def linear(self, node: Any) -> ModuleRun | None:
        """The run of the linear layer that returns the tensor of a node, up to constant factors; None without one."""
        run = next(iter(self.graph.inside(self.block, node)), None)
        if run is not None and is_linear(run.module):
            return run
        parts = _parts(node)
        return self.linear(parts[0]) if node.name().startswith(_SAME) and len(parts) == 1 else None

    def outermost(self, node: Any) -> ModuleRun:
        """The outermost module around the one that computes a node, if both return the same tensor."""
        runs = self.graph.inside(self.block, node)
        return [run for run in runs if f"{runs[0].name}.".startswith(f"{run.name}.")][-1]

    def sublayer(self, node: Any, writer: Any) -> Sublayer:
        """The module that returns the tensor of a node, and its kind."""
        run = self.outermost(node)
        name = run.name
        kind: Kind = "layer embedding" if adds_embeddings(name) else "mlp"
        before = list(self.before(node))
        attending = [one for one in before if one.name in self.graph.attending]
        if any(related(name, one) for one in self.graph.attending):
            kind = "attention"
        elif run.mixes():
            kind = "mixer"
        elif attending:
            kind = "attention"
        written = self.outermost(writer)
        return Sublayer(kind, name, run.module, written.name, run, written, any(one.is_cross for one in attending))

    def before(self, node: Any) -> Iterator[ModuleRun]:
        """Runs of modules of the block between the residual stream and a node."""
        waiting, seen = [node], {node, self.start}
        while waiting:
            node = waiting.pop()
            yield from self.graph.inside(self.block, node)
            further = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= further
            waiting += [one for one in further if not (one in self.sums and self.sums[one].reaches)]


def _parts(node: Any) -> list[Any]:
    """Nodes that a node reads, without parameters."""
    return [one for one, _ in node.next_functions if one is not None and one.name() != "AccumulateGrad"]


def first_states(values: Any) -> Tensor | None:
    """The first tensor of numbers that is more than a row: states, among the inputs or outputs of a module."""
    tensors = (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor))
    return next((one for one in tensors if one.is_floating_point() and one.ndim > 1), None)
