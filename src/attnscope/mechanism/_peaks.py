"""Peaks along offsets: where, how high, how wide (mechanism G.6)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

NEAR = 10  # tokens
RANGES = ("near", "all")


@dataclass(frozen=True, eq=False)
class Peaks:
    """The highest point of each curve within each range: where, where by a parabola, how high, how wide.

    Examples
    --------
    >>> find_peaks(np.array([[0.0, 1.0, 0.0]]), np.arange(-1, 2)).first().width.tolist()
    [1.0, 1.0]
    """

    offset: Int[np.ndarray, "*curve range"]
    refined: Float[np.ndarray, "*curve range"]
    height: Float[np.ndarray, "*curve range"]
    width: Float[np.ndarray, "*curve range"]

    def first(self) -> "Peaks":
        """Those of the first curve, without its dimension.

        Examples
        --------
        >>> find_peaks(np.array([[0.0, 3.0, 1.0]]), np.arange(-1, 2)).first().offset.tolist()
        [0, 0]
        """
        return Peaks(self.offset[0], self.refined[0], self.height[0], self.width[0])


def find_peaks(curves: Float[np.ndarray, "curve offset"], offset: Int[np.ndarray, " offset"]) -> Peaks:
    """Find the highest points within 10 tokens and overall; a curve of NaN has NaN for a height.

    Examples
    --------
    >>> found = find_peaks(np.array([[0.0, 3.0, 4.0, 3.0, 0.0]]), np.arange(-2, 3))
    >>> found.offset.tolist(), found.refined.tolist(), found.width.round(6).tolist()
    ([[0, 0]], [[0.0, 0.0]], [[2.666667, 2.666667]])
    """
    shape = (len(curves), len(RANGES))
    found = Peaks(np.zeros(shape, np.int64), np.zeros(shape), np.full(shape, np.nan), np.full(shape, np.nan))
    near = np.flatnonzero(np.abs(offset) <= NEAR)
    for row, curve in enumerate(curves):
        if not np.isfinite(curve).all():
            continue
        for column, inside in enumerate((near, np.arange(len(offset)))):
            at = int(inside[curve[inside].argmax()])
            found.offset[row, column] = offset[at]
            found.refined[row, column] = offset[at] + _parabola(curve, at)
            found.height[row, column] = curve[at]
            found.width[row, column] = _width(curve, at)
    return found


def _parabola(curve: Float[np.ndarray, " offset"], at: int) -> float:
    """Top of the parabola through a point and its neighbours, counted from the point; 0 where it has none."""
    if not 0 < at < len(curve) - 1:
        return 0.0
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    return float((left - right) / (2 * bend)) if bend < 0 and middle >= max(left, right) else 0.0


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
