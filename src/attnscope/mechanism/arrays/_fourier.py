"""Amplitudes of series, and what they are where nothing is planted: Rayleigh levels.

See docs/mathematics.md, Spectrum of the position table.
"""

import numpy as np
from jaxtyping import Complex, Float
from scipy.optimize import brentq


def transform(columns: Float[np.ndarray, "position column"]) -> Complex[np.ndarray, "frequency column"]:
    """DFT at 0..T/2 cycles per T positions: ``X(f) = sum_i x_i exp(-2 pi j f i / T)``.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * np.arange(8) / 4)[:, None]
    >>> np.abs(transform(wave))[:, 0].round(12).tolist()
    [0.0, 0.0, 4.0, 0.0, 0.0]
    """
    return np.fft.rfft(columns, axis=0)


def null_scale(columns: Float[np.ndarray, "position column"]) -> Float[np.ndarray, " column"]:
    """Root mean square amplitude of white noise with each column's variance: ``s = sigma sqrt(T)``.

    Examples
    --------
    >>> null_scale(np.array([[1.0], [-1.0], [1.0], [-1.0]])).tolist()
    [2.0]
    """
    return np.linalg.norm(columns - columns.mean(0), axis=0)


def rayleigh_mean(scale: Float[np.ndarray, " column"]) -> float:
    """Mean amplitude over columns of white noise, ``mean(s) sqrt(pi) / 2``.

    Examples
    --------
    >>> round(rayleigh_mean(np.array([0.02 * 512**0.5])), 3)
    0.401
    """
    return float(scale.mean() * np.sqrt(np.pi) / 2)


def rayleigh_quantile(scale: Float[np.ndarray, " column"], share: float) -> float:
    """Amplitude below which a share of white columns lies: ``mean(1 - exp(-a^2 / s^2)) = share``.

    For columns of one variance this is ``s sqrt(-ln(1 - share))``.

    Examples
    --------
    >>> scale = np.full(768, 0.02 * 512**0.5)
    >>> [round(rayleigh_quantile(scale, share), 3) for share in (0.25, 0.75)]
    [0.243, 0.533]
    """
    alive = scale[scale > 0]
    still = 1 - alive.size / scale.size  # columns that never move are below every amplitude
    if still >= share:
        return 0.0
    rest = (share - still) / (1 - still)
    quantile = float(np.sqrt(-np.log1p(-rest)))
    low, high = float(alive.min()) * quantile, float(alive.max()) * quantile
    return low if low == high else _root(lambda a: _below(a, alive).mean() - rest, low, high)


def largest_quantile(scale: Float[np.ndarray, " column"], share: float) -> float:
    """Quantile of the largest amplitude of independent white columns: ``prod(1 - exp(-a^2 / s^2)) = share``.

    Examples
    --------
    The largest of 768 columns is about ``s sqrt(ln 768)`` and a bit:

    >>> round(largest_quantile(np.full(768, 0.02 * 512**0.5), 0.5), 2)
    1.2
    """
    alive = scale[scale > 0]
    if not alive.size:
        return 0.0
    high = float(alive.max()) * np.sqrt(np.log(alive.size / -np.log(share)) + 1)
    return _root(
        lambda a: np.log(_below(a, alive)).sum() - np.log(share), float(alive.max()) * 1e-9, 2 * high
    )


def largest_mean(scale: Float[np.ndarray, " column"]) -> float:
    """Mean of the largest amplitude among independent white columns: the integral of ``P(largest > a)``.

    Examples
    --------
    >>> round(largest_mean(np.full(768, 0.02 * 512**0.5)), 2)
    1.21
    """
    alive = scale[scale > 0]
    if not alive.size:
        return 0.0
    grid = np.linspace(0, float(alive.max()) * np.sqrt(np.log(alive.size) + 40), 2001)
    above = np.ones_like(grid)
    above[1:] = -np.expm1(np.log(_below(grid[1:, None], alive)).sum(-1))
    return float(np.trapezoid(above, grid))


def _below(amplitude: float | np.ndarray, scale: np.ndarray) -> np.ndarray:
    """P(|X(f)| < a) of each column."""
    with np.errstate(over="ignore"):
        return -np.expm1(-((amplitude / scale) ** 2))


def _root(function: object, low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-14 * max(high, 1e-300)))  # pyright: ignore[reportArgumentType]
