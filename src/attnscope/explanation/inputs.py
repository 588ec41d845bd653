"""Model inputs from windows, the input X of each attention layer, and means over texts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.families import OWN_STATES, is_attention, other_states
from attnscope.capture.forward import forward
from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import in_single_precision
from attnscope.kernels.call import AttentionCall
from attnscope.read.windows import Window, window_name
from attnscope.statistics import intervals as _intervals
from attnscope.statistics.intervals import DRAWS
from attnscope.support.errors import AttnscopeError

InputObserver = Callable[[Site, AttentionCall, Tensor, Tensor], Tensor]
Windows = Iterable["Window | Sequence[int]"]
Inputs = dict[str, Tensor]  # arguments of a forward pass, by name
TOKENS_AT_ONCE = 2048
FOR_MATCHING = 32  # tokens of a text: enough to match matrices and queries


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids of texts that are all equally long."""

    ids: Int[Tensor, "text position"]  # token ids of the texts
    # token ids for the decoder of an encoder-decoder; None if it reads the same text
    target: Int[Tensor, "text position"] | None = None
    names: tuple[str, ...] = ()  # names of the texts in errors
    documents: tuple[Hashable, ...] = ()  # the document of each text; bare token ids are one document each

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, texts: slice) -> Tokens:
        """Some of the texts."""
        return replace(self.each(lambda ids: ids[texts]), names=self.names[texts], documents=self.documents[texts])

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def start(self, count: int) -> Tokens:
        return self.each(lambda ids: ids[:, :count])

    def each(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """Apply a change to text and target."""
        return replace(self, ids=change(self.ids), target=None if self.target is None else change(self.target))


def token_ids(windows: Windows, *, least: int = 1) -> Tokens:
    """Token ids of windows that are all equally long, and of their targets."""
    windows = list(windows)
    rows: list[tuple[int, ...]] = [tuple(ids_of(window)) for window in windows]
    targets = [tuple(ids_of(target)) for target in targets_of(windows)]
    if len(rows) < least:
        raise AttnscopeError(
            f"found {len(rows)} window{'s' * (len(rows) != 1)}; expected {least} or more, to separate position from "
            "text: use more text or a smaller window"
        )
    lengths = {len(row) for row in (*rows, *targets)}
    if len(lengths) > 1:
        raise AttnscopeError(
            f"found windows of {min(lengths)} to {max(lengths)} tokens; expected equal lengths: drop shorter windows"
        )
    return Tokens(
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(targets, dtype=torch.int64) if targets else None,
        tuple(window_name(window, number) for number, window in enumerate(windows)),
        tuple(getattr(window, "source", number) for number, window in enumerate(windows)),
    )


def targets_of(windows: Sequence[Window | Sequence[int]]) -> list[Window | Sequence[int]]:
    """The decoder's input for each window; empty if no window has a target."""
    targets = [getattr(window, "target", None) for window in windows]
    if all(target is None for target in targets):
        return []
    return [window if target is None else target for window, target in zip(windows, targets, strict=True)]


def ids_of(window: Window | Sequence[int]) -> Sequence[int]:
    """Token ids of a window, or the ids themselves."""
    return getattr(window, "ids", None) or cast("Sequence[int]", window)


def model_inputs(model: PreTrainedModel, tokens: Tokens) -> Inputs:
    """Arguments of a forward pass; without a target, the decoder of an encoder-decoder reads the same text."""
    tokens = tokens.each(lambda ids: ids.to(device_of(model)))
    inputs = {"input_ids": tokens.ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens.ids if tokens.target is None else tokens.target
    return inputs


def read(model: PreTrainedModel, tokens: Tokens) -> None:
    """Run some texts through the model, without its language-model head, whose logits are not needed."""
    forward(model, model_inputs(model, tokens), tokens.names.__getitem__, with_head=False)


def read_all(model: PreTrainedModel, tokens: Tokens, observe: Callable[[Site, AttentionCall], Tensor]) -> None:
    """Run all texts through the model; `observe` gets every attention call and returns its output."""
    with watching(model, observe):
        for _, batch in batches(tokens):
            read(model, batch)


def batches(tokens: Tokens) -> Iterator[tuple[slice, Tokens]]:
    """Some texts at a time, about 2,048 tokens of them."""
    size = max(1, TOKENS_AT_ONCE // max(1, tokens.length))
    for first in range(0, len(tokens), size):
        part = slice(first, min(first + size, len(tokens)))
        yield part, tokens[part]


def interval(
    values: Float[np.ndarray, "text ..."], units: Sequence[Hashable], *, draws: int = DRAWS, seed: int = 0
) -> tuple[Float[np.ndarray, ...], Float[np.ndarray, ...], Float[np.ndarray, ...]]:
    """Mean over texts and both ends of its 95% interval: see `attnscope.statistics.intervals.interval`."""
    low, high = _intervals.interval(values, units, draws=draws, seed=seed)
    mean = values.mean(0)
    unknown = np.isnan(mean)
    return mean, np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def observed_pass(model: PreTrainedModel, inputs: Inputs, hooks: Iterable[Any], observer: InputObserver) -> None:
    """One pass over one text, in float32, with an observer of its attention calls; the hooks are removed after it."""
    with in_single_precision(model), attached(hooks), watching_inputs(model, observer):
        forward(model, inputs, lambda _: "the text")


@contextmanager
def watching_inputs(model: PreTrainedModel, observer: InputObserver) -> Generator[None]:
    """Pass every attention call to ``observer(site, call, query_states, key_states)``, which returns the output."""
    latest: dict[str, tuple[Tensor | None, Tensor | None]] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            latest[name] = _states(arguments, options)

        return hook

    def observe(site: Site, call: AttentionCall) -> Tensor:
        query_states, key_states = latest.pop(site.name, (None, None))
        if query_states is None or key_states is None:
            raise AttnscopeError(
                f"layer {site.index} ({site.name}) of {type(model).__name__} is called without hidden states; expected "
                "them as first argument or as hidden_states"
            )
        return observer(site, call, query_states, key_states)

    named = ((name, module) for name, module in model.named_modules() if is_attention(module))
    hooks = (module.register_forward_pre_hook(note(name), with_kwargs=True) for name, module in named)
    with attached(hooks), watching(model, observe):
        yield


def _states(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    states = next((argument for argument in arguments[:1] if isinstance(argument, Tensor)), options.get(OWN_STATES))
    other = other_states(options)
    return states, states if other is None else other
