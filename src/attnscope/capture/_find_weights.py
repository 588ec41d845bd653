"""Which modules of a model return its attention weights: found on a short text, and checked there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from attnscope.capture._eager import EagerWay, UncapturedError, eager, looks_like_weights
from attnscope.capture._heuristics import is_attention, other_states, why_no_weights
from attnscope.capture._layouts import as_weights
from attnscope.errors import explaining

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from transformers import PreTrainedModel

    from attnscope.capture._eager import Path

_TOKENS = 64  # of a short text
_STEPS = 16  # of reshaping between a softmax and what a module returns


@dataclass(eq=False)
class _Found:
    """Weights that a module returned, in the order in which modules returned them."""

    source: str
    place: Path
    returned: Tensor
    weights: Tensor
    attention: str  # the attention module
    is_cross: bool
    is_of_attention: bool = False


def eager_way(model: PreTrainedModel, inputs: dict[str, Any]) -> EagerWay:
    """Find where a model's weights can be taken, on the first tokens of the first text.

    Three things are checked: the model's output was computed from the very softmax that gave the weights; they are all
    that the model itself returns for ``output_attentions=True``; their rows sum to 1.

    Raises
    ------
    UncapturedError
        If that is not so: the name of the model and the reason.
    """
    name = type(model).__name__
    for place, module in model.named_modules():
        reason = why_no_weights(module)
        if reason is not None:
            raise UncapturedError(f"{name} has no weights from token to token ({place}): {reason}")
    short = _short(inputs)
    tokens = short["input_ids"].shape[1] if "input_ids" in short else None
    seen, silent = _shown(model, short, tokens, frozenset())
    if (
        silent
    ):  # LXMERT asks a module for its weights in one place and not in another: the dropout within has them
        seen, _ = _shown(model, short, tokens, silent)
    return EagerWay(
        {matrix.source: matrix.place for matrix in seen},
        tuple(matrix.attention for matrix in seen),
        tuple(_kind(matrix, is_cross=matrix.is_cross) for matrix in seen),
    )


def _shown(
    model: PreTrainedModel, short: dict[str, Tensor], tokens: int | None, silent: frozenset[str]
) -> tuple[list[_Found], frozenset[str]]:
    """What one pass shows, checked; and which modules return weights in one place and none in another."""
    name = type(model).__name__
    with (
        explaining(f"{name} fails when it attends eagerly", "Its weights cannot be taken"),
        eager(model),
        _gathering(model, tokens, silent) as (seen, told),
        torch.enable_grad(),
        _with_graph(model),
    ):
        output = model(**short)
        if not seen:
            raise UncapturedError(
                f"{name} returns no attention weights, eagerly or otherwise: no row sums to 1"
            )
        _check_used(name, output, seen)
    for matrix in _check_reported(name, output, seen):
        matrix.is_cross = True
    return seen, frozenset(place for place, answers in told.items() if len(answers) > 1)


def _kind(matrix: _Found, *, is_cross: bool) -> str:
    """A layer that sees no later token is causal, whatever its module says."""
    queries, keys = matrix.weights.shape[-2:]
    looks_back = queries == keys and queries > 1 and not bool(matrix.weights.triu(1).any())
    return "cross" if is_cross else "causal" if looks_back else "self"


def _short(inputs: dict[str, Any]) -> dict[str, Any]:
    """The first tokens of the first text; what is no text as it is."""
    if "input_ids" not in inputs:
        return inputs
    longest = inputs["input_ids"].shape[1]
    return {
        name: tensor[:1, :_TOKENS] if name.endswith(("input_ids", "attention_mask")) else tensor[:1]
        for name, tensor in inputs.items()
        if longest
    }


@contextmanager
def _gathering(
    model: PreTrainedModel, tokens: int | None, silent: frozenset[str]
) -> Generator[tuple[list[_Found], dict[str, set[bool]]]]:
    """All weights that attention modules return (but for silent ones), or else modules within them (a softmax).

    And for each attention module whether it returned weights: a set with both answers where calls differ.
    """
    seen: list[_Found] = []
    told: dict[str, set[bool]] = {}
    running: list[
        tuple[str, bool, int]
    ] = []  # attention modules, whether they look across, what was found before

    def enter(name: str) -> Any:
        def hook(_: nn.Module, __: Any, arguments: dict[str, Any]) -> None:
            running.append((name, other_states(arguments) is not None, len(seen)))

        return hook

    def look(name: str) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if not running:
                return
            attention = running[-1][0]
            cross = any(is_cross for _, is_cross, _ in running)
            given: list[_Found] = []
            for place, tensor in () if name in silent else _tensors(output):
                weights = as_weights(module, tensor, tokens)
                if looks_like_weights(weights.detach()):
                    given.append(_Found(name, place, tensor, weights, attention, cross))
            if is_attention(module):
                before = running.pop()[2]
                told.setdefault(name, set()).add(bool(given))
                inner = [matrix for matrix in seen[before:] if matrix.is_of_attention]
                if (
                    given or inner
                ):  # what stands within an attention module counts where nothing else is known
                    seen[before:] = inner
                for matrix in given:
                    matrix.is_of_attention = True
            seen.extend(matrix for matrix in given if not any(_is_one(matrix, other) for other in seen))

        return hook

    hooks: list[Any] = []
    within = tuple(f"{name}." for name, module in model.named_modules() if is_attention(module))
    for name, module in model.named_modules():
        if is_attention(module):
            hooks.append(module.register_forward_pre_hook(enter(name), with_kwargs=True))
        if is_attention(module) or name.startswith(within):
            hooks.append(module.register_forward_hook(look(name)))
    try:
        yield seen, told
    finally:
        for hook in hooks:
            hook.remove()


def _is_one(matrix: _Found, other: _Found) -> bool:
    """Whether weights are the very same, or a copy that a module made of those of a module within it."""
    return matrix.returned.data_ptr() == other.returned.data_ptr() or (
        other.source.startswith(f"{matrix.source}.") and _same(matrix.weights, other.weights)
    )


def _tensors(output: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(output, Tensor):
        yield path, output
    elif type(output) is tuple:
        for index, part in enumerate(cast("tuple[Any, ...]", output)):
            yield from _tensors(part, (*path, index))


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape == other.shape and torch.equal(tensor, other)


@contextmanager
def _with_graph(model: PreTrainedModel) -> Generator[None]:
    """Let all that is computed be traced back to its sources."""
    before = [
        (parameter, parameter.requires_grad)
        for parameter in model.parameters()
        if parameter.is_floating_point()
    ]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)


def _check_used(name: str, output: Any, seen: list[_Found]) -> None:
    """Refuse weights that a layer made beside what it computed (Falcon's, where it does not attend eagerly)."""
    reached = _nodes([tensor for field, tensor in _fields(output) if "attentions" not in field])
    for matrix in seen:
        node: Any = matrix.returned.grad_fn
        for _ in range(_STEPS):
            if node is None or "Softmax" in node.name() or node in reached:
                break
            node = next((before for before, _ in node.next_functions if before is not None), None)
        if node not in reached:
            raise UncapturedError(
                f"{name} returns weights that it does not use ({matrix.attention}): its output is computed from others"
            )


def _nodes(outputs: list[Tensor]) -> set[Any]:
    """Everything in the graph of some outputs."""
    reached: set[Any] = set()
    left: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while left:
        node = left.pop()
        if node not in reached:
            reached.add(node)
            left.extend(before for before, _ in node.next_functions if before is not None)
    return reached


def _fields(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model's output, with the name of its field."""
    if isinstance(output, Tensor):
        yield name, output
    elif hasattr(output, "items"):
        for field, part in output.items():
            yield from _fields(part, f"{name} {field}")
    elif isinstance(output, (tuple, list)):
        for part in cast("tuple[Any, ...]", output):
            yield from _fields(part, name)


def _check_reported(name: str, output: Any, seen: list[_Found]) -> list[_Found]:
    """Hold what was found against the model's own answer to ``output_attentions=True``; say which look across."""
    cross: list[_Found] = []
    for field, tensor in _fields(output):
        if "attentions" not in field or not looks_like_weights(tensor.detach()):
            continue  # SqueezeBERT returns scores
        fitting = [matrix for matrix in seen if _is_reported(tensor, matrix)]
        if not fitting:
            raise UncapturedError(
                f"{name} says that it has attention ({field.strip()}) that no module of it returns"
            )
        if "cross" in field:
            cross += fitting
    return cross


def _is_reported(tensor: Tensor, matrix: _Found) -> bool:
    """Whether a tensor is what was found, as returned, in the usual order, or without the first tokens (a prompt)."""
    if (
        tensor.data_ptr() == matrix.returned.data_ptr()
        or _same(tensor, matrix.returned)
        or _same(tensor, matrix.weights)
    ):
        return True
    if tensor.numel() == matrix.returned.numel():
        return torch.equal(tensor.flatten().sort().values, matrix.returned.flatten().sort().values)
    queries, keys = tensor.shape[-2:]
    return _same(tensor, matrix.weights[..., -queries:, -keys:])
