"""Which head looks most from each group of tokens to each other, beside equal weights and its places alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnscope.faithfulness.arrays import by_document, units_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import xarray as xr

#: What a reader of the pairs has to know.
CAUTION = (
    "Places: a head with the same weight at each offset and on the first token, whatever stands there. What is above "
    "them is no matter of place, but may be one of single tokens rather than of the group."
)


@dataclass(frozen=True)
class GroupPair:
    """The head that looks most from the tokens of one group to those of another.

    Attributes
    ----------
    query, key
        The groups.
    layer, head, attention
        The head, and the kind of attention of its layer.
    weight, equal, places
        Its weight, that of equal weights and that by its places alone; means over the windows that have both groups.
    low, high
        95% interval of `above`, by the bootstrap over documents; NaN with fewer than 6 windows. It is of this head by
        itself, which is the largest of many.
    windows, over
        How many windows have both groups, and what the interval is over.
    """

    query: str
    key: str
    layer: int
    head: int
    attention: str
    weight: float
    equal: float
    places: float
    low: float
    high: float
    windows: int
    over: str

    @property
    def above(self) -> float:
        """Weight less the larger of what equal weights and its places give."""
        return self.weight - max(self.equal, self.places)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        found = asdict(self) | {"above": self.above}
        return {key: None if value != value else value for key, value in found.items()}  # noqa: PLR0124


@dataclass(frozen=True, eq=False)
class MeanGroupWeights:
    """Means over the windows that have both groups, ``(layer, head, query group, key group)``; NaN where none has.

    Attributes
    ----------
    weight
        Of heads.
    equal
        Of equal weights, the same for all heads of a layer.
    places
        By the places of each head alone.
    """

    weight: np.ndarray
    equal: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, results: xr.Dataset) -> MeanGroupWeights:
        """Those of a scan with groups."""
        order = ("text", "layer", "head", "group_query", "group_key")
        weight, places = (
            _mean(results[name].transpose(*order).values) for name in ("group_weight", "place_group_weight")
        )
        equal = _mean(
            results.equal_group_weight.transpose(*(name for name in order if name != "head")).values
        )
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


def group_pairs(results: xr.Dataset) -> list[GroupPair]:
    """For each pair of groups the head whose weight is furthest above equal weights and its places; the furthest first.

    Parameters
    ----------
    results
        A scan with groups.

    Examples
    --------
    >>> import attnscope
    >>> found = attnscope.scan(limit=8, groups="kinds", statistics="entropy")
    >>> marks = next(pair for pair in group_pairs(found) if (pair.query, pair.key) == ("word start", "special"))
    >>> (marks.layer, marks.head), marks.weight > 10 * marks.equal
    ((1, 1), True)
    """
    means = MeanGroupWeights.of(results)
    sources: Sequence[Hashable] = (
        cast("Sequence[Hashable]", results.source.values.tolist())
        if "source" in results.coords
        else range(results.sizes["text"])
    )
    found: list[GroupPair] = []
    for i, query in enumerate(results.group_query.values):
        for j, key in enumerate(results.group_key.values):
            own = means.above[:, :, i, j]
            if not np.isfinite(own).any():
                continue
            layer, head = (int(place) for place in np.unravel_index(np.nanargmax(own), own.shape))
            weight, equal, places = (
                float(one[layer, head, i, j]) for one in (means.weight, means.equal, means.places)
            )
            null = "equal_group_weight" if equal >= places else "place_group_weight"
            at = {"layer": layer, "head": head, "group_query": i, "group_key": j}
            each = (results.group_weight - results[null]).isel(at).values
            there = np.isfinite(each)
            drawn, called = units_of([source for source, known in zip(sources, there, strict=True) if known])
            interval = by_document(each[there], drawn)
            found.append(
                GroupPair(
                    str(query),
                    str(key),
                    int(results.layer[layer]),
                    int(results["head"][head]),
                    str(results.layer_kind.values[layer]),
                    weight,
                    equal,
                    places,
                    float(interval.low),
                    float(interval.high),
                    int(there.sum()),
                    f"{len(set(drawn))} {called}",
                )
            )
    return sorted(found, key=lambda pair: -pair.above)


def _mean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)
