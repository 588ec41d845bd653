"""How well scores rank listed heads above the others, next to random lists."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from attnscope.statistics.intervals import reach as deviations


class Agreement(NamedTuple):
    """How well scores rank listed heads above the others: AUROC with its 95% interval, and p of random lists."""

    auroc: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray  # corrected for all scores


_DRAWS, _GRID = 2000, np.linspace(0, 1, 4001)


def agreement(listed: np.ndarray, scores: np.ndarray, layers: np.ndarray, *, seed: int = 0) -> Agreement:
    """AUROC of scores ``(role, head)`` for listed heads, next to random lists of as many heads of each layer.

    Heads of a layer are alike, in published lists too, so that heads of different layers are not exchanged. The
    interval is Newcombe's (2006, method 5), which also holds at 0 and 1; p is that of the largest distance from the
    mean of random lists among all scores, in their standard deviations (Westfall and Young 1993).
    """
    count, others = int(listed.sum()), int((~listed).sum())
    ranks = stats.rankdata(scores, axis=-1)
    generator = np.random.default_rng(seed)
    by_layer = np.argsort(layers, kind="stable")
    lists = np.repeat(listed[None], 1 + _DRAWS, 0)
    order = np.argsort(layers + generator.random((_DRAWS, len(listed))), axis=1)  # random within each layer
    lists[1:, by_layer] = listed[order]
    areas = (ranks @ lists.T - count * (count + 1) / 2) / (count * others)
    value = areas[:, 0]
    spread = areas.std(1, keepdims=True)
    apart = np.abs(areas - areas.mean(1, keepdims=True)) / np.where(spread > 0, spread, np.inf)  # 0 of whole layers
    p = (apart.max(0) >= apart[:, :1] - 1e-9).mean(1)
    # the interval: every area of the grid from which the measured one is at most so many standard deviations away
    pairs = (1 - _GRID) / (2 - _GRID) + _GRID / (1 + _GRID)
    variance = _GRID * (1 - _GRID) * (1 + ((count + others) / 2 - 1) * pairs) / (count * others)
    inside = np.abs(_GRID - value[:, None]) <= deviations() * np.sqrt(variance) + 1e-12
    low = np.where(inside.any(1), _GRID[inside.argmax(1)], value)
    high = np.where(inside.any(1), _GRID[-1 - inside[:, ::-1].argmax(1)], value)
    return Agreement(value, np.minimum(low, value), np.maximum(high, value), p)
