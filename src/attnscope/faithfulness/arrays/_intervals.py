"""Means over texts with intervals by documents: windows of one document are not independent."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from attnscope._documents import DRAWS, LEAST, bootstrap_interval
from attnscope.faithfulness.arrays._sign_flips import apart_from_zero


class Interval(NamedTuple):
    """Mean over texts, and its interval by the bootstrap over documents.

    Attributes
    ----------
    mean, low, high
        ``(...)``: NaN bounds where there are fewer than 6 units.
    shown
        ``(...)``: whether the mean is told from 0 when all of them are looked at together: at most 5% of such families
        of means, all truly 0, would have one that is. False where that is not tested.
    tested
        ``(...)``: whether it was tested: not where there are fewer than 6 units, or no values.

    Examples
    --------
    >>> values = np.random.default_rng(0).normal([0.0, 5.0], 1.0, (5, 2))
    >>> few = by_document(values, range(5))  # of 5 documents nothing is told
    >>> few.tested.tolist(), few.low.tolist(), few.mean.round().tolist()
    ([False, False], [nan, nan], [0.0, 5.0])
    """

    mean: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    shown: Bool[np.ndarray, ...]
    tested: Bool[np.ndarray, ...]


def by_document(
    values: Float[np.ndarray, "text ..."],
    documents: Sequence[Hashable],
    *,
    over: Float[np.ndarray, " text"] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Interval:
    r"""Mean over texts, with a 95% interval by the bootstrap over documents.

    The interval is that of `attnscope._documents.bootstrap_interval`, which allows for few documents.
    `shown` is by sign flips: under no effect, a document's part is as likely to have the other sign, so the largest
    :math:`|t|` of all means is held against those of all choices of signs (of 4,096 at random where there are more). Of
    effects that are symmetric about 0 this is exact (Winkler et al. 2014). With fewer than 20 documents, strongly
    skewed effects whose mean is 0 are called significant in up to a third of families (docs/coverage.md).

    Parameters
    ----------
    values
        NaN in all texts where there is no such head.
    documents
        Which document each text is of.
    over
        What the sum over texts is a share of, where it is no mean: the sum of these. There are no bounds where it is
        near 0 itself, so that a draw of documents gives it the other sign.
    seed, draws
        Seed and number of draws of the bootstrap.

    Examples
    --------
    >>> values = np.random.default_rng(0).normal([0.0, 5.0], 1.0, (40, 2))
    >>> intervals = by_document(values, range(40))
    >>> intervals.shown.tolist(), bool((intervals.low < intervals.mean).all())
    ([False, True], True)
    """
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
    shown = apart_from_zero(sums / abs(sizes.mean()), generator)
    told = shown.reshape(shape), np.isfinite(mean).reshape(shape)
    drawn_sizes = drawn @ sizes
    if (drawn_sizes * sizes.sum() <= 0).any():
        unknown = np.full(shape, np.nan)
        return Interval(mean.reshape(shape), unknown, unknown, *told)
    low, high = bootstrap_interval(sums, sizes, drawn)
    return Interval(mean.reshape(shape), low.reshape(shape), high.reshape(shape), *told)
