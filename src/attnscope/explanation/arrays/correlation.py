"""Scores along offsets: cross-correlation of a head's queries and keys, column by column.

See mathematics.md, Cross-correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Complex, Float
from scipy import signal
from scipy.stats import rankdata

from attnscope.explanation.arrays import checks
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.arrays.spectrum import NEAR, RANGES, Offsets, Peaks, find_peaks, powers, transform
from attnscope.options import Natural
from attnscope.support.checked import checked
from attnscope.support.checks import agree, shaped

Mode = Literal["paper", "centre_k", "centre_both"]
CLEAR = 4.0  # white-noise standard deviations above which a peak counts


@checked
def cross_correlation(
    query: Float[np.ndarray, "position column"],
    key: Float[np.ndarray, "key_position key_column"],
    singular_values: Float[np.ndarray, " value"] | None = None,
    *,
    mode: Mode = "paper",
    near: Natural = NEAR,
    offsets: tuple[int, int] | None = None,
) -> xr.Dataset:
    r"""Cross-covariance of queries and keys at all offsets, in O(column T log T).

    :math:`x_j(t) = \sum_i q_{ij} k_{i+t,j}`, and :math:`\sum_j s_j x_j(t) = \sum_i S_{i,i+t}`, the sum of the
    scores ``Q diag(s) K^T`` along offset t = key - query.

    Parameters
    ----------
    query, key
        ``X U_Q`` and ``X U_K``, shape (position, column); or any q and k, without singular values.
    singular_values
        s, shape (column,); 1 by default.
    mode
        ``paper``: unchanged. Column means other than 0 then add a triangle over the offsets.
        ``centre_k``: the mean of each column of K is removed first, which subtracts
        from each row of the scores its mean and leaves attention unchanged. ``centre_both``: that of Q too, which
        removes a bias that all queries share.
    near
        Largest offset of the range ``near``, tokens.
    offsets
        Lowest and highest visible offset, tokens: peaks are searched between them. All by default. The curves use the
        scores before any mask, and have all offsets.

    Returns
    -------
    xarray.Dataset
        Over ``column`` and ``offset`` (all 2T - 1, tokens): ``covariance`` and ``correlation``,
        :math:`(x_j(t) - \bar x_j) / (|q_j| |k_j|)` with the mean over all offsets, in -1..1 (NaN for a
        column of zeros). Over ``offset``: ``trace``, the weighted sum, and ``trace_mean``, the trace over
        T - \|t\|, without the taper that draws slow waves' peaks towards 0. Peaks over ``range`` (``near``:
        \|t\| <= `near`, ``all``), for the correlation of each column (``peak_*``) and the trace
        (``trace_peak_*``): ``offset``; ``refined``, by a parabola; ``height``; ``width`` at half height,
        tokens. NaN without a peak, if the curve keeps rising beyond the range or the `offsets`.
        Over ``column``: ``peak_corrected``, the refined near peak without the taper; ``peak_clear``
        (with ``range``), at least 4 standard deviations of white noise (1/sqrt(T)) high, and as far above its
        surroundings (prominence); ``quarter_period`` of q's strongest frequency; ``is_spike``, a near peak narrower
        than it, which is no wave. ``trace_peak_corrected`` likewise; ``trace_peak_clear``, whether it is as high and
        prominent in standard deviations of the mean of T - \|t\| scores drawn from all.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.5 and figure 7; EMNLP 2023, equations 19 to
    23, figures 7 to 9.
    """
    q, k = checks.series("Q", query), checks.series("K", key)
    agree("positions", "Q", len(q), "K", len(k))
    agree("columns", "Q", q.shape[1], "K", k.shape[1])
    checks.check_offsets(offsets)
    s = np.ones(q.shape[1]) if singular_values is None else shaped("the singular values", singular_values, "column")
    agree("columns", "Q", q.shape[1], "the singular values", len(s))
    if mode != "paper":
        k = k - k.mean(0)
    if mode == "centre_both":
        q = q - q.mean(0)
    length = len(q)
    offset = np.arange(1 - length, length)
    # a correlation is a convolution with the reversed queries
    covariance = signal.fftconvolve(k, q[::-1], axes=0).reshape(2 * length - 1, q.shape[1]).T  # at all offsets
    size = np.linalg.norm(q, axis=0) * np.linalg.norm(k, axis=0)
    correlation = (covariance - covariance.mean(1, keepdims=True)) / np.where(size > 0, size, np.nan)[:, None]
    trace = s @ covariance
    taper = length - np.abs(offset)
    power, alive = powers(q)
    frequency = np.where(alive, power.argmax(0) + 1, 0)
    quarter = length / np.where(frequency > 0, 4 * frequency, np.nan)
    peaks, trace_peaks, corrected, trace_corrected = (
        find_peaks(curves, offset, near=near, offsets=offsets)
        for curves in (
            correlation,
            trace[None],
            # the mean over all offsets was removed for the plot; the taper applies to the values before that
            np.where(np.isfinite(correlation), covariance, np.nan) / taper,
            (trace / taper)[None],
        )
    )
    clear = CLEAR / np.sqrt(length)
    trace_noise = CLEAR * _spread(q, k, s) / np.sqrt(length - np.abs(trace_corrected.offset[0, 0]))
    variables = {
        "covariance": checks.labelled("column offset", covariance, "cross-covariance"),
        "correlation": checks.labelled("column offset", correlation, "cross-correlation"),
        "trace": checks.labelled("offset", trace, "sum of the scores along the offset"),
        "trace_mean": checks.labelled("offset", trace / taper, "mean of the scores along the offset"),
        "peak_corrected": checks.labelled("column", corrected.refined[:, 0], "near peak without taper", "tokens"),
        "peak_clear": checks.labelled("column range", _least(peaks) >= clear, "peak above noise"),
        "quarter_period": checks.labelled("column", quarter, "quarter period of q's strongest wave", "tokens"),
        "is_spike": checks.labelled("column", peaks.width[:, 0] < quarter, "near peak too narrow for the wave"),
    } | checks.over(
        "",
        trace_peak_corrected=(trace_corrected.refined[0, 0], "trace's near peak, no taper", "tokens"),
        trace_peak_clear=(bool(_least(trace_corrected)[0, 0] >= trace_noise), "trace's near peak above noise"),
    )
    every: Any = slice(None)
    for prefix, dims, peak, at in (("peak", "column range", peaks, every), ("trace_peak", "range", trace_peaks, 0)):
        variables |= {
            f"{prefix}_offset": checks.labelled(dims, peak.offset[at], "offset of the peak", "tokens"),
            f"{prefix}_refined": checks.labelled(dims, peak.refined[at], "offset of the peak between tokens", "tokens"),
            f"{prefix}_height": checks.labelled(dims, peak.height[at], "height of the peak"),
            f"{prefix}_width": checks.labelled(dims, peak.width[at], "width of the peak at half height", "tokens"),
        }
    return xr.Dataset(
        variables,
        coords={
            "offset": checks.labelled("offset", offset, "key position - query position", "tokens"),
            "range": ("range", list(RANGES)),
        },
        attrs={"positions": length, "mode": mode, "noise": 1 / np.sqrt(length), "near": near},
    )


def profile_agreement(
    weights: Float[np.ndarray, " offset"],
    scores: Float[np.ndarray, " offset"],
    *,
    band: int,
    offsets: Offsets | None = None,
) -> xr.Dataset:
    """Compare where a head's weights concentrate with where its scores peak, from ``-band`` to ``band``."""
    low, high = offsets or (-band, band)
    low, high = max(low, -band), min(high, band)
    weights, scores = (profile[low + band : high + band + 1] for profile in (weights, scores))
    of_weights, of_scores = weights.argmax() + low, scores.argmax() + low
    a, b = (rankdata(profile) - (len(profile) + 1) / 2 for profile in (weights, scores))
    size = np.sqrt((a**2).sum() * (b**2).sum())
    spearman = (a * b).sum() / np.where(size > 0, size, np.nan)
    return xr.Dataset(
        {
            "weight_argmax": checks.labelled("", of_weights, "offset of the largest weight", "tokens"),
            "score_argmax": checks.labelled("", of_scores, "offset of the largest score", "tokens"),
            "equal_argmax": checks.labelled("", of_weights == of_scores, "same offset"),
            "spearman": checks.labelled("", spearman, f"rank correlation over {high - low + 1} offsets"),
        },
        attrs={"band": band},
    )


def _least(peaks: Peaks) -> Float[np.ndarray, "curve range"]:
    """Height of a peak above 0 or above its surroundings, whichever is less."""
    return np.minimum(peaks.height, peaks.prominence)


def _spread(
    query: Float[np.ndarray, "position column"],
    key: Float[np.ndarray, "position column"],
    values: Float[np.ndarray, " column"],
) -> float:
    """Standard deviation of the scores about their row and column means, without the matrix of scores."""
    # the squared Frobenius norm of L R^T is the trace of (L^T L) (R^T R)
    left, right = (query - query.mean(0)) * values, key - key.mean(0)
    return float(np.sqrt(max(((left.T @ left) * (right.T @ right)).sum(), 0.0)) / len(query))


@checked
def cross_spectrum(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    band: tuple[int, int] | None = None,
    offsets: tuple[int, int] | None = None,
) -> xr.Dataset:
    r"""Phase shift of a head's keys against its queries at each frequency, and the offset that it implies.

    :math:`C(f) = \sum_j s_j \overline{\hat q_j(f)} \hat k_j(f)` is the DFT of the circular offset trace of
    the scores. If keys are the queries shifted, :math:`k_i = q_{i+\Delta}`, :math:`\arg C(f) = 2 \pi f
    \Delta / T`, and the head attends to offset :math:`t = -\Delta`. It depends on W_Q W_K^T and X only, unlike
    the rotation R, which depends on a completion (see `head_rotation`).

    A phase determines the shift up to multiples of T/f. The multiple nearest to a common shift is taken: the offset in
    `offsets` at which the trace of the scores before any mask, restricted to the band, is highest (of equal ones, the
    nearest to 0).

    Parameters
    ----------
    inputs
        X of one text, shape (position, width).
    query_weight, key_weight
        W_Q and W_K, shapes (width, r).
    band
        Band of frequencies for the numbers without dimension: the lowest and the highest, cycles per T tokens;
        everything from 3 by default.
    offsets
        Lowest and highest offset that the head may attend to, tokens; all by default.

    Returns
    -------
    xarray.Dataset
        Over ``frequency``: ``cross_amplitude``, \|C\|; ``phase``, arg C; ``shift``, Delta(f) (NaN where C or
        f is 0, and at T/2); ``offset``, -Delta(f); ``wrap_limit``, T/(2f), beyond which one frequency is ambiguous;
        ``coherence`` in 0..1, :math:`|\sum_j \overline{\hat q_j} \hat k_j| / (\|\hat q\| \|\hat
        k\|)`; ``in_band``. Without dimension, over the band: ``band_offset``, the \|C\|-weighted median of
        the offsets, clipped to `offsets` (NaN where the trace rises beyond them), and
        ``band_offset_spread``, the weighted median distance from it; ``band_offset_chance``, the share of 200 spectra
        of the same amplitudes and random phases whose trace is as high at one of the `offsets`;
        ``shift_concentration``, :math:`|\sum |C| e^{j(\arg C - 2 \pi f \Delta / T)}| / \sum |C|`, 1 where one
        shift explains all phases, and ``phase_concentration``, :math:`|\sum C| / \sum |C|`, 1 where one phase
        does (no shift in tokens, but horizontal bands in the map of R); ``slope_offset`` (tokens) and
        ``intercept`` (radians), from the line through the unwrapped phase, weighted by \|C\|, with standard
        errors ``slope_offset_error`` and ``intercept_error``. A constant shift means an intercept of 0 and a
        slope that equals ``band_offset``. NaN where undefined.

    References
    ----------
    Yamamoto and Matsuzaki (2023), EMNLP 2023, equations 15 and 24 to 27, for the phase shift.
    Their equation 25 prints its sign reversed.
    """
    values, query_weight, key_weight = checks.head_arrays(inputs, query_weight, key_weight)
    checks.check_offsets(offsets)
    length = len(values)
    chosen = checks.in_band(length, band)
    parts = reparametrize(query_weight, key_weight)
    query, key = transform(values @ parts.query), transform(values @ parts.key)
    together = np.linalg.norm(query, axis=1) * np.linalg.norm(key, axis=1)
    # rounding error of the transforms of queries and keys: amplitudes up to it have no phase
    rounding = (length * np.finfo(float).eps) ** 2 * together.max()
    alive = together > rounding
    cross = np.where(alive, (parts.values * query.conj() * key).sum(1), 0.0)
    coherence = np.abs((query.conj() * key).sum(1)) / np.where(alive, together, np.nan)
    frequency = np.arange(len(cross))
    common = common_shift(cross, chosen, length, offsets)
    shift = shifts_near(cross, -common.offset, length)
    with np.errstate(divide="ignore"):
        limit = length / (2 * frequency)
    return xr.Dataset(
        checks.over(
            "frequency",
            cross_amplitude=(np.abs(cross), "amplitude of the cross-spectrum"),
            phase=(np.angle(cross), "phase of the cross-spectrum", "radians"),
            shift=(shift, "shift of keys against queries", "tokens"),
            offset=(-shift, "offset that scores favour (key - query)", "tokens"),
            wrap_limit=(limit, "largest shift that one phase can tell", "tokens"),
            coherence=(np.minimum(coherence, 1.0), "coherence of queries and keys"),
            in_band=(chosen, "in the band"),
        )
        | _over_band(cross[chosen], frequency[chosen], shift[chosen], length, common, offsets or (-length, length)),
        checks.frequencies(len(cross), length),
        attrs={"positions": length, "band": [int(frequency[chosen][0]), int(frequency[chosen][-1])]},
    )


def _over_band(
    cross: np.ndarray, frequency: np.ndarray, shift: np.ndarray, length: int, common: CommonShift, offsets: Offsets
) -> dict[str, checks.Labelled]:
    weight = np.where(np.isfinite(shift), np.abs(cross), 0.0)
    total = weight.sum()
    middle = checks.weighted_median(-shift, weight)
    spread = checks.weighted_median(np.abs(-shift - middle), weight)
    straight = np.abs((weight * np.exp(1j * (np.angle(cross) + 2 * np.pi * frequency * middle / length))).sum())
    level = np.abs(cross.sum())
    (intercept, slope), (intercept_error, slope_error) = _line(
        frequency, np.where(np.isfinite(shift), 2 * np.pi * frequency * shift / length, 0.0), weight
    )
    tokens = length / (2 * np.pi)
    offset = float(np.clip(middle, *offsets)) if common.is_peak else np.nan
    return checks.over(
        "",
        band_offset=(offset, "weighted median of the offsets in the band", "tokens"),
        band_offset_chance=(common.chance, "share of random phases that concentrate as much"),
        band_offset_spread=(spread, "weighted median distance from it", "tokens"),
        shift_concentration=(straight / total if total > 0 else np.nan, "agreement with one shift"),
        phase_concentration=(level / total if total > 0 else np.nan, "agreement with one phase"),
        slope_offset=(-slope * tokens, "offset from the slope of the phase", "tokens"),
        slope_offset_error=(slope_error * tokens, "its standard error", "tokens"),
        intercept=(intercept, "phase at frequency 0 of the line through the phases", "radians"),
        intercept_error=(intercept_error, "its standard error", "radians"),
    )


def _line(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted line, (intercept, slope), and robust errors (sandwich)."""
    if (weight > 0).sum() < 3:  # noqa: PLR2004 a line through two points has no error
        return np.full(2, np.nan), np.full(2, np.nan)
    design = np.stack([np.ones(len(x)), x], 1)
    inverse = np.linalg.inv((design * weight[:, None]).T @ design)
    line = inverse @ (design.T @ (weight * y))
    # each point's own pull g on the line: the covariance is inverse (sum of g g^T) inverse (White 1980)
    pull = design * (weight * (y - design @ line))[:, None]
    return line, np.sqrt(np.diag(inverse @ (pull.T @ pull) @ inverse))


_FINE = 8  # points for each token
_TIE = 1e-6  # of the highest point: as high, so that the offset nearest to 0 is taken
_DRAWS = 199  # so that the smallest chance is 1 / 200


@dataclass(frozen=True)
class CommonShift:
    """The offset at which a spectrum's trace is highest."""

    # offset of the highest point among the visible offsets, tokens; the shift is its negative
    offset: float
    is_peak: bool  # whether the trace is lower on either side; else it rises beyond the visible offsets
    # share of spectra with the same amplitudes and random phases whose trace is as high somewhere, in 1/200..1
    chance: float


def common_shift(
    cross: Complex[np.ndarray, " frequency"],
    chosen: Bool[np.ndarray, " frequency"],
    length: int,
    offsets: Offsets | None = None,
) -> CommonShift:
    """Find the offset at which the band's part of the circular trace is highest.

    On a circle, offsets are distinct only up to half of its length. The result is NaN if the mask hides all of these.
    """
    band = np.where(chosen, cross, 0)
    if not np.abs(band).sum() > 0:
        return CommonShift(np.nan, is_peak=False, chance=np.nan)
    trace = _trace(band, length)
    offset = np.arange(len(trace)) / _FINE
    offset = np.where(offset > length / 2, offset - length, offset)
    low, high = offsets or (-length, length)
    allowed = (offset >= low) & (offset <= high)
    if not allowed.any():
        return CommonShift(np.nan, is_peak=False, chance=np.nan)
    top = trace[allowed].max()
    level = _TIE * np.abs(trace).max()
    highest = np.flatnonzero(allowed & (trace >= top - level))
    at = int(highest[np.abs(offset[highest]).argmin()])
    beside = max(trace[at - 1], trace[(at + 1) % len(trace)])
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random((_DRAWS, int(chosen.sum()))))
    drawn = np.zeros((_DRAWS, len(band)), complex)
    drawn[:, chosen] = np.abs(band[chosen]) * phases
    highest_drawn = _trace(drawn, length).max(1, where=allowed, initial=-np.inf)
    return CommonShift(
        float(offset[at]), bool(beside <= top + level), (1 + int((highest_drawn >= top - level).sum())) / (1 + _DRAWS)
    )


def shifts_near(
    cross: Complex[np.ndarray, " frequency"], common: float, length: int
) -> Float[np.ndarray, " frequency"]:
    """Shift ``T arg C(f) / (2 pi f)`` at each frequency, the multiple of T/f nearest to the common
    shift.
    """
    frequency = np.arange(len(cross))
    usable = (frequency > 0) & (2 * frequency < length) & (np.abs(cross) > 0)
    angle = 2 * np.pi * np.where(usable, frequency, 1) / length
    return np.where(usable, common + np.angle(cross * np.exp(-1j * angle * common)) / angle, np.nan)


def _trace(cross: Complex[np.ndarray, "*draw frequency"], length: int) -> Float[np.ndarray, "*draw offset"]:
    return np.fft.irfft(cross, _FINE * length)
