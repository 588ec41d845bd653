"""Waves in a head's queries and keys, and the strongest amplitude over many columns.

See docs/mathematics.md, Queries and keys as waves.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from attnscope.explanation.arrays.checks import Labelled, head_arrays, labelled, series
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.arrays.spectrum import fisher_g, largest_mean, largest_quantile, null_scale, transform
from attnscope.support.arguments import Count, Natural, validated
from attnscope.support.errors import AttnscopeError

_QUARTER = np.pi / 6  # how far from 90 degrees apart the phases of a pair may be


@validated
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
    """Which singular columns of a head are waves along the text.

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
        Number of columns, those with the largest importance, of which the values along the text are given.

    Returns
    -------
    xarray.Dataset
        Over ``column``: ``singular_value``; ``importance``, s |q| |k|, the Frobenius norm of the column's
        part of the scores on this text; ``group`` and ``near_degenerate`` (only the space of such columns is
        defined; see `reparametrize`); for q and k ``*_frequency``, ``*_g``, ``*_p`` and ``*_phase`` (radians,
        at the peak); ``periodic``; ``partner``, the column with which it makes a cosine and sine of one
        frequency, or -1. Without dimension ``periodic_columns``, and ``null_periodic_columns`` over
        ``permutation``. Over ``curve`` (the most important column first) ``curve_column``, and over ``curve,
        position`` ``query_curve`` and ``key_curve``: the column about its mean, in units of its standard deviation.

    Raises
    ------
    AttnscopeError
        If shapes do not fit, entries are not finite, there are fewer than 4 positions, or a parameter is out
        of range.

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
    variables = {
        "singular_value": labelled("column", parts.values, "singular value of W_Q W_K^T"),
        "importance": labelled("column", importance, "Frobenius norm of the column's part of the scores"),
        "group": labelled("column", parts.group, "group of nearly equal singular values"),
        "near_degenerate": labelled("column", shared, "shares its singular value"),
        "periodic": labelled("column", periodic, "query and key are waves"),
        "partner": labelled("column", partners, "other of the pair"),
        "periodic_columns": labelled("", int(periodic.sum()), "columns whose query and key are waves"),
        "null_periodic_columns": labelled("permutation", np.array(null, dtype=np.int64), "the same, rows permuted"),
        "curve_column": labelled("curve", chosen, "singular column"),
    }
    for name, side in (("query", slice(columns)), ("key", slice(columns, None))):
        variables |= _of_side(name, both[:, side], frequency[side], g[side], probability[side], phase[side], chosen)
    return xr.Dataset(
        variables,
        coords={
            "column": labelled("column", np.arange(columns), "singular column"),
            "curve": np.arange(len(chosen)),
            "position": labelled("position", np.arange(len(values)), "position in the text", "tokens"),
        },
        attrs={"positions": len(values), "level": level, "lowest": lowest, "seed": seed, "dropped": parts.dropped},
    )


def _of_side(
    name: str,
    values: np.ndarray,
    frequency: np.ndarray,
    g: np.ndarray,
    probability: np.ndarray,
    phase: np.ndarray,
    chosen: np.ndarray,
) -> dict[str, Labelled]:
    """The variables of the queries, or of the keys: of every column, and the curves of those chosen."""
    cycles = f"cycles per {len(values)} tokens"
    curves = _standardised(values[:, chosen]).T
    return {
        f"{name}_curve": labelled("curve position", curves, f"{name} along the text"),
        f"{name}_frequency": labelled("column", frequency, f"strongest frequency of the {name}", cycles),
        f"{name}_g": labelled("column", g, f"Fisher's g of the {name}"),
        f"{name}_p": labelled("column", probability, f"its probability in white noise ({name})"),
        f"{name}_phase": labelled("column", phase, f"phase of the {name} at its peak", "radians"),
    }


@validated
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
        column's root mean square, so a maximum means little without it.

    Raises
    ------
    AttnscopeError
        If entries are not finite, there are fewer than 4 positions or no columns.

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
        {
            "maximum": labelled("frequency", amplitude.max(1), "largest amplitude over columns"),
            "strongest_column": labelled("frequency", amplitude.argmax(1), "column of the largest amplitude"),
            "null_mean": labelled("", largest_mean(scale), "mean of the largest amplitude of white noise"),
            "null_99": labelled("", largest_quantile(scale, 0.99), "99% quantile of the same"),
        },
        coords={
            "frequency": labelled(
                "frequency", np.arange(len(amplitude)), "frequency", f"cycles per {len(values)} tokens"
            )
        },
    )


def _standardised(columns: Float[np.ndarray, "position column"]) -> Float[np.ndarray, "position column"]:
    """Columns of mean 0 and standard deviation 1, to float32's precision; a constant one is 0."""
    centred = columns - columns.mean(0)
    spread = centred.std(0)
    return (centred / np.where(spread > 0, spread, 1.0)).astype(np.float32)


def _periodic(
    probability: Float[np.ndarray, " both"], frequency: Int[np.ndarray, " both"], level: float, lowest: int
) -> Bool[np.ndarray, " column"]:
    """Both halves, queries and keys, significant and fast enough; NaN is not significant."""
    return np.logical_and(*((probability <= level) & (frequency >= lowest)).reshape(2, -1))


def _partners(
    frequency: Int[np.ndarray, " column"], phase: Float[np.ndarray, " column"], periodic: Bool[np.ndarray, " column"]
) -> Int[np.ndarray, " column"]:
    """Match periodic columns of one frequency whose phases are 90 degrees apart, the closest first."""
    apart = np.abs(np.angle(np.exp(1j * (phase[:, None] - phase))))
    miss = np.abs(apart - np.pi / 2)
    fits = periodic[:, None] & periodic & (frequency[:, None] == frequency) & (miss <= _QUARTER)
    partner = np.full(len(phase), -1)
    pairs = np.argwhere(np.triu(fits, 1))
    for first, second in pairs[np.argsort(miss[tuple(pairs.T)], kind="stable")]:
        if partner[first] < 0 and partner[second] < 0:
            partner[first], partner[second] = second, first
    return partner
