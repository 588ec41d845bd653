"""Shares of a variance over offsets, corrected for chance similarities between texts."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

from attnscope.statistics.units import LEAST, membership


def covariance_share(terms: Float[np.ndarray, "*batch term offset"]) -> Float[np.ndarray, "*batch term"]:
    r"""Share of each term in the variance over offsets of the sum of all."""
    total = terms.sum(-2, keepdims=True)
    variance = covariance(total, total)
    with np.errstate(invalid="ignore", divide="ignore"):
        return covariance(terms, total) / np.where(variance > 0, variance, np.nan)


def covariance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Covariance over the last axis, divided by the number of values; pairs with NaN are left out."""
    finite = np.isfinite(one) & np.isfinite(other)
    count = np.maximum(finite.sum(-1, keepdims=True), 1)
    one, other = (np.where(finite, side, 0.0) for side in np.broadcast_arrays(one, other))
    one, other = (np.where(finite, side - side.sum(-1, keepdims=True) / count, 0.0) for side in (one, other))
    return np.asarray((one * other).sum(-1) / count[..., 0])


def without_own(of_means: np.ndarray, within: np.ndarray, texts: int) -> np.ndarray:
    """Mean product over pairs of different texts, from the product of means and the mean product within texts."""
    # of n^2 pairs, n are of a text with itself: (n^2 of_means - n within) / (n (n - 1))
    return np.asarray((texts * of_means - within) / (texts - 1))


def jackknife(
    whole: np.ndarray, documents: Sequence[Hashable], without: Callable[[int, list[int]], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An estimate with its 95% jackknife interval over documents, from the estimates without each text."""
    texts, member = len(documents), membership(documents)
    count = len(member)
    if count < LEAST:
        return whole, np.full_like(whole, np.nan), np.full_like(whole, np.nan)
    left = np.array([without(text, [other for other in range(texts) if other != text]) for text in range(texts)])
    # Efron and Stein (1981); with several texts a document, the influences of its texts add up
    variance = (texts - 1) * np.var(left, axis=0)
    if count < texts:
        moved = np.tensordot(member, left - left.mean(0), 1)
        variance = (texts - 1) ** 2 / texts**2 * count / (count - 1) * (moved**2).sum(0)
    reach = special.stdtrit(count - 1, 0.975) * np.sqrt(variance)
    return whole, whole - reach, whole + reach
