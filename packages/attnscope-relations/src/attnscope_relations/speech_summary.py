"""How heads follow words in time, summed up over sounds; and the set of heads that gives their times best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.statistics.discovery import significant
from attnscope.statistics.lists import agreement
from attnscope.statistics.units import membership, units_in
from attnscope_relations.ablation import Head, cells_of, summarised
from attnscope_relations.summary import by_unit, chances, halves_of, interval_of, summary_of

if TYPE_CHECKING:
    from attnscope_relations.speech import SpeechReader, Spoken

CHOSEN, BEST, PUBLISHED, ALL, RANDOM, PACE = (
    "chosen on the other half",
    "best head of the other half",
    "published",
    "all heads",
    "random heads",
    "constant pace",
)
LARGEST = 10  # heads of a chosen set
USUAL = 8  # heads of a set without times, where no list is published
_CANDIDATES = 16  # heads with the smallest errors, from which a set is chosen
_DRAWS = 20  # random sets
_HEADS = ("layer", "head")


def summary_of_times(results: xr.Dataset, untrained: xr.Dataset | None, reader: SpeechReader) -> xr.Dataset:
    """Scores of heads next to controls, and errors of the starts of words by heads and by sets of heads."""
    seed = reader.settings["seed"]
    units, called = units_in(results)
    member = membership(units)
    summary = summary_of(results, untrained, seed).assign_attrs(intervals_over=_called(called))
    words = by_unit(member, results.window_words)
    absent = np.isnan(results.window_error.values).all(0)
    errors = np.stack(interval_of(by_unit(member, results.window_error), words, seed))
    errors[:, absent] = np.nan
    variables: dict[str, Any] = {
        name: (_HEADS, values, {"long_name": "Mean error of the start of a word", "units": "ms"})
        for name, values in zip(("error", "error_low", "error_high"), errors, strict=True)
    }
    variables |= _correlations(results, member, seed)
    if untrained is not None:
        fresh = by_unit(member, untrained.window_error).sum(0) / words.sum()
        variables["untrained_error"] = (_HEADS, np.where(absent, np.nan, fresh))
    sides = halves_of(len(member), seed)[member.argmax(0)]
    choice = _Choice(results.window_error.values, results.window_words.values, sides, reader)
    names, of_windows, sizes = choice.errors()
    sums = member @ of_windows
    reference = names.index(PUBLISHED if PUBLISHED in names else ALL)
    for name, values in (("set_error", sums), ("set_difference", sums - sums[:, [reference]])):
        known = [interval_of(values[:, [at]], words, seed) for at in range(len(names))]
        for end, part in zip(("", "_low", "_high"), zip(*known, strict=True), strict=True):
            variables[name + end] = ("set", np.concatenate(part), {"units": "ms"})
    variables["set_size"] = ("set", np.array(sizes))
    variables["chosen"] = (_HEADS, choice.whole)
    variables["set_order"] = (_HEADS, choice.order)
    summary = summary.assign(variables).assign_coords(set=np.array(names, dtype=object))
    if reader.ablate:
        summary = summary.assign(_ablated(results, summary, choice, reader))
    return summary.assign(_listed(summary, reader, ("weight", "error", "correlation")))


def _ablated(results: xr.Dataset, summary: xr.Dataset, choice: _Choice, reader: SpeechReader) -> xr.Dataset:
    """Errors of the starts of words without the best head, and without others of its layer.

    The margin is how much closer than a constant pace the set is that the other half of the sounds chose.
    """
    best = np.unravel_index(np.nanargmin(summary.error.values), summary.error.shape)
    cells = cells_of((int(results.layer[best[0]]), int(best[1])), reader.sites, reader.settings["seed"])
    pace = _paced(choice.spoken, reader.durations)
    plain = choice.errors_of_chosen()
    changes = {cell: plain - choice.errors_of_chosen(cell) for cell in cells}
    every = np.arange(len(plain))
    sizes = results.window_words.values
    return summarised(results, {0: every}, {0: cells}, pace - plain, changes, sizes, reader.settings["seed"], "ms")


def summary_of_order(results: xr.Dataset, untrained: xr.Dataset | None, reader: SpeechReader) -> xr.Dataset:
    """How the weights of heads move on with the tokens: the rank correlation of their mean time with the order.

    A head is `shown` if its correlation is significantly above 0 and above that with another sound, which a head has
    that moves on whatever it hears (an intersection-union test), and above the best with fresh weights.
    """
    units, called = units_in(results)
    member = membership(units)
    variables = _correlations(results, member, reader.settings["seed"])
    counts = member.sum(1)[:, None]
    sums = by_unit(member, results.window_correlation)[:, None]
    has_other = results.window_exchanged_correlation.notnull().any(("layer", "head")).values
    others = by_unit(member, results.window_exchanged_correlation)[:, None]
    others[member @ ~has_other > 0] = np.nan
    p = np.stack([chances(each, counts)[0] for each in (sums, sums - others)]).max(0)
    values = variables["correlation"][1]
    exchanged = np.where(np.isnan(values), np.nan, others[:, 0].sum(0) / counts.sum())
    variables["exchanged_correlation"] = (_HEADS, exchanged)
    least = np.fmax(exchanged, 0.0)
    if untrained is not None:
        fresh = np.nanmean(untrained.window_correlation.values, 0)
        variables["untrained"] = (_HEADS, fresh)
        least = np.fmax(least, np.nanmax(fresh))
    size = len(reader.published) or USUAL
    order = np.full(values.shape, -1)
    ranked = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None)[:size]
    order.flat[ranked] = range(len(ranked))
    shown = significant(p) & (values > least)
    cells = ("relation", *_HEADS)
    best = int(np.nanargmax(values))
    variables |= {
        "score": (cells, values[None], {"label": "Rank correlation"}),
        "above": (cells, values[None] - least),
        "weight": (cells, np.full((1, *values.shape), np.nan)),
        "shown": (cells, shown[None]),
        "p": (_HEADS, p),
        "tested": (_HEADS, np.isfinite(p)),
        "chosen": (_HEADS, order >= 0),
        "set_order": (_HEADS, order),
        "best_layer": ("relation", results.layer.values[[best // values.shape[1]]]),
        "best_head": ("relation", np.array([best % values.shape[1]])),
        "linked": ("relation", np.array([bool(shown.any())])),
        "held_out_p": ("relation", np.array([np.nan])),
        "held_out_above": ("relation", np.array([np.nan])),
        "queries": ("relation", np.array([float(results.tokens.sum())])),
    }
    summary = xr.Dataset(variables, attrs={"intervals_over": _called(called)})
    return summary.assign(_listed(summary, reader, ("correlation",)))


def _called(units: str) -> str:
    """The plural noun of units of sounds."""
    return "sounds" if units == "documents" else units


def _correlations(results: xr.Dataset, member: np.ndarray, seed: int) -> dict[str, Any]:
    values = results.window_correlation
    parts = np.stack(interval_of(by_unit(member, values), member.sum(1), seed))
    parts[:, np.isnan(values.values).all(0)] = np.nan
    names = ("correlation", "correlation_low", "correlation_high")
    return {name: (_HEADS, part) for name, part in zip(names, parts, strict=True)}


def _listed(summary: xr.Dataset, reader: SpeechReader, measures: Sequence[str]) -> dict[str, Any]:
    """Which heads the model's generation config lists, and how well each measure ranks them above the others."""
    if not reader.published:
        return {}
    present = summary.correlation.notnull().values
    listed = np.zeros(present.shape, bool)
    listed[tuple(np.array(reader.published).T)] = True
    scores = [-summary[name] if name == "error" else summary[name] for name in measures]
    flat = np.stack([np.asarray(score).reshape(present.shape)[present] for score in scores])
    found = agreement(listed[present], flat, np.nonzero(present)[0])
    parts = {"": found.auroc, "_low": found.low, "_high": found.high, "_p": found.p}
    return {"listed": (_HEADS, listed), "measure": ("measure", np.array(measures, dtype=object))} | {
        f"listed_auroc{end}": ("measure", values) for end, values in parts.items()
    }


class _Choice:
    """Sets of heads, chosen on each half of the sounds and on all, and their errors on every sound."""

    def __init__(self, errors: np.ndarray, words: np.ndarray, sides: np.ndarray, reader: SpeechReader) -> None:
        self.reader, self.sides, self.shape = reader, sides, errors.shape[1:]
        self.spoken = reader.spoken[: len(words)]
        self.parts = [part for part in (~sides, sides, np.ones(len(sides), bool)) if part.any()]
        rates = [np.nan_to_num(errors[part].sum(0) / words[part].sum(), nan=np.inf).ravel() for part in self.parts]
        ranked = [np.argsort(rate)[:_CANDIDATES] for rate in rates]
        self.heads = np.array(sorted({int(head) for of_part in ranked for head in of_part}))
        self.best = [int(rate.argmin()) for rate in rates]
        one_each = np.zeros((len(self.heads), errors[0].size))
        one_each[range(len(self.heads)), self.heads] = 1
        maps = [map_.astype(np.float16) for map_ in reader.maps(one_each.reshape(-1, *self.shape))]
        self.sets = [
            self._grown(maps, np.flatnonzero(part), np.flatnonzero(np.isin(self.heads, of_part)))
            for part, of_part in zip(self.parts, ranked, strict=True)
        ]

    def _grown(self, maps: list[np.ndarray], sounds: np.ndarray, candidates: np.ndarray) -> list[int]:
        """Heads, each the one with which the error is then smallest, up to the smallest error of all."""
        heads: list[int] = []
        sums = [np.zeros((1, *maps[sound].shape[1:])) for sound in sounds]
        rest, reached = candidates.tolist(), list[float]()
        while rest and len(heads) < LARGEST:
            errors = np.zeros(len(rest))
            for total, sound in zip(sums, sounds, strict=True):
                errors += self.spoken[sound].begin_errors(total + maps[sound][rest], self.reader.seconds)
            reached.append(float(errors.min()))
            heads.append(rest.pop(int(errors.argmin())))
            sums = [total + maps[sound][heads[-1:]] for total, sound in zip(sums, sounds, strict=True)]
        heads = heads[: int(np.argmin(reached)) + 1]
        return self.heads[heads].tolist()

    @property
    def order(self) -> np.ndarray:
        """The number of each head in the set that is chosen on all sounds, ``(layer, head)``; -1 of the others."""
        order = np.full(self.shape, -1)
        order.flat[self.sets[-1]] = range(len(self.sets[-1]))
        return order

    @property
    def whole(self) -> np.ndarray:
        """The set that is chosen on all sounds, ``(layer, head)``."""
        return self.order >= 0

    def errors_of_chosen(self, without: Head | None = None) -> np.ndarray:
        """Errors, summed over the words of each sound, of the set of the other half; of the whole set without halves.

        The head to do `without` has an output of 0, and no set has its weights. Where no other head is left, times are
        those of a constant pace.
        """
        has_halves = len(self.parts) > 2  # noqa: PLR2004 two halves, and all sounds
        sets = self.sets[:2] if has_halves else self.sets[:1]
        members = np.zeros((len(sets), *self.shape))
        for row, heads in zip(members, sets, strict=True):
            row.flat[heads] = 1
        if without is not None:
            row_of_layer = [site.index for site in self.reader.sites].index(without[0])
            members[:, row_of_layer, without[1]] = 0
        is_empty = members.sum((1, 2)) == 0
        members[is_empty] = 1  # of which nothing is used
        maps = self.reader.maps(members, without)
        found = np.stack(
            [spoken.begin_errors(map_, self.reader.seconds) for spoken, map_ in zip(self.spoken, maps, strict=True)]
        )
        paced = _paced(self.spoken, self.reader.durations)
        found = np.where(is_empty, paced[:, None], found)
        return np.where(self.sides, found[:, 0], found[:, -1])

    def errors(self) -> tuple[list[str], np.ndarray, list[float]]:
        """Names of sets; their errors, summed over words, ``(sound, set)``; and their sizes."""
        every = np.arange(int(np.prod(self.shape)))
        published = [int(np.ravel_multi_index(head, self.shape)) for head in self.reader.published]
        size = len(published) or len(self.sets[-1])
        drawn = [np.random.default_rng(seed).permutation(every)[:size].tolist() for seed in range(_DRAWS)]
        sets = [every.tolist(), *([published] if published else []), *drawn]
        has_halves = len(self.parts) > 2  # noqa: PLR2004 two halves, and all sounds
        if has_halves:
            sets += [*self.sets[:2], *([head] for head in self.best[:2])]
        members = np.zeros((len(sets), len(every)))
        for row, heads in zip(members, sets, strict=True):
            row[heads] = 1
        found = np.stack(
            [
                spoken.begin_errors(map_, self.reader.seconds)
                for spoken, map_ in zip(self.spoken, self.reader.maps(members.reshape(-1, *self.shape)), strict=True)
            ]
        )
        columns: dict[str, tuple[np.ndarray, float]] = {}
        if has_halves:
            # of a sound in the one half by the set that is chosen on the other
            chosen, best = (np.where(self.sides, found[:, at], found[:, at + 1]) for at in (-4, -2))
            columns[CHOSEN] = chosen, float(np.mean([len(heads) for heads in self.sets[:2]]))
            columns[BEST] = best, 1.0
        if published:
            columns[PUBLISHED] = found[:, 1], float(len(published))
        columns[ALL] = found[:, 0], float(len(every))
        first = 1 + bool(published)
        columns[RANDOM] = found[:, first : first + _DRAWS].mean(1), float(size)
        columns[PACE] = _paced(self.spoken, self.reader.durations), 0.0
        values = [values for values, _ in columns.values()]
        return [*columns], np.stack(values, 1), [size for _, size in columns.values()]


def _paced(spoken: Sequence[Spoken], durations: Sequence[float]) -> np.ndarray:
    """Errors of begins at a constant pace through each sound, in ms, summed over words."""
    errors: list[float] = []
    for one, duration in zip(spoken, durations, strict=False):
        words, at = np.unique(one.words[one.known], return_index=True)
        begins = at / len(one.known) * duration
        errors.append(float(1000 * np.abs(begins - one.begins[words]).sum()))
    return np.array(errors)
