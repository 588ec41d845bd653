"""The second way: the weights that a model's own eager attention returns, taken module by module by forward hooks."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from attnscope.attention import AttentionCall, call_of_weights
from attnscope.capture._borrow import implementations, restore
from attnscope.capture._heuristics import is_attention
from attnscope.capture._layouts import as_weights
from attnscope.capture._watch import Site, Watch, passes_of
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from transformers import PreTrainedModel

    from attnscope.capture._watch import Observer

    Path = tuple[int, ...]  # where in what a module returns, tuples within tuples

_SUM = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # what rounding may take from a row's 1, or add to it
_USUAL_SUM = 1e-3
_FOUR = 4  # batch, head, query, key
_EAGER, _ASKED = "eager", "output_attentions"


class UncapturedError(AttnscopeError):
    """One of the two ways does not capture a model; the other may."""


@dataclass(frozen=True)
class EagerWay:
    """Which modules of a model return weights, and what is known of their calls.

    Attributes
    ----------
    places
        From the name of a module to where in its output the weights stand.
    names, kinds
        Names and kinds of the calls of a forward pass: the attention module, and ``self``, ``causal`` or ``cross``.
    """

    places: Mapping[str, Path]
    names: tuple[str, ...]
    kinds: tuple[str, ...]


@contextmanager
def with_weights(model: PreTrainedModel, way: EagerWay, observer: Observer) -> Generator[None]:
    """Give every attention call of `model` to ``observer(site, call)``: a call made of the weights, without queries.

    What the observer returns is let go: the model goes on with its own output. So are the weights, before the next
    layer makes its own.

    Raises
    ------
    AttnscopeError
        If a row of weights does not sum to 1, or a pass has more or fewer calls than the first one had.
    """
    with eager(model), passes_of(model, observer) as watch:
        taken: list[ref[Tensor]] = []

        def take(name: str) -> Any:
            def hook(module: nn.Module, _: Any, output: Any) -> Any:
                tensor = _at(output, way.places[name], name)
                weights = as_weights(module, tensor, watch.tokens)
                if not is_attention(module) and not looks_like_weights(weights):
                    return None  # a dropout may serve more than weights
                _observe(watch, way, weights)
                taken.append(ref(tensor))
                return (
                    _without(output, taken) if is_attention(module) else None
                )  # a softmax gives it to the layer

            return hook

        def let_go(_: nn.Module, __: Any, output: Any) -> Any:
            return _without(output, taken)

        def count(*_: Any) -> None:
            taken.clear()
            if watch.calls != len(way.names):
                raise _another_number(model, watch.calls, way)

        hooks: list[Any] = []
        for name, module in model.named_modules():
            if name in way.places:
                hooks.append(module.register_forward_hook(take(name), prepend=True))
            elif any(source.startswith(f"{name}.") for source in way.places) and name:
                hooks.append(module.register_forward_hook(let_go, prepend=True))
        hooks.append(model.base_model.register_forward_hook(count))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def eager(model: PreTrainedModel) -> Generator[None]:
    """Let a model attend eagerly and return its weights; afterwards it is as it was."""
    before = implementations(model)

    def ask(start: nn.Module) -> Any:
        known = inspect.signature(start.forward)
        takes = any(
            parameter.name == _ASKED or parameter.kind is parameter.VAR_KEYWORD
            for parameter in known.parameters.values()
        )
        asked = ({_ASKED: True} if takes else {}) | without_cache(start)

        def hook(_: nn.Module, arguments: Any, options: dict[str, Any]) -> Any:
            given = known.bind(*arguments, **options).arguments
            return arguments, {name: value for name, value in asked.items() if name not in given} | options

        return start.register_forward_pre_hook(hook, with_kwargs=True)

    hooks: list[Any] = []
    try:
        for (
            config,
            _,
        ) in before:  # each layer looks there; set_attn_implementation leaves out models off the registry
            config._attn_implementation = _EAGER  # noqa: SLF001
        hooks = [ask(start) for start in {model, model.base_model}]
        yield
    finally:
        for hook in hooks:
            hook.remove()
        restore(before)


def without_cache(start: nn.Module) -> dict[str, bool]:
    """Arguments that let a model keep nothing for the tokens to come: FSMT's decoder sees the future where it does.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> without_cache(LlamaModel(config)), without_cache(nn.Linear(2, 2))
    ({'use_cache': False}, {})
    """
    return {"use_cache": False} if "use_cache" in inspect.signature(start.forward).parameters else {}


def _observe(watch: Watch, way: EagerWay, weights: Tensor) -> None:
    if watch.calls >= len(way.names):
        raise AttnscopeError(
            f"a pass has more than {len(way.names)} attention calls, the number that the first one had: texts are "
            "read in different ways, so there is no one head to measure"
        )
    site = Site(watch.calls, way.names[watch.calls], way.kinds[watch.calls])
    total = weights.sum(-1, keepdim=True)
    if not sums_to_one(weights, total):
        wrong = total[((total - 1).abs() > _USUAL_SUM) & (total != 0)]
        raise UncapturedError(
            f"layer {site.index} ({site.name}): the weights of a row sum to {float(wrong.flatten()[0]):.4f}, not to 1"
        )
    watch.observe(site, call_of_weights(weights), shown=total, own=lambda: total)


def looks_like_weights(tensor: Tensor) -> bool:
    """Whether a tensor has the form of weights, none is negative and each row sums to 1 (or is of zeros)."""
    if tensor.ndim != _FOUR or not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    return bool((tensor >= 0).all()) and bool(tensor.any()) and sums_to_one(tensor)


def sums_to_one(weights: Tensor, total: Tensor | None = None) -> bool:
    """Whether each row of weights sums to 1, or is of zeros; one with NaN is left to those who look for it."""
    total = weights.sum(-1, keepdim=True) if total is None else total
    away = (total.float() - 1).abs() > _SUM.get(weights.dtype, _USUAL_SUM)
    return not bool((away & (total != 0)).any())


def _at(output: Any, path: Path, name: str) -> Tensor:
    """The weights at a place of what a module returns."""
    for index in path:
        if not isinstance(output, tuple) or index >= len(cast("tuple[Any, ...]", output)):
            raise UncapturedError(
                f"{name} returns weights when it is called in one place and none in another"
            )
        output = output[index]
    return output


def _without(output: Any, taken: list[ref[Tensor]]) -> Any:
    """An output whose weights are a zero of the same shape, which takes no memory; all else as it was."""
    if isinstance(output, Tensor):
        gone = any(output_of() is output for output_of in taken)
        return output.new_zeros(()).expand(output.shape) if gone else output
    if type(output) is tuple:
        return tuple(_without(part, taken) for part in cast("tuple[Any, ...]", output))
    return output


def _another_number(model: PreTrainedModel, calls: int, way: EagerWay) -> AttnscopeError:
    return AttnscopeError(
        f"{type(model).__name__} has {calls} attention calls on this text and {len(way.names)} on the first one: texts "
        "are read in different ways, so there is no one head to measure"
    )


def future_of(call: AttentionCall) -> float:
    """The most that a row of weights puts on later tokens."""
    weights = cast("Tensor", call.bias).exp()
    return float(weights.triu(1).sum(-1).max())
