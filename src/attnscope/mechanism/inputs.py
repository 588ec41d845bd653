"""X, what each attention layer reads: of one window, and its moments over many without keeping any text's states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import AttentionCall, Need, measure
from attnscope.capture import Site, watching
from attnscope.errors import AttnscopeError
from attnscope.mechanism._texts import Windows, batches, model_inputs, token_ids

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    InputObserver = Callable[[Site, AttentionCall, Tensor, Tensor], Tensor]
    Change = Callable[[Tensor], Tensor]

_OWN = "hidden_states"
_OTHERS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


@dataclass(frozen=True, eq=False)
class InputMoments:
    """Means and covariance of one layer's X over texts.

    Attributes
    ----------
    halves
        ``(2, position, width)``: mean over the texts of the first half and of the second, at each position. Two
        halves give products of means that noise does not bias: use ``halves[0]`` on one side and ``halves[1]``
        on the other.
    counts
        ``(2,)``: texts in each half.
    covariance
        ``(width, width)``: of all tokens of all texts about their mean (divided by their number), or None.

    Examples
    --------
    >>> moments = InputMoments(np.array([[[1.0]], [[4.0]]]), np.array([2, 1]), None)
    >>> moments.position_means.tolist(), moments.mean.tolist()
    ([[2.0]], [2.0])
    """

    halves: Float[np.ndarray, "2 position width"]
    counts: Int[np.ndarray, 2]
    covariance: Float[np.ndarray, "width width"] | None

    @property
    def position_means(self) -> Float[np.ndarray, "position width"]:
        """Mean over all texts at each position."""
        return np.tensordot(self.counts / self.counts.sum(), self.halves, 1)

    @property
    def mean(self) -> Float[np.ndarray, " width"]:
        """Mean over all texts and positions."""
        return self.position_means.mean(0)


@torch.no_grad()
def collect_inputs(
    model: PreTrainedModel,
    windows: Windows,
    *,
    layers: Sequence[int] | None = None,
    covariance: bool = True,
    key_side: bool = False,
) -> dict[Site, InputMoments]:
    """Collect position means of X in two halves of the texts, and the covariance of all tokens.

    One forward pass over the texts; what is kept does not grow with their number.

    Parameters
    ----------
    model
        In eval mode.
    windows
        Two or more, all equally long: `attnscope.corpus.Window` or sequences of token ids.
    layers
        Indices of attention calls; by default all.
    covariance
        Whether the covariance is wanted (``width ** 2`` numbers a layer).
    key_side
        Take what keys and values are made of. It differs from what queries are made of in cross-attention only.

    Returns
    -------
    dict
        By `Site`, in the order of the calls.

    Raises
    ------
    AttnscopeError
        If there are fewer than two windows, they differ in length, or a layer does not exist.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> found = collect_inputs(BertModel(config).eval(), [[5, 6, 7], [7, 8, 9], [9, 6, 5]])
    >>> [(site.index, moments.halves.shape, moments.counts.tolist()) for site, moments in found.items()]
    [(0, (2, 3, 8), [2, 1]), (1, (2, 3, 8), [2, 1])]
    """
    ids = token_ids(windows, least=2)
    middle = (len(ids) + 1) // 2
    sums: dict[Site, _Sums] = {}
    half = 0

    def observe(site: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        if layers is None or site.index in layers:
            states = key_states if key_side else query_states
            sums.setdefault(site, _Sums(covariance)).add(states.double(), half)
        return measure(call, Need())[0]

    with watching_inputs(model, observe):
        for half, part in enumerate((ids[:middle], ids[middle:])):  # noqa: B007 the observer reads it
            for _, batch in batches(part):
                model(**model_inputs(model, batch))
    _check_layers(layers, [site.index for site in sums])
    return {site: one.moments() for site, one in sums.items()}


@torch.no_grad()
def capture_inputs(
    model: PreTrainedModel, window: Any, *, key_side: bool = False
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
        As in `collect_inputs`.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> [x.shape for x in capture_inputs(BertModel(config).eval(), [5, 6, 7]).values()]
    [(3, 8), (3, 8)]
    """
    found: dict[Site, np.ndarray] = {}

    def observe(site: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        found[site] = (key_states if key_side else query_states)[0].double().cpu().numpy()
        return measure(call, Need())[0]

    given = window if isinstance(window, dict) else model_inputs(model, token_ids([window]))
    with watching_inputs(model, observe):
        model(**given)
    return found


@contextmanager
def watching_inputs(model: PreTrainedModel, observer: InputObserver) -> Generator[None]:
    """Give every attention call to ``observer(site, call, query_states, key_states)``, which returns the output.

    The states are X, ``(batch, position, width)``: what the attention module was called with. The two are the
    same tensor except in cross-attention.

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
    ...     return measure(call, Need())[0]
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
        if "Attention" in type(module).__name__
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
    _check_layers([layer], [site.index for site in sites])
    name = next(site.name for site in sites if site.index == layer)
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
        return arguments, {**options, _OWN: change(options[_OWN])}

    hooks = [
        model.register_forward_pre_hook(count_anew),
        # before the hooks that look at the input, so that they see what the layer sees
        model.get_submodule(name).register_forward_pre_hook(replace, with_kwargs=True, prepend=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _states(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    own = next((one for one in arguments[:1] if isinstance(one, Tensor)), options.get(_OWN))
    other = next((options[name] for name in _OTHERS if options.get(name) is not None), None)
    return own, own if other is None else other


def _check_layers(wanted: Sequence[int] | None, known: Sequence[int]) -> None:
    missing = sorted(set(wanted or ()) - set(known))
    if missing:
        raise AttnscopeError(
            f"there is no attention layer {missing[0]}; the model's are counted from 0: give other layers"
        )


@dataclass(eq=False)
class _Sums:
    """Running sums of one layer's X; products are taken about the first batch's mean, so that little cancels."""

    with_products: bool
    totals: dict[int, Tensor] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0, 0])
    centre: Tensor | None = None
    products: Tensor | None = None

    def add(self, states: Tensor, half: int) -> None:
        if half in self.totals:
            self.totals[half] += states.sum(0)
        else:
            self.totals[half] = states.sum(0)
        self.counts[half] += len(states)
        if not self.with_products:
            return
        flat = states.flatten(0, 1)
        if self.centre is None:
            self.centre = flat.mean(0)
        flat = flat - self.centre
        self.products = flat.T @ flat if self.products is None else self.products.addmm_(flat.T, flat)

    def moments(self) -> InputMoments:
        counts = np.array(self.counts)
        halves = torch.stack([self.totals[0], self.totals[1]]).cpu().numpy() / counts[:, None, None]
        found = InputMoments(halves, counts, None)
        if self.products is None or self.centre is None:
            return found
        shift = found.mean - self.centre.cpu().numpy()
        covariance = self.products.cpu().numpy() / (counts.sum() * halves.shape[1]) - np.outer(shift, shift)
        return InputMoments(halves, counts, covariance)
