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


def gradient(one: OneText) -> Scores:
    """Norm of the gradient of the outcome's log probability by the token's vector."""
    return _by_token(one, lambda slope, _: slope.norm(dim=-1))


def gradient_input(one: OneText) -> Scores:
    """Absolute product of that gradient and the vector."""
    return _by_token(one, lambda slope, vector: (slope * vector).sum(-1).abs())


def gradient_attention(one: OneText) -> Scores:
    """Relevance through all layers: a row of R - I for each place, a vector carried down from the last layer."""
    values = [values_of(of.call)[0].transpose(-2, -1) for of in one.records]
    found: list[np.ndarray] = []
    for number, row in enumerate(one.rows):
        slopes = _slopes(one, number, [of.output for of in one.records])
        start = torch.zeros(one.sides.tokens, dtype=torch.float64)
        start[row] = 1
        relevance = start.clone()
        for at in reversed(range(len(one.records))):
            queries, keys = one.sides.of(one.kinds[at])
            weights = one.weights[at]
            kept = (weights * (slopes[at][0].to(weights.dtype) @ values[at])).clamp_min(0).mean(0)
            relevance[keys] += relevance[queries] @ kept.double().cpu()
        found.append((relevance - start).numpy())
    return np.stack(found)


def _by_token(one: OneText, size: Callable[[Tensor, Tensor], Tensor]) -> Scores:
    found: list[np.ndarray] = []
    for number in range(len(one.rows)):
        pairs = zip(_slopes(one, number, one.leaves), one.leaves, strict=True)
        sizes = [size(slope[0], leaf.detach()[0]) for slope, leaf in pairs]
        found.append(torch.cat(sizes).double().cpu().numpy())
    return np.stack(found)


def _slopes(one: OneText, number: int, by: list[Tensor]) -> tuple[Tensor, ...]:
    """Derivative of the log probability of a place's outcome."""
    of = one.predicted[number, one.outcomes[number]]
    return torch.autograd.grad(of, by, retain_graph=True, allow_unused=True, materialize_grads=True)
