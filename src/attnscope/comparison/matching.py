"""Which head of one model is which of another, by number or by where they look, and whether that is chance."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment

Matching = Literal["auto", "number", "profile"]
Kinship = Literal["shown", "not shown", "untested"]
_ORDERS = 1000
_SURE = 0.05  # chance of taking for kin what is none
_HALVES = 399  # random halves of the heads of both models
_TIE = 1e-9  # distance that may be given up, a head, for numbers that lie closer: far below that of any two profiles


class Matched(NamedTuple):
    """Which heads are held against each other."""

    partner: Int[np.ndarray, "layer head"]  # ``(layer, head)``: the head of the second model beside each of the first
    rule: str  # ``number`` or ``profile``
    # whether the pairs are more alike than by chance: ``shown``, ``not shown``, or ``untested`` where there are too
    # few heads to tell
    kinship: Kinship


def match_heads(
    before: Float[np.ndarray, "layer head offset"],
    after: Float[np.ndarray, "layer head offset"],
    *,
    matching: Matching = "auto",
    seed: int = 0,
) -> Matched:
    """Give for each head the number of its partner in the same layer of the other model.

    ``number`` takes heads as they are counted. ``profile`` pairs the heads of each layer one to one, so that the total
    variation distances of the pairs' offset profiles have the least sum; of several such assignments, the one whose
    numbers lie closest, by the sum of squares. ``auto`` takes ``number`` where heads of one number are more alike than
    in 95% of random orders (checkpoints of one training, a tuned or quantised model), else ``profile``.

    The best assignment of any two sets of heads makes pairs that are somewhat alike. Pairs by profile are therefore
    shown to be kin only where the two models match better than 95% of random halves of the heads of both, layer by
    layer: where each head has its twin in the other model, halves part the twins. Models trained alike may match better
    than halves without being kin. With before and after exchanged pairs and kinship are the same.
    """
    if _comes_later(before, after):  # always asked one way round: ties are broken alike, and the same halves drawn
        found = match_heads(after, before, matching=matching, seed=seed)
        return found._replace(partner=np.argsort(found.partner, -1))
    layers, heads = before.shape[:2]
    there = [np.flatnonzero(~np.isnan(layer).all(-1)) for layer in before]
    distances = [
        _distances(np.concatenate([first[own], second[own]]))
        for first, second, own in zip(before, after, there, strict=True)
    ]
    partner = np.broadcast_to(np.arange(heads), (layers, heads)).copy()
    if matching != "profile":
        kinship = _numbers_alike(distances, seed)
        if matching == "number" or kinship == "shown" or all(len(own) < 2 for own in there):  # noqa: PLR2004
            return Matched(partner, "number", kinship)
    for layer, own in enumerate(there):
        partner[layer, own] = own[_optimal_pairs(distances[layer][: len(own), len(own) :])]
    return Matched(partner, "profile", _pairs_alike(distances, seed))


def _comes_later(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the first number that differs is the larger in the first: an order of the two that is theirs alone."""
    differ = np.argwhere(np.nan_to_num(first) != np.nan_to_num(second))
    return bool(len(differ)) and bool(np.nan_to_num(first[*differ[0]]) > np.nan_to_num(second[*differ[0]]))


def _optimal_pairs(distances: np.ndarray) -> np.ndarray:
    """The partner of each head, with the least sum of distances; of several, that of numbers that lie closest."""
    numbers = np.arange(len(distances))
    apart = ((numbers[:, None] - numbers) / max(len(numbers), 1)) ** 2
    return linear_sum_assignment(distances + _TIE * apart)[1]


def _distances(profiles: np.ndarray) -> np.ndarray:
    """Total variation distance of the profiles of one layer, the first model's heads and then the second's."""
    every = [np.nansum(np.abs(profiles - profile), -1) / 2 for profile in profiles]
    return np.reshape(every, (len(profiles), len(profiles)))  # of no head too


def _numbers_alike(distances: list[np.ndarray], seed: int) -> Kinship:
    """Whether heads of one number are more alike than nearly all random orders make them."""
    generator = np.random.default_rng(seed)
    counts = [len(layer) // 2 for layer in distances]
    between = [layer[:count, count:] for layer, count in zip(distances, counts, strict=True)]
    if sum(np.log(np.arange(1, count + 1)).sum() for count in counts) < -np.log(_SURE):
        return "untested"

    def total(orders: list[np.ndarray]) -> float:
        return sum(
            float(layer[np.arange(len(order)), order].sum()) for layer, order in zip(between, orders, strict=True)
        )

    own = total([np.arange(count) for count in counts])
    drawn: list[float] = []
    for _ in range(_ORDERS // 2):  # each with its inverse: the other way round they are the same orders
        orders = [generator.permutation(count) for count in counts]
        drawn += [total(orders), total([np.argsort(order) for order in orders])]
    return "shown" if np.mean(np.array(drawn) <= own * (1 + 1e-9)) <= _SURE else "not shown"


def _pairs_alike(distances: list[np.ndarray], seed: int) -> Kinship:
    """Whether the models match better than nearly all random halves of the heads of both."""
    generator = np.random.default_rng(seed)
    counts = [len(layer) // 2 for layer in distances]
    if sum(_log_chance_of_parting(count) for count in counts) > np.log(_SURE):
        return "untested"

    def total(orders: list[np.ndarray]) -> float:
        whole = 0.0
        for layer, order in zip(distances, orders, strict=True):
            cost = layer[np.ix_(order[: len(order) // 2], order[len(order) // 2 :])]
            rows, columns = linear_sum_assignment(cost)
            whole += float(cost[rows, columns].sum())
        return whole

    own = total([np.arange(2 * count) for count in counts])
    drawn = [total([generator.permutation(2 * count) for count in counts]) for _ in range(_HALVES)]
    as_alike = 1 + int((np.array(drawn) <= own * (1 + 1e-9)).sum())
    return "shown" if as_alike / (1 + _HALVES) <= _SURE else "not shown"


def _log_chance_of_parting(count: int) -> float:
    """Logarithm of the chance that random halves of so many twins part every two: halves that are as alike as kin."""
    numbers = np.arange(1, count + 1)
    return count * np.log(2.0) - float(np.log(count + numbers).sum() - np.log(numbers).sum())
