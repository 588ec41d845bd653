"""From a plan to matrices: turned at random, with noise, as any architecture takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnscope.zoo._heads import Head
from attnscope.zoo._plan import Plan
from attnscope.zoo._positions import turned
from attnscope.zoo._space import CONSTANT

FEED_FORWARD = 32
_LOUDNESS = 0.3  # of the feed-forward parts, which write where nobody reads


@dataclass(frozen=True, eq=False)
class CallMatrices:
    """Matrices of one attention call, its heads side by side; rows are what comes in."""

    query: Float[np.ndarray, "width columns"]
    key: Float[np.ndarray, "width columns"]
    value: Float[np.ndarray, "width columns"]
    output: Float[np.ndarray, "columns width"]


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """All that an architecture needs.

    Attributes
    ----------
    tokens, unembed
        ``(vocabulary, width)``.
    positions
        ``(position, width)``; None where queries and keys turn.
    calls
        Matrices of each attention call.
    feed_forward
        Up and down of each layer.
    gain
        Weight of every norm, so that it multiplies by about 1.
    heads, head_width
        Heads of each call, and their width.
    """

    tokens: Float[np.ndarray, "vocabulary width"]
    unembed: Float[np.ndarray, "vocabulary width"]
    positions: Float[np.ndarray, "position width"] | None
    calls: tuple[CallMatrices, ...]
    feed_forward: tuple[tuple[np.ndarray, np.ndarray], ...]
    gain: float
    heads: int
    head_width: int

    @property
    def width(self) -> int:
        """Of the model."""
        return self.tokens.shape[1]


def weights_of(plan: Plan, rng: np.random.Generator) -> ModelWeights:
    """Draw noise and turns, and write the plan out in them.

    The residual stream is turned at random among the directions whose mean is 0, so that LayerNorm takes nothing away.
    """
    basis = _basis(plan.space.width, rng)
    noise = plan.setting.noise

    def outward(rows: np.ndarray, size: float = noise) -> np.ndarray:
        """Rows that hold or write to the residual stream."""
        return _noisy(rows, size, rng) @ basis

    def inward(columns: np.ndarray) -> np.ndarray:
        """Columns that read it."""
        return basis.T @ _noisy(columns.T, noise, rng).T

    calls: list[CallMatrices] = []
    for heads in plan.calls:
        parts = [_factors(head, plan, rng) for head in heads]
        query, key, value, output = ([part[number] for part in parts] for number in range(4))
        calls.append(
            CallMatrices(
                np.hstack([inward(vector) for vector in query]),
                np.hstack([inward(vector) for vector in key]),
                np.hstack([inward(vector) for vector in value]),
                np.vstack([outward(vector) for vector in output]),
            )
        )
    table = plan.positions.table(plan.space)
    return ModelWeights(
        tokens=outward(plan.tokens),
        unembed=outward(plan.unembed),
        positions=None if table is None else outward(table),
        calls=tuple(calls),
        feed_forward=tuple(_feed_forward(plan, basis, rng) for _ in range(plan.layers)),
        gain=CONSTANT / basis.shape[1] ** 0.5,
        heads=len(plan.calls[0]),
        head_width=plan.head_width,
    )


def _basis(width: int, rng: np.random.Generator) -> Float[np.ndarray, "width model"]:
    """Orthonormal rows, each of mean 0."""
    columns = rng.normal(size=(width + 1, width))
    return np.linalg.qr(columns - columns.mean(0))[0].T


def _noisy(rows: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Noise everywhere but along the constant direction, whose norm would make it loud."""
    noise = rng.normal(size=rows.shape) * (size * np.sqrt(np.mean(rows[:, 1:] ** 2)))
    noise[:, 0] = 0.0
    return rows + noise


def _factors(
    head: Head, plan: Plan, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """W_Q, W_K, W_V ``(width, r)`` and W_O ``(r, width)`` of one head, its inner basis turned at random."""
    width = plan.head_width
    query, key = plan.positions.projections(head.look, plan.space, width, rng)
    scale = width**0.25  # attention divides scores by the root of the width
    turn = turned(width, rng)[: len(head.move.reads)]
    return query * scale, key * scale, head.move.reads.T @ turn, turn.T @ head.move.writes


def _feed_forward(plan: Plan, basis: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random functions of token and place (of what is loud they would be louder still), written where nobody reads."""
    heard, junk = (
        np.vstack([plan.space.rows(part) for part in ("token", "position")]),
        plan.space.rows("junk"),
    )
    up = heard.T @ rng.normal(size=(len(heard), FEED_FORWARD))
    down = rng.normal(size=(FEED_FORWARD, len(junk))) @ junk
    return basis.T @ up, down @ basis * (_LOUDNESS / (FEED_FORWARD * len(junk)) ** 0.5)
