"""Waves in a position table: its amplitude spectrum, held against white noise.

See docs/mathematics.md, Spectrum of the position table.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy import signal

from attnscope._arguments import typed
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays._checks import labelled, series
from attnscope.mechanism.arrays._fisher import fisher_g
from attnscope.mechanism.arrays._fourier import null_scale, rayleigh_mean, rayleigh_quantile, transform

QUARTILES = (0.25, 0.75)
CLEAR = 4.0  # standard deviations by which a peak stands out


@typed
def amplitude_spectrum(
    table: Float[np.ndarray, "position column"],
    *,
    detrend: Literal["none", "linear"] = "none",
    neighbours: int = 10,
    factor: float = 2.0,
    lowest: int = 3,
) -> xr.Dataset:
    r"""Amplitudes of the waves in the columns of a position table.

    :math:`|\sum_i E_{ic} e^{-2\pi j f i / T}|` for each column c; no window. The same for the word embeddings
    of a text, before positions are added, is the control: words have no peak.

    Parameters
    ----------
    table
        Shape (position, column); one row for each position, in order.
    detrend
        ``linear`` removes each column's least-squares line first. Nothing is removed by default.
    neighbours
        The local median is that of so many frequencies on either side (the frequency itself and 0 left out).
    factor, lowest
        A peak is a frequency of at least ``lowest`` whose mean amplitude is at least ``factor`` local
        medians, above the upper quartile of white noise and above both neighbours; what it rises above its surroundings
        by (prominence) is at least 4 standard deviations of the mean over as many independent columns as the table has
        the variance of. A falling slope has none.

    Returns
    -------
    xarray.Dataset
        Over ``frequency`` (cycles per T positions): ``mean``, ``lower_quartile``, ``upper_quartile`` of the
        amplitude across columns; ``power``, the sum of squared amplitudes, which unlike them stays the same
        when the axes of the embedding are rotated, and ``root_power``, the root of its mean over columns, to be
        held beside the mean amplitude; ``local_ratio`` (NaN at 0) and ``is_peak``. Over
        ``column``: ``fisher_g``, ``fisher_p`` and ``peak_frequency`` (see `fisher_g_test`). Without
        dimension: ``null_mean``, ``null_lower_quartile``, ``null_upper_quartile``, the levels of white noise
        in which each column keeps its variance (Rayleigh; they hold strictly between 0 and T/2).

    Raises
    ------
    AttnscopeError
        If entries are not finite, there are fewer than 4 positions, or a parameter is out of range.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, equation 8 and figure 3; EMNLP 2023, figures 3 and 13.

    Examples
    --------
    >>> position = np.arange(64)[:, None]
    >>> noise = np.random.default_rng(0).normal(0, 0.1, (64, 8))
    >>> spectrum = amplitude_spectrum(np.cos(2 * np.pi * 12 * position / 64) + noise)
    >>> spectrum.frequency[spectrum.is_peak].values.tolist()
    [12]
    """
    columns = series("the table", table)
    if neighbours < 1 or not 0 < factor < np.inf:
        raise AttnscopeError(
            f"neighbours is {neighbours} and factor {factor}; expected 1 neighbour or more, factor > 0"
        )
    if detrend == "linear":
        columns = _without_line(columns)
    amplitude = np.abs(transform(columns))
    mean = amplitude.mean(1)
    ratio = _local_ratio(mean, neighbours)
    lower, upper = np.quantile(amplitude, QUARTILES, axis=1)
    scale = null_scale(columns)
    frequency = np.arange(len(mean))
    above_noise = mean > rayleigh_quantile(scale, QUARTILES[1])
    spectrum = xr.Dataset(
        {
            "mean": labelled("frequency", mean, "mean amplitude over columns"),
            "lower_quartile": labelled("frequency", lower, "lower quartile of the amplitude over columns"),
            "upper_quartile": labelled("frequency", upper, "upper quartile of the amplitude over columns"),
            "power": labelled("frequency", (amplitude**2).sum(1), "squared amplitude, sum over columns"),
            "root_power": labelled(
                "frequency", np.sqrt((amplitude**2).mean(1)), "root mean square amplitude over columns"
            ),
            "local_ratio": labelled("frequency", ratio, "mean amplitude over its local median"),
            "is_peak": labelled(
                "frequency",
                (frequency >= lowest) & (ratio >= factor) & above_noise & _tops(mean, mean / ratio, columns),
                "peak of the mean amplitude",
            ),
            "null_mean": labelled("", rayleigh_mean(scale), "mean amplitude of white noise"),
        }
        | {
            f"null_{name}_quartile": labelled(
                "", rayleigh_quantile(scale, share), f"{name} quartile of the amplitude of white noise"
            )
            for name, share in zip(("lower", "upper"), QUARTILES, strict=True)
        },
        coords={
            "frequency": labelled("frequency", frequency, "frequency", f"cycles per {len(columns)} tokens")
        },
        attrs={"positions": len(columns), "detrend": detrend, "neighbours": neighbours, "factor": factor},
    )
    return spectrum.merge(fisher_g_test(columns), combine_attrs="override")


def fisher_g_test(columns: Float[np.ndarray, "position column"]) -> xr.Dataset:
    r"""Test each column for one periodic component (Fisher's g).

    :math:`g = \max_f I_f / \sum_f I_f` over the m frequencies strictly between 0 and T/2, and, for white
    noise, :math:`P(g > x) = \sum_{k \ge 1} (-1)^{k-1} \binom{m}{k} (1 - kx)_+^{m-1}`. At T = 512 the 1% point
    is 0.039.

    Parameters
    ----------
    columns
        Shape (position, column).

    Returns
    -------
    xarray.Dataset
        Over ``column``: ``fisher_g``, ``fisher_p`` (both NaN for a constant column) and ``peak_frequency``,
        the strongest frequency strictly between 0 and T/2 (0 for a constant column).

    Raises
    ------
    AttnscopeError
        If entries are not finite or there are fewer than 4 positions.

    References
    ----------
    Fisher (1929), Tests of significance in harmonic analysis.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * 5 * np.arange(64) / 64)[:, None]
    >>> test = fisher_g_test(wave)
    >>> int(test.peak_frequency[0]), round(float(test.fisher_g[0]), 6)
    (5, 1.0)
    """
    columns = series("the columns", columns)
    g, probability, frequency = fisher_g(columns)
    return xr.Dataset(
        {
            "fisher_g": labelled("column", g, "largest share of one frequency in the power"),
            "fisher_p": labelled("column", probability, "probability of such a share in white noise"),
            "peak_frequency": labelled(
                "column", frequency, "strongest frequency", f"cycles per {len(columns)} tokens"
            ),
        }
    )


def _tops(
    mean: Float[np.ndarray, " frequency"],
    level: Float[np.ndarray, " frequency"],
    columns: Float[np.ndarray, "position column"],
) -> Bool[np.ndarray, " frequency"]:
    """Local maxima that stand out from the scatter of a mean over so many Rayleigh amplitudes about the level."""
    power = np.linalg.svd(columns - columns.mean(0), compute_uv=False) ** 2
    # columns that vary together count as one: the participation ratio of their powers; the standard deviation of a
    # Rayleigh amplitude is sqrt(4 / pi - 1) times its mean
    independent = power.sum() ** 2 / max((power**2).sum(), np.finfo(float).tiny)
    scatter = np.sqrt(4 / np.pi - 1) / np.sqrt(max(independent, 1.0))
    mirrored = np.append(
        mean, mean[-2] if len(columns) % 2 == 0 else mean[-1]
    )  # beyond half of all positions
    tops = signal.find_peaks(mirrored)[0]
    prominence = signal.peak_prominences(mirrored, tops)[0]
    is_top = np.zeros(len(mean), dtype=bool)
    with np.errstate(invalid="ignore"):
        is_top[tops] = prominence >= CLEAR * scatter * np.nan_to_num(level[tops])
    return is_top


def _without_line(columns: Float[np.ndarray, "position column"]) -> Float[np.ndarray, "position column"]:
    place = np.arange(len(columns)) - (len(columns) - 1) / 2
    centred = columns - columns.mean(0)
    return centred - place[:, None] * (place @ centred / (place @ place))


def _local_ratio(mean: Float[np.ndarray, " frequency"], neighbours: int) -> Float[np.ndarray, " frequency"]:
    """Value over the median of its neighbours; the frequency 0 is nobody's neighbour and has none."""
    ratio = np.full(len(mean), np.nan)
    for place in range(1, len(mean)):
        around = np.r_[mean[max(1, place - neighbours) : place], mean[place + 1 : place + 1 + neighbours]]
        level = np.median(around)
        ratio[place] = mean[place] / level if level > 0 else (np.inf if mean[place] > 0 else np.nan)
    return ratio
