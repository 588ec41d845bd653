"""X, what each attention layer reads: of one window, and its moments over many without keeping any text's states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from attnscope.capture.families import OWN_STATES, is_attention, other_states
from attnscope.capture.forward import forward
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.arrays.components import StateMoments
from attnscope.explanation.arrays.spectrum import Offsets
from attnscope.explanation.tokens import Inputs, Windows, batches, read, token_ids
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.measure import measure, output_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.read.windows import Window

if TYPE_CHECKING:
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
        Two or more, all equally long: `attnscope.read.windows.Window` or sequences of token ids.
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
        `attnscope.read.windows.Window`, a sequence of token ids, or the arguments of a forward pass (a dict) with a
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
        All sites of a forward pass, as `attnscope.capture.verify.verify` returns them.
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


def pairs_at(queries: int, keys: int, band: int) -> Float[np.ndarray, " offset"]:
    """How many query-key pairs there are at each offset from ``-band`` to ``band``.

    Parameters
    ----------
    queries, keys
        Number of queries and of keys, tokens.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> pairs_at(4, 4, 2)
    array([2., 3., 4., 3., 2.])
    """
    return np.array(
        [len(_with_offset(queries, keys, offset)) for offset in range(-band, band + 1)], np.float64
    )


def _with_offset(queries: int, keys: int, offset: int) -> range:
    """The queries that have a key at an offset."""
    first = max(0, -offset)
    return range(first, max(first, min(queries, keys - offset)))


def mean_profile(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """Mean weight at each offset, over the rows that have one; float64 on the CPU, NaN where no row has one.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> mean_profile(AttentionCall(x, x, x, scale=1.0, causal=True), 1).tolist()
    [[[0.5, 0.75, 0.0]]]
    """
    return profile_and_output(call, band)[0]


def profile_and_output(
    call: AttentionCall, band: int
) -> tuple[Float[Tensor, "batch head offset"], Float[Tensor, "batch head query width"]]:
    """Give the mean weight at each offset (float64, on the CPU) and the output of a call, as `measure` does.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> profile, output = profile_and_output(AttentionCall(x, x, x, scale=1.0, causal=True), 1)
    >>> profile.tolist(), output.shape
    ([[[0.5, 0.75, 0.0]]], torch.Size([1, 1, 2, 4]))
    """
    output, rows = measure(call, Need(band=band))
    assert rows.band is not None  # noqa: S101 asked for
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    summed = rows.band.double().sum(2).cpu()
    return torch.where(pairs > 0, summed / pairs.clamp_min(1), torch.nan), output


def centred_keys(call: AttentionCall, keys: Sequence[Tensor]) -> list[Tensor]:
    """Keys ``(..., key, width)`` about their mean over the text, where softmax cannot tell.

    That shifts a row of scores by a constant. A soft cap or a learned sink is not blind to it: there the keys stay.

    Parameters
    ----------
    call
        Arguments of the attention call.
    keys
        Keys, or parts of keys, ``(..., key, width)``.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 1)
    >>> centred_keys(AttentionCall(x, x, x, scale=1.0), [torch.tensor([[1.0], [3.0]])])[0].tolist()
    [[-1.0], [1.0]]
    """
    if call.softcap is not None or call.sinks is not None:
        return list(keys)
    return [key - key.mean(-2, keepdim=True) for key in keys]


def one_text(call: AttentionCall, text: int) -> AttentionCall:
    """The call of one text of the batch.

    Parameters
    ----------
    call
        Arguments of the attention call.
    text
        Number of the text in the batch, from 0.

    Examples
    --------
    >>> x = torch.zeros(3, 1, 2, 4)
    >>> one_text(AttentionCall(x, x, x, scale=1.0), 2).query.shape
    torch.Size([1, 1, 2, 4])
    """
    own = slice(text, text + 1)
    return replace(
        call,
        query=call.query[own],
        key=call.key[own],
        value=call.value[own],
        mask=call.mask if call.mask is None or len(call.mask) == 1 else call.mask[own],
        bias=call.bias if call.bias is None or len(call.bias) == 1 else call.bias[own],
    )


def offsets_seen(call: AttentionCall, band: int) -> Bool[np.ndarray, " offset"]:
    """Offsets from ``-band`` to ``band`` at which some query of some text may look, as masks and causality have it.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 4, 2)
    >>> offsets_seen(AttentionCall(x, x, x, scale=1.0, causal=True), 2)
    array([ True,  True,  True, False, False])
    """
    start, stop = (bound.cpu() for bound in call.extent)
    first, last = (bound - torch.arange(call.query.shape[2]) for bound in (start, stop))
    offsets = torch.arange(-band, band + 1)[:, None, None]
    return ((first <= offsets) & (offsets < last)).any(-1).any(-1).numpy()


def bias_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of what is added to the scores, 0 where nothing is; float64 on the CPU.

    A pair that the bias forbids counts as the mean of the others at its offset; NaN where it forbids all.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0, bias=torch.tensor([[[[0.0, 1, 2], [3, 4, 5], [6, 7, -torch.inf]]]]))
    >>> bias_traces(call, 1).tolist()
    [[[10.0, 6.0, 6.0]]]
    """
    batch, heads = call.query.shape[:2]
    if call.bias is None:
        return torch.zeros(batch, heads, 2 * band + 1, dtype=torch.float64)
    lowest = torch.finfo(call.bias.dtype).min / 2
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        values = call.bias.diagonal(t, -2, -1)
        allowed = values > lowest
        total = torch.where(allowed, values.double(), 0.0).sum(-1)
        # a sum over all pairs, as if the forbidden ones had the mean of the others, so that a mask bends no trace;
        # 0 / 0 where all is forbidden, or there is no pair
        traces.append(total * values.shape[-1] / allowed.sum(-1))
    stacked = torch.stack(traces, -1).cpu().expand(batch, heads, -1)
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    return torch.where(pairs > 0, stacked, 0.0)


def score_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of the scores of a call (scale included, keys about their mean), without the matrix of scores.

    Parameters
    ----------
    call
        Arguments of the attention call.
    band
        Largest offset, tokens.

    Examples
    --------
    >>> x = torch.eye(2).view(1, 1, 2, 2)
    >>> score_traces(AttentionCall(x, x, x, scale=1.0), 1).tolist()
    [[[-0.5, 1.0, -0.5]]]
    """
    query = call.query.double()
    key = call.key.double().repeat_interleave(call.group, 1)
    key = call.scale * centred_keys(call, [key])[0]
    queries, keys = query.shape[2], key.shape[2]
    traces: list[Tensor] = []
    for t in range(-band, band + 1):
        pairs = _with_offset(queries, keys, t)
        of_keys = key[:, :, pairs.start + t : pairs.stop + t]
        traces.append((query[:, :, pairs.start : pairs.stop] * of_keys).sum((-1, -2)))
    return torch.stack(traces, -1)


@dataclass(frozen=True, eq=False)
class Reach:
    """What the queries of a text may look at, by offset.

    Attributes
    ----------
    offsets
        Lowest and highest offset that the mask allows: up to 0 in a causal layer.
    even
        Sum of the weights at each offset if each query looked alike at all that it may, ``(offset,)``.
    pairs
        How many pairs of positions there are at each offset, whether a query may look or not, ``(offset,)``.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 4, 8)
    >>> reach = Reach.of(AttentionCall(x, x, x, scale=1.0, causal=True), band=2)
    >>> reach.offsets, reach.even.round(2).tolist()
    ((-3, 0), [0.58, 1.08, 2.08, 0.0, 0.0])
    """

    offsets: Offsets
    even: Float[np.ndarray, " offset"]
    pairs: Float[np.ndarray, " offset"]

    @classmethod
    def of(cls, call: AttentionCall, band: int) -> Reach:
        """Read the mask of the first text; that of a head of its own counts as what any head may look at."""
        start, stop = (bound[0].cpu().numpy() for bound in call.extent)
        row = np.arange(len(start))
        seen = stop - start
        if call.mask is not None and not call.is_contiguous:
            seen = np.minimum(seen, call.mask[0].sum(-1).amax(0).cpu().numpy())
        looks = seen > 0
        key = row[:, None] + np.arange(-band, band + 1)
        allowed = (key >= start[:, None]) & (key < stop[:, None])
        share = np.divide(1.0, seen, out=np.zeros(len(seen)), where=looks)
        return cls(
            (int((start - row)[looks].min(initial=0)), int((stop - 1 - row)[looks].max(initial=0))),
            (allowed * share[:, None]).sum(0),
            pairs_at(len(row), call.key.shape[2], band),
        )

    def level(self, chance: float) -> Float[np.ndarray, " offset"]:
        """Mean weight at each offset that a head without any preference among offsets exceeds with this probability.

        A profile varies most if each query puts its whole weight on one key, the same in all texts. Where these keys
        are drawn at random, the number of them at an offset has the Poisson distribution's tail, or less.

        Examples
        --------
        >>> from attnscope.explanation import pairs_at
        >>> pairs = pairs_at(128, 128, 1)
        >>> Reach((-127, 127), pairs / 128, pairs).level(1e-4).round(3).tolist()
        [0.047, 0.047, 0.047]
        """
        most = stats.poisson.isf(chance, self.even)
        return np.divide(most, self.pairs, out=np.full(len(most), np.nan), where=self.pairs > 0)
