"""Means over texts with intervals by documents: windows of one document are not independent."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

DRAWS = 1000
LEVEL = 0.95
LEAST = 5  # with fewer, the bootstrap knows next to nothing of the spread


class Interval(NamedTuple):
    """Mean over texts, and its interval by the bootstrap over documents.

    Attributes
    ----------
    mean, low, high
        ``(...)``: NaN bounds where there are fewer than 5 units.
    shown
        ``(...)``: whether the mean is told from 0 when all of them are looked at together: at most 5% of such families
        of means, all truly 0, would have one that is.
    """

    mean: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    shown: Bool[np.ndarray, ...]


def units_of(documents: Sequence[Hashable]) -> tuple[Sequence[Hashable], str]:
    """What the bootstrap draws: documents; windows where there are fewer than 5 documents.

    An interval over windows is about more windows of these documents, and says nothing of others.

    Examples
    --------
    >>> units_of(["a", "a", "b"]), units_of(["a", "b", "c", "d", "e"])[1]
    ((range(0, 3), 'windows'), 'documents')
    """
    if len(set(documents)) >= LEAST:
        return documents, "documents"
    return range(len(documents)), "windows"


def by_document(
    values: Float[np.ndarray, "text ..."], documents: Sequence[Hashable], *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    r"""Mean over texts, with a 95% interval by the bootstrap over documents (percentiles; Efron 1979).

    `shown` is by the largest :math:`|t|` of all means in each draw (Romano & Wolf 2005, single step), widened as
    Student's t is against the normal for so few documents.

    Parameters
    ----------
    values
        NaN in all texts where there is no such head.
    documents
        Which document each text is of.

    Examples
    --------
    >>> values = np.random.default_rng(0).normal([0.0, 5.0], 1.0, (40, 2))
    >>> found = by_document(values, range(40))
    >>> found.shown.tolist(), bool((found.low < found.mean).all())
    ([False, True], True)
    """
    flat = values.reshape(len(values), -1)
    names = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    member = np.array([names[name] for name in documents])
    count = len(names)
    sums = np.zeros((count, flat.shape[1]))
    np.add.at(sums, member, flat)
    sizes = np.bincount(member).astype(float)
    mean = sums.sum(0) / sizes.sum()
    shape = values.shape[1:]
    if count < LEAST:
        unknown = np.full(shape, np.nan)
        return Interval(mean.reshape(shape), unknown, unknown, np.zeros(shape, dtype=bool))
    drawn = (
        np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws).astype(float)
    )
    means = (drawn @ sums) / (drawn @ sizes)[:, None]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    spread = means.std(0, ddof=1) * np.sqrt(count / (count - 1))
    moved = np.abs(means - mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.nanmax(np.where(spread > 0, moved / spread, 0.0), axis=1)
    tail = (1 - LEVEL) / 2
    widening = stats.t.ppf(1 - tail, count - 1) / stats.norm.ppf(1 - tail)
    limit = np.quantile(largest, LEVEL) * widening
    shown = np.abs(mean) > limit * spread
    return Interval(
        mean.reshape(shape), low.reshape(shape), high.reshape(shape), (shown & (spread > 0)).reshape(shape)
    )
