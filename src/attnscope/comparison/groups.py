"""Heads that attend from one group of tokens to another, next to uniform attention and the positions alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.measure.documents import FEW, LEAST, above_zero, by_document, units_in

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    import xarray as xr

    from attnscope.results.schema import Row

SMALLEST = 0.01  # of the weight: nothing nearer to the larger null is called beyond chance
#: What a reader of the pairs has to know.
GROUP_PAIRS_CAUTION = (
    "Places: a head with the same weight at each offset of the band, in each bin beyond it and on the first token, "
    "whatever stands there. What is above them is not a matter of offsets within the band; it may be one of single "
    "tokens or of other places (an offset beyond the band, the end of a text), and not of the group. Heads of "
    "untrained models prefer groups too: it does not say that anything was learned."
)
NULLS = f"Equal: equal weights over what a token may see. {GROUP_PAIRS_CAUTION}"


@dataclass(frozen=True, eq=False)
class MeanGroupWeights:
    """Means over the windows that have both groups, ``(layer, head, query group, key group)``; NaN where none has."""

    weight: np.ndarray  # mean weights of heads
    equal: np.ndarray  # means of equal weights, the same for all heads of a layer
    places: np.ndarray  # by the places of each head alone

    @classmethod
    def of(cls, results: xr.Dataset) -> MeanGroupWeights:
        """Those of a scan with groups."""
        order = ("window", "layer", "head", "group_query", "group_key")
        weight, places = (
            _mean(results[name].transpose(*order).values) for name in ("group_weight", "place_group_weight")
        )
        equal = _mean(results.equal_group_weight.transpose(*(name for name in order if name != "head")).values)
        return cls(weight, np.where(np.isnan(weight), np.nan, equal[:, None]), places)

    @property
    def present(self) -> np.ndarray:
        """Numbers of the groups that some text has."""
        known = np.isfinite(self.weight).any((0, 1))
        return np.flatnonzero(known.any(0) | known.any(-1))

    @property
    def above(self) -> np.ndarray:
        """Weight less the larger of what equal weights and the head's places give."""
        return self.weight - np.maximum(self.equal, self.places)


def group_pairs(results: xr.Dataset) -> list[Row]:
    """For each pair of groups the head furthest above uniform attention and its positions; the furthest first.

    Means are over the windows (in a scan of pools: pools) that have both groups. The interval is of `above`, the weight
    less the larger of both nulls, by the bootstrap over what `over` names; NaN with fewer than 6. `beyond_chance`: it
    is 0.01 or more, and more than chance: were no head in any pair, one would be found in at most 5% of results.
    """
    means = MeanGroupWeights.of(results)
    significant = _beyond_chance(results, means, units_in(results)[0])
    pairs: list[Row] = []
    for i, query in enumerate(results.group_query.values):
        for j, key in enumerate(results.group_key.values):
            own = means.above[:, :, i, j]
            if not np.isfinite(own).any():
                continue
            layer, head = (int(index) for index in np.unravel_index(np.nanargmax(own), own.shape))
            weight, equal, places = (
                float(part[layer, head, i, j]) for part in (means.weight, means.equal, means.places)
            )
            null = "equal_group_weight" if equal >= places else "place_group_weight"
            at = {"layer": layer, "head": head, "group_query": i, "group_key": j}
            each = (results.group_weight - results[null]).isel(at).values
            there = np.isfinite(each)
            drawn, called = units_in(results, there)
            interval = by_document(each[there], drawn)
            pairs.append(
                {
                    "query": str(query),
                    "key": str(key),
                    "layer": int(results.layer[layer]),
                    "head": int(results["head"][head]),
                    "attention": str(results.layer_kind.values[layer]),
                    "weight": weight,
                    "equal": equal,
                    "places": places,
                    "low": float(interval.low),
                    "high": float(interval.high),
                    "windows": int(there.sum()),
                    "over": f"{len(set(drawn))} {called}",
                    "beyond_chance": None if significant is None else bool(significant[layer, head, i, j]),
                    "above": weight - max(equal, places),
                }
            )
    return sorted(pairs, key=lambda pair: -pair["above"])


def said_of(pairs: Sequence[Row]) -> str:
    """In how many pairs some head is above both nulls, as far as that is known."""
    if not pairs:
        return "No pair of groups is there"
    above = [pair for pair in pairs if pair["above"] > 0 and pair["beyond_chance"]]
    if any(pair["beyond_chance"] is None for pair in pairs):
        return f"Pairs of groups beyond chance: not tested, fewer than {FEW} documents"
    if not above:
        return f"In none of {len(pairs)} pairs a head is above both nulls beyond chance"
    return (
        f"In {len(above)} of {len(pairs)} pairs a head is above both nulls beyond chance, by {SMALLEST} or more (were "
        "there nothing, one would be found in at most 5% of such tables)"
    )


def explain_no_interval(pairs: Sequence[Row]) -> str:
    """Why pairs have no interval, with a space behind; nothing where all have one."""
    short = next((pair for pair in pairs if pair["low"] != pair["low"]), None)
    if short is None:
        return ""
    return f"A pair without an interval: fewer than {LEAST} {short['over'].partition(' ')[2]} have both groups. "


def _beyond_chance(results: xr.Dataset, means: MeanGroupWeights, documents: Sequence[Hashable]) -> np.ndarray | None:
    """Which weights are above both nulls beyond chance, ``(layer, head, query group, key group)``; None of too few."""
    names = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    if len(names) < FEW:  # one-sided over many means: skewed values of fewer would often be found
        return None
    member = np.zeros((len(names), len(documents)))
    member[[names[name] for name in documents], np.arange(len(documents))] = 1
    significant = above_zero((member @ above for above in _above(results, means)), len(names))
    return np.stack(significant).reshape(means.weight.shape) & (means.above >= SMALLEST)


def _above(results: xr.Dataset, means: MeanGroupWeights) -> Iterator[np.ndarray]:
    """By how much each weight of each layer is above the larger null, ``(text, head and pair)``."""
    order = ("window", "head", "group_query", "group_key")
    for layer in range(results.sizes["layer"]):
        part = results.isel(layer=layer)
        weight, places = (part[name].transpose(*order).values for name in ("group_weight", "place_group_weight"))
        equal = part.equal_group_weight.transpose("window", "group_query", "group_key").values[:, None]
        above = weight - np.where(means.equal[layer] >= means.places[layer], equal, places)
        yield np.nan_to_num(above).reshape(len(above), -1)  # a text without a group tells nothing


def _mean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)
