"""The one shift that explains most of a spectrum's phases, and how often phases in disorder would do as well."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float

from attnscope.mechanism.arrays._peaks import Offsets

_FINE = 8  # points for each token
_TIE = 1e-6  # of the highest point: as high, so that the offset nearest to 0 is taken
_DRAWS = 199  # so that the smallest chance is 1 / 200


@dataclass(frozen=True)
class CommonShift:
    """Where a spectrum's trace is highest.

    Attributes
    ----------
    offset
        Offset of the highest point among those that the head may look at, tokens; the shift is its negative.
    is_peak
        Whether the trace is lower on either side; else it goes on rising where the head may not look.
    concentration
        Height over that of equal phases, at most 1.
    chance
        Share of spectra with the same amplitudes and random phases whose trace is as high somewhere, in 1/200..1.
    """

    offset: float
    is_peak: bool
    concentration: float
    chance: float


def common_shift(
    cross: Complex[np.ndarray, " frequency"],
    chosen: Bool[np.ndarray, " frequency"],
    length: int,
    offsets: Offsets | None = None,
) -> CommonShift:
    """Find the offset at which the band's part of the circular trace is highest.

    On a circle offsets are told apart only up to half of its length, whatever the head may look at. All is NaN where it
    may look at none of these.

    Examples
    --------
    >>> frequency = np.arange(33)
    >>> inside = (frequency > 0) & (frequency < 32)
    >>> cross = np.exp(2j * np.pi * frequency * 2 / 64)  # keys that run 2 tokens ahead
    >>> shift = common_shift(cross, inside, 64)
    >>> shift.offset, shift.is_peak, round(shift.concentration, 6), shift.chance
    (-2.0, True, 1.0, 0.005)
    >>> common_shift(cross, inside, 64, offsets=(0, 63)).chance > 0.5  # the line is where the head may not look
    True
    """
    band = np.where(chosen, cross, 0)
    size = float(np.abs(band).sum())
    if not size > 0:
        return CommonShift(np.nan, False, np.nan, np.nan)
    trace = _trace(band, length)
    offset = np.arange(len(trace)) / _FINE
    offset = np.where(offset > length / 2, offset - length, offset)
    low, high = offsets or (-length, length)
    allowed = (offset >= low) & (offset <= high)
    if not allowed.any():
        return CommonShift(np.nan, False, np.nan, np.nan)
    top = trace[allowed].max()
    level = _TIE * np.abs(trace).max()
    highest = np.flatnonzero(allowed & (trace >= top - level))
    at = int(highest[np.abs(offset[highest]).argmin()])
    beside = max(trace[at - 1], trace[(at + 1) % len(trace)])
    rng = np.random.default_rng(0)
    phases = np.exp(2j * np.pi * rng.random((_DRAWS, int(chosen.sum()))))
    drawn = np.zeros((_DRAWS, len(band)), complex)
    drawn[:, chosen] = np.abs(band[chosen]) * phases
    highest_drawn = _trace(drawn, length).max(1, where=allowed, initial=-np.inf)
    return CommonShift(
        float(offset[at]),
        bool(beside <= top + level),
        float(top) * len(trace) / (2 * size),
        (1 + int((highest_drawn >= top - level).sum())) / (1 + _DRAWS),
    )


def shifts_near(
    cross: Complex[np.ndarray, " frequency"], common: float, length: int
) -> Float[np.ndarray, " frequency"]:
    """Shift ``T arg C(f) / (2 pi f)`` at each frequency, of all that differ by T/f the one nearest to the common shift.

    Examples
    --------
    >>> cross = np.exp(2j * np.pi * np.arange(5) * 3 / 8)
    >>> shifts_near(cross, 3.0, 8)[1:4].round(6).tolist()
    [3.0, 3.0, 3.0]
    """
    frequency = np.arange(len(cross))
    usable = (frequency > 0) & (2 * frequency < length) & (np.abs(cross) > 0)
    angle = 2 * np.pi * np.where(usable, frequency, 1) / length
    rest = np.angle(cross * np.exp(-1j * angle * common))
    return np.where(usable, common + rest / angle, np.nan)


def _trace(cross: Complex[np.ndarray, "*draw frequency"], length: int) -> Float[np.ndarray, "*draw offset"]:
    return np.fft.irfft(cross, _FINE * length)
