"""Kinds of heads: a name for each by what was measured, held against equal weights.

A head is named by a place where at least `SHARE` of its weight lies, and at least `MORE` times what equal weights over
the same tokens would put there. That it does so by chance is held against rows that know nothing of places: the chance
that the mean of N such rows, each of mean q, is p or more is at most exp(-N KL(p || q)) (Chernoff and Hoeffding), and
over all heads and places it must stay below `CHANCE`.

Of a place that is one key for all rows (first token, special tokens, no token) that bound says little: a head of random
weights suits some keys more than others, in every row and text alike. There the odds must be `SHARED_ODDS` times those
of equal weights. That is no test: GPT-2 with random weights of ten times the usual size has heads beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from attnscope.statistics._places import NEAR, Places, Shares

SHARE = 0.3  # of all weight in one place: a head that looks there
LEAST_SHARE = 0.1  # of all weight in one place, for a head to stand in a ranking
LOCAL = 0.5  # of all weight within some tokens: a local head
MORE = 2.0  # times what equal weights give; of sides, times the odds
SHARED_ODDS = (
    6.0  # times the odds of equal weights, of a key that all rows share: random Llama models reach 5.5
)
ALIKE_PLACES, ALIKE_ENTROPY = (
    0.1,
    0.2,
)  # share of weight that lies elsewhere than of equal weights; nats below them
CHANCE = 0.01  # that any head of a run gets a name by chance
UNNAMED = ("uniform", "uniform over the past", "mixed", "flat")
_SIDES = ("left", "right")


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Shares of the weight where a head may be said to look, and how many rows tell: ``(head, candidate)`` each.

    The null of a whole side is the larger one of equal weights and of the head's own weights with rows made alike.

    Candidates are offsets, first token, special tokens, no token; each reach; of each reach the fraction on the left,
    and on the right; of all, the fraction on the left, and on the right.
    """

    measured: Float[np.ndarray, "head candidate"]
    equal: Float[np.ndarray, "head candidate"]
    rows: Float[np.ndarray, "head candidate"]

    @classmethod
    def of(cls, places: Places) -> _Candidates:
        measured = places.measured
        whole = np.ones((len(measured.first), measured.offset.shape[1] + 3 + measured.near.shape[1]))
        near, far = measured.near_left + measured.near_right, measured.left + measured.right
        told = np.column_stack([whole, near, near, far, far])
        # frames that are no sound are all alike: heads rest on all of them or on none, trained or not
        first = measured.offset.shape[1]
        told[np.isnan(measured.columns_left), first : first + 2] = 0.0
        equal = _columns(places.equal)
        columns = _fraction(
            measured.columns_left, np.maximum(1.0 - measured.columns_left - measured.first, 0.0)
        )
        columns = np.where(
            np.isnan(measured.columns_left), np.nan, columns
        )  # not known: then no side is named
        equal[:, -2] = np.maximum(equal[:, -2], columns)
        equal[:, -1] = np.maximum(equal[:, -1], 1.0 - columns)
        return cls(_columns(measured), equal, told * places.rows[:, None])

    def lean(self, side: int) -> Bool[np.ndarray, " head"]:
        """Whether a fraction's odds are `MORE` times those of equal weights; never where only one side is seen."""
        measured, equal = self.measured[:, side], self.equal[:, side]
        return (equal > 0) & (equal < 1) & (measured * (1 - equal) >= MORE * equal * (1 - measured))


def _columns(shares: Shares) -> np.ndarray:
    left, right = shares.near_left, shares.near_right
    fractions = (_fraction(left, right), _fraction(right, left))
    sides = (_fraction(shares.left, shares.right), _fraction(shares.right, shares.left))
    return np.column_stack(
        [shares.offset, shares.first, shares.special, shares.none, shares.near, *fractions, *sides]
    )


def _fraction(side: np.ndarray, other: np.ndarray) -> np.ndarray:
    both = side + other
    return np.where(both > 0, side / np.where(both > 0, both, 1.0), 0.0)


def beyond_chance(
    measured: Float[np.ndarray, "*cell"],
    equal: Float[np.ndarray, "*cell"],
    rows: Float[np.ndarray, "*cell"] | float,
) -> Bool[np.ndarray, "*cell"]:
    """Whether more lies in a place than so many rows that know nothing of places would put there by chance.

    Examples
    --------
    >>> share, equal = np.array([[0.3, 0.3, 0.1]]), np.array([[0.1, 0.29, 0.2]])
    >>> beyond_chance(share, equal, 100.0).tolist(), beyond_chance(share, equal, 10.0).tolist()
    ([[True, False, False]], [[False, False, False]])
    """
    p, q = (np.clip(share, 1e-12, 1 - 1e-12) for share in (measured, equal))
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return (p > q) & (rows * divergence >= np.log(measured.size / CHANCE))


def beyond_shared(
    measured: Float[np.ndarray, "*cell"], equal: Float[np.ndarray, "*cell"]
) -> Bool[np.ndarray, "*cell"]:
    """Whether a key that all rows share has `SHARED_ODDS` times the odds of equal weights.

    Examples
    --------
    >>> beyond_shared(np.array([0.12, 0.24, 0.9]), np.array([0.04, 0.02, 0.2])).tolist()
    [False, True, True]
    """
    return (measured > equal) & (measured * (1 - equal) >= SHARED_ODDS * equal * (1 - measured))


def admissible(places: Places) -> Bool[np.ndarray, "head candidate"]:
    """What each head may be named by: where there is more than by chance."""
    candidates = _Candidates.of(places)
    return beyond_chance(candidates.measured, candidates.equal, candidates.rows)


def kind_list(places: Places) -> list[str]:
    """All kinds that there could be, as `kind_codes` numbers them."""
    local = ["local" if reach == NEAR else f"within {reach}" for reach in places.reaches]
    return [
        *(f"offset {offset:+d}" for offset in places.offsets),
        *("first token", "special tokens", "no token"),
        *(f"{name}{side}" for name in local for side in ("", " left", " right")),
        *("leftward", "rightward", "uniform", "mixed"),
    ]


def kind_codes(places: Places, allowed: Bool[np.ndarray, "head candidate"]) -> np.ndarray:
    """Number of the kind of each head in `kind_list`.

    Parameters
    ----------
    places
        Places of the heads.
    allowed
        From `admissible`, of these heads, or of the same heads over more texts.
    """
    kinds, candidates = kind_list(places), _Candidates.of(places)
    single, reaches = len(places.offsets) + 3, len(places.reaches)
    enough = allowed & (candidates.measured >= MORE * candidates.equal)
    shared = slice(len(places.offsets), single)
    enough[:, shared] &= beyond_shared(candidates.measured[:, shared], candidates.equal[:, shared])
    shares = np.where(enough[:, :single], candidates.measured[:, :single], 0.0)
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (_alike(places), kinds.index("uniform"))]
    for reach in range(reaches):
        near = single + reach
        is_local = enough[:, near] & (candidates.measured[:, near] >= LOCAL)
        for number in range(len(_SIDES)):
            side = near + (1 + number) * reaches
            choices.append(
                (is_local & allowed[:, side] & candidates.lean(side), single + 3 * reach + 1 + number)
            )
        choices.append((is_local, single + 3 * reach))
    for number, share in enumerate((places.measured.left, places.measured.right)):
        side = single + 3 * reaches + number
        leans = (share >= SHARE) & allowed[:, side] & candidates.lean(side)
        choices.append((leans, kinds.index(f"{_SIDES[number]}ward")))
    conditions, codes = zip(*choices, strict=True)
    return np.select(conditions, codes, kinds.index("mixed"))


def _alike(places: Places) -> Bool[np.ndarray, " head"]:
    """Which heads weigh as equal weights do, in places and in sharpness."""
    measured, equal = places.measured, places.equal
    moved = np.abs(measured.bins - equal.bins).sum(-1) / 2
    first, entropy = np.abs(measured.first - equal.first), np.abs(measured.entropy - equal.entropy)
    return (moved <= ALIKE_PLACES) & (first <= ALIKE_PLACES) & (entropy <= ALIKE_ENTROPY)


def kind_name(kind: str, attention: str) -> str:
    """What a kind is called in attention of the kind ``self``, ``causal`` or ``cross``.

    Examples
    --------
    >>> [kind_name(kind, "causal") for kind in ("offset -1", "offset +0", "offset -2", "uniform")]
    ['previous', 'self', 'offset -2', 'uniform over the past']
    >>> [kind_name(kind, "cross") for kind in ("offset -1", "offset +0")]
    ['offset -1', 'same position']
    """
    if attention == "cross":
        return {"offset +0": "same position"}.get(kind, kind)
    names = {"offset -1": "previous", "offset +0": "self", "offset +1": "next"}
    if attention == "causal":
        names["uniform"] = "uniform over the past"
    return names.get(kind, kind)


def told_apart(names: list[str], places: Places) -> list[str]:
    """Clusters of one name, told apart by the share of weight within the band; where that is alike, by a number."""
    shown = [
        f"{name} ({100 * inside:.0f}% in the band)" if names.count(name) > 1 else name
        for name, inside in zip(names, places.measured.offset.sum(-1), strict=True)
    ]
    return [
        f"{name[:-1]}, no. {shown[: place + 1].count(name)})" if shown.count(name) > 1 else name
        for place, name in enumerate(shown)
    ]
