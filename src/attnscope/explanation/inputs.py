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
from attnscope.kernels.engines import measure, output_of
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
def changing_input(
    model: PreTrainedModel, sites: Sequence[Site], layer: int, change: Change
) -> Generator[None]:
    """Let one attention layer read ``change(X)`` in place of X; nothing else is touched, the residual stream
    neither.
    """
    name = next((site.name for site in sites if site.index == layer), None)
    if name is None:
        raise AttnscopeError(_no_layer(layer))
    turn = sum(
        site.name == name and site.index < layer for site in sites
    )  # a module may serve several layers
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
    own = next(
        (argument for argument in arguments[:1] if isinstance(argument, Tensor)), options.get(OWN_STATES)
    )
    other = other_states(options)
    return own, own if other is None else other


def _no_layer(layer: int) -> str:
    return f"there is no attention layer {layer}; the model's are counted from 0: give another layer"


def pairs_at(queries: int, keys: int, band: int) -> Float[np.ndarray, " offset"]:
    """How many query-key pairs there are at each offset from ``-band`` to ``band``."""
    return np.array(
        [len(_with_offset(queries, keys, offset)) for offset in range(-band, band + 1)], np.float64
    )


def _with_offset(queries: int, keys: int, offset: int) -> range:
    """The queries that have a key at an offset."""
    first = max(0, -offset)
    return range(first, max(first, min(queries, keys - offset)))


def mean_profile(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """Mean weight at each offset, over the rows that have one; float64 on the CPU, NaN where no row has one."""
    return profile_and_output(call, band)[0]


def profile_and_output(
    call: AttentionCall, band: int
) -> tuple[Float[Tensor, "batch head offset"], Float[Tensor, "batch head query width"]]:
    """Give the mean weight at each offset (float64, on the CPU) and the output of a call, as `measure` does."""
    output, rows = measure(call, Need(band=band))
    assert rows.band is not None  # noqa: S101 asked for
    pairs = torch.from_numpy(pairs_at(call.query.shape[2], call.key.shape[2], band))
    summed = rows.band.double().sum(2).cpu()
    return torch.where(pairs > 0, summed / pairs.clamp_min(1), torch.nan), output


def centred_keys(call: AttentionCall, keys: Sequence[Tensor]) -> list[Tensor]:
    """Keys ``(..., key, width)`` about their mean over the text, where softmax cannot tell."""
    if call.softcap is not None or call.sinks is not None:
        return list(keys)
    return [key - key.mean(-2, keepdim=True) for key in keys]


def one_text(call: AttentionCall, text: int) -> AttentionCall:
    """The call of one text of the batch."""
    own = slice(text, text + 1)
    return replace(
        call,
        query=call.query[own],
        key=call.key[own],
        value=call.value[own],
        mask=call.mask if call.mask is None or len(call.mask) == 1 else call.mask[own],
        bias=call.bias if call.bias is None or len(call.bias) == 1 else call.bias[own],
    )


def visible_offsets(call: AttentionCall, band: int) -> Bool[np.ndarray, " offset"]:
    """Offsets from ``-band`` to ``band`` at which some query of some text may look, as masks and causality have it."""
    start, stop = (bound.cpu() for bound in call.extent)
    first, last = (bound - torch.arange(call.query.shape[2]) for bound in (start, stop))
    offsets = torch.arange(-band, band + 1)[:, None, None]
    return ((first <= offsets) & (offsets < last)).any(-1).any(-1).numpy()


def bias_traces(call: AttentionCall, band: int) -> Float[Tensor, "batch head offset"]:
    """``tr_t`` of what is added to the scores, 0 where nothing is; float64 on the CPU."""
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
    """``tr_t`` of the scores of a call (scale included, keys about their mean), without the matrix of scores."""
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
    """What the queries of a text may look at, by offset."""

    offsets: Offsets  # lowest and highest offset that the mask allows: up to 0 in a causal layer
    # sum of the weights at each offset if each query looked alike at all that it may, ``(offset,)``
    even: Float[np.ndarray, " offset"]
    # how many pairs of positions there are at each offset, whether a query may look or not, ``(offset,)``
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
        """Mean weight at each offset that a head without any preference among offsets exceeds with this probability."""
        most = stats.poisson.isf(chance, self.even)
        return np.divide(most, self.pairs, out=np.full(len(most), np.nan), where=self.pairs > 0)
