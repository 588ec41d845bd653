"""Heads that attend from one group of tokens to another, next to uniform attention and positions alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.measure.means import text_mean
from attnscope.report.schema import Row
from attnscope.statistics.effects import by_document
from attnscope.statistics.intervals import FEW
from attnscope.statistics.tests import above_zero
from attnscope.statistics.units import LEAST, membership, units_in

SMALLEST = 0.01  # smallest share of weight above the larger null that counts
#: Caution for readers of the pairs.
GROUP_PAIRS_CAUTION = (
    "Positions: a head with the same weight at each offset of the band, in each bin beyond it and on the first token. "
    "Weight above it may be due to the group, to single tokens, or to other positions (beyond the band, or the end of "
    "a text). Heads of untrained models prefer groups too."
)
NULLS = f"Uniform: uniform attention over the visible tokens. {GROUP_PAIRS_CAUTION}"


@dataclass(frozen=True, eq=False)
class MeanGroupWeights:
    """Means over the windows with both groups, ``(layer, head, query group, key group)``; NaN without any."""

    weight: np.ndarray  # mean weights of heads
    equal: np.ndarray  # means of uniform attention, the same for all heads of a layer
    positions: np.ndarray  # means by the positions of each head alone

    @classmethod
    def of(cls, results: xr.Dataset) -> MeanGroupWeights:
        """Means of a scan with groups."""
        order = ("window", "layer", ..., "group_query", "group_key")
        names = ("group_weight", "equal_group_weight", "position_group_weight")
        weight, equal, positions = (text_mean(results[name].transpose(*order)).values for name in names)
        return cls(weight, np.where(np.isnan(weight), np.nan, equal[:, None]), positions)

    @property
    def present(self) -> np.ndarray:
        """Numbers of the groups that occur."""
        measured = np.isfinite(self.weight).any((0, 1))
        return np.flatnonzero(measured.any(0) | measured.any(-1))

    @property
    def above(self) -> np.ndarray:
        """Weight minus the larger of uniform attention and the head's positions."""
        return self.weight - np.maximum(self.equal, self.positions)


def group_pairs(results: xr.Dataset) -> list[Row]:
    """For each pair of groups, the head furthest above uniform attention and its positions; the furthest first.

    Means are over the windows (in a scan of pools: pools) with both groups. The bootstrap interval is that of `above`,
    the weight minus the larger of both nulls, over the units in `over`; NaN with fewer than 6. `beyond_chance`: `above`
    is at least 0.01 and significant, corrected for all heads and pairs.
    """
    means = MeanGroupWeights.of(results)
    significant = _beyond_chance(results, means, units_in(results)[0])
    pairs: list[Row] = []
    for i, query in enumerate(results.group_query.values):
        for j, key in enumerate(results.group_key.values):
            above = means.above[:, :, i, j]
            if not np.isfinite(above).any():
                continue
            layer, head = (int(index) for index in np.unravel_index(np.nanargmax(above), above.shape))
            weight, equal, positions = (
                float(part[layer, head, i, j]) for part in (means.weight, means.equal, means.positions)
            )
            null = "equal_group_weight" if equal >= positions else "position_group_weight"
            at = {"layer": layer, "head": head, "group_query": i, "group_key": j}
            each = (results.group_weight - results[null]).isel(at).values
            measured = np.isfinite(each)
            drawn, called = units_in(results, measured)
            interval = by_document(each[measured], drawn)
            pairs.append(
                {
                    "query": str(query),
                    "key": str(key),
                    "layer": int(results.layer[layer]),
                    "head": int(results["head"][head]),
                    "attention": str(results.layer_kind.values[layer]),
                    "weight": weight,
                    "equal": equal,
                    "positions": positions,
                    "low": float(interval.low),
                    "high": float(interval.high),
                    "windows": int(measured.sum()),
                    "over": f"{len(set(drawn))} {called}",
                    "beyond_chance": None if significant is None else bool(significant[layer, head, i, j]),
                    "above": weight - max(equal, positions),
                }
            )
    return sorted(pairs, key=lambda pair: -pair["above"])


def describe_group_pairs(pairs: Sequence[Row]) -> str:
    """In how many pairs some head is significantly above both nulls."""
    if not pairs:
        return "The texts have no pair of groups"
    if any(pair["beyond_chance"] is None for pair in pairs):
        return f"Pairs of groups are not tested: tests need {FEW} or more documents"
    above = [pair for pair in pairs if pair["above"] > 0 and pair["beyond_chance"]]
    return (
        f"In {len(above)} of {len(pairs)} pairs of groups, a head is above both nulls by at least {SMALLEST} "
        "(p < 0.05, corrected for all heads and pairs)"
    )


def explain_no_interval(pairs: Sequence[Row]) -> str:
    """Why pairs have no interval, with a trailing space; empty if all have one."""
    short = next((pair for pair in pairs if pair["low"] != pair["low"]), None)
    if short is None:
        return ""
    return f"Pairs without an interval occur in fewer than {LEAST} {short['over'].partition(' ')[2]}. "


def _beyond_chance(results: xr.Dataset, means: MeanGroupWeights, documents: Sequence[Hashable]) -> np.ndarray | None:
    """Weights significantly above both nulls, ``(layer, head, query group, key group)``; None without a test."""
    member = membership(documents)
    if len(member) < FEW:  # one-sided tests of skewed values have false positives with fewer
        return None
    significant = above_zero((member @ above for above in _above(results, means)), len(member))
    return np.stack(significant).reshape(means.weight.shape) & (means.above >= SMALLEST)


def _above(results: xr.Dataset, means: MeanGroupWeights) -> Iterator[np.ndarray]:
    """Distance of each weight of each layer above the larger null, ``(text, head and pair)``."""
    order = ("window", "head", "group_query", "group_key")
    for layer in range(results.sizes["layer"]):
        part = results.isel(layer=layer)
        weight, positions = (part[name].transpose(*order).values for name in ("group_weight", "position_group_weight"))
        equal = part.equal_group_weight.transpose("window", "group_query", "group_key").values[:, None]
        above = weight - np.where(means.equal[layer] >= means.positions[layer], equal, positions)
        yield np.nan_to_num(above).reshape(len(above), -1)  # a text without a group does not count
