"""Which head of one model is which of another: by number, or by where they look."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

Matching = Literal["auto", "number", "profile"]
_ORDERS = 1000
_SURE = 0.05


def match_heads(
    before: Float[np.ndarray, "layer head offset"],
    after: Float[np.ndarray, "layer head offset"],
    *,
    matching: Matching = "auto",
    seed: int = 0,
) -> tuple[Int[np.ndarray, "layer head"], str]:
    """Give for each head the number of its partner in the same layer of the other model.

    ``number`` takes heads as they are counted. ``profile`` takes, in each layer, the assignment with the least total
    variation distance between the offset profiles. ``auto`` takes ``number`` where heads of one number are more alike
    than in 95% of random orders (checkpoints of one training, a tuned or quantised model), else ``profile``.

    Parameters
    ----------
    before, after
        Mean profiles; NaN beyond a layer's heads.
    matching
        Which rule.
    seed
        Seed of the random orders.

    Returns
    -------
    numpy.ndarray
        Partner of each head; a head that is not there is its own.
    str
        The rule that was taken, ``number`` or ``profile``.

    Examples
    --------
    >>> profiles = np.eye(3)[None]
    >>> match_heads(profiles, profiles[:, [1, 2, 0]], matching="profile")[0].tolist()
    [[2, 0, 1]]
    >>> match_heads(profiles.repeat(3, 0), profiles.repeat(3, 0))[1]
    'number'
    """
    layers, heads = before.shape[:2]
    distance = np.nansum(np.abs(before[:, :, None] - after[:, None]), -1) / 2  # (layer, head, partner)
    real = np.asarray(~np.isnan(before).all(-1))
    own = np.broadcast_to(np.arange(heads), (layers, heads)).copy()
    if matching == "number" or (matching == "auto" and _alike(distance, real, seed)):
        return own, "number"
    for layer in range(layers):
        there = np.flatnonzero(real[layer])
        rows, columns = linear_sum_assignment(distance[layer][np.ix_(there, there)])
        own[layer, there[rows]] = there[columns]
    return own, "profile"


def _alike(distance: np.ndarray, real: np.ndarray, seed: int) -> bool:
    """Whether heads of one number are more alike than nearly all random orders make them."""
    generator = np.random.default_rng(seed)
    places = [np.flatnonzero(row) for row in real]

    def total(orders: list[np.ndarray]) -> float:
        return sum(float(distance[layer, places[layer], order].sum()) for layer, order in enumerate(orders))

    own = total(places)
    drawn = [total([generator.permutation(there) for there in places]) for _ in range(_ORDERS)]
    return float(np.mean(np.array(drawn) <= own)) <= _SURE
