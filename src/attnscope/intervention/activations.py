"""Activations outside attention calls: where a pass computes them, their names, and functions that change them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel

from attnscope.capture.families import is_activation, is_attention, is_norm, is_position_table, rotates_queries
from attnscope.capture.weights import embeddings_of
from attnscope.explanation.sublayers import BlockRun, ModuleRun, PassGraph, first_states, pass_graph
from attnscope.support.errors import AttnscopeError

#: Maps a tensor to the one that replaces it.
Change = Callable[[Tensor], Tensor]

#: Activations of a block, by kinds of the modules that write them.
_WRITTEN = {
    "attention": "attn_out",
    "cross": "cross_attn_out",
    "mixer": "mixer_out",
    "mlp": "mlp_out",
    "layer embedding": "layer_embedding",
}
_IN_BLOCKS = ("resid_pre", "resid_mid", "resid_mid_cross", "resid_post", "normalized_resid_post", *_WRITTEN.values())
_NAMES = (*_IN_BLOCKS, "mlp_pre", "neurons", "ln1", "ln2", "ln3", "embed", "pos_embed", "ln_final", "logits")
# The hooks of TransformerLens, and our names: without "hook_" and the module that has the hook
_LENS = {"mlp.hook_pre": "mlp_pre", "mlp.hook_post": "neurons", "final_ln.hook_normalized": "ln_final"}
_NAME = re.compile(r"(?:(?:blocks\.|(encoder|decoder)[._])?(?:([0-9]{1,6})\.)?)?(.+)")


@dataclass(frozen=True)
class Activation:
    """A tensor of a pass, ``(batch, position, width)``, by the modules that receive or return it."""

    name: str  # such as 3.resid_mid, or encoder.3.resid_mid
    modules: tuple[str, ...]  # several add up to it
    # ``sum``: received by the module, and added to what it returns, so that it is changed in place
    side: Literal["received", "returned", "sum"]
    run: int | None = None  # number of the run in a pass, of modules that run several times
    stack: str = ""  # module within which it runs, of a table that encoder and decoder share

    @property
    def block(self) -> int | None:
        """The number of its block in its stack."""
        numbers = [part for part in self.name.split(".") if part.isdecimal()]
        return int(numbers[0]) if numbers else None


@dataclass(frozen=True)
class Activations:
    """The activations of a model."""

    model: str  # name of its class
    by_name: Mapping[str, Activation]
    blocks: Mapping[str, str]  # name of the module of each block, by the start of the names of its activations
    unknown: Mapping[str, str]  # why others of a block are unknown

    def chosen(self, name: str, layer: int | None, stack: str) -> tuple[list[Activation], bool]:
        """The activations of this name in all blocks of a stack, or the one of a block, and whether it is only one."""
        named_stack, number, short = _parts(name)
        if number or layer is not None:
            if number and layer not in {None, int(number)}:
                raise AttnscopeError(f"found {name} and layer {layer}: leave out the layer")
            return [self.find(_joined(named_stack or stack, number or str(layer), short))], True
        blocks = [block for block in self.blocks if block.startswith(named_stack or stack)]
        names = [f"{block}.{short}" for block in blocks if f"{block}.{short}" in self.by_name]
        if not names:
            return [self.find(_joined(named_stack or stack, short))], True
        if len({one.partition(".")[0] for one in names if not one[:1].isdecimal()}) > 1:
            raise AttnscopeError(f"found {name} of encoder and decoder: choose encoder.{short} or decoder.{short}")
        return [self.by_name[one] for one in names], False

    def find(self, name: str) -> Activation:
        """The activation of this name, ours or that of a hook of TransformerLens."""
        stack, number, short = _parts(name)
        block = _joined(stack, number)
        activation = self.by_name.get(_joined(block, short))
        if activation is not None:
            return activation
        if number and block not in self.blocks:
            first, *_, last = [*self.blocks, *self.blocks]
            raise AttnscopeError(f"{self.model} has no block {block} ({name!r}): choose from {first} to {last}")
        block = block if number else next((one for one in self.blocks if one.startswith(stack)), "")
        names = [one for one, found in self.by_name.items() if found.block is None or one.rpartition(".")[0] == block]
        why = f": {self.unknown[block]}" if self.unknown.get(block) else ""
        raise AttnscopeError(
            f"{self.model} has no activation {name!r}{why}; expected {', '.join(names)}, or the name of such a hook of "
            "TransformerLens"
        )


def _parts(name: str) -> tuple[str, str, str]:
    """Stack, number of the block and short name, each empty if there is none."""
    match = _NAME.fullmatch(name)
    stack, number, rest = match.groups("") if match else ("", "", name)
    return stack, number, _LENS.get(rest, re.sub(r"^hook_|\.hook_normalized$", "", rest))


def check_name(name: str) -> None:
    """Reject a name that no activation has, in any model."""
    if _parts(name)[2] not in _NAMES:
        raise AttnscopeError(
            f"found the name {name!r}; expected an activation, such as 3.resid_mid or blocks.3.hook_resid_mid: "
            f"{', '.join(_NAMES)}"
        )


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def activations_of(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Activations:
    """Find the activations of a model, in one pass over one text."""
    attending = [name for name, module in model.named_modules() if is_attention(module)]
    graph = pass_graph(model, dict(inputs), attending)
    stacks = _stacks(model)
    activations: dict[str, Activation] = {}
    blocks: dict[str, str] = {}
    unknown: dict[str, str] = {}
    numbers = dict.fromkeys(stacks, 0)
    last: dict[str, BlockRun] = {}

    def add(name: str, side: Any, *runs: ModuleRun, stack: str = "") -> None:
        several = len(runs) == 1 and graph.counts[runs[0].name] > 1 and not stack
        numbered = runs[0].number if several else None
        activations[name] = Activation(name, tuple(run.name for run in runs), side, numbered, stack)

    for block in graph.blocks:
        stack = next(name for name, prefix in stacks.items() if f"{block.name}.".startswith(prefix))
        prefix = _joined(stack, str(numbers[stack]))
        numbers[stack] += 1
        last[stack] = block
        blocks[prefix], unknown[prefix] = block.name, block.unknown
        for name, (side, runs) in _of_block(block).items():
            add(f"{prefix}.{name}", side, *runs)
    for stack, prefix in stacks.items():
        for name, run in _around(model, graph, prefix, last.get(stack)):
            shared = prefix.removesuffix(".") if stack and graph.counts[run.name] > 1 else ""
            add(_joined(stack, name), "returned", run, stack=shared)
    if isinstance(getattr(graph.output, "logits", None), Tensor):
        activations["logits"] = Activation("logits", ("",), "returned")
    return Activations(type(model).__name__, activations, blocks, unknown)


def _stacks(model: PreTrainedModel) -> dict[str, str]:
    """Encoder and decoder by the start of the names of their modules; of other models one stack, without a name."""
    if not model.config.is_encoder_decoder:
        return {"": ""}
    names = {id(module): name for name, module in model.named_modules()}
    return {"encoder": f"{names[id(model.get_encoder())]}.", "decoder": f"{names[id(model.get_decoder())]}."}


def _of_block(block: BlockRun) -> dict[str, tuple[str, list[ModuleRun]]]:
    """Activations of a block: side and runs of modules, by name."""
    block_run = block.runs[-1]
    activations: dict[str, tuple[str, list[ModuleRun]]] = {
        "resid_pre": ("received", [block_run]),
        "resid_post": ("returned", [block_run]),
    }
    walk = block.walk
    if walk is None or block.unknown:
        return activations
    kinds = {one.run.returned.node: "cross" if one.is_cross else one.kind for one in block.sublayers}
    readers: dict[Any, ModuleRun] = {}  # of sums: the outermost module that reads a sum first
    norms: list[ModuleRun] = []
    for run in block.runs[:-1]:
        node = None if run.received is None else run.received.node
        if walk.summed(node) is None:
            continue
        first = readers.setdefault(node, run)
        if first.name.startswith(f"{run.name}."):
            readers[node] = run
        if is_norm(run.module):
            norms.append(run)
    for node, run in readers.items():
        before = [kinds[one] for one in walk.summed(node) or ()]
        if node is walk.start or node not in walk.added | walk.normed:
            continue
        if len(before) == len(kinds) and node in walk.normed:
            if activations["resid_post"][0] == "returned":
                activations["normalized_resid_post"] = activations["resid_post"]
                activations["resid_post"] = ("sum", [run])
        elif before and "mlp" not in before:
            activations.setdefault("resid_mid_cross" if "cross" in before else "resid_mid", ("sum", [run]))
    stages = list(dict.fromkeys([frozenset[Any](), *(walk.summed(node) or frozenset() for node in readers)]))
    for norm in norms:
        node: Any = norm.received and norm.received.node
        number = stages.index(walk.summed(node) or frozenset()) + (node not in walk.normed)
        while f"ln{number}" in activations:  # parallel layers with a norm each
            number += 1
        activations[f"ln{number}"] = ("returned", [norm])
    written = defaultdict[str, list[Any]](list)
    for one in block.sublayers:
        written["cross" if one.is_cross else one.kind].append(one)
    for kind, several in written.items():
        nodes = {one.run.returned.node for one in several}
        if all(not nodes & stage or nodes <= stage for stage in stages):
            activations[_WRITTEN[kind]] = ("returned", [one.written for one in several])
    if len(written["mlp"]) == 1:
        node = written["mlp"][0].run.returned.node
        down = walk.linear(node)
        functions = [one for one in walk.before(node) if is_activation(one.module)]
        if down is not None:  # experts read some tokens each
            activations["neurons"] = ("received", [down])
        if down is not None and len(functions) == 1:
            activations["mlp_pre"] = ("received", functions)
    return activations


def _around(
    model: PreTrainedModel, graph: PassGraph, prefix: str, last: BlockRun | None
) -> Iterator[tuple[str, ModuleRun]]:
    """Embeddings and the final norm of a stack."""
    inside = tuple(f"{block.name}." for block in graph.blocks)
    outside = [run for run in graph.order if not f"{run.name}.".startswith(inside)]
    tables = embeddings_of(model)
    table = tables[-1 if prefix and prefix == _stacks(model)["decoder"] else 0]
    embedded = next((run for run in outside if run.module is table), None)
    if embedded is not None and not isinstance(embedded.module, nn.Conv1d):  # which has positions last (Whisper)
        yield "embed", embedded
    for run in outside:
        if run.name.startswith(prefix) and is_position_table(run.name) and not rotates_queries(run.module):
            yield "pos_embed", run
            break
    end = None if last is None else last.runs[-1].returned.node
    for run in outside:
        if is_norm(run.module) and run.received is not None and run.received.node is end:
            yield "ln_final", run
            break


@contextmanager
def changed_activations(model: PreTrainedModel, changes: Mapping[Activation, Change]) -> Generator[None]:
    """Apply changes in every forward pass."""
    with ExitStack() as hooks:
        for activation, change in changes.items():
            each = _Changed(activation, change, running=not activation.stack)
            modules = list(map(model.get_submodule, activation.modules))
            for start in {model, model.base_model} if activation.run is not None else ():
                hooks.enter_context(start.register_forward_pre_hook(each.start))
            if activation.stack:
                stack = model.get_submodule(activation.stack)
                hooks.enter_context(stack.register_forward_pre_hook(partial(each.enter, True)))
                hooks.enter_context(stack.register_forward_hook(partial(each.enter, False)))
            if activation.side == "returned":
                for module in modules:
                    hook = partial(each.returned, module is modules[-1])
                    hooks.enter_context(module.register_forward_hook(hook))
            else:
                hooks.enter_context(modules[0].register_forward_pre_hook(each.received, with_kwargs=True))
        yield


@dataclass(eq=False)
class _Changed:
    """A change of one activation."""

    activation: Activation
    change: Change
    running: bool
    runs: int = 0  # of its module in this pass
    others: Tensor | None = None  # the sum of what earlier modules returned

    def start(self, *_: Any) -> None:
        self.runs = 0

    def enter(self, running: bool, *_: Any) -> None:
        self.running = running

    def is_run(self) -> bool:
        """Whether this run of the module computes the activation."""
        self.runs += 1
        return self.running and self.activation.run in {None, self.runs - 1}

    def received(self, _: nn.Module, arguments: Any, options: Any) -> Any:
        tensor = first_states((arguments, options))
        if tensor is None or not self.is_run():
            return None
        if self.activation.side == "received":
            return _with((arguments, options), tensor, self.checked(tensor))
        changed = self.checked(tensor.clone())  # the function may save its input for a backward pass
        tensor.copy_(changed)
        return None

    def returned(self, is_last: bool, module: nn.Module, _: Any, returned: Any) -> Any:
        tensor = first_states(returned)
        if tensor is None or not self.is_run():
            return None
        if not is_last:
            self.others = tensor if self.others is None else self.others + tensor
            return None
        others, self.others = self.others, None
        if self.activation.name == "logits" and getattr(returned, "loss", None) is not None:
            raise AttnscopeError(
                f"{type(module).__name__} computes its loss before logits are changed: leave out labels, and compute "
                "the loss of the logits"
            )
        changed = self.checked(tensor) if others is None else self.checked(tensor + others) - others
        return _with(returned, tensor, changed)

    def checked(self, tensor: Tensor) -> Tensor:
        """The tensor that replaces this one."""
        return checked(self.change(tensor), tensor, self.activation.name)


def _with(values: Any, tensor: Tensor, changed: Tensor) -> Any:
    """Inputs or outputs of a module with one tensor replaced."""
    return pytree.tree_map_only(Tensor, lambda one: changed if one is tensor else one, values)


def checked(returned: Any, tensor: Tensor, where: str) -> Tensor:
    """The tensor that a function returned, if it has the same shape and type."""
    if not isinstance(returned, Tensor) or (returned.shape, returned.dtype) != (tensor.shape, tensor.dtype):
        description = type(returned).__name__
        if isinstance(returned, Tensor):
            is_other = returned.shape == tensor.shape
            description = f"{returned.dtype}" if is_other else f"the shape {tuple(returned.shape)}"
        raise AttnscopeError(
            f"the function for {where} returned {description}; expected a tensor {tuple(tensor.shape)} of "
            f"{tensor.dtype}"
        )
    return returned
