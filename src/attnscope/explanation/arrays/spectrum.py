"""Frequencies of columns along positions, and peaks of curves over offsets.

See mathematics.md, Cross-spectrum, and Cross-correlation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from scipy import signal


def transform(columns: Float[np.ndarray, "position column"]) -> Complex[np.ndarray, "frequency column"]:
    """DFT at 0..T/2 cycles per T positions: ``X(f) = sum_i x_i exp(-2 pi j f i / T)``."""
    return np.fft.rfft(columns, axis=0)


def remove_band(
    rows: Float[np.ndarray, "position width"], first: int, last: int
) -> Float[np.ndarray, "position width"]:
    """Remove frequencies ``first..last`` (cycles over the rows) from every column."""
    spectrum = np.fft.rfft(rows, axis=0)
    spectrum[first : last + 1] = 0
    return np.fft.irfft(spectrum, len(rows), axis=0)


def powers(
    columns: Float[np.ndarray, "position column"],
) -> tuple[Float[np.ndarray, "frequency column"], Bool[np.ndarray, " column"]]:
    """Power of each column strictly between 0 and T/2, and whether it is more than rounding noise."""
    length = len(columns)
    power = np.abs(transform(columns)[1 : (length - 1) // 2 + 1]) ** 2
    rounding = (8 * np.finfo(float).eps) ** 2 * length * (columns**2).sum(0)
    return power, power.sum(0) > rounding


NEAR = 10  # tokens
RANGES = ("near", "all")

#: Lowest and highest offset that a head may attend to.
Offsets = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Peaks:
    """The highest point of each curve within each range; NaN if the curve keeps rising beyond it."""

    offset: Float[np.ndarray, "*curve range"]
    refined: Float[np.ndarray, "*curve range"]
    height: Float[np.ndarray, "*curve range"]
    width: Float[np.ndarray, "*curve range"]
    prominence: Float[np.ndarray, "*curve range"]


def find_peaks(
    curves: Float[np.ndarray, "curve offset"],
    offset: Int[np.ndarray, " offset"],
    *,
    near: int = NEAR,
    offsets: Offsets | None = None,
) -> Peaks:
    """Find the highest points within `near` tokens and overall, among the visible offsets.

    A peak is higher than both neighbours, visible or not; the ends of a curve are not peaks. The top of the parabola is
    limited to the visible offsets.
    """
    low, high = offsets or (int(offset[0]), int(offset[-1]))
    allowed = (offset >= low) & (offset <= high)
    peaks = np.full((5, len(curves), len(RANGES)), np.nan)
    for row, curve in enumerate(curves):
        if not np.isfinite(curve).all():
            continue
        tops = signal.find_peaks(curve)[0]
        for column, inside in enumerate((allowed & (np.abs(offset) <= near), allowed)):
            candidates = tops[inside[tops]]
            # a maximum at an edge of the range may rise beyond it: then no top within it counts
            if not candidates.size or curve[candidates].max() < curve[inside].max():
                continue
            at = int(candidates[curve[candidates].argmax()])
            whole = curve[[at]], np.array([0]), np.array([len(curve) - 1])  # half of the height; ends count as falls
            peaks[:, row, column] = (
                offset[at],
                np.clip(offset[at] + _parabola(curve, at), low, high),
                curve[at],
                signal.peak_widths(curve, [at], 0.5, whole)[0][0] if curve[at] > 0 else np.nan,
                signal.peak_prominences(curve, [at])[0][0],
            )
    return Peaks(*peaks)


def _parabola(curve: Float[np.ndarray, " offset"], at: int) -> float:
    """Top of the parabola through a peak and its neighbours, counted from the peak."""
    left, middle, right = curve[at - 1 : at + 2]
    bend = left - 2 * middle + right
    return float((left - right) / (2 * bend)) if bend < 0 else 0.0
