"""Fisher's g: whether one frequency of a series is stronger than white noise allows.

See docs/mathematics.md, Spectrum of the position table.
"""

from decimal import Decimal, localcontext
from math import log10

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

from attnscope.mechanism.arrays._fourier import transform

_ACCURACY = 1e-9  # relative, of a tail probability in float64; where it is missed, decimal arithmetic
_CHUNK = 2_000_000  # terms of the series held at a time


def fisher_g(
    columns: Float[np.ndarray, "position column"],
) -> tuple[Float[np.ndarray, " column"], Float[np.ndarray, " column"], Int[np.ndarray, " column"]]:
    """Each column's g, tail probability and strongest frequency.

    ``g = max_f I_f / sum_f I_f`` over the m frequencies strictly between 0 and T/2. A column without power
    there (constant, up to rounding) has g and probability NaN and frequency 0.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * 3 * np.arange(32) / 32)[:, None]
    >>> g, probability, frequency = fisher_g(wave)
    >>> float(g[0].round(6)), bool(probability[0] < 1e-12), int(frequency[0])
    (1.0, True, 3)
    """
    length = len(columns)
    bins = (length - 1) // 2
    power = np.abs(transform(columns)[1 : bins + 1]) ** 2
    total = power.sum(0)
    rounding = (8 * np.finfo(float).eps) ** 2 * length * (columns**2).sum(0)
    alive = total > rounding
    g = np.where(alive, power.max(0) / np.where(alive, total, 1.0), np.nan)
    return g, fisher_tail(g, bins), np.where(alive, power.argmax(0) + 1, 0)


def fisher_tail(g: Float[np.ndarray, " column"], bins: int) -> Float[np.ndarray, " column"]:
    """P(g > x) of white noise: ``sum_{k>=1} (-1)^(k-1) C(m, k) (1 - k x)_+^(m-1)``, m = bins (Fisher 1929).

    The sum alternates and loses digits for small x; where its rounding error could pass 1e-9 of the result,
    it is summed again in decimal arithmetic with as many digits as its largest term needs.

    Examples
    --------
    >>> fisher_tail(np.array([0.039]), 255).round(3).tolist()
    [0.01]
    >>> fisher_tail(np.array([1 / 255]), 255).tolist()
    [1.0]
    """
    tail = np.full(g.shape, np.nan)
    known = np.isfinite(g)
    tail[known & (g <= 1 / bins)] = 1.0
    rest = np.flatnonzero(known & (g > 1 / bins))
    if not rest.size:
        return tail
    terms = min(bins, int(1 / g[rest].min()) + 1)
    step = max(1, _CHUNK // terms)
    for start in range(0, rest.size, step):
        chosen = rest[start : start + step]
        tail[chosen] = _tail(g[chosen], bins, terms)
    return tail


def _tail(x: np.ndarray, bins: int, terms: int) -> np.ndarray:
    k = np.arange(1, terms + 1)
    choose = gammaln(bins + 1) - gammaln(k + 1) - gammaln(bins - k + 1)
    inner = -k * x[:, None]
    inside = inner > -1
    power = (bins - 1) * np.log1p(np.where(inside, inner, 0.0))
    size = np.where(inside, np.exp(np.minimum(choose + power, 700.0)), 0.0)
    total = (np.where(k % 2 == 1, 1.0, -1.0) * size).sum(-1)
    # error of exp(a - b) is that of a and b: half a unit in the last place of the largest number in them
    error = np.finfo(float).eps * (size * (4 + gammaln(bins + 1) + np.abs(power))).sum(-1)
    total = np.clip(total, 0.0, 1.0)
    for index in np.flatnonzero(~(error <= _ACCURACY * total)):
        if size[index].max() > 0:
            largest = float((choose + power)[index].max()) / np.log(10)
            total[index] = _decimal_tail(float(x[index]), bins, largest)
    return total


def _decimal_tail(x: float, bins: int, largest: float) -> float:
    """The same sum with digits to spare; ``largest`` is the decimal logarithm of its largest term."""
    with localcontext() as context:
        context.prec = 40 + max(0, int(largest)) + int(log10(bins))
        exact, total, unit, choose = Decimal(x), Decimal(0), Decimal(1), 1
        for k in range(1, bins + 1):
            base = unit - k * exact
            if base <= 0:
                break
            choose = choose * (bins - k + 1) // k
            term = choose * base ** (bins - 1)
            total += term if k % 2 else -term
    return min(max(float(total), 0.0), 1.0)
