"""Attention along links, summed up over texts: scores, controls, tests, and heads chosen on the other half."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from attnscope.statistics.discovery import significant
from attnscope.statistics.intervals import DRAWS, bootstrap_interval
from attnscope.statistics.tests import mean_chances
from attnscope.statistics.units import LEAST, membership, units_in
from attnscope.support.errors import AttnscopeError

SIZE = 0.1  # share of queries above every control from which a head counts: smaller ones are significant in many texts
TIE = 1e-6  # of a weight, beside a query that is right
_CELLS = ("relation", "layer", "head")
_WORDS = {
    "score": "Share of queries whose largest weight is on a word that they belong to",
    "weight": "Mean weight on the words that a query belongs to",
    "exchanged": "The same share for links of other texts of the same length",
    "exchanged_weight": "The same weight for links of other texts of the same length",
    "chance": "The same share for a random visible word",
    "uniform": "The same weight under uniform attention",
    "above": "Share of queries less that of the best control",
}


def summary_of(results: xr.Dataset, untrained: xr.Dataset | None, seed: int) -> xr.Dataset:
    """Scores of every head for every relation, next to controls, from sums over the queries of each window.

    The fixed offset, and the best head, are chosen on one half of the documents and scored on the other. A relation is
    `linked` if the head that is so chosen is significantly above all controls, and by `SIZE`: p is the largest of
    three (an intersection-union test, Berger 1982), and the false discovery rate over relations is 0.05 (Benjamini and
    Hochberg 1995). In a linked relation a head is `shown` if both halves choose it, or if it passes the same test of
    its own, with the false discovery rate over heads at 0.05 times the share of relations that are linked (Benjamini
    and Bogomolov 2014).
    """
    units, called = units_in(results)
    member = membership(units)
    halves = halves_of(len(member), seed)
    sums = {
        str(name).removeprefix("window_"): by_unit(member, values)
        for name, values in results.items()
        if "window_" in str(name)
    }
    queries, exchanged = sums["queries"], sums["exchanged_queries"]
    whole = queries.sum(0)
    if not whole.any():
        raise AttnscopeError(
            "found no query that may attend to what it belongs to: the mask of the model hides later words, and the "
            "first token of a causal model does not count. Give other links, or another model"
        )
    right, weight = (share(sums[name].sum(0), whole) for name in ("right", "weight"))
    others = exchanged.sum(0)
    of_offset, offset = of_best(sums["at_offset"], queries, halves)
    controls = {
        "offset": np.broadcast_to(_extended(of_offset, right.ndim), sums["right"].shape),
        "exchanged": _extended(queries, right.ndim) * share(sums["exchanged_right"], exchanged),
        "chance": np.broadcast_to(sums["chance"][..., None], sums["right"].shape),
    }
    means = {name: share(np.nansum(values, 0), whole) for name, values in controls.items()}
    if not others.any():
        means["exchanged"] = np.full_like(right, np.nan)
    largest = np.fmax.reduce([*means.values()])  # NaN: a control that is not to be had
    p = _largest_chance([sums["right"] - values for values in controls.values()], queries)
    interval = [interval_of(sums["right"][:, at], queries[:, at], seed) for at in range(len(whole))]
    by_head = {name: sums[name].reshape(*queries.shape, -1) for name in ("right", "weight")}
    chosen, best = best_of(by_head["right"], queries, halves, by_head["weight"])
    of_chosen = taken(by_head["right"], chosen, halves)
    of_controls = [taken(values.reshape(by_head["right"].shape), chosen, halves) for values in controls.values()]
    held_out_p = _largest_chance([of_chosen - values for values in of_controls], queries)
    held_out_above = share(of_chosen.sum(0), whole) - np.fmax.reduce(
        [share(np.nansum(values, 0), whole) for values in of_controls]
    )
    linked = significant(held_out_p) & (held_out_above >= SIZE)
    shown = np.zeros(right.shape, bool)
    level = 0.05 * linked.sum() / max(1, np.isfinite(held_out_p).sum())
    for relation in np.flatnonzero(linked):
        shown[relation] = significant(p[relation], level) & (right - largest >= SIZE)[relation]
        if (chosen[:, relation] == best[relation]).all():
            shown[relation].flat[best[relation]] = True
    held_out = [interval_of(of_chosen[:, at, None], queries[:, at], seed) for at in range(len(whole))]
    heads = right.shape[-1]
    variables: dict[str, Any] = {
        "score": (_CELLS, right),
        "score_low": (_CELLS, np.stack([low for _, low, _ in interval])),
        "score_high": (_CELLS, np.stack([high for *_, high in interval])),
        "weight": (_CELLS, weight),
        "exchanged": (_CELLS, means["exchanged"]),
        "exchanged_weight": (_CELLS, share(sums["exchanged_weight"].sum(0), others)),
        "chance": (_CELLS[:2], share(sums["chance"].sum(0), whole)),
        "uniform": (_CELLS[:2], share(sums["uniform"].sum(0), whole)),
        "above": (_CELLS, right - largest),
        "p": (_CELLS, p),
        "shown": (_CELLS, shown),
        "tested": (_CELLS, np.isfinite(p)),
        "offset_score": ("relation", share(of_offset.sum(0), whole)),
        "best_offset": ("relation", results.offset.values[offset]),
        "best_layer": ("relation", results.layer.values[best // heads]),
        "best_head": ("relation", best % heads),
        "held_out": ("relation", np.array([float(mean[0]) for mean, *_ in held_out])),
        "held_out_low": ("relation", np.array([float(low[0]) for _, low, _ in held_out])),
        "held_out_high": ("relation", np.array([float(high[0]) for *_, high in held_out])),
        "held_out_above": ("relation", held_out_above),
        "held_out_p": ("relation", held_out_p),
        "linked": ("relation", linked),
        "queries": ("relation", whole),
        "units": ("relation", (queries > 0).sum(0)),
    }
    if untrained is not None:
        fresh = {name: by_unit(member, untrained[f"window_{name}"]) for name in ("right", "queries")}
        of_fresh, _ = of_best(fresh["right"].reshape(*queries.shape, -1), fresh["queries"], halves)
        variables["untrained"] = (_CELLS, share(fresh["right"].sum(0), whole))
        variables["untrained_held_out"] = ("relation", share(of_fresh.sum(0), whole))
    for name, words in _WORDS.items():
        variables[name] = (*variables[name], {"long_name": words, "units": "share"})
    return xr.Dataset(variables, attrs={"intervals_over": called})


def by_unit(member: np.ndarray, values: xr.DataArray) -> np.ndarray:
    """Sums over the windows of each unit."""
    return np.tensordot(member, np.nan_to_num(values.values.astype(np.float64)), 1)


def _extended(values: np.ndarray, dims: int) -> np.ndarray:
    """Values ``(unit, relation)`` along the heads too."""
    return values.reshape(*values.shape, *[1] * (dims - 1))


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Parts of wholes over relations; NaN without a whole."""
    whole = whole.reshape(*whole.shape, *[1] * (part.ndim - whole.ndim))
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def halves_of(units: int, seed: int) -> np.ndarray:
    """A random half of the units, ``(unit,)``."""
    return np.random.default_rng(seed).permutation(units) % 2 == 0


def best_of(
    sums: np.ndarray, queries: np.ndarray, halves: np.ndarray, ties: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """What is best in the other half of the units, ``(half, relation)``, and in all, ``(relation,)``.

    -1 without another half. Of equal ones that with the largest of `ties` is the best.
    """
    ranked = sums if ties is None else sums + TIE * ties
    others = (halves, ~halves)  # of the units that are not in the half, and of those that are
    chosen = [np.where(queries[other].sum(0) > 0, ranked[other].sum(0).argmax(-1), -1) for other in others]
    return np.stack(chosen), ranked.sum(0).argmax(-1)


def taken(values: np.ndarray, chosen: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """The value of each unit, ``(unit, relation)``, of what the other half chose; NaN without one."""
    of_units = chosen[halves.astype(int)]
    of_chosen = np.take_along_axis(values, of_units[..., None].clip(0), -1)[..., 0]
    return np.where(of_units < 0, np.nan, of_chosen)


def of_best(sums: np.ndarray, queries: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of each unit, ``(unit, relation)``, of what is best in the other half; and what is best in all."""
    chosen, best = best_of(sums, queries, halves)
    return taken(sums, chosen, halves), best


def _largest_chance(differences: list[np.ndarray], queries: np.ndarray) -> np.ndarray:
    """The largest of several p-values of each mean; 1 where a mean is below 0, NaN without one of the tests."""
    p = np.stack([chances(one, queries) for one in differences])
    below = np.stack([np.nansum(one, 0) <= 0 for one in differences])
    return np.where(np.isfinite(p) & below, 1.0, p).max(0)


def chances(differences: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """P-value of each mean difference over queries, from sums ``(unit, relation, layer, head)``, by units."""
    p = np.full(differences.shape[1:], np.nan)
    for relation in range(len(p)):
        counts, sums = queries[:, relation], differences[:, relation].reshape(len(queries), -1)
        present = (counts > 0) & np.isfinite(sums).all(1)
        units = int(present.sum())
        if units < LEAST:
            continue
        counts, sums = counts[present], sums[present]
        mean = sums.sum(0) / counts.sum()
        # of a ratio of sums over units, linearised (Cochran 1977, chapter 6)
        parts = mean + (sums - mean * counts[:, None]) * units / counts.sum()
        p[relation] = mean_chances(parts, range(units)).reshape(p.shape[1:])
    return p


def interval_of(sums: np.ndarray, queries: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over queries and its 95% interval by units, from sums ``(unit, ...)``."""
    flat = sums.reshape(len(sums), -1)
    present = (queries > 0) & np.isfinite(flat).all(1)
    flat, sizes = flat[present], queries[present]
    units = len(sizes)
    nothing = np.full(flat.shape[1], np.nan)
    mean = flat.sum(0) / sizes.sum() if units else nothing
    low = high = nothing
    if units >= LEAST:
        drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=DRAWS)
        low, high = bootstrap_interval(flat, sizes, drawn.astype(float))
    return mean.reshape(sums.shape[1:]), low.reshape(sums.shape[1:]), high.reshape(sums.shape[1:])
