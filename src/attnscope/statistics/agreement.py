"""How far heads are the same in each text: shares of labels, signs, intraclass correlation, mutual information."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from attnscope.statistics.intervals import jackknife_interval
from attnscope.statistics.units import LEAST, numbered

RARE = 0.01  # a label with a smaller share of a head's texts does not count
_PERMUTATIONS = 20  # of labels, for the chance level of their information


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
    entries = np.ones(len(member)), (member, np.arange(len(member)))
    document = scipy.sparse.coo_array(entries, (count, len(member))).tocsr()  # ``(document, text)``: sums over texts
    mean_direction, mean_profile = directions.mean(0), profiles.mean(0)
    centred, centred_profiles = directions - mean_direction, profiles - mean_profile
    signs = (np.sign(directions)[..., None] == (-1, 0, 1)).astype(float)
    of_texts = {
        "counts": (labels[..., None] == np.arange(clusters)).astype(float),  # ``(text, head, label)``
        "signs": np.where(np.isnan(directions)[..., None], np.nan, signs),  # negative, 0 and positive
        "directions": centred,
        "squares": (centred**2).sum(-1),
        "profiles": centred_profiles,
        "profile_squares": (centred_profiles**2).sum((-2, -1)),
    }
    sums = {"texts": np.bincount(member).astype(float)}  # over the texts of each document
    for name, values in of_texts.items():
        sums[name] = (document @ values.reshape(len(values), -1)).reshape(count, *values.shape[1:])
    means = (mean_direction, mean_profile)
    point = {name: float(value[0]) for name, value in _statistics(sums, means, np.ones((1, count))).items()}
    estimates = {name: Estimate(value, np.nan, np.nan) for name, value in point.items()}
    if count < LEAST:
        return estimates
    # all resamples in one product: row d of the matrix counts each document but d once
    left = _statistics(sums, means, 1.0 - np.eye(count))  # without each document: the jackknife
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
    # centred sums of squares: uncentred ones would lose their digits in the difference
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


def label_information(labels: Int[np.ndarray, "window head"], *, seed: int = 0) -> tuple[float, float]:
    """Share of the labels' entropy that the head explains, I(label; head) / H(label), and that of shuffled labels."""
    heads = np.broadcast_to(np.arange(labels.shape[1]), labels.shape).ravel()
    flat = labels.ravel()
    entropy = scipy.special.entr(np.bincount(flat) / flat.size).sum()  # -p ln p, summed: nats
    if entropy == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    chance = [_mutual_information(rng.permutation(flat), heads) for _ in range(_PERMUTATIONS)]
    return float(_mutual_information(flat, heads) / entropy), float(np.mean(chance) / entropy)


def _mutual_information(labels: Int[np.ndarray, " item"], heads: Int[np.ndarray, " item"]) -> float:
    """In nats: importing scikit-learn for it would take longer than a short scan."""
    pairs = np.zeros((labels.max() + 1, heads.max() + 1))
    np.add.at(pairs, (labels, heads), 1)
    counts = pairs, pairs.sum(1), pairs.sum(0)
    both, label, head = (scipy.special.entr(count / len(labels)).sum() for count in counts)
    return max(0.0, float(label + head - both))


class Related(NamedTuple):
    """Rank correlations of two scores over heads (Spearman)."""

    whole: float
    p: float  # of the whole, if heads were exchanged within their layers
    by_layer: Float[np.ndarray, " layer"]  # NaN with fewer than 3 heads
    p_by_layer: Float[np.ndarray, " layer"]  # corrected for all layers


_ORDERS = 2000  # of the heads of each layer
_FEWEST = 3  # heads of a correlation


def related(
    first: Float[np.ndarray, "layer head"], second: Float[np.ndarray, "layer head"], *, seed: int = 0
) -> Related:
    """Rank correlations of two scores over all heads and within each layer, with p by exchanging heads of a layer.

    Heads of different layers are not exchanged: a correlation that comes from the layers alone is no evidence that the
    scores go together. p is two-sided, of the distance from the mean of random orders. For the layers, the largest
    correlation of all of them corrects for their number (Westfall and Young 1993).
    """
    generator = np.random.default_rng(seed)
    layer, head = np.nonzero(np.isfinite(first) & np.isfinite(second))
    x, y = first[layer, head], second[layer, head]
    # sorting layer + a number in [0, 1) shuffles heads, but only within their layer
    orders = np.argsort(layer + generator.random((_ORDERS, len(x))), axis=1)  # random within each layer
    drawn = np.concatenate([y[None], y[orders]])
    whole = _spearman(x, drawn)
    by_layer = np.full((len(first), len(drawn)), np.nan)
    for number in np.unique(layer):
        if (layer == number).sum() >= _FEWEST:
            by_layer[number] = _spearman(x[layer == number], drawn[:, layer == number])
    far = np.abs(whole - whole.mean())
    largest = np.nan_to_num(np.abs(by_layer)).max(0)
    p_by_layer = (largest >= np.abs(by_layer[:, :1]) - _NEAR).mean(1)
    return Related(
        float(whole[0]),
        float((far >= far[0] - _NEAR).mean()),
        by_layer[:, 0],
        np.where(np.isfinite(by_layer[:, 0]), p_by_layer, np.nan),
    )


_NEAR = 1e-12


def _spearman(x: Float[np.ndarray, " head"], drawn: Float[np.ndarray, "draw head"]) -> Float[np.ndarray, " draw"]:
    """Rank correlations of one score with each row of others; NaN if all are equal."""
    # Pearson's correlation of the ranks, for all rows in one product
    ranks, others = scipy.stats.rankdata(x), scipy.stats.rankdata(drawn, axis=1)
    ranks, others = ranks - ranks.mean(), others - others.mean(1, keepdims=True)
    sizes = np.sqrt((ranks**2).sum() * (others**2).sum(1))
    return others @ ranks / np.where(sizes > 0, sizes, np.nan)
