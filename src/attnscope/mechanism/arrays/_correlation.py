"""Scores along offsets: cross-correlation of a head's queries and keys, column by column.

See docs/mathematics.md, Cross-correlation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope._arguments import typed
from attnscope.array_checks import agree, finite, shaped
from attnscope.checks import check_whole
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays._checks import check_offsets, choose, labelled, series
from attnscope.mechanism.arrays._fisher import fisher_g
from attnscope.mechanism.arrays._peaks import NEAR, RANGES, Peaks, find_peaks

Mode = Literal["paper", "centre_k", "centre_both"]
MODES: tuple[Mode, ...] = ("paper", "centre_k", "centre_both")
CLEAR = 4.0  # white-noise standard deviations above which a peak is taken for one


@typed
def cross_correlation(
    query: Float[np.ndarray, "position column"],
    key: Float[np.ndarray, "key_position key_column"],
    singular_values: Float[np.ndarray, " value"] | None = None,
    *,
    mode: Mode = "paper",
    near: int = NEAR,
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
        ``paper``: as they are. Column means that are not 0 then leave a triangle over the offsets.
        ``centre_k``: the mean of each column of K is removed first, which subtracts from each row of the
        scores its mean; attention is blind to that, so this is the part that matters to it. ``centre_both``:
        that of Q too, which takes away a bias that is the same for all queries.
    near
        Largest offset of the range ``near``, tokens.
    offsets
        Lowest and highest offset that the head may look at, tokens: where peaks are looked for. All by default. The
        curves themselves are of the scores before any mask, and have all offsets.

    Returns
    -------
    xarray.Dataset
        Over ``column`` and ``offset`` (all 2T - 1, tokens): ``covariance`` and ``correlation``,
        :math:`(x_j(t) - \bar x_j) / (|q_j| |k_j|)` with the mean over all offsets, in -1..1 (NaN for a
        column of zeros). Over ``offset``: ``trace``, the weighted sum, and ``trace_mean``, the trace over
        T - \|t\|, without the taper that draws slow waves' peaks towards 0. Peaks over ``range`` (``near``:
        \|t\| <= `near`, ``all``), for the correlation of each column (``peak_*``) and the trace
        (``trace_peak_*``): ``offset``; ``refined``, by a parabola; ``height``; ``width`` at half height,
        tokens. NaN where the highest point is no peak, but the curve goes on rising beyond the range or the `offsets`.
        Over ``column``: ``peak_corrected``, the refined near peak without the taper; ``peak_clear``
        (with ``range``), at least 4 standard deviations of white noise (1/sqrt(T)) high, and as far above its
        surroundings (prominence); ``quarter_period`` of q's strongest frequency; ``is_spike``, a near peak narrower
        than it, which is no wave. ``trace_peak_corrected`` likewise; ``trace_peak_clear``, whether it is as high and
        prominent in standard deviations of the mean of T - \|t\| scores drawn from all.

    Raises
    ------
    AttnscopeError
        If shapes differ, entries are not finite, there are fewer than 4 positions or the mode is unknown.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.5 and figure 7; EMNLP 2023, equations 19 to
    23, figures 7 to 9.

    Examples
    --------
    >>> query = np.random.default_rng(0).normal(size=(64, 2))
    >>> correlations = cross_correlation(query, np.roll(query, -3, axis=0))  # the key at i - 3 is the query at i
    >>> correlations.peak_offset.sel(range="all").values.tolist()
    [-3.0, -3.0]
    """
    q, k = series("Q", query), series("K", key)
    agree("positions", "Q", len(q), "K", len(k))
    agree("columns", "Q", q.shape[1], "K", k.shape[1])
    choose("mode", mode, MODES)
    check_offsets(offsets)
    check_whole(0, near=near)
    s = (
        np.ones(q.shape[1])
        if singular_values is None
        else shaped("the singular values", singular_values, "column")
    )
    agree("columns", "Q", q.shape[1], "the singular values", len(s))
    if mode != "paper":
        k = k - k.mean(0)
    if mode == "centre_both":
        q = q - q.mean(0)
    length = len(q)
    offset = np.arange(1 - length, length)
    covariance = _covariance(q, k)
    size = np.linalg.norm(q, axis=0) * np.linalg.norm(k, axis=0)
    correlation = (covariance - covariance.mean(1, keepdims=True)) / np.where(size > 0, size, np.nan)[:, None]
    trace = s @ covariance
    taper = length - np.abs(offset)
    frequency = fisher_g(q)[2]
    quarter = length / np.where(frequency > 0, 4 * frequency, np.nan)
    peaks, trace_peaks, corrected, trace_corrected = (
        find_peaks(curves, offset, near=near, offsets=offsets)
        for curves in (
            correlation,
            trace[None],
            # the mean over all offsets was removed for the plot; the taper applies to what stood before
            np.where(np.isfinite(correlation), covariance, np.nan) / taper,
            (trace / taper)[None],
        )
    )
    clear = CLEAR / np.sqrt(length)
    trace_noise = CLEAR * _spread(q, k, s) / np.sqrt(length - np.abs(trace_corrected.offset[0, 0]))
    variables = {
        "covariance": labelled("column offset", covariance, "cross-covariance"),
        "correlation": labelled("column offset", correlation, "cross-correlation"),
        "trace": labelled("offset", trace, "sum of the scores along the offset"),
        "trace_mean": labelled("offset", trace / taper, "mean of the scores along the offset"),
        "peak_corrected": labelled("column", corrected.refined[:, 0], "near peak without taper", "tokens"),
        "trace_peak_corrected": labelled(
            "", trace_corrected.refined[0, 0], "trace's near peak, no taper", "tokens"
        ),
        "peak_clear": labelled("column range", _least(peaks) >= clear, "peak above noise"),
        "trace_peak_clear": labelled(
            "", bool(_least(trace_corrected)[0, 0] >= trace_noise), "trace's near peak above noise"
        ),
        "quarter_period": labelled("column", quarter, "quarter period of q's strongest wave", "tokens"),
        "is_spike": labelled("column", peaks.width[:, 0] < quarter, "near peak too narrow for the wave"),
    }
    for prefix, dims, peak in (("peak", "column range", peaks), ("trace_peak", "range", trace_peaks.first())):
        variables |= {
            f"{prefix}_offset": labelled(dims, peak.offset, "offset of the peak", "tokens"),
            f"{prefix}_refined": labelled(dims, peak.refined, "offset of the peak between tokens", "tokens"),
            f"{prefix}_height": labelled(dims, peak.height, "height of the peak"),
            f"{prefix}_width": labelled(dims, peak.width, "width of the peak at half height", "tokens"),
        }
    return xr.Dataset(
        variables,
        coords={
            "offset": labelled("offset", offset, "key position - query position", "tokens"),
            "range": ("range", list(RANGES)),
        },
        attrs={"positions": length, "mode": mode, "noise": 1 / np.sqrt(length), "near": near},
    )


def offset_trace(scores: Float[np.ndarray, "query key"]) -> xr.Dataset:
    r"""Sum and mean of a square matrix along each offset, :math:`\mathrm{tr}_t = \sum_i S_{i,i+t}`.

    Parameters
    ----------
    scores
        Scores or weights, shape (query, key).

    Returns
    -------
    xarray.Dataset
        ``trace`` and ``trace_mean`` (over T - \|t\|) over ``offset``, -(T - 1)..T - 1.

    Raises
    ------
    AttnscopeError
        If the matrix is not square or entries are not finite.

    Examples
    --------
    >>> offset_trace(np.array([[1.0, 2.0], [3.0, 4.0]])).trace.values.tolist()
    [3.0, 5.0, 2.0]
    """
    values, length = shaped("the scores", scores, "query, key"), len(scores)
    agree("entries", "a column of the scores", length, "a row", values.shape[1])
    place = np.arange(length)
    trace = np.bincount((place - place[:, None] + length - 1).ravel(), values.ravel(), 2 * length - 1)
    offset = np.arange(1 - length, length)
    return xr.Dataset(
        {
            "trace": labelled("offset", trace, "sum along the offset"),
            "trace_mean": labelled("offset", trace / (length - np.abs(offset)), "mean along the offset"),
        },
        coords={"offset": labelled("offset", offset, "key position - query position", "tokens")},
    )


@typed
def profile_agreement(
    weights: Float[np.ndarray, "*head offset"],
    scores: Float[np.ndarray, "*head score_offset"],
    *,
    band: int = 10,
    offsets: tuple[int, int] | None = None,
) -> xr.Dataset:
    """Compare where attention weights concentrate with where the scores' trace peaks.

    Softmax is not linear, so this is a fact to be measured, not one that follows.

    Parameters
    ----------
    weights, scores
        Profiles of weights and of scores over offsets -n..n, shapes (..., 2n + 1) and (..., 2m + 1), with the
        same leading dimensions: none, (head) or (layer, head).
    band
        Only offsets up to this are compared.
    offsets
        Lowest and highest offset that the heads may look at: of the band only these are compared.

    Returns
    -------
    xarray.Dataset
        For each head: ``weight_argmax`` and ``score_argmax`` (tokens), ``equal_argmax`` and ``spearman``, the
        rank correlation of the profiles (NaN where one is constant).

    Raises
    ------
    AttnscopeError
        If a profile has an even number of offsets or fewer than the band, entries are not finite, or there
        are more than two leading dimensions.

    Examples
    --------
    >>> agreement = profile_agreement(np.array([0.1, 0.6, 0.3]), np.array([-1.0, 5.0, 2.0]), band=1)
    >>> bool(agreement.equal_argmax), float(agreement.spearman.round(6)), int(agreement.weight_argmax)
    (True, 1.0, 0)
    """
    first, second = (
        _inside("the weights' profiles", weights, band),
        _inside("the scores' profiles", scores, band),
    )
    dims = {0: "", 1: "head", 2: "layer head"}.get(first.ndim - 1)
    if dims is None:
        raise AttnscopeError(
            f"profiles have shape {first.shape}; expected (offset), (head, offset) or (layer, head, offset)"
        )
    if first.shape != second.shape:
        raise AttnscopeError(
            f"found profiles of weights for heads {first.shape[:-1]} and of scores for heads {second.shape[:-1]}; "
            "expected the same heads in both"
        )
    check_offsets(offsets)
    low, high = offsets or (-band, band)
    low, high = max(low, -band), min(high, band)
    if low > high:
        raise AttnscopeError(f"offsets are {offsets}; expected some within the band of {band}")
    first, second = (side[..., low + band : high + band + 1] for side in (first, second))
    where, there = first.argmax(-1) + low, second.argmax(-1) + low
    return xr.Dataset(
        {
            "weight_argmax": labelled(dims, where, "offset of the largest weight", "tokens"),
            "score_argmax": labelled(dims, there, "offset of the largest score", "tokens"),
            "equal_argmax": labelled(dims, where == there, "same offset"),
            "spearman": labelled(
                dims, _spearman(first, second), f"rank correlation over {high - low + 1} offsets"
            ),
        },
        attrs={"band": band},
    )


def _least(peaks: Peaks) -> Float[np.ndarray, "curve range"]:
    """What a peak stands out by: from 0 or from its surroundings, whichever is less."""
    return np.minimum(peaks.height, peaks.prominence)


def _spread(
    query: Float[np.ndarray, "position column"],
    key: Float[np.ndarray, "position column"],
    values: Float[np.ndarray, " column"],
) -> float:
    """Standard deviation of the scores about their row and column means, without the matrix of scores."""
    left, right = (query - query.mean(0)) * values, key - key.mean(0)
    return float(np.sqrt(max(((left.T @ left) * (right.T @ right)).sum(), 0.0)) / len(query))


def _covariance(
    query: Float[np.ndarray, "position column"], key: Float[np.ndarray, "position column"]
) -> Float[np.ndarray, "column offset"]:
    """All offsets by the product of zero-padded spectra, whose negative offsets stand at the end."""
    length = len(query)
    size = 1 << (2 * length - 2).bit_length()  # at least 2T - 1
    spectra = np.fft.rfft(query, size, axis=0).conj() * np.fft.rfft(key, size, axis=0)
    circular = np.fft.irfft(spectra, size, axis=0).T
    return np.concatenate([circular[:, size - length + 1 :], circular[:, :length]], 1)


def _inside(name: str, profiles: np.ndarray, band: int) -> np.ndarray:
    values = finite(name, profiles)
    offsets = values.shape[-1] if values.ndim else 0
    if offsets % 2 == 0 or band < 1 or offsets < 2 * band + 1:
        raise AttnscopeError(
            f"{name} have {offsets} offsets and the band is {band}; expected an odd number, -n..n, "
            "with n at least the band, and a band of at least 1"
        )
    centre = offsets // 2
    return values[..., centre - band : centre + band + 1]


def _spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    a, b = (rankdata(x, axis=-1) - (x.shape[-1] + 1) / 2 for x in (first, second))
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return np.asarray((a * b).sum(-1) / np.where(size > 0, size, np.nan))
