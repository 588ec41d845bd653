"""Peaks along offsets: where, how high, how wide, and how far they stand out (docs/mathematics.md, Peaks)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import signal

NEAR = 10  # tokens
RANGES = ("near", "all")

#: Lowest and highest offset that a head may look at.
Offsets = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Peaks:
    """The highest point of each curve within each range, if it is a peak: NaN where the curve goes on rising beyond.

    Where, where by a parabola, how high, how wide, and by how much it stands out from its surroundings (prominence).

    Examples
    --------
    >>> find_peaks(np.array([[0.0, 1.0, 0.0]]), np.arange(-1, 2)).first().width.tolist()
    [1.0, 1.0]
    """

    offset: Float[np.ndarray, "*curve range"]
    refined: Float[np.ndarray, "*curve range"]
    height: Float[np.ndarray, "*curve range"]
    width: Float[np.ndarray, "*curve range"]
    prominence: Float[np.ndarray, "*curve range"]

    def first(self) -> "Peaks":
        """Those of the first curve, without its dimension.

        Examples
        --------
        >>> find_peaks(np.array([[0.0, 3.0, 1.0]]), np.arange(-1, 2)).first().offset.tolist()
        [0.0, 0.0]
        """
        return Peaks(self.offset[0], self.refined[0], self.height[0], self.width[0], self.prominence[0])


def find_peaks(
    curves: Float[np.ndarray, "curve offset"],
    offset: Int[np.ndarray, " offset"],
    *,
    near: int = NEAR,
    offsets: Offsets | None = None,
) -> Peaks:
    """Find the highest points within `near` tokens and overall, of the offsets that the head may look at.

    They are peaks where they are higher than their neighbours, whether the head may look at these or not. The ends of
    a curve have only one, and are none. The top of the parabola is held within the offsets that the head may look at.

    Examples
    --------
    >>> hill = np.array([[0.0, 3.0, 4.0, 3.0, 0.0]])
    >>> peaks = find_peaks(hill, np.arange(-2, 3))
    >>> peaks.offset.tolist(), peaks.refined.tolist(), peaks.width.round(6).tolist()
    ([[0.0, 0.0]], [[0.0, 0.0]], [[2.666667, 2.666667]])
    >>> find_peaks(hill, np.arange(-2, 3), offsets=(-2, -1)).offset.tolist()  # the slope goes on to 0
    [[nan, nan]]
    >>> leaning = np.array([[0.0, 3.0, 4.0, 3.9, 0.0]])
    >>> find_peaks(leaning, np.arange(-2, 3), offsets=(-2, 0)).refined.tolist()
    [[0.0, 0.0]]
    """
    low, high = offsets or (int(offset[0]), int(offset[-1]))
    allowed = (offset >= low) & (offset <= high)
    peaks = np.full((5, len(curves), len(RANGES)), np.nan)
    for row, curve in enumerate(curves):
        if not np.isfinite(curve).all():
            continue
        tops = signal.find_peaks(curve)[0]
        for column, inside in enumerate((allowed & (np.abs(offset) <= near), allowed)):
            there = tops[inside[tops]]
            # what is highest at an edge of the range may go on rising beyond it: then no top within it counts
            if not there.size or curve[there].max() < curve[inside].max():
                continue
            at = int(there[curve[there].argmax()])
            peaks[:, row, column] = (
                offset[at],
                np.clip(offset[at] + _parabola(curve, at), low, high),
                curve[at],
                _width(curve, at),
                signal.peak_prominences(curve, [at])[0][0],
            )
    return Peaks(*peaks)


def _parabola(curve: Float[np.ndarray, " offset"], at: int) -> float:
    """Top of the parabola through a peak and its neighbours, counted from the peak."""
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    return float((left - right) / (2 * bend)) if bend < 0 else 0.0


def _width(curve: Float[np.ndarray, " offset"], at: int) -> float:
    """Distance between where the curve falls to half its height on either side; the ends count as such."""
    height = curve[at]
    if not height > 0:
        return float("nan")
    return _fall(curve[at:], height / 2) + _fall(curve[at::-1], height / 2)


def _fall(side: Float[np.ndarray, " step"], level: float) -> float:
    below = np.flatnonzero(side < level)
    if not below.size:
        return float(len(side) - 1)
    last = int(below[0])
    return last - 1 + float((side[last - 1] - level) / (side[last - 1] - side[last]))
