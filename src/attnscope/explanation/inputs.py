"""X, what each attention layer reads: of one window, and its moments over many without keeping any text's states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.families import OWN_STATES, is_attention, other_states
from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.arrays.components import StateMoments
from attnscope.explanation.tokens import Inputs, Windows, batches, read, token_ids
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.read.windows import Window

if TYPE_CHECKING:
    InputObserver = Callable[[Site, AttentionCall, Tensor, Tensor], Tensor]
    Change = Callable[[Tensor], Tensor]


@torch.no_grad()
def input_moments(model: PreTrainedModel, windows: Windows, layer: int) -> StateMoments:
    """Moments of one layer's X over the texts: one forward pass, and what is kept does not grow with their number."""
    ids = token_ids(windows, least=2)
    moments: StateMoments | None = None

    def observe(site: Site, call: AttentionCall, states: Tensor, _: Tensor) -> Tensor:
        nonlocal moments
        if site.index == layer:
            moments = moments or StateMoments.zeros(*states.shape[1:])
            add_states(moments, states)
        return output_of(call)

    with watching_inputs(model, observe):
        for _, batch in batches(ids):
            read(model, batch)
    if moments is None:
        raise AttnscopeError(_no_layer(layer))
    return moments


def add_states(moments: StateMoments, states: Float[Tensor, "text position width"]) -> None:
    """Add a batch of texts: products in float32 about their mean, which is what costs; sums in float64."""
    about = (states - states.mean((0, 1))).flatten(0, 1).float()
    products = (about.T @ about).double().cpu().numpy()
    moments.merge(StateMoments(len(states), states.mean(0, dtype=torch.float64).cpu().numpy(), products))


@torch.no_grad()
def capture_inputs(
    model: PreTrainedModel, window: Window | Sequence[int] | Inputs, *, key_side: bool = False
) -> dict[Site, Float[np.ndarray, "position width"]]:
    """Capture X of every attention layer for one window, float64."""
    inputs: dict[Site, np.ndarray] = {}

    def observe(site: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        inputs[site] = (key_states if key_side else query_states)[0].double().cpu().numpy()
        return output_of(call)

    with watching_inputs(model, observe):
        if isinstance(window, dict):
            forward(model, window, lambda _: "the text")
        else:
            read(model, token_ids([window]))
    return inputs


@contextmanager
def watching_inputs(model: PreTrainedModel, observer: InputObserver) -> Generator[None]:
    """Give every attention call to ``observer(site, call, query_states, key_states)``, which returns the output."""
    latest: dict[str, tuple[Tensor | None, Tensor | None]] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            latest[name] = _states(arguments, options)

        return hook

    def observe(site: Site, call: AttentionCall) -> Tensor:
        query_states, key_states = latest.pop(site.name, (None, None))
        if query_states is None or key_states is None:
            raise AttnscopeError(
                f"layer {site.index} ({site.name}) of {type(model).__name__} is not called with hidden states, so "
                "what it reads is not known; expected them as first argument or as hidden_states"
            )
        return observer(site, call, query_states, key_states)

    hooks = [
        module.register_forward_pre_hook(note(name), with_kwargs=True)
        for name, module in model.named_modules()
        if is_attention(module)
    ]
    try:
        with watching(model, observe):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def changing_input(model: PreTrainedModel, sites: Sequence[Site], layer: int, change: Change) -> Generator[None]:
    """Let one attention layer read ``change(X)`` in place of X; nothing else is touched, the residual stream
    neither.
    """
    name = next((site.name for site in sites if site.index == layer), None)
    if name is None:
        raise AttnscopeError(_no_layer(layer))
    turn = sum(site.name == name and site.index < layer for site in sites)  # a module may serve several layers
    calls = 0

    def recount(*_: Any) -> None:
        nonlocal calls
        calls = 0

    def replace(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls - 1 != turn:
            return None
        if arguments and isinstance(arguments[0], Tensor):
            return (change(arguments[0]), *arguments[1:]), options
        return arguments, {**options, OWN_STATES: change(options[OWN_STATES])}

    hooks = [
        *(start.register_forward_pre_hook(recount) for start in {model, model.base_model}),
        # before the hooks that look at the input, so that they see what the layer sees
        model.get_submodule(name).register_forward_pre_hook(replace, with_kwargs=True, prepend=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _states(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    own = next((argument for argument in arguments[:1] if isinstance(argument, Tensor)), options.get(OWN_STATES))
    other = other_states(options)
    return own, own if other is None else other


def _no_layer(layer: int) -> str:
    return f"there is no attention layer {layer}; the model's are counted from 0: give another layer"
