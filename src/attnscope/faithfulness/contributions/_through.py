"""Layers one after the other: how much of each input token is in each token, in a model of one text or of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.faithfulness._sides import Sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.faithfulness.contributions._record import Record


def cannot_follow(sides: Sides, records: Sequence[Record]) -> str:
    """Why layers of a text cannot be followed through one another; empty where they can.

    Examples
    --------
    >>> cannot_follow(Sides(2, 0), [])
    ''
    """
    for each in records:
        sizes = tuple(side.stop - side.start for side in sides.of(each.site.kind))
        shape = each.call.query.shape[2], each.call.key.shape[2]
        if shape != sizes:
            return (
                f"layer {each.site.index} ({each.site.name}) has {shape[0]} queries and {shape[1]} keys, not one for "
                "each token of its text, so that layers cannot be multiplied"
            )
    return ""


class Rollout:
    r"""The product of :math:`\tfrac12 I + \tfrac12 A_l` over layers; two matrices over all tokens are held.

    Examples
    --------
    >>> rolled = Rollout(Sides(2, 0))
    >>> rolled.step("self", torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    def __init__(self, sides: Sides, residual: float = 0.5) -> None:
        self.sides, self.residual = sides, residual
        self.matrix = torch.eye(sides.tokens, dtype=torch.float32)

    def step(self, kind: str, mean: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
        """A layer further; what of it lies between queries and keys of that layer."""
        queries, keys = self.sides.of(kind)
        matrix = self.matrix.to(mean)
        new = matrix.clone()
        new[queries] = self.residual * matrix[queries] + (1 - self.residual) * mean @ matrix[keys]
        self.matrix = new
        return new[queries, keys]


class Relevance(Rollout):
    r""":math:`R \leftarrow R + \bar A_l R`.

    Of an encoder-decoder both texts are one: the rule for self-attention over all tokens, where each layer has zeros
    but for its own queries and keys.

    Examples
    --------
    >>> relevance = Relevance(Sides(2, 0))
    >>> relevance.step("self", torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """

    def step(self, kind: str, mean: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
        """A layer further; of it without the identity, what lies between queries and keys of that layer."""
        queries, keys = self.sides.of(kind)
        matrix = self.matrix.to(mean)
        new = matrix.clone()
        new[queries] += mean @ matrix[keys]
        self.matrix = new
        grown = new[queries, keys]
        return (
            grown - torch.eye(len(grown), dtype=grown.dtype, device=grown.device)
            if queries == keys
            else grown
        )
