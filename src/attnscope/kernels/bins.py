"""Bins of offsets that double: a window of any length in a few numbers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_FAR = 1 << 40  # beyond every offset


def bin_starts(reach: int) -> tuple[int, ...]:
    """First offset of each bin on one side: 1, 2, 3 to 4, 5 to 8, 9 to 16, ... until one holds `reach`."""
    starts = [1]
    while _last(starts[-1]) < reach:
        starts.append(_last(starts[-1]) + 1)
    return tuple(starts)


def _last(start: int) -> int:
    """Last offset of the bin that begins there: twice the last of the bin before, which is `start` - 1."""
    return max(1, 2 * (start - 1))


def far_starts(band: int, reach: int) -> tuple[int, ...]:
    """Those of the bins that a band of offsets does not hold whole; there is always one, and the last has no end."""
    return tuple(start for start in bin_starts(max(reach, band + 1)) if _last(start) > band)


def bin_ranges(band: int, reach: int) -> list[tuple[int, int]]:
    """First and last offset of every bin from left to right, the ends closed at the last offset of the bin."""
    right = [(start, _last(start)) for start in bin_starts(max(reach, band + 1))]
    return [*((-last, -first) for first, last in right[::-1]), (0, 0), *right]


@lru_cache(maxsize=32)
def segments(starts: tuple[int, ...]) -> np.ndarray:
    """First offset of each segment from left to right, and one past the last: bins, the middle between them, bins."""
    left = [1 - start for start in starts[::-1]]
    return np.array([-_FAR, *left, *starts, _FAR], dtype=np.int64)
