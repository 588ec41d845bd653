"""Mean changes with intervals over documents, and which of them are told from 0 at a false discovery rate."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from attnscope._documents import FEW, LEAST, unskewed
from attnscope.faithfulness.arrays import by_document

LEVEL = 0.05


class Changes(NamedTuple):
    """Mean changes, ``(...)`` each.

    Attributes
    ----------
    mean, low, high
        The mean over texts and its 95% interval by the bootstrap over documents.
    p
        Chance of so large a mean without any change; NaN where nothing can be said.
    changed
        Whether it is told from 0, all looked at together; False where there is no `p`.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.01, (40, 2))
    >>> changes = changes_by_document(noise + [0, 0.02], range(40))
    >>> changes.changed.tolist(), bool((changes.low < changes.mean).all()), (changes.p < 0.05).tolist()
    ([False, True], True, [False, True])
    """

    mean: Float[np.ndarray, ...]
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    p: Float[np.ndarray, ...]
    changed: Bool[np.ndarray, ...]


def changes_by_document(
    changes: Float[np.ndarray, "text ..."],
    documents: Sequence[Hashable],
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> Changes:
    r"""Mean change over texts, tested by documents; windows of one document are not independent.

    Each :math:`p` is that of :math:`t = \bar d / SE` with the standard error by documents and, as these have different
    numbers of windows, the degrees of freedom of Bell and McCaffrey (2002): one less than there are documents where
    all have the same number. From 20 documents on, t is brought nearer to 0 where the skewness asks for it (Hall 1992);
    with fewer, strongly skewed documents are called changed too often (docs/coverage.md). Over all, the
    step-up rule of Benjamini and Hochberg (1995) keeps the expected share of false ones among those called changed at
    `level` or below.

    Parameters
    ----------
    changes
        After minus before, of each text. NaN in all texts where there is no such head.
    documents
        The document of each text. With fewer than 6 documents nothing is tested and there are no intervals.
    level
        The false discovery rate.
    seed
        Seed of the bootstrap.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.01, (40, 3))
    >>> changes = changes_by_document(noise + [0, 0, 0.02], range(40))
    >>> changes.changed.tolist()
    [False, False, True]
    """
    interval = by_document(changes, documents, seed=seed)
    p = _chances(changes.reshape(len(changes), -1), documents)
    changed = np.zeros(len(p), dtype=bool)
    known = ~np.isnan(p)
    if known.any():
        changed[known] = stats.false_discovery_control(p[known]) <= level
    shape = changes.shape[1:]
    return Changes(interval.mean, interval.low, interval.high, p.reshape(shape), changed.reshape(shape))


def _chances(values: np.ndarray, documents: Sequence[Hashable]) -> np.ndarray:
    """Chance of each mean without any change, ``(column,)``; NaN with too few documents."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    if len(numbers) < LEAST:
        return np.full(values.shape[1], np.nan)
    member = np.array([numbers[name] for name in documents])
    sizes = np.bincount(member)
    sums = np.zeros((len(numbers), values.shape[1]))
    np.add.at(sums, member, values)
    means, weight = sums / sizes[:, None], sizes / sizes.sum()
    mean, squares = weight @ means, weight @ weight
    # unbiased if all documents vary alike: a mean's square deviation is 1 - 2 w + sum(w^2) of their variance
    part = weight**2 / (1 - 2 * weight + squares)
    error = np.sqrt(part @ (means - mean) ** 2)
    both, whole = part @ weight, part.sum()
    trace = whole - 2 * both + whole * squares
    norm = (
        part @ part
        + 2 * (part @ (whole * weight**2 - 2 * part * weight))
        + 2 * (part @ part) * squares
        + 2 * both**2
        - 4 * whole * both * squares
        + (whole * squares) ** 2
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(mean / error)
        if (count := len(numbers)) >= FEW:
            third = count**2 / ((count - 1) * (count - 2)) * (weight**3 @ (means - mean) ** 3)
            corrected = unskewed(t, np.sign(mean) * third / error**3)
            t = np.where(error > 0, np.clip(corrected, 0, t), t)
        p = 2 * stats.t.sf(t, trace**2 / norm)
    return np.where(np.isnan(mean), np.nan, np.where((mean == 0) & (error == 0), 1.0, p))
