"""Amplitudes of many columns by frequency, and the waves of a head's queries and keys.

See mathematics.md, Spectrum of the position table, and Queries and keys as waves.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import log10
from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int
from scipy import signal
from scipy.optimize import brentq
from scipy.special import gammaln

from attnscope.explanation.arrays.checks import frequencies, head_arrays, labelled, over, series
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.arrays.spectrum import powers, transform
from attnscope.options import Count, Natural
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError

QUARTILES = (0.25, 0.75)
CLEAR = 4.0  # standard deviations by which a peak stands out


@checked
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
        Frequencies on either side for the local median (without the frequency itself and 0).
    factor, lowest
        A peak is a frequency of at least ``lowest`` whose mean amplitude is at least ``factor`` local
        medians, above the upper quartile of white noise and above both neighbours. Its prominence is at least 4
        standard deviations of the mean over the table's effective number of independent columns. A falling slope has
        no peak.

    Returns
    -------
    xarray.Dataset
        Over ``frequency`` (cycles per T positions): ``mean``, ``lower_quartile``, ``upper_quartile`` of the
        amplitude across columns; ``power``, the sum of squared amplitudes, which unlike them stays the same
        when the axes of the embedding are rotated, and ``root_power``, the root of its mean over columns, comparable
        with the mean amplitude; ``local_ratio`` (NaN at 0) and ``is_peak``. Over
        ``column``: ``fisher_g``, ``fisher_p`` and ``peak_frequency`` (see `fisher_g_test`). Without
        dimension: ``null_mean``, ``null_lower_quartile``, ``null_upper_quartile``, the levels of white noise
        in which each column keeps its variance (Rayleigh; they hold strictly between 0 and T/2).

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, equation 8 and figure 3; EMNLP 2023, figures 3 and 13.
    """
    columns = series("the table", table)
    if neighbours < 1 or not 0 < factor < np.inf:
        raise AttnscopeError(
            f"neighbours is {neighbours} and factor {factor}; expected 1 neighbour or more, factor > 0"
        )
    if detrend == "linear":
        position = np.arange(len(columns)) - (len(columns) - 1) / 2
        columns = columns - columns.mean(0)
        columns = columns - position[:, None] * (position @ columns / (position @ position))
    amplitude = np.abs(transform(columns))
    mean = amplitude.mean(1)
    ratio = _local_ratio(mean, neighbours)
    lower, upper = np.quantile(amplitude, QUARTILES, axis=1)
    scale = null_scale(columns)
    frequency = np.arange(len(mean))
    above_noise = mean > rayleigh_quantile(scale, QUARTILES[1])
    is_peak = (frequency >= lowest) & (ratio >= factor) & above_noise & _tops(mean, mean / ratio, columns)
    noise = [rayleigh_quantile(scale, share) for share in QUARTILES]
    spectrum = xr.Dataset(
        over(
            "frequency",
            mean=(mean, "mean amplitude over columns"),
            lower_quartile=(lower, "lower quartile of the amplitude over columns"),
            upper_quartile=(upper, "upper quartile of the amplitude over columns"),
            power=((amplitude**2).sum(1), "squared amplitude, sum over columns"),
            root_power=(np.sqrt((amplitude**2).mean(1)), "root mean square amplitude over columns"),
            local_ratio=(ratio, "mean amplitude over its local median"),
            is_peak=(is_peak, "peak of the mean amplitude"),
        )
        | over(
            "",
            null_mean=(float(scale.mean() * np.sqrt(np.pi) / 2), "mean amplitude of white noise"),
            null_lower_quartile=(noise[0], "lower quartile of the amplitude of white noise"),
            null_upper_quartile=(noise[1], "upper quartile of the amplitude of white noise"),
        ),
        frequencies(len(mean), len(columns)),
        {"positions": len(columns), "detrend": detrend, "neighbours": neighbours, "factor": factor},
    )
    return spectrum.merge(fisher_g_test(columns), combine_attrs="override")


def fisher_g_test(columns: Float[np.ndarray, "position column"]) -> xr.Dataset:
    """Test each column for one periodic component (Fisher's g; see `fisher_tail`)."""
    columns = series("the columns", columns)
    g, probability, frequency = fisher_g(columns)
    return xr.Dataset(
        over(
            "column",
            fisher_g=(g, "largest share of one frequency in the power"),
            fisher_p=(probability, "probability of such a share in white noise"),
            peak_frequency=(frequency, "strongest frequency", f"cycles per {len(columns)} tokens"),
        )
    )


def _tops(
    mean: Float[np.ndarray, " frequency"],
    level: Float[np.ndarray, " frequency"],
    columns: Float[np.ndarray, "position column"],
) -> Bool[np.ndarray, " frequency"]:
    """Local maxima that exceed the scatter of a mean over Rayleigh amplitudes."""
    power = np.linalg.svd(columns - columns.mean(0), compute_uv=False) ** 2
    # columns that vary together count as one: the participation ratio of their powers; the standard deviation of a
    # Rayleigh amplitude is sqrt(4 / pi - 1) times its mean
    independent = power.sum() ** 2 / max((power**2).sum(), np.finfo(float).tiny)
    scatter = np.sqrt(4 / np.pi - 1) / np.sqrt(max(independent, 1.0))
    mirrored = np.append(mean, mean[-2] if len(columns) % 2 == 0 else mean[-1])  # beyond half of all positions
    tops = signal.find_peaks(mirrored)[0]
    prominence = signal.peak_prominences(mirrored, tops)[0]
    is_top = np.zeros(len(mean), dtype=bool)
    with np.errstate(invalid="ignore"):
        is_top[tops] = prominence >= CLEAR * scatter * np.nan_to_num(level[tops])
    return is_top


def _local_ratio(mean: Float[np.ndarray, " frequency"], neighbours: int) -> Float[np.ndarray, " frequency"]:
    """Value over the median of its neighbours; the frequency 0 is left out."""
    ratio = np.full(len(mean), np.nan)
    for at in range(1, len(mean)):
        level = np.median(np.r_[mean[max(1, at - neighbours) : at], mean[at + 1 : at + 1 + neighbours]])
        ratio[at] = mean[at] / level if level > 0 else (np.inf if mean[at] > 0 else np.nan)
    return ratio


def null_scale(columns: Float[np.ndarray, "position column"]) -> Float[np.ndarray, " column"]:
    """Root mean square amplitude of white noise with each column's variance: ``s = sigma sqrt(T)``."""
    return np.linalg.norm(columns - columns.mean(0), axis=0)


def rayleigh_quantile(scale: Float[np.ndarray, " column"], share: float) -> float:
    """Amplitude that a share of white columns is below: ``mean(1 - exp(-a^2 / s^2)) = share``."""
    alive = scale[scale > 0]
    still = 1 - alive.size / scale.size  # constant columns are below every amplitude
    if still >= share:
        return 0.0
    rest = (share - still) / (1 - still)
    quantile = float(np.sqrt(-np.log1p(-rest)))
    low, high = float(alive.min()) * quantile, float(alive.max()) * quantile
    return low if low == high else _root(lambda a: _below(a, alive).mean() - rest, low, high)


def largest_quantile(scale: Float[np.ndarray, " column"], share: float) -> float:
    """Quantile of the largest amplitude of independent white columns: ``prod(1 - exp(-a^2 / s^2)) = share``."""
    alive = scale[scale > 0]
    if not alive.size:
        return 0.0
    # for n equal columns P(largest < a) is about exp(-n exp(-a^2 / s^2)): a root above it brackets all others
    high = float(alive.max()) * np.sqrt(np.log(alive.size / -np.log(share)) + 1)
    return _root(lambda a: np.log(_below(a, alive)).sum() - np.log(share), float(alive.max()) * 1e-9, 2 * high)


def largest_mean(scale: Float[np.ndarray, " column"]) -> float:
    """Mean of the largest amplitude among independent white columns: the integral of ``P(largest > a)``."""
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


_ACCURACY = 1e-9  # relative, of a tail probability in float64; where it is missed, decimal arithmetic
_CHUNK = 2_000_000  # terms of the series held at a time


def fisher_g(
    columns: Float[np.ndarray, "position column"],
) -> tuple[Float[np.ndarray, " column"], Float[np.ndarray, " column"], Int[np.ndarray, " column"]]:
    """Each column's g, tail probability and strongest frequency."""
    power, alive = powers(columns)
    total = power.sum(0)
    g = np.where(alive, power.max(0) / np.where(alive, total, 1.0), np.nan)
    return g, fisher_tail(g, len(power)), np.where(alive, power.argmax(0) + 1, 0)


def fisher_tail(g: Float[np.ndarray, " column"], bins: int) -> Float[np.ndarray, " column"]:
    """P(g > x) of white noise: ``sum_{k>=1} (-1)^(k-1) C(m, k) (1 - k x)_+^(m-1)``, m = bins (Fisher 1929)."""
    tail = np.full(g.shape, np.nan)
    finite = np.isfinite(g)
    tail[finite & (g <= 1 / bins)] = 1.0
    rest = np.flatnonzero(finite & (g > 1 / bins))
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
    """The same sum with spare digits; ``largest`` is the decimal logarithm of its largest term."""
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


_QUARTER = np.pi / 6  # how far from 90 degrees apart the phases of a pair may be


@checked
def query_key_waves(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    significance: float = 0.05,
    tests: Count | None = None,
    lowest: int = 3,
    permutations: Natural = 20,
    curves: Natural = 6,
    seed: Natural = 0,
) -> xr.Dataset:
    """Find the singular columns of a head that are waves along the text.

    Parameters
    ----------
    inputs
        X of one text, shape (position, width).
    query_weight, key_weight
        W_Q and W_K, shapes (width, r).
    significance, tests
        A column is periodic where Fisher's g of its query and of its key both have a probability of at most
        ``significance / tests``. ``tests`` is two for each column by default; for all heads of a model it is
        2 x r x heads.
    lowest
        ... and where both peak at this frequency or above (cycles per T tokens).
    permutations, seed
        The null is the same head on the same rows of X in random orders: white noise is too easy a null for
        a text, whose signals are smooth.
    curves
        Number of columns, those with the largest importance, whose values along the text are returned.

    Returns
    -------
    xarray.Dataset
        Over ``column``: ``singular_value``; ``importance``, :math:`s |q| |k|`, the Frobenius norm of the column's
        part of the scores on this text; ``group`` and ``near_degenerate`` (only the space of such columns is
        defined; see `reparametrize`); for q and k ``*_frequency``, ``*_g``, ``*_p`` and ``*_phase`` (radians,
        at the peak); ``periodic``; ``partner``, the column with which it makes a cosine and sine of one
        frequency, or -1. Without dimension ``periodic_columns``, and ``null_periodic_columns`` over
        ``permutation``. Over ``curve`` (the most important column first) ``curve_column``, and over ``curve,
        position`` ``query_curve`` and ``key_curve``: the column about its mean, in units of its standard deviation.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.3 and figure 4; EMNLP 2023, section 4.2 and figure 5.
    """
    values, query_weight, key_weight = head_arrays(inputs, query_weight, key_weight)
    if not 0 < significance < 1:
        raise AttnscopeError(f"significance is {significance}; expected a level between 0 and 1")
    parts = reparametrize(query_weight, key_weight)
    columns = len(parts.values)
    level = significance / (tests or max(2 * columns, 1))
    query, key = values @ parts.query, values @ parts.key
    both = np.hstack([query, key])
    g, probability, frequency = fisher_g(both)
    periodic = _periodic(probability, frequency, level, lowest)
    phase = np.angle(transform(both)[frequency, np.arange(2 * columns)])
    rng = np.random.default_rng(seed)
    null = [
        int(_periodic(*fisher_g(both[rng.permutation(len(both))])[1:], level, lowest).sum())
        for _ in range(permutations)
    ]
    importance = parts.values * np.linalg.norm(query, axis=0) * np.linalg.norm(key, axis=0)
    shared = np.bincount(parts.group, minlength=1)[parts.group] > 1
    chosen = np.argsort(-importance, kind="stable")[:curves]
    partners = _partners(frequency[:columns], phase[:columns], periodic)
    variables = over(
        "column",
        singular_value=(parts.values, "singular value of W_Q W_K^T"),
        importance=(importance, "Frobenius norm of the column's part of the scores"),
        group=(parts.group, "group of nearly equal singular values"),
        near_degenerate=(shared, "shares its singular value"),
        periodic=(periodic, "query and key are waves"),
        partner=(partners, "other of the pair"),
    )
    variables |= over("", periodic_columns=(int(periodic.sum()), "columns whose query and key are waves"))
    variables |= over("permutation", null_periodic_columns=(np.array(null, dtype=np.int64), "the same, rows permuted"))
    variables |= over("curve", curve_column=(chosen, "singular column"))
    cycles = f"cycles per {len(values)} tokens"
    for name, side in (("query", slice(columns)), ("key", slice(columns, None))):
        centred = both[:, side][:, chosen] - both[:, side][:, chosen].mean(0)
        spread = centred.std(0)
        curves_of = (centred / np.where(spread > 0, spread, 1.0)).astype(np.float32).T  # a constant column is 0
        variables[f"{name}_curve"] = labelled("curve position", curves_of, f"{name} along the text")
        variables |= {
            f"{name}_frequency": labelled("column", frequency[side], f"strongest frequency of the {name}", cycles),
            f"{name}_g": labelled("column", g[side], f"Fisher's g of the {name}"),
            f"{name}_p": labelled("column", probability[side], f"its probability in white noise ({name})"),
            f"{name}_phase": labelled("column", phase[side], f"phase of the {name} at its peak", "radians"),
        }
    return xr.Dataset(
        variables,
        coords=over("column", column=(np.arange(columns), "singular column"))
        | over("position", position=(np.arange(len(values)), "position in the text", "tokens"))
        | {"curve": np.arange(len(chosen))},
        attrs={"positions": len(values), "level": level, "lowest": lowest, "seed": seed, "dropped": parts.dropped},
    )


@checked
def maximum_spectrum(columns: Float[np.ndarray, "position column"]) -> xr.Dataset:
    """Strongest amplitude at each frequency over many columns: all heads' q, all heads' k, or X itself.

    Parameters
    ----------
    columns
        Shape (position, column): ``X U_Q`` of a layer's heads side by side, or X.

    Returns
    -------
    xarray.Dataset
        Over ``frequency`` (cycles per T tokens): ``maximum`` and ``strongest_column``. Without dimension
        ``null_mean`` and ``null_99``, mean and 99% quantile of the maximum over independent white columns of
        the same variances (strictly between 0 and T/2). For 768 columns it is near 2.7 times that of one
        column's root mean square, so compare a maximum with it.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, figure 5; EMNLP 2023, equations 17 and 18 and figure 6.
    """
    values = series("the columns", columns)
    if not values.shape[1]:
        raise AttnscopeError("there are no columns; the strongest amplitude needs at least one")
    amplitude = np.abs(transform(values))
    scale = null_scale(values)
    return xr.Dataset(
        over(
            "frequency",
            maximum=(amplitude.max(1), "largest amplitude over columns"),
            strongest_column=(amplitude.argmax(1), "column of the largest amplitude"),
        )
        | over(
            "",
            null_mean=(largest_mean(scale), "mean of the largest amplitude of white noise"),
            null_99=(largest_quantile(scale, 0.99), "99% quantile of the same"),
        ),
        frequencies(len(amplitude), len(values)),
    )


def _periodic(
    probability: Float[np.ndarray, " both"], frequency: Int[np.ndarray, " both"], level: float, lowest: int
) -> Bool[np.ndarray, " column"]:
    """Both halves, queries and keys, significant and fast enough; NaN is not significant."""
    return np.logical_and(*((probability <= level) & (frequency >= lowest)).reshape(2, -1))


def _partners(
    frequency: Int[np.ndarray, " column"], phase: Float[np.ndarray, " column"], periodic: Bool[np.ndarray, " column"]
) -> Int[np.ndarray, " column"]:
    """Match periodic columns of one frequency whose phases are 90 degrees apart, the closest first."""
    miss = np.abs(np.abs(np.angle(np.exp(1j * (phase[:, None] - phase)))) - np.pi / 2)
    fits = periodic[:, None] & periodic & (frequency[:, None] == frequency) & (miss <= _QUARTER)
    partner = np.full(len(phase), -1)
    pairs = np.argwhere(np.triu(fits, 1))
    for first, second in pairs[np.argsort(miss[tuple(pairs.T)], kind="stable")]:
        if partner[first] < 0 and partner[second] < 0:
            partner[first], partner[second] = second, first
    return partner
