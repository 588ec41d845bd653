"""Which means over documents lie apart from 0, all of them together, by flipping the signs of documents.

Were there nothing, a document's part would be as likely to have the other sign. So the largest t of all means is held
against those of all choices of signs (Winkler et al. 2014). From 20 documents on, t is corrected for skewness; with
fewer, skewed effects are called significant too often (docs/coverage.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float

from attnscope._documents import FEW, LEVEL, unskewed

_ALL_SIGNS = 12  # units up to which every choice of signs is tried
_DRAWS = 1000  # choices of signs, where means are many
_SPREAD = 1e-6  # least share of the squares apart from the mean, for which there is a skewness


def apart_from_zero(
    parts: Float[np.ndarray, "document mean"], generator: np.random.Generator
) -> Bool[np.ndarray, " mean"]:
    """Which means are told from 0, on either side: by all choices of signs, by 4,096 at random where there are more.

    Parameters
    ----------
    parts
        What each document has of the sum. A mean that is NaN in some document, or 0 in all, is not told.
    generator
        Draws the signs.

    Examples
    --------
    >>> parts = np.array([[1.0, 1.0, 0.0]] * 8) * [[1, -1, 1]] * np.array([[1, 1, 1], [1, -1, 1]] * 4)
    >>> apart_from_zero(parts, np.random.default_rng(0)).tolist()
    [True, False, False]
    """
    count = len(parts)
    if count <= _ALL_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = _random_signs(generator, 2**_ALL_SIGNS, count)
    there = _there(parts)
    flipped = np.abs(_flipped(parts[:, there], signs))
    return _told(there, flipped[0], flipped.max(1, initial=-np.inf))


def above_zero(
    blocks: Iterable[Float[np.ndarray, "document mean"]], documents: int
) -> list[Bool[np.ndarray, " mean"]]:
    """Which means lie above 0, those of all blocks together, by 1,000 choices of signs: of each block by itself.

    Parameters
    ----------
    blocks
        Parts as in `apart_from_zero`, made one after the other where means are many.
    documents
        How many there are.

    Examples
    --------
    >>> up, down = np.ones((8, 1)), -np.ones((8, 2))
    >>> [told.tolist() for told in above_zero([up, down], 8)]
    [[True], [False, False]]
    """
    signs = _random_signs(np.random.default_rng(0), _DRAWS, documents)
    largest = np.full(_DRAWS, -np.inf)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for parts in blocks:
        there = _there(parts)
        flipped = _flipped(parts[:, there], signs)
        largest = np.maximum(largest, flipped.max(1, initial=-np.inf))
        found.append((there, flipped[0]))
    return [_told(there, own, largest) for there, own in found]


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


def _told(there: np.ndarray, own: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Which means, of those that are there, the largest of any mean reaches in few choices of signs alone."""
    as_large = len(largest) - np.searchsorted(np.sort(largest), own * (1 - 1e-9))
    told = np.zeros(there.shape, dtype=bool)
    told[there] = as_large / len(largest) <= 1 - LEVEL
    return told
