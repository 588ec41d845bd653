"""How far the direction of a head is independent of the text (mathematics.md, Independence of the text)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float, Int

from attnscope.measure.documents import LEAST, jackknife_interval, units_of

RARE = 0.01  # a label with a smaller share of a head's texts does not count


def label_shares(labels: Int[np.ndarray, "window head"], clusters: int) -> Float[np.ndarray, "head cluster"]:
    """Share of texts in which a head has each label."""
    return (labels[..., None] == np.arange(clusters)).mean(0)


def effective_labels(shares: Float[np.ndarray, "*any cluster"]) -> Float[np.ndarray, "*any"]:
    """Exp of the entropy of label shares: 1 when a head always has the same label."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.asarray(np.exp(-(shares * logs).sum(-1)))


def sign_agreement(values: Float[np.ndarray, "window head"]) -> Float[np.ndarray, " head"]:
    """Share of texts in which the sign agrees with that of the head's median; NaN of a head with NaN in a text."""
    agrees = (np.sign(values) == np.sign(np.median(values, axis=0))).mean(0)
    return np.where(np.isnan(values).any(0), np.nan, agrees)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval over documents; NaN where none holds."""

    value: float
    low: float
    high: float


def independence(
    labels: Int[np.ndarray, "window head"],
    directions: Float[np.ndarray, "window head"],
    profiles: Float[np.ndarray, "window head offset"],
    *,
    clusters: int,
    documents: Sequence[Hashable] | None = None,
) -> dict[str, Estimate]:
    """Statistics of text independence over a set of heads, with intervals over documents where one holds."""
    sums = _Sums.of(labels, directions, profiles, clusters, documents)
    count = len(sums.texts)
    point = {name: float(value[0]) for name, value in sums.numbers(np.ones((1, count))).items()}
    estimates = {name: Estimate(value, np.nan, np.nan) for name, value in point.items()}
    if count < LEAST:
        return estimates
    left = sums.numbers(1.0 - np.eye(count))
    for name in ("direction_icc", "profile_between_heads"):
        low, high = jackknife_interval(point[name], left[name])
        estimates[name] = Estimate(point[name], float(low), float(min(high, 1.0)))
    return estimates


@dataclass(frozen=True, eq=False)
class _Sums:
    """What the statistics need of each document: sums over its texts, less the head's mean where squares follow."""

    texts: np.ndarray  # ``(document,)``
    counts: np.ndarray  # ``(document, head, label)``: texts with each label
    signs: np.ndarray  # ``(document, head, 3)``: texts whose direction is negative, 0 and positive
    directions: np.ndarray  # ``(document, head)`` and ``(document,)``
    squares: np.ndarray
    profiles: np.ndarray  # ``(document, head, offset)`` and ``(document,)``
    profile_squares: np.ndarray
    mean_direction: np.ndarray
    mean_profile: np.ndarray

    @classmethod
    def of(
        cls,
        labels: np.ndarray,
        directions: np.ndarray,
        profiles: np.ndarray,
        clusters: int,
        documents: Sequence[Hashable] | None,
    ) -> _Sums:
        units, _ = units_of(range(len(labels)) if documents is None else documents)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(units))}
        member = np.array([numbers[name] for name in units])
        document = scipy.sparse.coo_array(
            (np.ones(len(member)), (member, np.arange(len(member)))), (len(numbers), len(member))
        ).tocsr()

        def summed(values: np.ndarray) -> np.ndarray:
            return (document @ values.reshape(len(values), -1)).reshape(len(numbers), *values.shape[1:])

        mean_direction, mean_profile = directions.mean(0), profiles.mean(0)
        apart, away = directions - mean_direction, profiles - mean_profile
        return cls(
            texts=np.bincount(member).astype(float),
            counts=summed((labels[..., None] == np.arange(clusters)).astype(float)),
            signs=summed(_signs(directions)),
            directions=summed(apart),
            squares=summed((apart**2).sum(-1)),
            profiles=summed(away),
            profile_squares=summed((away**2).sum((-2, -1))),
            mean_direction=mean_direction,
            mean_profile=mean_profile,
        )

    def numbers(self, times: np.ndarray) -> dict[str, np.ndarray]:
        """Every statistic, ``(resample,)``, where each document is taken so many times, ``(resample, document)``."""

        def total(sums: np.ndarray) -> np.ndarray:
            return np.tensordot(times, sums, 1)

        texts = total(self.texts)
        shares = total(self.counts) / texts[:, None, None]
        return {
            "majority_share": shares.max(-1).mean(-1),
            "effective_labels": effective_labels(shares).mean(-1),
            "at_most_two_labels": ((shares >= RARE).sum(-1) <= 2).mean(-1),  # noqa: PLR2004 the papers' claim
            "sign_agreement": _usual(total(self.signs) / texts[:, None, None]).mean(-1),
            "direction_icc": self._correlation(texts, total(self.directions), total(self.squares)),
            "profile_between_heads": self._between(texts, total(self.profiles), total(self.profile_squares)),
        }

    def _correlation(self, texts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """ICC(1) of heads over C texts, (MSB - MSW) / (MSB + (C - 1) MSW), by sums ``(resample, head)`` less means."""
        heads = sums.shape[1]
        if self.texts.sum() < 2 or heads < 2:  # noqa: PLR2004
            return np.full(len(texts), np.nan)
        off = sums / texts[:, None]
        means = self.mean_direction + off
        between = texts * ((means - means.mean(-1, keepdims=True)) ** 2).sum(-1) / (heads - 1)
        within = (squares - texts * (off**2).sum(-1)).clip(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            within = within / (heads * (texts - 1))
            total = between + (texts - 1) * within
            return np.where(total > 0, (between - within) / total, np.nan)

    def _between(self, texts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Share of the total sum of squares that is between heads, from the same, ``(resample, head, offset)``."""
        off = sums / texts[:, None, None]
        means = self.mean_profile + off
        between = texts * ((means - means.mean(1, keepdims=True)) ** 2).sum((-2, -1))
        total = between + (squares - texts * (off**2).sum((-2, -1))).clip(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, between / total, np.nan)


def _signs(directions: np.ndarray) -> np.ndarray:
    """Which of the signs -1, 0, 1 each has, ``(..., 3)``; NaN where a direction is."""
    signs = (np.sign(directions)[..., None] == (-1, 0, 1)).astype(float)
    return np.where(np.isnan(directions)[..., None], np.nan, signs)


def _usual(shares: np.ndarray) -> np.ndarray:
    """Share of the sign that the median has, ``(...)``, of shares of the signs -1, 0, 1 ``(..., 3)``."""
    negative, zero, positive = np.moveaxis(shares, -1, 0)
    half = 0.5 - 1e-12
    return np.where(positive >= half, positive, np.where(negative >= half, negative, zero))


def label_information(
    labels: Int[np.ndarray, "window head"], *, seed: int = 0, permutations: int = 20
) -> tuple[float, float]:
    """Share of the labels' entropy that the head explains, I(label; head) / H(label), and its chance level."""
    heads = np.broadcast_to(np.arange(labels.shape[1]), labels.shape).ravel()
    flat = labels.ravel()
    counts = np.bincount(flat) / flat.size
    entropy = -sum(share * np.log(share) for share in counts if share > 0)
    if entropy == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    chance = [_mutual_information(rng.permutation(flat), heads) for _ in range(permutations)]
    return float(_mutual_information(flat, heads) / entropy), float(np.mean(chance) / entropy)


def _mutual_information(labels: Int[np.ndarray, " item"], heads: Int[np.ndarray, " item"]) -> float:
    """As `sklearn.metrics.mutual_info_score`, in nats: importing scikit-learn would take longer than a short scan."""
    pairs = np.zeros((labels.max() + 1, heads.max() + 1), dtype=np.int64)
    np.add.at(pairs, (labels, heads), 1)
    by_label, by_head = pairs.sum(1), pairs.sum(0)
    if (by_label > 0).sum() == 1 or (by_head > 0).sum() == 1:
        return 0.0
    label, head = np.nonzero(pairs)
    joint, whole = pairs[label, head] / len(labels), math.log(len(labels))
    apart = -np.log(by_label[label] * by_head[head]) + whole + whole
    parts = joint * (np.log(pairs[label, head]) - whole) + joint * apart
    return max(0.0, float(np.where(np.abs(parts) < np.finfo(parts.dtype).eps, 0.0, parts).sum()))
