"""Means over texts with intervals by documents: windows of one document are not independent."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attnscope.measure.documents import DRAWS, FEW, LEAST, LEVEL, bootstrap_interval, unskewed


class Interval(NamedTuple):
    """Mean over texts, and its interval by the bootstrap over documents."""

    mean: Float[np.ndarray, ...]  # ``(...)``: NaN bounds where there are fewer than 6 units
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    # ``(...)``: whether the mean is told from 0 when all of them are looked at together: at most 5% of such families
    # of means, all truly 0, would have one that is
    shown: Bool[np.ndarray, ...]
    # ``(...)``: whether it was tested: not where there are fewer than 6 units, or no values
    tested: Bool[np.ndarray, ...]


def by_document(
    values: Float[np.ndarray, "text ..."],
    documents: Sequence[Hashable],
    *,
    over: Float[np.ndarray, " text"] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Interval:
    r"""Mean over texts, with a 95% interval by the bootstrap over documents."""
    flat = values.reshape(len(values), -1)
    names = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    member = np.array([names[name] for name in documents])
    count = len(names)
    sums = np.zeros((count, flat.shape[1]))
    np.add.at(sums, member, flat)
    sizes = np.bincount(member, weights=over).astype(float)
    mean = sums.sum(0) / sizes.sum()
    shape = values.shape[1:]
    if count < LEAST:
        unknown, no = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
        return Interval(mean.reshape(shape), unknown, unknown, no, no)
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=draws).astype(float)
    shown = differs_from_zero(sums / abs(sizes.mean()), generator)
    told = shown.reshape(shape), np.isfinite(mean).reshape(shape)
    drawn_sizes = drawn @ sizes
    if (drawn_sizes * sizes.sum() <= 0).any():
        unknown = np.full(shape, np.nan)
        return Interval(mean.reshape(shape), unknown, unknown, *told)
    low, high = bootstrap_interval(sums, sizes, drawn)
    return Interval(mean.reshape(shape), low.reshape(shape), high.reshape(shape), *told)


_ALL_SIGNS = 12  # units up to which every choice of signs is tried
_DRAWS = 1000  # choices of signs, where means are many
_SPREAD = 1e-6  # least share of the squares apart from the mean, for which there is a skewness


def differs_from_zero(
    parts: Float[np.ndarray, "document mean"], generator: np.random.Generator
) -> Bool[np.ndarray, " mean"]:
    """Which means are told from 0, on either side: by all choices of signs, by 4,096 at random where there are more."""
    count = len(parts)
    if count <= _ALL_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = _random_signs(generator, 2**_ALL_SIGNS, count)
    there = _there(parts)
    flipped = np.abs(_flipped(parts[:, there], signs))
    return _reported(there, flipped[0], flipped.max(1, initial=-np.inf))


def above_zero(blocks: Iterable[Float[np.ndarray, "document mean"]], documents: int) -> list[Bool[np.ndarray, " mean"]]:
    """Which means lie above 0, those of all blocks together, by 1,000 choices of signs: of each block by itself."""
    signs = _random_signs(np.random.default_rng(0), _DRAWS, documents)
    largest = np.full(_DRAWS, -np.inf)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for parts in blocks:
        there = _there(parts)
        flipped = _flipped(parts[:, there], signs)
        largest = np.maximum(largest, flipped.max(1, initial=-np.inf))
        found.append((there, flipped[0]))
    return [_reported(there, own, largest) for there, own in found]


def _random_signs(generator: np.random.Generator, draws: int, count: int) -> np.ndarray:
    signs = generator.choice([-1.0, 1.0], (draws, count))
    signs[0] = 1  # what was found is one of the choices
    return signs


def _there(parts: np.ndarray) -> np.ndarray:
    return (parts**2).sum(0) > 0


def _flipped(parts: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """What rises with t, as the sum of squares has no sign; of 20 or more t corrected for skewness: (choice, mean)."""
    count, parts = len(parts), parts / np.sqrt((parts**2).sum(0))
    sums = signs @ parts
    if count < FEW:
        return sums
    apart = 1 - sums**2 / count  # share of the squares
    spread = np.maximum(apart, _SPREAD)
    third = signs @ parts**3 - 3 * sums / count + 2 * sums**3 / count**2
    skewness = np.where(apart > _SPREAD, third / spread**1.5, 0) * np.sqrt(count * (count - 1)) / (count - 2)
    return np.asarray(unskewed(sums * np.sqrt((count - 1) / count / spread), skewness))


def _reported(there: np.ndarray, own: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Which means, of those that are there, the largest of any mean reaches in few choices of signs alone."""
    as_large = len(largest) - np.searchsorted(np.sort(largest), own * (1 - 1e-9))
    told = np.zeros(there.shape, dtype=bool)
    told[there] = as_large / len(largest) <= 1 - LEVEL
    return told
