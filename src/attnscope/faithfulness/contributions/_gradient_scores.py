"""Scores of a text's tokens that are made of gradients: one backward pass a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.faithfulness._calls import values_of

if TYPE_CHECKING:
    from attnscope.faithfulness.contributions._one_text import OneText

    Scores = Float[np.ndarray, "place token"]


def gradient(text: OneText) -> Scores:
    """Norm of the gradient of the outcome's log probability by the token's vector."""
    return _by_token(text, lambda slope, _: slope.norm(dim=-1))


def gradient_input(text: OneText) -> Scores:
    """Absolute product of that gradient and the vector."""
    return _by_token(text, lambda slope, vector: (slope * vector).sum(-1).abs())


def gradient_attention(text: OneText) -> Scores:
    """Relevance through all layers: a row of R - I for each place, a vector carried down from the last layer."""
    values = [values_of(of.call)[0].transpose(-2, -1) for of in text.records]
    scores: list[np.ndarray] = []
    for number, row in enumerate(text.rows):
        slopes = _slopes(text, number, [of.output for of in text.records])
        start = torch.zeros(text.sides.tokens, dtype=torch.float64)
        start[row] = 1
        relevance = start.clone()
        for at in reversed(range(len(text.records))):
            queries, keys = text.sides.of(text.kinds[at])
            weights = text.weights[at]
            kept = (weights * (slopes[at][0].to(weights.dtype) @ values[at])).clamp_min(0).mean(0)
            relevance[keys] += relevance[queries] @ kept.double().cpu()
        scores.append((relevance - start).numpy())
    return np.stack(scores)


def _by_token(text: OneText, size: Callable[[Tensor, Tensor], Tensor]) -> Scores:
    scores: list[np.ndarray] = []
    for number in range(len(text.rows)):
        pairs = zip(_slopes(text, number, text.leaves), text.leaves, strict=True)
        sizes = [size(slope[0], leaf.detach()[0]) for slope, leaf in pairs]
        scores.append(torch.cat(sizes).double().cpu().numpy())
    return np.stack(scores)


def _slopes(text: OneText, number: int, by: list[Tensor]) -> tuple[Tensor, ...]:
    """Derivative of the log probability of a place's outcome."""
    of = text.predicted[number, text.outcomes[number]]
    return torch.autograd.grad(of, by, retain_graph=True, allow_unused=True, materialize_grads=True)
