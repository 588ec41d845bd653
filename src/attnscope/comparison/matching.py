"""Match the heads of two models by number or by offset profile, and test whether pairs are similar."""

from math import comb, log
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

Matching = Literal["auto", "number", "profile"]
Similarity = Literal["shown", "not shown", "untested"]
_ORDERS = 1000
_SURE = 0.05  # significance level
_HALVES = 399  # random halves of the heads of both models
_TIE = 1e-9  # distance per head that breaks ties towards equal numbers, far below that of any two profiles


class Matched(NamedTuple):
    """Pairs of heads of two models."""

    partner: Int[np.ndarray, "layer head"]  # ``(layer, head)``: the head of the second model for each of the first
    rule: str  # ``number`` or ``profile``
    # whether the pairs are more similar than chance: ``shown``, ``not shown``, or ``untested`` with too few heads
    similarity: Similarity


def match_heads(
    before: Float[np.ndarray, "layer head offset"],
    after: Float[np.ndarray, "layer head offset"],
    *,
    matching: Matching = "auto",
    seed: int = 0,
) -> Matched:
    """Find the partner of each head in the same layer of the other model.

    ``number`` pairs heads with equal numbers. ``profile`` pairs the heads of each layer one to one, with the smallest
    total variation distances of their offset profiles in sum; ties go to the closest numbers, by the sum of squares.
    ``auto`` uses ``number`` if heads with equal numbers are more similar than in 95% of random orders (checkpoints of
    one training, a tuned or quantised model), else ``profile``.

    The best assignment of any two sets of heads makes pairs that are somewhat similar. Pairs by profile therefore count
    as related only if the two models match better than 95% of random halves of the heads of both, layer by layer.
    Models with similar training may pass without being related. Exchanging before and after gives the same pairs.
    """
    if _comes_later(before, after):  # use one order of the two, so that ties and random halves are the same
        matched = match_heads(after, before, matching=matching, seed=seed)
        return matched._replace(partner=np.argsort(matched.partner, -1))
    layers, heads = before.shape[:2]
    existing = [np.flatnonzero(~np.isnan(layer).all(-1)) for layer in before]
    distances: list[np.ndarray] = []  # total variation distances of heads of the first model, then of the second
    for first, second, present in zip(before, after, existing, strict=True):
        profiles = np.concatenate([first[present], second[present]])
        every = [np.nansum(np.abs(profiles - profile), -1) / 2 for profile in profiles]
        distances.append(np.reshape(every, (len(profiles), len(profiles))))  # works without heads too
    partner = np.broadcast_to(np.arange(heads), (layers, heads)).copy()
    if matching != "profile":
        similarity = _numbers_alike(distances, seed)
        if matching == "number" or similarity == "shown" or all(len(present) < 2 for present in existing):  # noqa: PLR2004
            return Matched(partner, "number", similarity)
    for layer, present in enumerate(existing):
        numbers = np.arange(len(present))
        apart = ((numbers[:, None] - numbers) / max(len(present), 1)) ** 2
        partner[layer, present] = present[
            linear_sum_assignment(distances[layer][: len(present), len(present) :] + _TIE * apart)[1]
        ]
    return Matched(partner, "profile", _pairs_alike(distances, seed))


def _comes_later(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the first value that differs is larger in the first array: an order that depends only on the two."""
    differ = np.argwhere(np.nan_to_num(first) != np.nan_to_num(second))
    return bool(len(differ)) and bool(np.nan_to_num(first[*differ[0]]) > np.nan_to_num(second[*differ[0]]))


def _numbers_alike(distances: list[np.ndarray], seed: int) -> Similarity:
    """Whether heads with equal numbers are more similar than in nearly all random orders."""
    generator = np.random.default_rng(seed)
    counts = [len(layer) // 2 for layer in distances]
    between = [layer[:count, count:] for layer, count in zip(distances, counts, strict=True)]
    if sum(np.log(np.arange(1, count + 1)).sum() for count in counts) < -np.log(_SURE):
        return "untested"

    def total(orders: list[np.ndarray]) -> float:
        return sum(
            float(layer[np.arange(len(order)), order].sum()) for layer, order in zip(between, orders, strict=True)
        )

    in_order = total([np.arange(count) for count in counts])
    drawn: list[float] = []
    for _ in range(_ORDERS // 2):  # with inverses, so that exchanging the models gives the same orders
        orders = [generator.permutation(count) for count in counts]
        drawn += [total(orders), total([np.argsort(order) for order in orders])]
    return "shown" if np.mean(np.array(drawn) <= in_order * (1 + 1e-9)) <= _SURE else "not shown"


def _pairs_alike(distances: list[np.ndarray], seed: int) -> Similarity:
    """Whether the models match better than nearly all random halves of the heads of both."""
    generator = np.random.default_rng(seed)
    counts = [len(layer) // 2 for layer in distances]
    # random halves of n pairs of twins part every pair with the chance 2^n / C(2n, n)
    if sum(count * np.log(2.0) - log(comb(2 * count, count)) for count in counts) > np.log(_SURE):
        return "untested"

    def total(orders: list[np.ndarray]) -> float:
        whole = 0.0
        for layer, order in zip(distances, orders, strict=True):
            cost = layer[np.ix_(order[: len(order) // 2], order[len(order) // 2 :])]
            rows, columns = linear_sum_assignment(cost)
            whole += float(cost[rows, columns].sum())
        return whole

    in_order = total([np.arange(2 * count) for count in counts])
    drawn = [total([generator.permutation(2 * count) for count in counts]) for _ in range(_HALVES)]
    as_alike = 1 + int((np.array(drawn) <= in_order * (1 + 1e-9)).sum())
    return "shown" if as_alike / (1 + _HALVES) <= _SURE else "not shown"
