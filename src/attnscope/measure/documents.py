"""Means over texts with intervals over documents or windows, and the independence of heads from the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Bool, Float, Int

from attnscope.measure.quantities import EFFECTIVE, ERROR, FREEDOM, SKEWNESS, wording
from attnscope.read.sources import original
from attnscope.support.arguments import reads, signed
from attnscope.support.numbers import significant


def text_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over texts, NaN if no text has a value; pooled results stay as they are."""
    return values.mean("window", skipna=True) if "window" in values.dims else values


def queries(results: xr.Dataset) -> xr.DataArray:
    """Rows of each map, ``(window)`` or ``(window, layer)``: of a decoder with a target, the target's tokens."""
    if "queries" in results:
        return results.queries.transpose("window", "layer")
    if "target_length" not in results:
        return results.length
    return xr.where(results.layer_kind == "self", results.length, results.target_length).transpose("window", "layer")


LEAST = 6  # with fewer units no mean can be significant: all have one sign in more than 5% of cases
LEVEL = 0.95  # of intervals and tests
DRAWS = 1000  # of documents, for an interval
FEW = 20  # units; with fewer, the interval of a skewed mean is widened
SKEWED = 0.2  # skewness of a mean above which it is widened
_MOST_SKEW = 1.5  # of an estimate; a larger one is an accident of few units
_LEAST_SKEW = 1e-6  # below it the transformation is the identity, and its inverse 0 / 0
_BATCHES = 20  # of windows, where documents are few
_AT_ONCE = 4096  # means, so that memory stays bounded


def units_of(documents: Sequence[Hashable], overlap: int = 1) -> tuple[Sequence[Hashable], str]:
    """The units that the bootstrap draws: documents, or windows if there are fewer than 6 documents.

    More than 20 windows of few documents are drawn in at most about 20 batches of consecutive windows, as neighbours
    are alike (batch means, Schmeiser 1982); windows that share tokens in batches twice as long as their `overlap`.
    """
    originals = [original(name) for name in documents]
    if len(set(originals)) >= LEAST:
        return originals, "documents"
    passed = Counter[Hashable]()
    windows: list[tuple[Hashable, int]] = []
    for name, first in zip(documents, originals, strict=True):
        windows.append((first, passed[name]))  # the same window of a text that repeats it
        passed[name] += 1
    size = max(1 if overlap == 1 else 2 * overlap, -(-len(set(windows)) // _BATCHES))
    return [(first, number // size) for first, number in windows], "windows"


def overlap_of(window: int | None, stride: int | None) -> int:
    """Consecutive windows of a text of which the last has no token of the first."""
    return -(-window // stride) if window and stride else 1


def units_in(results: xr.Dataset, known: np.ndarray | None = None) -> tuple[Sequence[Hashable], str]:
    """The units that the bootstrap draws along ``window``, and their plural noun."""
    sources = results.source.values.tolist() if "source" in results.coords else list(range(results.sizes["window"]))
    if known is not None:
        sources = [source for source, there in zip(sources, known, strict=True) if there]
    settings = signed(results).get("settings") or {}
    drawn, unit = units_of(sources, overlap_of(settings.get("window"), settings.get("stride")))
    if "window_count" in results:
        return drawn, "pools" if len(set(drawn)) == len(drawn) else "pools of different documents"
    return drawn, called_in(results.attrs)[unit]


def called_in(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The plural nouns for documents and windows in results with these attributes."""
    called = str(attributes.get("reads", "texts"))
    return _CALLED.get(called, {"documents": called, "windows": called})


_CALLED = {
    "texts": {"documents": "documents", "windows": "windows"},
    "sounds": {"documents": "sounds", "windows": "windows"},
    "pools": {"documents": "pools of different documents", "windows": "pools"},
    "texts with images": {"documents": "texts", "windows": "texts"},
}


def numbered(units: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """Index of the unit of each text, from 0 in order of appearance, and the number of units."""
    units = [original(name) for name in units]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(units))}
    return np.array([numbers[name] for name in units], dtype=int), len(numbers)


def mean_by_document(values: np.ndarray, documents: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean over texts, ``(column,)``, its standard error by documents, and their number."""
    member, count = numbered(documents)
    sizes = np.bincount(member).astype(float)
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, member, values)
    mean = sums.sum(0) / sizes.sum()
    error = np.sqrt(count / max(1, count - 1) * ((sums - mean * sizes[:, None]) ** 2).sum(0)) / sizes.sum()
    return mean, error, count


def interval(
    values: np.ndarray, units: Sequence[Hashable], *, draws: int = DRAWS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of means over texts ``(text, ...)``, by `bootstrap_interval` over units."""
    flat = values.reshape(len(values), -1)
    member = membership(units)
    known = np.isfinite(flat)
    sizes, sums = member @ known.astype(float), member @ np.where(known, flat, 0.0)
    low, high = np.full((2, flat.shape[1]), np.nan)
    patterns, which = np.unique(np.packbits(sizes > 0, axis=0), axis=1, return_inverse=True)
    for pattern in range(patterns.shape[1]):
        columns = np.flatnonzero(which.reshape(-1) == pattern)
        there = sizes[:, columns[0]] > 0
        if (count := int(there.sum())) < LEAST:
            continue
        drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
        for first in range(0, len(columns), _AT_ONCE):
            part = np.ix_(there, columns[first : first + _AT_ONCE])
            low[part[1][0]], high[part[1][0]] = bootstrap_interval(sums[part], sizes[part], drawn.astype(float))
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def membership(units: Sequence[Hashable]) -> np.ndarray:
    """1 where a text belongs to a unit, ``(unit, text)``."""
    numbers, count = numbered(units)
    member = np.zeros((count, len(units)))
    member[numbers, np.arange(len(units))] = 1.0
    return member


def bootstrap_interval(sums: np.ndarray, sizes: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of ratios of sums over units, 6 or more: the one interval of means over texts."""
    drawn_sizes = drawn @ sizes
    means = (drawn @ sums) / (drawn_sizes[:, None] if sizes.ndim == 1 else drawn_sizes)
    tail = outside(len(sums))
    # the expanded percentile interval (Hesterberg 2015, section 4.1)
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    if len(sums) >= FEW:
        return low, high
    count, whole = len(sums), sizes.sum(0)
    mean = sums.sum(0) / whole
    parts = (sums - mean * (sizes[:, None] if sizes.ndim == 1 else sizes)) / whole
    error = np.sqrt(count / (count - 1) * (parts**2).sum(0))
    third = count**2 / ((count - 1) * (count - 2)) * (parts**3).sum(0)
    skewness = np.divide(third, error**3, out=np.zeros_like(third), where=error > 0)
    half = error * long_tail(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2), np.abs(skewness))
    return (
        np.where(skewness < -SKEWED, np.fmin(low, mean - half), low),
        np.where(skewness > SKEWED, np.fmax(high, mean + half), high),
    )


def long_tail(quantile: Any, skewness: Any) -> Any:
    """Standard errors from a mean to the end of its long tail: Student's quantile, and what skewness adds."""
    return quantile + skewness * (2 * quantile**2 + 1) / 3


def jackknife_interval(whole: Any, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the 95% interval of a smooth estimate, from its values without each unit, ``(unit, ...)``."""
    count = len(left)
    pseudo = count * np.asarray(whole) - (count - 1) * left
    half = scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * pseudo.std(0, ddof=1) / np.sqrt(count)
    return np.asarray(pseudo.mean(0) - half), np.asarray(pseudo.mean(0) + half)


def without_each(units: Sequence[Hashable]) -> np.ndarray:
    """Weights of texts without each unit, ``(unit, text)``; they add up to 1."""
    others = 1.0 - membership(units)
    return others / others.sum(1, keepdims=True)


def outside(count: int) -> float:
    """Share of draws below and above the expanded percentile interval of this number of units; 0.025 for many."""
    return float(scipy.special.ndtr(-reach(count)))


def reach(count: int | None = None) -> float:
    """Bootstrap standard deviations to either end of a 95% interval, for a number of units (default: many)."""
    if count is None:
        return float(-scipy.special.ndtri((1 - LEVEL) / 2))
    return float(-np.sqrt(count / (count - 1)) * scipy.special.stdtrit(count - 1, (1 - LEVEL) / 2))


def unskewed(t: Any, skewness: Any) -> Any:
    r"""Student's t of a mean with skewness g, transformed to a statistic without skewness to first order."""
    return t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6


def without_skewness(quantile: Any, skewness: Any) -> Any:
    """Quantile of (estimate - truth) / error, from that of Student's t and the skewness: the inverse of `unskewed`."""
    known = skewness.clip(-_MOST_SKEW, _MOST_SKEW)
    some = known * (abs(known) > _LEAST_SKEW) + _LEAST_SKEW * (abs(known) <= _LEAST_SKEW)
    return 3 / some * (np.cbrt(1 + some * (quantile - some / 6)) - 1)


_FEW = 128  # effective rows; with fewer, a spread counts as skewed: a row that was not drawn may attend far
_SPREAD_SKEW = 0.5  # at least, of the estimate from one window
FEWEST = 8  # effective rows: measured, intervals from fewer have too little coverage
_OF_HEADS = 2  # dimensions: layer, head


def intervals_note(results: xr.Dataset) -> str:
    """A note with the widths of the intervals and the number of heads without one."""
    bounds = {str(name): each for name, each in intervals(results).items() if each.ndim == 1 + _OF_HEADS}
    widths = {name: each.sel(bound="high") - each.sel(bound="low") for name, each in bounds.items()}
    known = {name: width for name, width in widths.items() if width.notnull().any()}
    widest = [f"{name} {significant(float(width.max()), 2)} {wording(name).units}" for name, width in known.items()]
    missing = [f"{name} of {number} heads" for name, width in widths.items() if (number := int(width.isnull().sum()))]
    note = f" Widest 95% intervals of a head's mean over these windows: {', '.join(widest)}."
    none = f" No interval, with fewer than {FEWEST} effective rows: {', '.join(missing)}."
    return (note if widest else "") + (none if missing else "")


@reads("scan")
def intervals(results: xr.Dataset) -> xr.Dataset:
    """95% intervals of the means over these windows, for the error from sampling rows.

    They cover a scan of all rows of the same windows. For the variation between texts, use the spread over texts.

    Variances and third moments of windows are summed, degrees of freedom by the Welch-Satterthwaite formula. The
    interval is that of Student's t, corrected for skewness (Hall 1992). With fewer than 128 effective rows that of
    ``offset_spread`` reaches further up, as rows that attend far are seldom drawn.

    Parameters
    ----------
    results
        Result of `scan` with `rows`: statistics with their ``_error``, ``_freedom``, ``_skewness`` and
        ``_effective_rows``.

    Returns
    -------
    xr.Dataset
        Dimensions of the statistics without ``window``, and ``bound`` ("low" and "high"), in their own units. NaN with
        fewer than 8 effective rows (Kish 1965), where one row that was not drawn may matter as much as all others.

    Examples
    --------
    >>> import xarray as xr
    >>> ends = {"": 1.0, "_error": 0.05, "_freedom": 60.0, "_skewness": 0.0, "_effective_rows": 40.0}
    >>> results = xr.Dataset({f"entropy{end}": (("window", "head"), [[value]]) for end, value in ends.items()})
    >>> intervals(results).entropy.values.round(3).tolist()
    [[0.9, 1.1]]
    """
    names = [str(name).removesuffix(EFFECTIVE) for name in results.data_vars if str(name).endswith(EFFECTIVE)]
    if not names:
        return xr.Dataset()
    ends_of: dict[str, xr.DataArray] = {}
    for name in names:
        estimate = results[name]
        variances = results[f"{name}{ERROR}"] ** 2
        variance = variances.sum("window")
        spread = (variances**2 / results[f"{name}{FREEDOM}"]).sum("window")
        freedom = (variance**2 / spread.where(spread > 0)).fillna(1.0)
        third = (results[f"{name}{SKEWNESS}"] * variances**1.5).sum("window")
        skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
        times = freedom.copy(data=scipy.special.stdtrit(freedom.values, 0.975))
        windows = estimate.notnull().sum("window")
        error = variance**0.5 / windows.where(windows > 0)
        mean, parts, rows = estimate.mean("window"), abs(estimate), results[f"{name}{EFFECTIVE}"]
        squares = (parts**2 / rows.where(rows > 0)).sum("window")
        effective = (parts.sum("window") ** 2 / squares.where(squares > 0)).where(squares > 0, rows.min("window"))
        low, high = (mean - error * without_skewness(sign * times, skewness) for sign in (1.0, -1.0))
        if name == "offset_spread":
            third = (results[f"{name}{SKEWNESS}"].clip(min=_SPREAD_SKEW) * variances**1.5).sum("window")
            skewness = (third / variance.where(variance > 0) ** 1.5).fillna(0.0)
            farther = mean + error * long_tail(times, skewness)
            high = xr.where((effective < _FEW) & (farther > high), farther, high)
        ends = [end.where(effective >= FEWEST) for end in (low, high)]
        ends_of[name] = xr.concat(ends, xr.IndexVariable("bound", ["low", "high"])).transpose(..., "bound")
    return xr.Dataset(ends_of)


class Interval(NamedTuple):
    """Mean over texts, and its interval by the bootstrap over documents."""

    mean: Float[np.ndarray, ...]  # ``(...)``: NaN bounds where there are fewer than 6 units
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    # ``(...)``: whether the mean is significant at 5%, corrected for all means together, and its interval excludes 0
    shown: Bool[np.ndarray, ...]
    # ``(...)``: whether it was tested: not with fewer than 6 units, or without values
    tested: Bool[np.ndarray, ...]


def by_document(
    values: Float[np.ndarray, "text ..."],
    documents: Sequence[Hashable],
    *,
    over: Float[np.ndarray, " text"] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    rounded: bool = False,
) -> Interval:
    r"""Mean over texts, with a 95% interval by the bootstrap over documents.

    If values are `rounded`, means that are 0 in all documents still count among the means that are tested together.
    """
    flat = values.reshape(len(values), -1)
    member, count = numbered(documents)
    sums = np.zeros((count, flat.shape[1]))
    np.add.at(sums, member, flat)
    sizes = np.bincount(member, weights=over).astype(float)
    mean = sums.sum(0) / sizes.sum()
    shape = values.shape[1:]
    if count < LEAST:
        unknown, no = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
        return Interval(mean.reshape(shape), unknown, unknown, no, no)
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=draws).astype(float)
    tested = np.isfinite(mean)
    shown = differs_from_zero(sums / abs(sizes.mean()), generator, int(tested.sum()) if rounded else 0)
    low = high = np.full(mean.shape, np.nan)
    if ((drawn @ sizes) * sizes.sum() > 0).all():
        low, high = bootstrap_interval(sums, sizes, drawn)
        shown &= np.sign(low) == np.sign(high)
    return Interval(*(values.reshape(shape) for values in (mean, low, high, shown, tested)))


_ALL_SIGNS = 12  # units up to which every choice of signs is tried
_DRAWS = 1000  # choices of signs, where means are many
_SPREAD = 1e-6  # least share of the squares around the mean for which skewness is defined
MANY = 100  # units; fewer do not show how skewed they are, so that tests allow for skewness 2
_SHAPES = 2**13  # samples of exponential units
_CURVE = np.geomspace(0.25, 250, 48)  # Student's t, between which tail probabilities are interpolated


def differs_from_zero(
    parts: Float[np.ndarray, "document mean"], generator: np.random.Generator, least: int = 0
) -> Bool[np.ndarray, " mean"]:
    """Which means differ from 0 significantly, two-sided: by all choices of signs, or 4,096 random ones.

    The level is that of as many means as are not 0 everywhere, or at least of this many.
    """
    if (count := len(parts)) <= _ALL_SIGNS:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = _random_signs(generator, 2**_ALL_SIGNS, count)
    there = (parts**2).sum(0) > 0
    flipped = np.abs(_flipped(parts[:, there], signs))
    means = max(least, int(there.sum()))
    return _reported(there, parts, flipped[0], flipped.max(1, initial=-np.inf), means, means - int(there.sum()))


def above_zero(blocks: Iterable[Float[np.ndarray, "document mean"]], documents: int) -> list[Bool[np.ndarray, " mean"]]:
    """Which means are significantly above 0, corrected for all blocks together, by 1,000 choices of signs."""
    signs = _random_signs(np.random.default_rng(0), _DRAWS, documents)
    largest = np.full(_DRAWS, -np.inf)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for parts in blocks:
        there = (parts**2).sum(0) > 0
        flipped = _flipped(parts[:, there], signs)
        largest = np.maximum(largest, flipped.max(1, initial=-np.inf))
        found.append((there, parts, flipped[0]))
    means = sum(int(there.sum()) for there, _, _ in found)
    return [_reported(there, parts, own, largest, means) for there, parts, own in found]


def skewed_chances(t: np.ndarray, units: int) -> np.ndarray:
    r"""Two-sided p-values of Student's t, if fewer than 100 units may be as skewed as exponential ones; else Student's.

    A few units of a long tail can lie close together, far from their mean, and then nothing in them shows the tail: no
    correction from the sample holds for many means. So t is compared with that of exponential units (skewness 2),
    whose tails decrease with the same power as Student's but are higher by Hotelling's (1961) factor; they cover those
    of normal units and of gamma units between. The mean of exponential units is independent of their
    coefficient of variation, so that only the latter is drawn.
    """
    if units >= MANY:
        return 2 * scipy.stats.t.sf(np.abs(t), units - 1)
    known = np.maximum(np.nan_to_num(np.abs(t), nan=0.0), _CURVE[0])
    beyond = np.maximum(known / _CURVE[-1], 1.0)
    inside = np.exp(np.interp(np.log(known), np.log(_CURVE), np.log(_tails(units))))
    return np.where(np.isnan(t), np.nan, inside * beyond ** (1.0 - units))


@cache
def _tails(units: int) -> np.ndarray:
    """Probability that the size of t of exponential units exceeds each value of `_CURVE`."""
    drawn = np.random.default_rng(0).exponential(size=(_SHAPES, units))
    variation = drawn.std(1, ddof=1) / drawn.mean(1) / np.sqrt(units)
    apart = _CURVE[:, None] * variation
    below = scipy.special.gammainc(units, units / (1 + apart))
    above = scipy.special.gammaincc(units, units / np.where(apart < 1, 1 - apart, np.inf)) * (apart < 1)
    return np.asarray((below + above).mean(1))


def _random_signs(generator: np.random.Generator, draws: int, count: int) -> np.ndarray:
    signs = generator.choice([-1.0, 1.0], (draws, count))
    signs[0] = 1  # the data are one of the choices
    return signs


def _flipped(parts: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """A monotone function of t; with 20 or more units, t corrected for skewness: (choice, mean)."""
    count, parts = len(parts), parts / np.sqrt((parts**2).sum(0))
    sums = signs @ parts
    if count < FEW:
        return sums
    spread = np.maximum(1 - sums**2 / count, _SPREAD)  # share of the squares
    third = signs @ parts**3 - 3 * sums / count + 2 * sums**3 / count**2
    skewness = np.where(spread > _SPREAD, third / spread**1.5, 0) * np.sqrt(count * (count - 1)) / (count - 2)
    return np.asarray(unskewed(sums * np.sqrt((count - 1) / count / spread), skewness))


def _reported(
    there: np.ndarray, parts: np.ndarray, own: np.ndarray, largest: np.ndarray, means: int, unseen: int = 0
) -> np.ndarray:
    """Existing means that the maximum of all reaches in few choices of signs, and exponential units seldom."""
    as_large = len(largest) - np.searchsorted(np.sort(largest), own * (1 - 1e-9))
    units, tested = len(parts), parts[:, there]
    error = np.maximum(tested.std(0, ddof=1), _SPREAD * np.abs(tested).max(0, initial=0)) / np.sqrt(units)
    rare = (1 - LEVEL) / max(1, means if units < MANY else 1)
    significant_means = np.zeros(there.shape, dtype=bool)
    level = (1 - LEVEL) * (1 - unseen / max(1, means))  # the rest of it is that of means that are 0 everywhere
    significant_means[there] = (as_large / len(largest) <= level) & (
        skewed_chances(tested.mean(0) / error, units) <= rare
    )
    return significant_means


RARE = 0.01  # a label with a smaller share of a head's texts does not count


def label_shares(labels: Int[np.ndarray, "window head"], clusters: int) -> Float[np.ndarray, "head cluster"]:
    """Share of texts in which a head has each label."""
    return (labels[..., None] == np.arange(clusters)).mean(0)


def effective_labels(shares: Float[np.ndarray, "*any cluster"]) -> Float[np.ndarray, "*any"]:
    """Exp of the entropy of label shares: 1 when a head always has the same label."""
    return np.asarray(np.exp(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(-1)))


def sign_agreement(values: Float[np.ndarray, "window head"]) -> Float[np.ndarray, " head"]:
    """Share of texts in which the sign agrees with that of the head's median; NaN for heads with NaN in a text."""
    return np.where(np.isnan(values).any(0), np.nan, (np.sign(values) == np.sign(np.median(values, axis=0))).mean(0))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval over documents; NaN without a valid interval."""

    value: float
    low: float
    high: float


def independence(
    labels: Int[np.ndarray, "window head"],
    directions: Float[np.ndarray, "window head"],
    profiles: Float[np.ndarray, "window head offset"],
    *,
    clusters: int,
    units: Sequence[Hashable] | None = None,
) -> dict[str, Estimate]:
    """Statistics of text independence over a set of heads, with valid intervals over units of texts."""
    member, count = numbered(range(len(labels)) if units is None else units)
    places = np.ones(len(member)), (member, np.arange(len(member)))
    document = scipy.sparse.coo_array(places, (count, len(member))).tocsr()
    mean_direction, mean_profile = directions.mean(0), profiles.mean(0)
    apart, away = directions - mean_direction, profiles - mean_profile
    signs = (np.sign(directions)[..., None] == (-1, 0, 1)).astype(float)
    of_texts = {
        "counts": (labels[..., None] == np.arange(clusters)).astype(float),  # ``(text, head, label)``
        "signs": np.where(np.isnan(directions)[..., None], np.nan, signs),  # negative, 0 and positive
        "directions": apart,
        "squares": (apart**2).sum(-1),
        "profiles": away,
        "profile_squares": (away**2).sum((-2, -1)),
    }
    sums = {"texts": np.bincount(member).astype(float)}  # over the texts of each document
    for name, values in of_texts.items():
        sums[name] = (document @ values.reshape(len(values), -1)).reshape(count, *values.shape[1:])
    means = (mean_direction, mean_profile)
    point = {name: float(value[0]) for name, value in _statistics(sums, means, np.ones((1, count))).items()}
    estimates = {name: Estimate(value, np.nan, np.nan) for name, value in point.items()}
    if count < LEAST:
        return estimates
    left = _statistics(sums, means, 1.0 - np.eye(count))
    for name in ("direction_icc", "profile_between_heads"):
        low, high = jackknife_interval(point[name], left[name])
        estimates[name] = Estimate(point[name], float(low), float(min(high, 1.0)))
    return estimates


def _statistics(
    sums: Mapping[str, np.ndarray], means: tuple[np.ndarray, np.ndarray], times: Float[np.ndarray, "resample document"]
) -> dict[str, Float[np.ndarray, " resample"]]:
    """Every statistic with documents repeated `times`; sums are centred on the means of each head."""
    total = {name: np.tensordot(times, values, 1) for name, values in sums.items()}
    texts, heads = total["texts"], len(means[0])
    shares = total["counts"] / texts[:, None, None]
    negative, zero, positive = np.moveaxis(total["signs"] / texts[:, None, None], -1, 0)
    half = 0.5 - 1e-12  # share from which the median has that sign
    usual = np.where(positive >= half, positive, np.where(negative >= half, negative, zero))
    # ICC(1) of heads over C texts, (MSB - MSW) / (MSB + (C - 1) MSW)
    off = total["directions"] / texts[:, None]
    head_means = means[0] + off
    within = (total["squares"] - texts * (off**2).sum(-1)).clip(0)
    correlation = np.full(len(texts), np.nan)
    if sums["texts"].sum() >= 2 and heads >= 2:  # noqa: PLR2004
        between = texts * ((head_means - head_means.mean(-1, keepdims=True)) ** 2).sum(-1) / (heads - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            within = within / (heads * (texts - 1))
            whole = between + (texts - 1) * within
            correlation = np.where(whole > 0, (between - within) / whole, np.nan)
    # the share of the total sum of squares that is between heads
    off = total["profiles"] / texts[:, None, None]
    head_means = means[1] + off
    between = texts * ((head_means - head_means.mean(1, keepdims=True)) ** 2).sum((-2, -1))
    squares = between + (total["profile_squares"] - texts * (off**2).sum((-2, -1))).clip(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        between_heads = np.where(squares > 0, between / squares, np.nan)
    return {
        "majority_share": shares.max(-1).mean(-1),
        "effective_labels": effective_labels(shares).mean(-1),
        "at_most_two_labels": ((shares >= RARE).sum(-1) <= 2).mean(-1),  # noqa: PLR2004 the papers' claim
        "sign_agreement": usual.mean(-1),
        "direction_icc": correlation,
        "profile_between_heads": between_heads,
    }


def label_information(
    labels: Int[np.ndarray, "window head"], *, seed: int = 0, permutations: int = 20
) -> tuple[float, float]:
    """Share of the labels' entropy that the head explains, I(label; head) / H(label), and its chance level."""
    heads = np.broadcast_to(np.arange(labels.shape[1]), labels.shape).ravel()
    flat = labels.ravel()
    if (entropy := scipy.special.entr(np.bincount(flat) / flat.size).sum()) == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    chance = [_mutual_information(rng.permutation(flat), heads) for _ in range(permutations)]
    return float(_mutual_information(flat, heads) / entropy), float(np.mean(chance) / entropy)


def _mutual_information(labels: Int[np.ndarray, " item"], heads: Int[np.ndarray, " item"]) -> float:
    """In nats: importing scikit-learn for it would take longer than a short scan."""
    pairs = np.zeros((labels.max() + 1, heads.max() + 1))
    np.add.at(pairs, (labels, heads), 1)
    counts = pairs, pairs.sum(1), pairs.sum(0)
    both, label, head = (scipy.special.entr(count / len(labels)).sum() for count in counts)
    return max(0.0, float(label + head - both))
