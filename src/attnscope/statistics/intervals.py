"""Intervals of means over documents: the bootstrap, the jackknife, Student's t without skewness."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import scipy

from attnscope.statistics.units import LEAST, membership, numbered

LEVEL = 0.95  # of intervals and tests
DRAWS = 1000  # of documents, for an interval
FEW = 20  # units; with fewer, the interval of a skewed mean is widened
SKEWED = 0.2  # skewness of a mean above which it is widened
_MOST_SKEW = 1.5  # of an estimate; a larger one is an accident of few units
_LEAST_SKEW = 1e-6  # below it the transformation is the identity, and its inverse 0 / 0
_AT_ONCE = 4096  # means, so that memory stays bounded


def mean_by_document(values: np.ndarray, documents: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean over texts, ``(column,)``, its standard error by documents, and their number."""
    member, count = numbered(documents)
    sizes = np.bincount(member).astype(float)
    sums = np.zeros((count, values.shape[1]))
    # add.at adds every text of a document; `sums[member] += values` would keep only the last
    np.add.at(sums, member, values)
    mean = sums.sum(0) / sizes.sum()
    # of a ratio of sums over documents, linearised (Cochran 1977, chapter 6)
    error = np.sqrt(count / max(1, count - 1) * ((sums - mean * sizes[:, None]) ** 2).sum(0)) / sizes.sum()
    return mean, error, count


def interval(
    values: np.ndarray, units: Sequence[Hashable], *, draws: int = DRAWS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of means over texts ``(text, ...)``, by `bootstrap_interval` over units."""
    flat = values.reshape(len(values), -1)
    member = membership(units)
    finite = np.isfinite(flat)
    sizes, sums = member @ finite.astype(float), member @ np.where(finite, flat, 0.0)
    low, high = np.full((2, flat.shape[1]), np.nan)
    # columns in which the same units have values are drawn together, so that they share the draws
    # eight flags a byte: columns are compared by their bits
    patterns, which = np.unique(np.packbits(sizes > 0, axis=0), axis=1, return_inverse=True)
    for pattern in range(patterns.shape[1]):
        columns = np.flatnonzero(which.reshape(-1) == pattern)
        present = sizes[:, columns[0]] > 0
        count = int(present.sum())
        if count < LEAST:
            continue
        # how often each unit is drawn: all that a mean of a resample needs
        drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
        for first in range(0, len(columns), _AT_ONCE):
            part = np.ix_(present, columns[first : first + _AT_ONCE])
            low[part[1][0]], high[part[1][0]] = bootstrap_interval(sums[part], sizes[part], drawn.astype(float))
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def bootstrap_interval(sums: np.ndarray, sizes: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of ratios of sums over units, 6 or more: the one interval of means over texts."""
    drawn_sizes = drawn @ sizes
    means = (drawn @ sums) / (drawn_sizes[:, None] if sizes.ndim == 1 else drawn_sizes)
    tail = outside(len(sums))
    # the expanded percentile interval (Hesterberg 2015, section 4.1)
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    if len(sums) >= FEW:
        return low, high
    # few units: the end of a skewed mean's long tail is at least as far as Student's t with its skewness allows
    count, whole = len(sums), sizes.sum(0)
    mean = sums.sum(0) / whole
    parts = (sums - mean * (sizes[:, None] if sizes.ndim == 1 else sizes)) / whole
    error = np.sqrt(count / (count - 1) * (parts**2).sum(0))
    third = count**2 / ((count - 1) * (count - 2)) * (parts**3).sum(0)
    skewness = np.divide(third, error**3, out=np.zeros_like(third), where=error > 0)
    half = error * long_tail(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2), np.abs(skewness))
    return (
        np.where(skewness < -SKEWED, np.fmin(low, mean - half), low),
        np.where(skewness > SKEWED, np.fmax(high, mean + half), high),
    )


def long_tail(quantile: Any, skewness: Any) -> Any:
    """Standard errors from a mean to the end of its long tail: Student's quantile, and what skewness adds."""
    return quantile + skewness * (2 * quantile**2 + 1) / 3


def jackknife_interval(whole: Any, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of a smooth estimate, from its values without each unit, ``(unit, ...)``."""
    count = len(left)
    # pseudo-values (Tukey 1958): their mean is the estimate without its bias of first order
    pseudo = count * np.asarray(whole) - (count - 1) * left
    half = scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * pseudo.std(0, ddof=1) / np.sqrt(count)
    return np.asarray(pseudo.mean(0) - half), np.asarray(pseudo.mean(0) + half)


def outside(count: int) -> float:
    """Share of draws below and above the expanded percentile interval of this number of units; 0.025 for many."""
    return float(scipy.special.ndtr(-reach(count)))


def reach(count: int | None = None) -> float:
    """Bootstrap standard deviations to either end of a 95% interval, for a number of units (default: many)."""
    if count is None:
        return float(-scipy.special.ndtri((1 - LEVEL) / 2))
    return float(-np.sqrt(count / (count - 1)) * scipy.special.stdtrit(count - 1, (1 - LEVEL) / 2))


def unskewed(t: Any, skewness: Any) -> Any:
    """Student's t of a mean, transformed to a statistic without skewness to first order (Hall 1992)."""
    return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6


def without_skewness(quantile: Any, skewness: Any) -> Any:
    """Quantile of (estimate - truth) / error, from that of Student's t and the skewness: the inverse of `unskewed`."""
    bounded = skewness.clip(-_MOST_SKEW, _MOST_SKEW)
    skew = bounded * (abs(bounded) > _LEAST_SKEW) + _LEAST_SKEW * (abs(bounded) <= _LEAST_SKEW)
    # cbrt takes the real root of a negative number, which a power of 1 / 3 does not
    return 3 / skew * (np.cbrt(1 + skew * (quantile - skew / 6)) - 1)
