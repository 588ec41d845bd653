"""The third place where a model attends: PyTorch's own functions, called by its layers beside the registry."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attnscope.capture._eager import UncapturedError
from attnscope.capture._functional import (
    arguments_of_multi_head,
    call_of_multi_head,
    call_of_product,
    sees_ahead,
)
from attnscope.capture._heuristics import is_attention, is_pooling_head
from attnscope.capture._watch import Site, Watch
from attnscope.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from attnscope.attention import AttentionCall

_taken: WeakSet[nn.Module] = WeakSet()


def take_products(model: nn.Module, *, take: bool = True) -> None:
    """From now on `watching` sees this model's calls of PyTorch's attention functions, beside those of the registry."""
    (_taken.add if take else _taken.discard)(model)


def are_products_taken(model: nn.Module) -> bool:
    """Whether `take_products` was asked for."""
    return model in _taken


@contextmanager
def products(model: nn.Module, watch: Watch) -> Generator[None]:
    """Give calls of ``scaled_dot_product_attention`` to a watch, also those of ``nn.MultiheadAttention``.

    They are calls as any other: with queries, keys and values, and what the observer returns is what the layer goes on
    with. Those of a pooling head, or outside of any attention module, stand aside. Nothing is done for models that
    never asked for it (`take_products`).

    Raises
    ------
    UncapturedError
        If a call has a form that shows no heads.
    """
    if model not in _taken:
        yield
        return
    running: list[nn.Module] = []

    def enter(module: nn.Module, _: Any) -> None:
        running.append(module)

    def leave(*_: Any) -> None:
        running.pop()

    hooks: list[Any] = []
    for module in model.modules():
        if is_attention(module) or is_pooling_head(module):
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with _Mode(watch, running):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Mode(TorchFunctionMode):
    """Sees calls of PyTorch's functions; those of our own measuring are left alone."""

    def __init__(self, watch: Watch, running: list[nn.Module]) -> None:
        super().__init__()
        self.watch, self.running = watch, running

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        aside = not self.running or any(is_pooling_head(module) for module in self.running)
        if aside or self.watch.is_observing:
            return func(*args, **options)
        try:
            if func is functional.multi_head_attention_forward:
                return self.multi_head(*args, **options)
            if func is functional.scaled_dot_product_attention:
                return self.product(*args, **options)
        except UncapturedError:
            raise
        except AttnscopeError as error:
            raise UncapturedError(reason_of(error)) from error
        return func(*args, **options)

    def multi_head(self, *given: Any, **named: Any) -> tuple[Tensor, None]:
        """Attend as ``nn.MultiheadAttention`` does; the weights that it would average over heads are left out."""
        options = arguments_of_multi_head(*given, **named)
        call, is_cross = call_of_multi_head(options)
        output = self.observe(call, is_cross=is_cross).permute(2, 0, 1, 3).flatten(2)
        output = functional.linear(output, options["out_proj_weight"], options["out_proj_bias"])
        return output if options["query"].ndim == output.ndim else output[:, 0], None

    def product(self, *given: Any, **named: Any) -> Tensor:
        own = partial(functional.scaled_dot_product_attention, *given, **named)
        return self.observe(call_of_product(*given, **named), is_cross=False, own=own)

    def observe(
        self, call: AttentionCall, *, is_cross: bool, own: Callable[[], Tensor] | None = None
    ) -> Tensor:
        module = self.running[-1]
        is_cross = is_cross or id(module) in self.watch.cross or call.query.shape[2] != call.key.shape[2]
        kind = "cross" if is_cross else "self" if sees_ahead(call) else "causal"
        return self.watch.observe(Site(self.watch.calls, self.watch.names[id(module)], kind), call, own=own)
