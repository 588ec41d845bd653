r"""What a head's places alone give each span of a text that is being written.

Of all tables of weights over the steps of a text the one of `attnscope.statistics._fitted_places`, whose places are
bins of offsets and the first token. A head whose scores know nothing but the place is foretold by it. Its own output's
share grows as the output does, and if it looks close by, it soon has nearly all of the weight: that is no turn to what
the model says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.statistics._catalogue import EQUAL
from attnscope.statistics._fitted_places import fitted_places, row_factors
from attnscope.statistics.generation._rows import BINS, RANGES, SPANS

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACES = f"place_{SPANS}"


def by_places(measured: Mapping[str, np.ndarray], columns: np.ndarray, given: int) -> np.ndarray:
    """The weight on each span by the places of each head alone, ``(step, layer, head, span)``.

    Parameters
    ----------
    measured
        Measures of one sequence: ``bin_weight``, ``first_token``, and ``equal_entropy``, the log of how many keys are
        seen.
    columns
        Indicators of the spans, ``(place in the text, span)``.
    given
        Tokens of the prompt.

    Examples
    --------
    A head that weighs all tokens alike has no more on its own output than that gives:

    >>> bins = np.zeros((2, 1, 1, len(RANGES)))
    >>> bins[0, ..., -2:], bins[1, ..., -3:] = 1 / 2, 1 / 3
    >>> first, seen = np.array([1 / 2, 1 / 3]).reshape(2, 1, 1), np.log([2, 3]).reshape(2, 1, 1)
    >>> measured = {"bin_weight": bins, "first_token": first, "equal_entropy": seen}
    >>> own = by_places(measured, np.array([[1, 0], [1, 0], [0, 1]]), given=2)[..., 1]
    >>> own.ravel().round(3).tolist()
    [0.0, 0.333]
    """
    steps, layers, heads = measured["first_token"].shape
    fitted = np.full((steps, layers, heads, columns.shape[1]), np.nan)
    query = given - 1 + np.arange(steps)
    for layer in range(layers):
        bins, first = measured[BINS][:, layer], measured["first_token"][:, layer]
        known = np.isfinite(bins).all((0, 2))  # neither of another text, nor a head that the layer lacks
        if not known.any():
            continue
        seen = np.rint(np.exp(measured[f"{EQUAL}entropy"][:, layer, 0])).astype(np.int64)
        counts, of_spans = _counts(query, seen, columns)
        weights = _weights(bins[:, known], first[:, known], query)
        fitted[:, layer, known] = _fitted(weights, counts, of_spans)
    return fitted


def _counts(query: np.ndarray, seen: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many keys each query sees at each place, ``(step, place)``, and how many of each span."""
    edges = np.array([-query.max() - 1, *(last + 1 for _, last in RANGES)])
    at = np.clip(query[:, None] + edges, (query - seen + 1)[:, None], query[:, None] + 1)
    both = np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
    rest = both.copy()
    rest[0] = 0.0  # the first token is a place by itself
    before = np.concatenate([np.zeros((1, both.shape[1])), rest.cumsum(0)])
    of_bins = np.diff(before[at], axis=1)
    of_first = np.where((seen > query)[:, None], both[0], 0.0)[:, None]
    counts = np.concatenate([of_bins, of_first], axis=1)
    return counts[..., 0], counts[..., 1:]


def _weights(bins: np.ndarray, first: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Weight at each place, ``(step, head, place)``: what lies on the first token is taken out of its bin."""
    lasts = np.array([last for _, last in RANGES])
    place = np.searchsorted(lasts, -query)
    rest = bins.astype(np.float64)
    rest[np.arange(len(query)), :, place] -= first
    return np.concatenate([rest.clip(0.0), first[..., None]], axis=-1)


def _fitted(weights: np.ndarray, counts: np.ndarray, of_spans: np.ndarray) -> np.ndarray:
    mass = weights.sum(-1).T  # (head, step)
    share, _ = fitted_places(weights.sum(0), mass, counts)
    return np.einsum("hp,spk,hs->shk", share, of_spans, row_factors(share, mass, counts))
