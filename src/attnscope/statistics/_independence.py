"""How far the direction of a head is independent of the text (docs/mathematics.md, Independence of the text)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from sklearn.metrics import mutual_info_score

RARE = 0.01  # a label with a smaller share of a head's texts does not count


def label_shares(labels: Int[np.ndarray, "text head"], clusters: int) -> Float[np.ndarray, "head cluster"]:
    """Share of texts in which a head has each label.

    Examples
    --------
    >>> label_shares(np.array([[0, 1], [0, 0]]), 2).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    return (labels[..., None] == np.arange(clusters)).mean(0)


def effective_labels(shares: Float[np.ndarray, "*any cluster"]) -> Float[np.ndarray, "*any"]:
    """Exp of the entropy of label shares: 1 when a head always has the same label.

    Examples
    --------
    >>> float(effective_labels(np.array([0.5, 0.5])).round(6))
    2.0
    """
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.asarray(np.exp(-(shares * logs).sum(-1)))


def intraclass_correlation(values: Float[np.ndarray, "text head"]) -> float:
    """ICC(1) of heads over texts: (MSB - MSW) / (MSB + (C - 1) MSW), C texts.

    1 when a head has the same value in every text, about 0 when heads do not differ. NaN for one text or one
    head, or where nothing varies at all.

    Examples
    --------
    >>> intraclass_correlation(np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]))
    1.0
    """
    texts, heads = values.shape
    if texts < 2 or heads < 2:  # noqa: PLR2004
        return float("nan")
    means = values.mean(0)
    between = texts * ((means - means.mean()) ** 2).sum() / (heads - 1)
    within = ((values - means) ** 2).sum() / (heads * (texts - 1))
    total = between + (texts - 1) * within
    return float((between - within) / total) if total > 0 else float("nan")


def between_head_share(profiles: Float[np.ndarray, "text head offset"]) -> float:
    """Share of the profiles' total sum of squares that lies between heads (eta squared).

    Examples
    --------
    >>> between_head_share(np.array([[[1.0], [2.0]], [[1.0], [2.0]]]))
    1.0
    """
    grand = profiles.mean((0, 1))
    total = ((profiles - grand) ** 2).sum()
    between = profiles.shape[0] * ((profiles.mean(0) - grand) ** 2).sum()
    return float(between / total) if total > 0 else float("nan")


def sign_agreement(values: Float[np.ndarray, "text head"]) -> Float[np.ndarray, " head"]:
    """Share of texts in which the sign agrees with that of the head's median.

    Examples
    --------
    >>> sign_agreement(np.array([[-1.0], [-2.0], [3.0]])).round(3).tolist()
    [0.667]
    """
    return (np.sign(values) == np.sign(np.median(values, axis=0))).mean(0)


@dataclass(frozen=True)
class Estimate:
    """A number with the interval that resampling the texts gives."""

    value: float
    low: float
    high: float


def independence(
    labels: Int[np.ndarray, "text head"],
    directions: Float[np.ndarray, "text head"],
    profiles: Float[np.ndarray, "text head offset"],
    *,
    clusters: int,
    seed: int = 0,
    resamples: int = 500,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Statistics of text independence over a set of heads, with bootstrap intervals over texts.

    The heads of one text are not independent of each other, so texts are resampled, never heads.

    Parameters
    ----------
    labels, directions, profiles
        Per text and head.
    clusters
        Number of labels.
    seed, resamples, confidence
        Of the bootstrap (percentile intervals).

    Returns
    -------
    dict
        ``majority_share`` and ``effective_labels`` (means over heads), ``at_most_two_labels`` (share of heads with
        at most two labels that take 1% of texts), ``sign_agreement`` (mean over heads), ``direction_icc``,
        ``profile_between_heads``. NaN where a number is not defined.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> profiles = rng.random((5, 2, 3))
    >>> found = independence(np.zeros((5, 2), int), profiles[..., 0], profiles, clusters=2, resamples=10)
    >>> found["majority_share"]
    Estimate(value=1.0, low=1.0, high=1.0)
    """

    def all_of(texts: Int[np.ndarray, " text"]) -> dict[str, float]:
        shares = label_shares(labels[texts], clusters)
        return {
            "majority_share": float(shares.max(-1).mean()),
            "effective_labels": float(effective_labels(shares).mean()),
            "at_most_two_labels": float(((shares >= RARE).sum(-1) <= 2).mean()),  # noqa: PLR2004 the papers' claim
            "sign_agreement": float(sign_agreement(directions[texts]).mean()),
            "direction_icc": intraclass_correlation(directions[texts]),
            "profile_between_heads": between_head_share(profiles[texts]),
        }

    count = len(labels)
    point = all_of(np.arange(count))
    if count < 2:  # noqa: PLR2004 one text says nothing of other texts
        return {name: Estimate(value, float("nan"), float("nan")) for name, value in point.items()}
    rng = np.random.default_rng(seed)
    drawn = [all_of(rng.integers(0, count, count)) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    estimates: dict[str, Estimate] = {}
    for name, value in point.items():
        sample = np.array([one[name] for one in drawn])
        sample = sample[np.isfinite(sample)]
        low, high = np.quantile(sample, [tail, 1 - tail]) if len(sample) else (np.nan, np.nan)
        estimates[name] = Estimate(value, float(low), float(high))
    return estimates


def label_information(
    labels: Int[np.ndarray, "text head"], *, seed: int = 0, permutations: int = 20
) -> tuple[float, float]:
    """Share of the labels' entropy that the head explains, I(label; head) / H(label), and its chance level.

    The chance level is the mean over permutations of all labels, which keeps their marginal shares.

    Examples
    --------
    >>> share, chance = label_information(np.array([[0, 1]] * 50))
    >>> round(share, 6), chance < 0.1
    (1.0, True)
    """
    heads = np.broadcast_to(np.arange(labels.shape[1]), labels.shape).ravel()
    flat = labels.ravel()
    counts = np.bincount(flat) / flat.size
    entropy = -sum(share * np.log(share) for share in counts if share > 0)
    if entropy == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    chance = [mutual_info_score(rng.permutation(flat), heads) for _ in range(permutations)]
    return float(mutual_info_score(flat, heads) / entropy), float(np.mean(chance) / entropy)
