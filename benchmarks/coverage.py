"""How often every 95% interval of the project holds, and how often every test at 5% is wrong.

    python benchmarks/coverage.py       # writes the tables of docs/concepts/coverage.md; about 30 minutes on one core
    python benchmarks/coverage.py diff       # only the rows whose name contains "diff"
    python benchmarks/coverage.py --short diff       # with a quarter of the rounds

Each row simulates units (documents, sentences, sentence pairs) of which the truth is known and calls the function that
makes the interval or the test. To add one, write a function `(random, units, kind) -> share` and list it in
`INTERVALS` or `TESTS`. Where there is no interval or test stands a dash.
"""

from __future__ import annotations

if __name__ != "__main__":  # numba asks for the package of this name, and goes on without it
    raise ImportError("benchmarks/coverage.py is a command")

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray as xr
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from scipy.stats import false_discovery_control, spearmanr

from attnscope import contrasts
from attnscope.comparison.contrasts import _interval as _contrast
from attnscope.comparison.diff import LEVEL
from attnscope.detection.common import LEAST_KEYS, ExamplePair, common_features
from attnscope.explanation.analyses.position_content import FEWEST_EXACT, _exact_shares, _shares_of_means, split_halves
from attnscope.intervention import ablation
from attnscope.intervention.effects import heads_of, order_agreement
from attnscope.statistics.agreement import independence
from attnscope.statistics.effects import by_document
from attnscope.statistics.intervals import DRAWS, FEW, interval, jackknife_interval
from attnscope.statistics.lists import agreement
from attnscope.statistics.tests import above_zero, mean_chances
from attnscope.statistics.units import LEAST, units_of, without_each
from attnscope_cards.measure import stability
from attnscope_circuits.composition import peak_chances
from attnscope_lineage.comparison import reach_of_mean
from attnscope_lineage.links import _OUTSIDE, _interval, _interval_of_rate
from attnscope_lineage.scores import _intervals, _value
from attnscope_relations.summary import summary_of
from attnscope_yamamoto2023.positions.wave_removal import _fits

PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "coverage.md"
UNITS = (2, 5, 6, 8, 12, 20, 50)
KINDS = ("normal", "skewed", "very skewed")
TEST_KINDS = ("normal", "long tails", "skewed", "very skewed")
MANY = 4000 if "--short" not in sys.argv else 1000  # rounds, where a function takes columns or is fast
SOME = MANY // 10  # rounds, where it is not: three times as many for scores, exact shares and missing values
FEWER = MANY // 20  # where a round takes long
SEEDS = 8  # of the bootstrap, over which columns are shared out
HEADS = 12

Simulation = Callable[[np.random.Generator, int, str], "float | np.ndarray"]


def drawn(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of mean 0 and variance 1: normal, gamma of skewness 1, exponential (skewness 2) or that of both signs."""
    if kind == "normal":
        return random.normal(size=shape)
    if kind == "long tails":
        return drawn(random, "very skewed", shape) * random.choice([-1.0, 1.0], shape)
    form = 4.0 if kind == "skewed" else 1.0
    return (random.gamma(form, size=shape) - form) / form**0.5


def holds(low: np.ndarray, high: np.ndarray, truth: float = 0.0) -> float:
    """Share of the intervals that there are that hold; NaN of none."""
    known = np.isfinite(low)
    return float(((low <= truth) & (truth <= high))[known].mean()) if known.any() else np.nan


# --- intervals


def over_seeds(held: Callable[[int], float]) -> float:
    """Mean over seeds of the bootstrap, as all columns share the draws of one."""
    return float(np.mean([held(seed) for seed in range(SEEDS)]))


def of_means(random: np.random.Generator, units: int, kind: str) -> float:
    return over_seeds(
        lambda seed: holds(*interval(drawn(random, kind, (units, MANY // SEEDS)), range(units), seed=seed))
    )


def of_effects(random: np.random.Generator, units: int, kind: str) -> float:
    def held(seed: int) -> float:
        found = by_document(drawn(random, kind, (units, MANY // SEEDS)), range(units), seed=seed)
        return holds(found.low, found.high)

    return over_seeds(held)


def of_windows(random: np.random.Generator, units: int, kind: str) -> float:
    """Documents of 1 to 5 windows that are alike."""
    sizes = np.arange(units) % 5 + 1
    documents = np.repeat(np.arange(units), sizes)

    def held(seed: int) -> float:
        values = drawn(random, kind, (units, MANY // SEEDS))[documents]
        values = values + random.normal(size=values.shape)
        return holds(*interval(values, documents.tolist(), seed=seed))

    return over_seeds(held)


def of_neighbours(random: np.random.Generator, windows: int, kind: str) -> float:
    """Consecutive windows of one document, of which neighbours are alike (correlation 0.3)."""

    def held(seed: int) -> float:
        values = drawn(random, kind, (windows, MANY // SEEDS))
        for window in range(1, windows):
            values[window] = 0.3 * values[window - 1] + (1 - 0.3**2) ** 0.5 * values[window]
        return holds(*interval(values, units_of(["one"] * windows)[0], seed=seed))

    return over_seeds(held)


def of_overlap(random: np.random.Generator, windows: int, kind: str) -> float:
    """Windows of one document that begin after a quarter of the one before (``--stride``)."""

    def held(seed: int) -> float:
        quarters = drawn(random, kind, (windows + 3, MANY // SEEDS))
        values = sum(quarters[first : first + windows] for first in range(4))
        return holds(*interval(values, units_of(["one"] * windows, 4)[0], seed=seed))

    return over_seeds(held)


def of_halves_agree(random: np.random.Generator, units: int, kind: str) -> float:
    """Rank correlation of the means of two halves over heads, whose differences between documents are related."""
    heads, loads = np.linspace(0, 2, HEADS), np.random.default_rng(1).normal(size=HEADS)

    def scores() -> np.ndarray:
        return heads + drawn(random, kind, (units, HEADS)) + loads * drawn(random, kind, (units, 1))

    if units < LEAST:
        return np.nan
    truth = np.mean([spearmanr(*(values[side::2].mean(0) for side in (0, 1)))[0] for values in _times(scores, MANY)])
    found = np.array([stability(values[..., None], [*map(str, range(units))])[2:] for values in _times(scores, FEWER)])
    return holds(found[:, 0], found[:, 1], float(truth))


def _times(make: Callable[[], np.ndarray], rounds: int) -> Iterable[np.ndarray]:
    return (make() for _ in range(rounds))


def of_missing(random: np.random.Generator, units: int, kind: str) -> float:
    """A third of the values is not there; each column has draws of its own."""
    values = drawn(random, kind, (units, 3 * SOME))
    return holds(*interval(np.where(random.random(values.shape) < 1 / 3, np.nan, values), range(units)))


def of_gradients(random: np.random.Generator, units: int, kind: str) -> float:
    """Sentences whose tenths have norms of one distribution, so that each has a tenth of the gradient."""
    spread = {"normal": 0.3, "skewed": 0.5, "very skewed": 1.0}[kind]  # gamma and exponential norms

    def held(seed: int) -> float:
        norms = np.maximum(1 + spread * drawn(random, kind, (MANY // SEEDS // 10, units, 10)), 1e-6)
        shares = norms / norms.sum(-1, keepdims=True)
        return holds(*np.stack([interval(of, range(units), seed=seed) for of in shares], 1), 0.1)

    return over_seeds(held)


def of_seeds(random: np.random.Generator, units: int, kind: str) -> float:
    values = drawn(random, kind, (units, MANY))
    reach = reach_of_mean(values)
    return holds(values.mean(0) - reach, values.mean(0) + reach)


def of_shares(random: np.random.Generator, units: int, kind: str) -> float:
    """A ratio of two means, as `patch` has it: 0.5 of gaps about 2."""

    def held(seed: int) -> float:
        gaps = 2 + 0.3 * random.normal(size=units)
        values = 0.5 * gaps[:, None] + 0.5 * drawn(random, kind, (units, MANY // SEEDS))
        found = by_document(values, range(units), over=gaps, seed=seed)
        return holds(found.low, found.high, 0.5)

    return over_seeds(held)


def of_score_shares(random: np.random.Generator, units: int, kind: str) -> float:
    """A ratio of two means whose denominator varies as the excess of `attribute --head` does."""

    def held(seed: int) -> float:
        excess = np.maximum(1 + 0.5 * drawn(random, kind, (units,)), 0.05)
        values = excess[:, None] * (0.5 + 0.5 * drawn(random, kind, (units, MANY // SEEDS)))
        found = by_document(values, range(units), over=excess, seed=seed)
        return holds(found.low, found.high, 0.5)

    return over_seeds(held)


def of_halves(random: np.random.Generator, units: int, kind: str) -> float:
    """Faithfulness in `edges`: the best 4 of 40 edges of one half of pairs, tested on the other, as a share of all."""
    true, held = 1 / np.arange(1, 41), list[float]()
    for number in range(2 * SOME):
        each = true + 0.5 * drawn(random, kind, (units, true.size))
        half, values, truth = random.permutation(units) % 2, np.empty(units), np.empty(units)
        for own in (0, 1):
            best = np.argsort(-each[half != own].mean(0))[:4]
            values[half == own], truth[half == own] = each[half == own][:, best].sum(1), true[best].sum()
        found = by_document(values[:, None], range(units), over=each.sum(1), seed=number)
        held.append(holds(found.low, found.high, truth.mean() / true.sum()))
    return float(np.nanmean(held))


def of_contrasts(random: np.random.Generator, units: int, kind: str) -> float:
    values, chosen = drawn(random, kind, (2 * units, MANY)), np.arange(2 * units) < units
    _, _, low, high = _contrast(values, np.arange(2 * units), chosen)
    return holds(low, high)


def _scores(random: np.random.Generator, texts: int, kind: str, heads: int, windows: int = 1) -> np.ndarray:
    """Scores of position and content with their four terms about the means, ``(text, head, term, offset)``."""
    tokens, width, band = 12, 3, 4
    place = np.arange(tokens)
    waves = np.stack([np.cos(place), np.sin(place), np.cos(2 * place)], -1)
    ahead = np.stack([np.cos(place + 1), np.sin(place + 1), np.cos(2 * place)], -1)
    sides = []
    for position in (waves, ahead):
        own = drawn(random, kind, (texts, heads, tokens, width))
        shared = np.repeat(drawn(random, kind, (-(-texts // windows), heads, tokens, width)), windows, 0)
        content = own if windows == 1 else (own + shared) / 2**0.5
        if sides:  # a key also says something of the token after it
            content = content + _SAID * np.roll(sides[0] - waves, -1, -2)
        sides.append(position + content)
    means = [side.mean(0) for side in sides]
    parts = [(mean[None] + 0 * side, side - mean) for mean, side in zip(means, sides, strict=True)]
    return np.stack(
        [
            np.stack(
                [
                    (query[..., max(0, -t) : tokens - max(0, t), :] * key[..., max(0, t) : tokens + min(0, t), :]).sum(
                        (-1, -2)
                    )
                    for t in range(-band, band + 1)
                ],
                -1,
            )
            for query in parts[0]
            for key in parts[1]
        ],
        2,
    )


_PAIRS = 12.0 - np.abs(np.arange(-4, 5))


def _position_share(random: np.random.Generator, units: int, kind: str, windows: int) -> float:
    texts, truth = units * windows, _TRUE_SHARE
    held = []
    for _ in range(SOME // 50):
        trace = _scores(random, texts, kind, 50, windows)
        documents = np.repeat(np.arange(units), windows).tolist()
        if texts < 2:
            return np.nan
        _, low, high = _shares_of_means(trace, split_halves(trace), _PAIRS, documents)
        held.append(holds(low[..., -1], high[..., -1], truth))
    return float(np.mean(held))


def _true_share() -> float:
    place, offsets = np.arange(12), np.arange(-4, 5)
    waves = np.stack([np.cos(place), np.sin(place), np.cos(2 * place)], -1)
    ahead = np.stack([np.cos(place + 1), np.sin(place + 1), np.cos(2 * place)], -1)
    position = np.array([np.trace(waves @ ahead.T, offset) for offset in offsets]) / _PAIRS
    whole = position + 3 * _SAID * (offsets == -1)
    return float(np.cov(position, whole)[0, 1] / np.var(whole, ddof=1))


_SAID = 0.3
_TRUE_SHARE = _true_share()


def of_position(random: np.random.Generator, units: int, kind: str) -> float:
    return _position_share(random, units, kind, 1)


def of_position_in_documents(random: np.random.Generator, units: int, kind: str) -> float:
    return _position_share(random, units, kind, 3)


def of_fit(random: np.random.Generator, units: int, kind: str) -> float:
    """Of changes about 0.05, of which nine tenths are expected, over texts that differ by 0.02."""
    change = np.random.default_rng(1).normal(size=(1, HEADS, 9)) * 0.05
    expected = 0.9 * change + 0.01 * np.random.default_rng(2).normal(size=change.shape)
    true = 1 - ((change - expected) ** 2).sum() / (change**2).sum()
    held = []
    for _ in range(SOME):
        after, foretold = (part + 0.02 * drawn(random, kind, (units, 1, HEADS, 9)) for part in (change, expected))
        found = _fits(np.zeros_like(after), foretold, after, range(units), 0)
        held.append(found["fit_low"] <= true <= found["fit_high"] if np.isfinite(found["fit_low"]) else np.nan)
    return float(np.mean(held))


def of_exact_shares(random: np.random.Generator, units: int, kind: str) -> float:
    terms = np.random.default_rng(1).normal(size=(4, 9)) * np.array([2, 1, 1, 1])[:, None]
    true, held = _exact_shares(terms)[-1], []
    for _ in range(3 * SOME):
        trace = terms + 0.5 * drawn(random, kind, (units, 4, 9))
        if units < FEWEST_EXACT:
            return np.nan
        left = np.array([_exact_shares(np.tensordot(kept, trace, 1)) for kept in without_each(range(units))])
        low, high = jackknife_interval(_exact_shares(trace.mean(0)), left)
        held.append(low[-1] <= true <= high[-1])
    return float(np.mean(held))


@cache
def _independent(units: int, kind: str) -> dict[str, float]:
    random = np.random.default_rng(units)
    means = np.random.default_rng(1).normal(size=HEADS) * 0.7
    profile_means = np.random.default_rng(2).normal(size=(HEADS, 5)) * 0.7
    variance, spread = np.var(means, ddof=1), ((profile_means - profile_means.mean(0)) ** 2).sum()
    true = {"direction_icc": variance / (variance + 1), "profile_between_heads": spread / (spread + HEADS * 5)}
    ends = []
    for _ in range(2 * SOME):
        directions = means + drawn(random, kind, (units, HEADS))
        profiles = profile_means + drawn(random, kind, (units, HEADS, 5))
        found = independence(np.zeros((units, HEADS), int), directions, profiles, clusters=1)
        ends.append([(found[name].low, found[name].high) for name in true])
    low, high = np.moveaxis(np.array(ends), -1, 0)
    return {name: holds(low[:, place], high[:, place], true[name]) for place, name in enumerate(true)}


def of_independence(name: str) -> Simulation:
    return lambda _, units, kind: _independent(units, kind)[name]


def nothing(random: np.random.Generator, units: int, kind: str) -> float:
    """No interval is given."""
    labels = random.integers(0, 4, (units, HEADS))
    profiles = drawn(random, kind, (units, HEADS, 3))
    found = independence(labels, profiles[..., 0], profiles, clusters=4)
    for name in ("majority_share", "effective_labels", "at_most_two_labels", "sign_agreement"):
        if np.isfinite(found[name].low):
            raise AssertionError(name)
    return np.nan


# --- translations


def bleu(counts: np.ndarray) -> np.ndarray:
    """sacreBLEU's, of sums ``(..., 10)``."""
    right, all_ = counts[..., 2:6], counts[..., 6:10]
    none = right == 0
    precision = np.where(none, 100 / (2.0 ** np.cumsum(none, -1) * all_), 100 * right / all_)
    brevity = np.exp(np.minimum(0, 1 - counts[..., 1] / counts[..., 0]))
    return brevity * np.exp(np.log(precision).mean(-1))


def chrf(counts: np.ndarray) -> np.ndarray:
    """sacreBLEU's, of sums ``(..., 18)``."""
    made, right, both = counts[..., 0::3], counts[..., 1::3], counts[..., 2::3]
    precision, recall = (both / made).mean(-1), (both / right).mean(-1)
    return 100 * 5 * precision * recall / (4 * precision + recall)


def sentences(random: np.random.Generator, metric: str, count: int, kind: str) -> np.ndarray:
    """What sentences add to a score: of their own quality, between 0.05 and 0.95."""
    quality = np.clip(0.5 + 0.15 * drawn(random, kind, (3 * SOME, count)), 0.05, 0.95)
    length = random.integers(8, 30, (3 * SOME, count)) * (1 if metric == "BLEU" else 5)
    made = length + random.integers(-2, 3, length.shape)
    orders = 4 if metric == "BLEU" else 6
    right, parts = made, []
    for order in range(orders):
        right = random.binomial(np.minimum(right, made - order), quality if order == 0 else 0.1 + 0.8 * quality)
        parts.append(right)
    if metric == "BLEU":
        return np.stack([made, length, *parts, *(made - order for order in range(4))], -1)
    columns = [(made - order, length - order, np.minimum(part, length - order)) for order, part in enumerate(parts)]
    return np.stack([one for column in columns for one in column], -1)


@cache
def _translated(metric: str, count: int, kind: str) -> tuple[np.ndarray, ...]:
    """Intervals of the score, p-values and intervals of the difference of two equal systems, and the true score."""
    random = np.random.default_rng(count)
    value = {"BLEU": bleu, "chrF": chrf}[metric]
    systems = [sentences(random, metric, count, kind) for _ in range(2)]
    peer = BLEU(force=True) if metric == "BLEU" else CHRF()
    for sums in systems[0][:3].sum(1):
        if abs(value(sums) - _value(peer, sums)) > 1e-6:
            raise AssertionError(metric)
    names = ("score", "lower", "upper", "p_value", "difference", "difference_lower", "difference_upper")
    truth = value(np.concatenate([sentences(np.random.default_rng(9), metric, 500, kind)]).sum((0, 1)))
    rows = []
    for one, other in zip(*systems, strict=True):
        out = {name: np.full((2, 1), np.nan) for name in names}
        out["score"][:, 0] = value(one.sum(0)), value(other.sum(0))
        times = random.multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(float)
        if count >= LEAST:
            _intervals(out, 0, np.stack([value(times @ one), value(times @ other)]), count)
        rows.append([out["lower"][0, 0], out["upper"][0, 0], *(out[name][1, 0] for name in names[3:])])
    lower, upper, p, _, low, high = np.array(rows).T
    if (np.isfinite(p) & ((p <= 0.05) != ((low > 0) | (high < 0)))).any():
        raise AssertionError("a p-value against its interval")
    return lower, upper, p, low, high, truth


def of_score(metric: str) -> Simulation:
    def simulated(_: np.random.Generator, units: int, kind: str) -> float:
        found = _translated(metric, units, kind)
        return holds(found[0], found[1], float(found[-1]))

    return simulated


def of_difference(metric: str) -> Simulation:
    def simulated(_: np.random.Generator, units: int, kind: str) -> float:
        low, high = _translated(metric, units, kind)[3:5]
        return holds(low, high)

    return simulated


def p_of_difference(metric: str) -> Simulation:
    def simulated(_: np.random.Generator, units: int, kind: str) -> float:
        p = _translated(metric, units, kind)[2]
        return np.nan if np.isnan(p).all() else float((p <= 0.05).mean())

    return simulated


def of_error_rate(rate: float) -> Simulation:
    """Sentence pairs of 4 to 19 links whose own error rates spread: by a beta distribution, more where skewed."""

    def simulated(random: np.random.Generator, units: int, kind: str) -> float:
        alike = {"normal": 30.0, "skewed": 6.0, "very skewed": 3.0}[kind]
        held = []
        for _ in range(MANY):
            links = random.integers(4, 20, units)
            wrong = random.binomial(links, random.beta(alike * rate, alike * (1 - rate), units))
            found = wrong.sum() / links.sum()
            low, high = _interval_of_rate(float(found), (wrong - found * links) / links.sum())
            held.append(np.nan if np.isnan(low) else low <= rate <= high)
        return float(np.mean(held))

    return simulated


def of_diagonal(random: np.random.Generator, units: int, kind: str) -> float:
    """Difference of two error rates near 0.3, of the same pairs."""
    held = []
    for _ in range(MANY):
        links = random.integers(4, 20, units)
        easy = np.clip(0.3 + 0.1 * drawn(random, kind, (units,)), 0, 1)
        gap = (random.binomial(links, easy) - random.binomial(links, easy)) / links.sum()
        found = float(gap.sum())
        low, high = _interval(found, gap - found * links / links.sum(), _OUTSIDE)
        held.append(np.nan if np.isnan(low) else low <= 0 <= high)
    return float(np.mean(held))


# --- tests at 5%


def shown(heads: int) -> Simulation:
    rounds = int(SOME * (HEADS / heads) ** 0.5)

    def simulated(random: np.random.Generator, units: int, kind: str) -> float:
        if units < LEAST:
            return np.nan
        columns = (drawn(random, kind, (units, heads)) for _ in range(rounds))
        return float(np.mean([by_document(values, range(units), draws=50).shown.any() for values in columns]))

    return simulated


def beside_random_sets(random: np.random.Generator, units: int, kind: str) -> float:
    """A random set with a head of each of three layers of 8, whose effects add up, next to 39 sets like it."""
    session: Any = SimpleNamespace(heads=[8] * 3, documents=[*range(units)], slices=lambda: [slice(0, units)])
    session.cells = [(layer, head) for layer in range(3) for head in range(8)]
    single = xr.Dataset({"loss_change": (("window", "ablation", "layer", "head"), np.zeros((units, 1, 3, 8)))})
    low = []
    for draw in range(SOME):
        values = drawn(random, kind, (units, 24))
        chosen = [(layer, int(random.integers(8))) for layer in range(3)]
        with patch.object(ablation, "changes_by_sets", lambda _, sets, __, values=values: values @ sets[0].T):
            found = ablation.joint_ablation(
                session, [chosen], ["mean"], single.assign_coords(ablation=["mean"]), random=39, seed=draw
            )
        low.append(found.p.item() <= LEVEL)
    return float(np.mean(low))


def _linked(
    random: np.random.Generator, units: int, kind: str, relations: int, first: float, rest: float
) -> xr.Dataset:
    """Relations of documents of 1 to 8 queries, as `relations` summarises them.

    The first head is right for one share of the queries, 11 others, all offsets and exchanged links for another, more
    in some documents than in others.
    """
    queries = random.integers(1, 9, (units, relations))
    near = 0.05 * drawn(random, kind, (units, relations))
    expected = np.full((relations, 1, HEADS), rest)
    expected[..., 0] = first
    right = random.binomial(queries[..., None, None], np.clip(expected + near[..., None, None], 0, 1))
    exchanged = random.binomial(2 * queries[..., None, None], np.clip(rest + near[..., None, None], 0, 1), right.shape)
    at_offset = random.binomial(queries[..., None], np.clip(rest + near[..., None], 0, 1), (units, relations, 20))
    cells = ("window", "relation", "layer", "head")
    sums = {
        "queries": (cells[:2], queries),
        "right": (cells, right),
        "weight": (cells, right),
        "chance": (cells[:3], 0.05 * queries[..., None]),
        "uniform": (cells[:3], 0.05 * queries[..., None]),
        "at_offset": ((*cells[:2], "offset"), at_offset),
        "exchanged_queries": (cells[:2], 2 * queries),
        "exchanged_right": (cells, exchanged),
        "exchanged_weight": (cells, exchanged),
    }
    coordinates = {"source": ("window", np.arange(units)), "layer": [0], "offset": np.arange(20)}
    windows = xr.Dataset({f"window_{name}": values for name, values in sums.items()}, coordinates)
    return summary_of(windows, None, int(random.integers(1 << 30)))


def attends(random: np.random.Generator, units: int, kind: str) -> float:
    """Any of 20 relations is linked, where no head is right more often than an offset, or for exchanged links."""
    if units < LEAST:
        return np.nan
    return float(np.mean([_linked(random, units, kind, 20, 0.3, 0.3).linked.values.any() for _ in range(SOME)]))


def of_held_out(random: np.random.Generator, units: int, kind: str) -> float:
    """The score of the head that the other half of the documents chooses: one is right more often than all others."""
    if units < LEAST:
        return np.nan
    held = []
    for _ in range(SOME):
        summary = _linked(random, units, kind, 1, 0.7, 0.1)
        held.append(float(summary.held_out_low[0]) <= 0.7 <= float(summary.held_out_high[0]))
    return float(np.mean(held))


def intervened(random: np.random.Generator, units: int, kind: str) -> float:
    """Any head, under any of three ablations whose effects are related and as skewed as those of one."""
    if units < LEAST:
        return np.nan
    found = []
    for _ in range(SOME):
        own = drawn(random, kind, (units, 1, 1, HEADS))
        values = own * np.array([1.0, 0.5, 2.0])[:, None, None] + 0.1 * random.normal(size=(units, 3, 1, HEADS))
        effects = xr.Dataset(
            {"loss_change": (("window", "ablation", "layer", "head"), values)},
            coords={"source": ("window", np.arange(units)), "ablation": ["zero", "mean", "resample"]},
        )
        found.append(heads_of(effects).shown.values.any())
    return float(np.mean(found))


def differs(windows: int, columns: int = HEADS) -> Simulation:
    """Any change is found where there is none; windows of a document are alike."""
    rounds = max(SOME * HEADS // columns, FEWER)

    def simulated(random: np.random.Generator, units: int, kind: str) -> float:
        found = []
        for _ in range(rounds):
            own = np.repeat(drawn(random, kind, (units, columns)), windows, 0)
            values = own + 0.3 * random.normal(size=own.shape)
            p = mean_chances(values, np.repeat(np.arange(units), windows).tolist())
            found.append(np.nan if np.isnan(p).all() else (false_discovery_control(p) <= LEVEL).any())
        return float(np.mean(found))

    return simulated


def contrasted(others: int, *, windows: int = 1) -> Simulation:
    """Documents of one value and times as many others, or windows of both values in every document."""

    def simulated(random: np.random.Generator, units: int, kind: str) -> float:
        found = []
        documents = np.repeat(np.arange(units * (1 if windows > 1 else 1 + others)), windows)
        for _ in range(FEWER):
            values = drawn(random, kind, (documents[-1] + 1, 1, HEADS))[documents]
            named = documents < units
            if windows > 1:  # a third of the windows of each document
                values = values + drawn(random, kind, values.shape)
                named = np.concatenate([random.permutation(windows) < windows // 3 for _ in range(units)])
            scan = xr.Dataset(
                {"entropy": (("window", "layer", "head"), values)},
                {"by": ("window", np.where(named, "en", "ja")), "source": ("window", documents)},
            )
            tested = contrasts(scan)
            found.append(tested.differs.values.any() if tested.tested.values.any() else np.nan)
        return float(np.mean(found))

    return simulated


def published(random: np.random.Generator, units: int, kind: str) -> float:
    """A list of heads of one layer, and scores of 3 roles that vary between layers: units are layers of 12 heads."""
    layers = np.repeat(np.arange(units), 12)
    found = []
    for number in range(FEWER):
        own = np.zeros(len(layers), bool)
        own[: 12 if number % 2 else 8] = True
        scores = drawn(random, kind, (3, units))[:, layers] + drawn(random, kind, (3, len(layers)))
        found.append((agreement(own, scores, layers, seed=number).p <= 0.05).any())
    return float(np.mean(found))


def turned(random: np.random.Generator, pairs: int, kind: str) -> float:
    """Any of 144 heads with random phases: units are pairs of columns, whose sizes are of this kind."""
    waves = np.exp(1j * 10000.0 ** (-np.arange(pairs) / pairs)[:, None] * np.arange(-31, 1))
    found = []
    for number in range(FEWER // 5):
        sizes = np.abs(drawn(random, kind, (144, pairs))) * np.exp(2j * np.pi * random.random((144, pairs)))
        p = peak_chances(np.abs(sizes), waves, (sizes @ waves).real.max(1), number)
        found.append((false_discovery_control(p) <= LEVEL).any())
    return float(np.mean(found))


def beyond_chance(random: np.random.Generator, units: int, kind: str) -> float:
    """Any of 12 heads and 9 pairs of groups, or of turns; long tails below 0, the worse side of this test."""
    if units < FEW:
        return np.nan
    rounds = (-drawn(random, kind, (units, 9 * HEADS)) for _ in range(SOME))
    return float(np.mean([above_zero([values], units)[0].any() for values in rounds]))


def ordered(random: np.random.Generator, units: int, kind: str) -> float:
    """Estimates that are independent of the order of the heads."""
    pairs = (drawn(random, kind, (2, units, 4 * HEADS)) for _ in range(SOME // 2))
    return float(np.mean([order_agreement(one, other, seed=0)[1] <= 0.05 for one, other in pairs]))


def caused(random: np.random.Generator, units: int, kind: str) -> float:
    """Expected changes of other heads."""
    found = []
    for _ in range(SOME // 2):
        before = np.zeros((units, 1, HEADS, 9))
        profiles = drawn(random, kind, (2, 1, 1, HEADS, 9)) + 0.3 * drawn(random, kind, (2, units, 1, HEADS, 9))
        found.append(_fits(before, profiles[0], profiles[1], range(units), 0)["fit_chance"] <= 0.05)
    return float(np.mean(found))


BOOTSTRAP = "expanded bootstrap"


def in_common(random: np.random.Generator, units: int, kind: str) -> float:
    """Share of heads with uniform attention whose examples, one a window, have something in common; tokens by kind."""
    tokens, words = 40, 30
    chances = 1.0 / np.arange(1, words + 1) ** TEST_KINDS.index(kind)  # equally frequent, or a few of them everywhere
    shared, kinds, columns = 0, ["word"] * tokens, np.ones(tokens, bool)
    rows = np.arange(1, tokens + 1) >= LEAST_KEYS
    for _ in range(FEWER):
        pairs: list[ExamplePair] = []
        for _ in range(units):
            text = random.choice(words, tokens, p=chances / chances.sum()).astype(str).tolist()
            query = int(random.integers(LEAST_KEYS - 1, tokens))
            key = int(random.integers(query + 1))
            pairs.append(ExamplePair(text, text, kinds, kinds, rows, columns, (tokens - 1, 0), query, key))
        shared += any(common_features({(0, 0): pairs})["significant"])
    return shared / FEWER


SIGNS = "signs, largest t; t of exponential units"

INTERVALS: dict[str, tuple[str, Simulation]] = {
    "means over documents (`roles`, `repeated_tokens`, `interventions`, tests of weights, profiles and Shapley values, "
    "`--until`)": (BOOTSTRAP, of_means),
    "`by_document`: `intervene`, `patch`, `diff`, `expect`, groups, turns": (BOOTSTRAP, of_effects),
    "the same, documents of 1 to 5 windows": (BOOTSTRAP, of_windows),
    "the same, a third of the values missing": (BOOTSTRAP, of_missing),
    "windows of one document, neighbours alike": ("expanded bootstrap of batches", of_neighbours),
    "windows of one document, `--stride` of a quarter window": ("expanded bootstrap of batches", of_overlap),
    "`stability` of `card`": ("jackknife without a third", of_halves_agree),
    "`share` of `patch`": (BOOTSTRAP, of_shares),
    "`share` of `attribute --head`": (BOOTSTRAP, of_score_shares),
    "`faithfulness` and `cpr` of `edges`": (BOOTSTRAP, of_halves),
    "held-out score of `relations`": (BOOTSTRAP, of_held_out),
    "shares of the gradient, `compare`": (BOOTSTRAP, of_gradients),
    "learning curves over training seeds, `compare --seeds`": ("Student", of_seeds),
    "`contrasts`, units of either side": ("Welch", of_contrasts),
    "`position_share`, `share` of `position_content`": ("jackknife", of_position),
    "the same, documents of 3 windows": ("jackknife", of_position_in_documents),
    'the same, `method="exact"`': ("jackknife", of_exact_shares),
    "`fit` of `wave_removal`": ("jackknife", of_fit),
    "`direction_icc`": ("jackknife", of_independence("direction_icc")),
    "`profile_between_heads`": ("jackknife", of_independence("profile_between_heads")),
    "`majority_share`, `effective_labels`, `at_most_two_labels`, `sign_agreement`": ("none", nothing),
    "BLEU": (BOOTSTRAP, of_score("BLEU")),
    "chrF": (BOOTSTRAP, of_score("chrF")),
    "difference of BLEU": ("bootstrap, symmetric", of_difference("BLEU")),
    "difference of chrF": ("bootstrap, symmetric", of_difference("chrF")),
    "AER of 0.01": ("Wilson, Hall", of_error_rate(0.01)),
    "AER of 0.05": ("Wilson, Hall", of_error_rate(0.05)),
    "AER of 0.3": ("Student, Hall", of_error_rate(0.3)),
    "AER less the diagonal's": ("Student", of_diagonal),
}
TESTS: dict[str, tuple[str, Simulation]] = {
    **{
        f"{heads} heads of one ablation, `patch`, `attribute`, `--forbid`, `--together` (`by_document`)": (
            SIGNS,
            shown(heads),
        )
        for heads in (12, 144, 1024)
    },
    "`intervene`, three ablations": (SIGNS, intervened),
    "`p` of `intervene --random`": ("rank among random sets", beside_random_sets),
    "`relations`, 20 of them": ("t of exponential units, largest of three, false discovery rate", attends),
    "`diff`": ("t of exponential units, false discovery rate", differs(1)),
    "`diff`, documents of 8 windows": ("t of exponential units, false discovery rate", differs(8)),
    "`diff`, 432 columns": ("t of exponential units, false discovery rate", differs(1, 432)),
    "`contrasts`": ("permutations, largest t", contrasted(1)),
    "`contrasts`, five times as many others": ("permutations, largest t", contrasted(5)),
    "`contrasts`, both values in each document": ("permutations in documents, largest t", contrasted(1, windows=9)),
    "`beyond_chance` of groups and turns": (SIGNS, beyond_chance),
    "`auroc_p` of `card --published`, layers of 12 heads": ("permutations in layers, largest distance", published),
    "`peak_offset_p` of `circuits`, pairs of columns of RoPE": ("random phases, false discovery rate", turned),
    "what `examples` have in common, one head": ("Poisson-binomial, false discovery rate", in_common),
    "order of estimates (`chance`)": ("random orders", ordered),
    "`fit_chance` of `wave_removal`": ("heads exchanged", caused),
    "`p_value` of BLEU": ("bootstrap, two-sided", p_of_difference("BLEU")),
    "`p_value` of chrF": ("bootstrap, two-sided", p_of_difference("chrF")),
}


def table(rows: dict[str, tuple[str, Simulation]], kinds: Iterable[str], chosen: str) -> str:
    lines = [f"| {'of'} | by | units are | {' | '.join(map(str, UNITS))} |", "|---|---|---|" + "---|" * len(UNITS)]
    for name, (method, simulation) in rows.items():
        if chosen not in name:
            continue
        for kind in kinds:
            random = np.random.default_rng(0)
            shares = [simulation(random, units, kind) for units in UNITS]
            cells = ["–" if np.isnan(share) else f"{share:.3f}" for share in shares]
            lines.append(f"| {name} | {method} | {kind} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    chosen = next((word for word in sys.argv[1:] if word != "--short"), "")
    began = time.process_time()
    made = {"intervals": table(INTERVALS, KINDS, chosen), "tests": table(TESTS, TEST_KINDS, chosen)}
    print(f"{time.process_time() - began:.0f} s")
    text = PAGE.read_text(encoding="utf-8")
    for (name, new), rows in zip(made.items(), (INTERVALS, TESTS), strict=True):
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        old, after = rest.split("<!-- end -->", 1)
        lines = {tuple(line.split(" | ")[:3]): line for line in f"{old.strip()}\n{new}".splitlines()}
        kinds = KINDS if rows is INTERVALS else TEST_KINDS
        order = [(f"| {row}", method, kind) for row, (method, _) in rows.items() for kind in kinds]
        kept = [*new.splitlines()[:2], *(lines[key] for key in order if key in lines)]
        text = f"{before}<!-- {name} -->\n" + "\n".join(kept) + f"\n<!-- end -->{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
