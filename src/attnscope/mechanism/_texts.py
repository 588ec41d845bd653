"""Windows as a model takes them, and means over texts with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.corpus import Window

Windows = Iterable["Window | Sequence[int]"]
TOKENS_AT_ONCE = 2048


def token_ids(windows: Windows, *, least: int = 1) -> Int[Tensor, "text position"]:
    """Token ids of windows that are all equally long.

    Raises
    ------
    AttnscopeError
        If there are fewer than `least` windows, or they differ in length.

    Examples
    --------
    >>> token_ids([[5, 6], [7, 8]])
    tensor([[5, 6],
            [7, 8]])
    """
    rows: list[tuple[int, ...]] = [tuple(ids_of(window)) for window in windows]
    if len(rows) < least:
        raise AttnscopeError(
            f"found {len(rows)} window{'s' * (len(rows) != 1)}; expected {least} or more, to tell position from text: "
            "give more text or a smaller window"
        )
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise AttnscopeError(
            f"found windows of {min(lengths)} to {max(lengths)} tokens; expected all equally long, so that a "
            "position means the same in each: drop the shorter ones"
        )
    return torch.tensor(rows, dtype=torch.int64)


def ids_of(window: Window | Sequence[int]) -> Sequence[int]:
    """Token ids of a window, or the ids themselves."""
    return getattr(window, "ids", None) or cast("Sequence[int]", window)


def model_inputs(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> dict[str, Any]:
    """Arguments of a forward pass; the decoder of an encoder-decoder reads the same text."""
    ids = ids.to(model.device)
    given: dict[str, Any] = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids
    return given


def read(model: PreTrainedModel, ids: Int[Tensor, "batch position"]) -> None:
    """Run some texts through the model for what is watched: its head, whose logits nobody sees, is left out."""
    model.base_model(**model_inputs(model, ids))


def batches(ids: Int[Tensor, "text position"]) -> Iterator[tuple[slice, Int[Tensor, "batch position"]]]:
    """Some texts at a time, about 2,048 tokens of them."""
    size = max(1, TOKENS_AT_ONCE // max(1, ids.shape[1]))
    for first in range(0, len(ids), size):
        place = slice(first, min(first + size, len(ids)))
        yield place, ids[place]


def resampled(texts: int, draws: int, seed: int) -> Float[np.ndarray, "draw text"]:
    """Bootstrap over texts: each row holds how often each text was drawn, divided by their number."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(texts, np.full(texts, 1 / texts), size=draws) / texts


def interval(
    values: Float[np.ndarray, "text ..."], weights: Float[np.ndarray, "draw text"], *, level: float = 0.95
) -> tuple[Float[np.ndarray, ...], Float[np.ndarray, ...], Float[np.ndarray, ...]]:
    """Mean over texts and the percentile interval of its bootstrap.

    Examples
    --------
    >>> mean, low, high = interval(np.array([[1.0], [3.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), level=1.0)
    >>> mean.tolist(), low.tolist(), high.tolist()
    ([2.0], [1.0], [3.0])
    """
    flat = values.reshape(len(values), -1)
    low, high = np.empty(flat.shape[1]), np.empty(flat.shape[1])
    edges = [(1 - level) / 2, (1 + level) / 2]
    for first in range(0, flat.shape[1], 4096):
        part = slice(first, first + 4096)
        low[part], high[part] = np.quantile(weights @ flat[:, part], edges, axis=0)
    shape = values.shape[1:]
    return values.mean(0), low.reshape(shape), high.reshape(shape)
