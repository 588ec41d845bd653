"""Effects by document: a mean, its interval, and whether it differs from 0, as records and as variables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float

from attnscope.statistics.discovery import significant
from attnscope.statistics.intervals import DRAWS, bootstrap_interval
from attnscope.statistics.tests import differs_from_zero, mean_chances
from attnscope.statistics.units import LEAST, numbered

#: Sentences for the methods of a paper.
INTERVALS = (
    "Intervals are 95% intervals of means, by the expanded percentile bootstrap (Hesterberg 2015) over documents, or "
    "over pairs of texts, or over windows if there are fewer than 6 documents; equal texts count once."
)
EFFECTS = (
    "An effect is significant if its interval excludes 0 and it passes a test of signs: under the null each of these "
    "units is as likely to have the other sign, and the largest |t| of all effects under random signs corrects for all "
    "of them (Winkler et al. 2014). With 20 or more units t is corrected for skewness (Hall 1992); with fewer than 100 "
    "it must also be rare for exponential effects, with Bonferroni's correction."
)
CHANGES = (
    "The null is a mean change of 0, and p is that of Student's t over documents (Bell and McCaffrey 2002; "
    "Satterthwaite 1946), corrected for skewness (Hall 1992) with 100 or more documents and else that of exponential "
    "changes. The step-up rule bounds the false discovery rate (Benjamini and Hochberg 1995)."
)


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
    # the generator goes on: the signs of the test are not the draws of the interval
    differs = differs_from_zero(sums / abs(sizes.mean()), generator, int(tested.sum()) if rounded else 0)
    low = high = np.full(mean.shape, np.nan)
    if ((drawn @ sizes) * sizes.sum() > 0).all():
        low, high = bootstrap_interval(sums, sizes, drawn)
        # an effect is significant only where test and interval agree
        differs &= np.sign(low) == np.sign(high)
    return Interval(*(values.reshape(shape) for values in (mean, low, high, differs, tested)))


class Changes(NamedTuple):
    """Mean changes, ``(...)`` each."""

    mean: Float[np.ndarray, ...]  # the mean over texts and its 95% interval by the bootstrap over documents
    low: Float[np.ndarray, ...]
    high: Float[np.ndarray, ...]
    p: Float[np.ndarray, ...]  # p-value; NaN without a test
    changed: Bool[np.ndarray, ...]  # whether the change is significant, corrected for all; False without a test


def changes_by_document(
    changes: Float[np.ndarray, "text ..."], documents: Sequence[Hashable], *, level: float = 0.05, seed: int = 0
) -> Changes:
    r"""Mean change over texts, tested by documents; windows of one document are not independent."""
    interval = by_document(changes, documents, seed=seed)
    p = mean_chances(changes.reshape(len(changes), -1), documents).reshape(changes.shape[1:])
    return Changes(interval.mean, interval.low, interval.high, p, significant(p, level))


MODELS = (
    "Models are the units: under the null, groups differ no more than models of one group do. The p-value is that of "
    "Welch's t, which assumes that the values of the models of a group are normal. The step-up rule bounds the false "
    "discovery rate (Benjamini and Hochberg 1995). The exact test permutes models between the groups, and compares the "
    "largest |t| of all changes (Westfall and Young 1993)."
)
_MOST_GROUPINGS = 5000  # of models; of more, as many random ones


def changes_by_model(
    before: Float[np.ndarray, "model ..."], after: Float[np.ndarray, "other ..."], *, level: float = 0.05, seed: int = 0
) -> tuple[Changes, float, float]:
    """Change of the mean over models, tested by the spread between the models of each group.

    Also the p-value of the largest change by all groupings of the models, which assumes nothing but that models are
    exchangeable under the null, and the least p-value that this test can have.
    """
    values = np.concatenate([before, after])
    shape, flat = values.shape[1:], values.reshape(len(values), -1)
    first = len(before)
    count = comb(len(values), first)
    if count <= _MOST_GROUPINGS:
        groupings = np.array([np.isin(np.arange(len(values)), one) for one in combinations(range(len(values)), first)])
    else:
        # ranks of random numbers are random orders; the first row is the real grouping
        order = np.random.default_rng(seed).random((_MOST_GROUPINGS, len(values))).argsort(1).argsort(1)
        groupings = np.concatenate([np.arange(len(values))[None] < first, order < first])
    t, change, error, freedom = _welch(flat, groupings)
    largest = np.nanmax(np.abs(t), axis=1, initial=0.0)
    chance = float((largest >= largest[0] * (1 - _EQUAL)).mean())
    half = scipy.stats.t.ppf(0.975, freedom) * error
    p = 2 * scipy.stats.t.sf(np.abs(t[0]), freedom)
    of_cells = (one.reshape(shape) for one in (change, change - half, change + half, p))
    mean, low, high, p = of_cells
    # groups of equal size: exchanging both gives the same |t|
    least = (2 if 2 * first == len(values) else 1) / min(count, len(groupings))
    return Changes(mean, low, high, p, significant(p, level)), chance, least


_EQUAL = 1e-9  # relative difference below which two t are equal


def _welch(values: np.ndarray, groupings: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Welch's t ``(grouping, column)`` of each grouping; change, standard error and degrees of freedom of the first."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for side in (groupings, ~groupings):
        size = side.sum(1)[:, None]
        mean = side.astype(float) @ values / size
        squares = side.astype(float) @ values**2 - size * mean**2
        parts.append((mean, np.clip(squares, 0, None) / (size - 1) / size))
    (mean, variance), (other, other_variance) = parts
    change, error = other - mean, np.sqrt(variance + other_variance)
    scale = _EQUAL * np.abs(values).max(0)
    finite = error > scale  # elsewhere equal in all models of each side
    t = np.where(finite, change / np.where(finite, error, 1.0), np.where(np.abs(change) <= scale, 0.0, np.nan))
    sizes = groupings[0].sum(), (~groupings[0]).sum()
    # degrees of freedom by Welch (1947) and Satterthwaite (1946)
    least = variance[0] ** 2 / (sizes[0] - 1) + other_variance[0] ** 2 / (sizes[1] - 1)
    freedom = np.where(finite[0], error[0] ** 4 / np.where(finite[0], least, 1.0), len(values) - 2)
    return t, change[0], error[0], freedom


def effect_variables(
    values: np.ndarray,
    units: Sequence[Hashable],
    dims: Sequence[Hashable],
    long_name: str,
    *,
    seed: int,
    name: str = "effect",
    prefix: str = "",
    unit: str = "nats",
    corrected: str = "all heads",
    rounded: bool = False,
) -> dict[str, Any]:
    """Mean, interval and significance of values ``(text, *dims)``, as variables of a dataset; see `by_document`."""
    interval = by_document(values, units, seed=seed, rounded=rounded)
    significant = f"Whether the effect is significant, corrected for {corrected}"
    return interval_variables(interval, dims, long_name, name=name, unit=unit) | {
        f"{prefix}shown": (dims, interval.shown, {"long_name": significant, "units": "1"}),
        f"{prefix}tested": (dims, interval.tested, {"long_name": "Whether the effect was tested", "units": "1"}),
    }


def joint_variables(changes: np.ndarray, alone: np.ndarray, units: Any, dims: Any, words: str, **how: Any) -> Any:
    """Effects of sets ``(text, *dims)``, the sums of the effects of each of their parts alone, and the differences."""
    beyond: Any = {"name": "between", "prefix": "between_", **how}
    return {
        "alone": (dims, alone.mean(0), {"long_name": "Sum of the changes with each alone", "units": how["unit"]}),
        **effect_variables(changes, units, dims, words, **how),
        **effect_variables(changes - alone, units, dims, f"{words}, beyond that sum", **beyond),
    }


def random_variables(
    changes: np.ndarray,
    drawn: Sequence[np.ndarray],
    units: Any,
    dims: Any,
    words: str,
    *,
    sign: float | None = 1.0,
    **how: Any,
) -> dict[str, Any]:
    """Effects of sets ``(text, ..., set)`` and of random sets like each, ``(text, ..., draw)``.

    ``p`` is the share of all these sets, the chosen one included, whose effect has the `sign` (None: either) and is at
    least as large: the p-value of a permutation test, exact if all sets are as likely to be chosen under the null.
    """
    most = max(part.shape[-1] for part in drawn)
    effects = np.full((*changes.shape[1:], most), np.nan)
    for at, part in enumerate(drawn):
        effects[..., at, : part.shape[-1]] = part.mean(0)
    mean = changes.mean(0)[..., None]
    reach = (abs(effects) >= abs(mean) if sign is None else sign * effects >= sign * mean).sum(-1)
    count = np.isfinite(effects).sum(-1)
    beyond: Any = {"name": "beyond", "prefix": "beyond_", **how}
    less_random = changes - np.stack([part.mean(-1) for part in drawn], -1)
    return {
        "random_effect": ((*dims, "draw"), effects, {"long_name": f"{words}, random sets", "units": how["unit"]}),
        # the chosen set counts among the sets, so that p is never 0 (Phipson and Smyth 2010)
        "p": (dims, (1 + reach) / (1 + count), {"long_name": "Share of sets that change it as much", "units": "1"}),
        **effect_variables(less_random, units, dims, f"{words}, less the mean of random sets", **beyond),
    }


def interval_variables(
    interval: Interval, dims: Sequence[Hashable], long_name: str, *, name: str, unit: str
) -> dict[str, Any]:
    """A mean and the ends of its interval, as variables of a dataset."""
    words = long_name, "Lower end of its 95% interval", "Upper end of its 95% interval"
    ends = zip(("", "_low", "_high"), interval, words, strict=False)
    return {f"{name}{end}": (dims, values, {"long_name": meaning, "units": unit}) for end, values, meaning in ends}
