"""X, what each attention layer reads: of one window, and its moments over many without keeping any text's states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention import AttentionCall, output_of
from attnscope.capture import OWN_STATES, Site, forward, is_attention, other_states, watching
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays import StateMoments
from attnscope.mechanism.evidence._tokens import Inputs, Windows, batches, read, token_ids

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.corpus import Window

    InputObserver = Callable[[Site, AttentionCall, Tensor, Tensor], Tensor]
    Change = Callable[[Tensor], Tensor]


@torch.no_grad()
def input_moments(model: PreTrainedModel, windows: Windows, layer: int) -> StateMoments:
    """Moments of one layer's X over the texts: one forward pass, and what is kept does not grow with their number.

    Parameters
    ----------
    model
        In eval mode.
    windows
        Two or more, all equally long: `attnscope.corpus.Window` or sequences of token ids.
    layer
        Index of the attention call. In cross-attention X is what queries are made of.

    Raises
    ------
    AttnscopeError
        If there are fewer than two windows, they differ in length, or there is no such layer.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> moments = input_moments(BertModel(config).eval(), [[5, 6, 7], [7, 8, 9], [9, 6, 5]], 1)
    >>> moments.texts, moments.position_mean.shape
    (3, (3, 8))
    """
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
    """Add a batch of texts: products in float32 about their mean, which is what costs; sums in float64.

    Examples
    --------
    >>> moments = StateMoments.zeros(3, 2)
    >>> add_states(moments, torch.ones(4, 3, 2))
    >>> moments.texts, moments.position_mean[0].tolist()
    (4, [1.0, 1.0])
    """
    about = (states - states.mean((0, 1))).flatten(0, 1).float()
    products = (about.T @ about).double().cpu().numpy()
    moments.merge(StateMoments(len(states), states.mean(0, dtype=torch.float64).cpu().numpy(), products))


@torch.no_grad()
def capture_inputs(
    model: PreTrainedModel, window: Window | Sequence[int] | Inputs, *, key_side: bool = False
) -> dict[Site, Float[np.ndarray, "position width"]]:
    """Capture X of every attention layer for one window, float64.

    Parameters
    ----------
    model
        In eval mode.
    window
        `attnscope.corpus.Window`, a sequence of token ids, or the arguments of a forward pass (a dict) with a
        batch of one.
    key_side
        Take what keys and values are made of. It differs from what queries are made of in cross-attention only.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> [x.shape for x in capture_inputs(BertModel(config).eval(), [5, 6, 7]).values()]
    [(3, 8), (3, 8)]
    """
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
    """Give every attention call to ``observer(site, call, query_states, key_states)``, which returns the output.

    The states are X, ``(batch, position, width)``: what the attention module was called with. The two are the
    same tensor except in cross-attention.

    Parameters
    ----------
    model
        In eval mode; it is called by the caller.
    observer
        Function of a call and its states that gives the call's output.

    Raises
    ------
    AttnscopeError
        If an attention module is called with nothing that could be X.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> model = BertModel(config).eval()
    >>> def observe(site, call, query_states, key_states):
    ...     print(site.name, tuple(query_states.shape), query_states is key_states)
    ...     return output_of(call)
    >>> with torch.no_grad(), watching_inputs(model, observe):
    ...     _ = model(torch.tensor([[5, 6, 7]]))
    encoder.layer.0.attention.self (1, 3, 8) True
    """
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
def changing_input(
    model: PreTrainedModel, sites: Sequence[Site], layer: int, change: Change
) -> Generator[None]:
    """Let one attention layer read ``change(X)`` in place of X; nothing else is touched, the residual stream neither.

    Parameters
    ----------
    model
        In eval mode.
    sites
        All sites of a forward pass, as `attnscope.capture.verify` returns them.
    layer
        Index of the attention call. In cross-attention what queries are made of is changed.
    change
        From X, ``(batch, position, width)``, to its replacement.

    Raises
    ------
    AttnscopeError
        If there is no such layer.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> model = BertModel(config).eval()
    >>> sites = list(capture_inputs(model, [5, 6, 7]))
    >>> with changing_input(model, sites, 1, torch.zeros_like):
    ...     changed = capture_inputs(model, [5, 6, 7])
    >>> [bool(x.any()) for x in changed.values()]
    [True, False]
    """
    name = next((site.name for site in sites if site.index == layer), None)
    if name is None:
        raise AttnscopeError(_no_layer(layer))
    turn = sum(
        site.name == name and site.index < layer for site in sites
    )  # a module may serve several layers
    calls = 0

    def count_anew(*_: Any) -> None:
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
        *(start.register_forward_pre_hook(count_anew) for start in {model, model.base_model}),
        # before the hooks that look at the input, so that they see what the layer sees
        model.get_submodule(name).register_forward_pre_hook(replace, with_kwargs=True, prepend=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _states(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    own = next(
        (argument for argument in arguments[:1] if isinstance(argument, Tensor)), options.get(OWN_STATES)
    )
    other = other_states(options)
    return own, own if other is None else other


def _no_layer(layer: int) -> str:
    return f"there is no attention layer {layer}; the model's are counted from 0: give another layer"
