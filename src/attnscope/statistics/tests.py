"""Tests of means over documents: by choices of signs, corrected for all means together, and for skewness."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache

import numpy as np
import scipy
from jaxtyping import Bool, Float

from attnscope.statistics.intervals import FEW, LEVEL, unskewed
from attnscope.statistics.units import LEAST, numbered

_ALL_SIGNS = 12  # units up to which every choice of signs is tried
_DRAWS = 1000  # choices of signs, where means are many
_SPREAD = 1e-6  # least share of the squares around the mean for which skewness is defined
MANY = 100  # units; fewer do not show how skewed they are, so that tests allow for skewness 2
_SHAPES = 2**13  # samples of exponential units
_CURVE = np.geomspace(0.25, 250, 48)  # Student's t, between which tail probabilities are interpolated


def differs_from_zero(
    parts: Float[np.ndarray, "document mean"], generator: np.random.Generator, least: int = 0
) -> Bool[np.ndarray, " mean"]:
    """Which means differ from 0 significantly, two-sided: by all choices of signs, or 4,096 random ones.

    The level is that of as many means as are not 0 everywhere, or at least of this many.
    """
    count = len(parts)
    if count <= _ALL_SIGNS:
        # the bits of each number are one choice of signs, those of 0 the data
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = _random_signs(generator, 2**_ALL_SIGNS, count)
    varies = (parts**2).sum(0) > 0
    # a document keeps one sign for all means: their dependence stays as it is
    flipped = np.abs(_flipped(parts[:, varies], signs))
    largest = flipped.max(1, initial=-np.inf)  # of all means under one choice: the maximum corrects for all together
    means = max(least, int(varies.sum()))
    return _rare_means(varies, parts, flipped[0], largest, means, means - int(varies.sum()))


def above_zero(blocks: Iterable[Float[np.ndarray, "document mean"]], documents: int) -> list[Bool[np.ndarray, " mean"]]:
    """Which means are significantly above 0, corrected for all blocks together, by 1,000 choices of signs."""
    signs = _random_signs(np.random.default_rng(0), _DRAWS, documents)
    largest = np.full(_DRAWS, -np.inf)
    measured: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for parts in blocks:
        varies = (parts**2).sum(0) > 0
        flipped = _flipped(parts[:, varies], signs)
        largest = np.maximum(largest, flipped.max(1, initial=-np.inf))
        measured.append((varies, parts, flipped[0]))
    means = sum(int(varies.sum()) for varies, _, _ in measured)
    return [_rare_means(varies, parts, observed, largest, means) for varies, parts, observed in measured]


def mean_chances(values: np.ndarray, documents: Sequence[Hashable]) -> np.ndarray:
    r"""P-value of each mean over texts, ``(column,)``, by Student's t over documents; NaN with fewer than 6.

    The mean is :math:`m = \sum_d w_d m_d` of document means with their shares of the texts. Its squared error is
    :math:`\sum_d a_d (m_d - m)^2` with :math:`a_d = w_d^2 / (1 - 2 w_d + \sum_e w_e^2)`, which is unbiased where all
    documents have one variance (Bell and McCaffrey 2002); its degrees of freedom are
    :math:`\operatorname{tr}(B)^2 / \operatorname{tr}(B^2)` of the form :math:`B` of these squares (Satterthwaite 1946).
    """
    member, count = numbered(documents)
    if count < LEAST:
        return np.full(values.shape[1], np.nan)
    sizes = np.bincount(member)
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, member, values)
    means, shares = sums / sizes[:, None], sizes / sizes.sum()
    mean, squares = shares @ means, shares @ shares
    factors = shares**2 / (1 - 2 * shares + squares)
    error = np.sqrt(factors @ (means - mean) ** 2)
    # B = (I - 1 w')' diag(a) (I - 1 w'): its trace, and that of its square
    both, whole = factors @ shares, factors.sum()
    trace = whole - 2 * both + whole * squares
    trace_of_square = (
        factors @ factors
        + 2 * (factors @ (whole * shares**2 - 2 * factors * shares))
        + 2 * (factors @ factors) * squares
        + 2 * both**2
        - 4 * whole * both * squares
        + (whole * squares) ** 2
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        t, freedom = np.abs(mean / error), trace**2 / trace_of_square
        if count >= MANY:
            # third central moment of the weighted mean, unbiased for equal shares
            third = count**2 / ((count - 1) * (count - 2)) * (shares**3 @ (means - mean) ** 3)
            t = np.where(error > 0, np.clip(unskewed(t, np.sign(mean) * third / error**3), 0, t), t)
            p = 2 * scipy.stats.t.sf(t, freedom)
        else:
            p = skewed_chances(t, max(2, int(freedom) + 1))
    return np.where(np.isnan(mean), np.nan, np.where((mean == 0) & (error == 0), 1.0, p))


def skewed_chances(t: np.ndarray, units: int) -> np.ndarray:
    r"""Two-sided p-values of Student's t, if fewer than 100 units may be as skewed as exponential ones; else Student's.

    A few units of a long tail can lie close together, far from their mean, and then nothing in them shows the tail: no
    correction from the sample holds for many means. So t is compared with that of exponential units (skewness 2),
    whose tails decrease with the same power as Student's but are higher by Hotelling's (1961) factor; they cover those
    of normal units and of gamma units between. The mean of exponential units is independent of their
    coefficient of variation, so that only the latter is drawn.
    """
    if units >= MANY:
        return 2 * scipy.stats.t.sf(np.abs(t), units - 1)
    sizes = np.maximum(np.nan_to_num(np.abs(t), nan=0.0), _CURVE[0])
    beyond = np.maximum(sizes / _CURVE[-1], 1.0)
    # linear between logarithms: a tail of Student's t is nearly a power, and beyond the curve it is one
    inside = np.exp(np.interp(np.log(sizes), np.log(_CURVE), np.log(_tails(units))))
    return np.where(np.isnan(t), np.nan, inside * beyond ** (1.0 - units))


def at_least(number: int, chances: Iterable[float]) -> float:
    """Probability that at least `number` of independent events happen (the Poisson-binomial distribution)."""
    distribution = np.ones(1)
    for chance in chances:
        # each event shifts the number of events by one with its chance: a product of polynomials
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(np.clip(distribution[number:].sum(), 0.0, 1.0))


@cache
def _tails(units: int) -> np.ndarray:
    """Probability that the size of t of exponential units exceeds each value of `_CURVE`."""
    drawn = np.random.default_rng(0).exponential(size=(_SHAPES, units))
    variation = drawn.std(1, ddof=1) / drawn.mean(1) / np.sqrt(units)
    apart = _CURVE[:, None] * variation
    # given the coefficient of variation, t is large where the mean, a gamma variable, is far from 1
    below = scipy.special.gammainc(units, units / (1 + apart))
    above = scipy.special.gammaincc(units, units / np.where(apart < 1, 1 - apart, np.inf)) * (apart < 1)
    return np.asarray((below + above).mean(1))


def _random_signs(generator: np.random.Generator, draws: int, count: int) -> np.ndarray:
    signs = generator.choice([-1.0, 1.0], (draws, count))
    signs[0] = 1  # the data are one of the choices
    return signs


def _flipped(parts: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """A monotone function of t; with 20 or more units, t corrected for skewness: (choice, mean)."""
    count, parts = len(parts), parts / np.sqrt((parts**2).sum(0))
    # columns have length 1: t is then a monotone function of these sums, and is not needed itself
    sums = signs @ parts
    if count < FEW:
        return sums
    spread = np.maximum(1 - sums**2 / count, _SPREAD)  # share of the squares
    third = signs @ parts**3 - 3 * sums / count + 2 * sums**3 / count**2
    skewness = np.where(spread > _SPREAD, third / spread**1.5, 0) * np.sqrt(count * (count - 1)) / (count - 2)
    return np.asarray(unskewed(sums * np.sqrt((count - 1) / count / spread), skewness))


def _rare_means(
    varies: np.ndarray, parts: np.ndarray, observed: np.ndarray, largest: np.ndarray, means: int, unseen: int = 0
) -> np.ndarray:
    """Which means are significant: the maximum of all reaches them in few choices of signs, exponential units seldom.

    `varies` marks the means that are not 0 everywhere, whose observed statistics are `observed`.
    """
    # a little less than observed: rounding must not exclude the data from their own null
    as_large = len(largest) - np.searchsorted(np.sort(largest), observed * (1 - 1e-9))
    units, tested = len(parts), parts[:, varies]
    error = np.maximum(tested.std(0, ddof=1), _SPREAD * np.abs(tested).max(0, initial=0)) / np.sqrt(units)
    rare = (1 - LEVEL) / max(1, means if units < MANY else 1)
    significant_means = np.zeros(varies.shape, dtype=bool)
    level = (1 - LEVEL) * (1 - unseen / max(1, means))  # the rest of it is that of means that are 0 everywhere
    significant_means[varies] = (as_large / len(largest) <= level) & (
        skewed_chances(tested.mean(0) / error, units) <= rare
    )
    return significant_means
