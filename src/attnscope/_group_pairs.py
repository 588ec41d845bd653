"""Which head looks most from each group of tokens to each other, beside equal weights."""

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
    "A head that looks near finds its own group there, and a head that looks at the first token its group: more weight "
    "than equal weights is not yet a preference for the group."
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
    weight, equal
        Its weight and that of equal weights, means over the windows that have both groups.
    low, high
        95% interval of their difference, by the bootstrap over documents; NaN with fewer than 6 windows. It is of this
        head by itself, which is the largest of many.
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
    low: float
    high: float
    windows: int
    over: str

    @property
    def difference(self) -> float:
        """Weight less that of equal weights."""
        return self.weight - self.equal

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        found = asdict(self) | {"difference": self.difference}
        return {key: None if value != value else value for key, value in found.items()}  # noqa: PLR0124


def mean_group_weights(results: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Means over the windows that have both groups: of heads, and of equal weights.

    Returns
    -------
    weight : numpy.ndarray
        ``(layer, head, query group, key group)``; NaN where no window has both.
    equal : numpy.ndarray
        ``(layer, query group, key group)``.
    """
    order = ("text", "layer", "head", "group_query", "group_key")
    equal = results.equal_group_weight.transpose(*(name for name in order if name != "head"))
    return _mean(results.group_weight.transpose(*order).values), _mean(equal.values)


def group_pairs(results: xr.Dataset) -> list[GroupPair]:
    """For each pair of groups the head whose weight is furthest above equal weights; the largest difference first.

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
    weight, equal = mean_group_weights(results)
    difference = weight - equal[:, None]
    sources: Sequence[Hashable] = (
        cast("Sequence[Hashable]", results.source.values.tolist())
        if "source" in results.coords
        else range(results.sizes["text"])
    )
    found: list[GroupPair] = []
    for i, query in enumerate(results.group_query.values):
        for j, key in enumerate(results.group_key.values):
            own = difference[:, :, i, j]
            if not np.isfinite(own).any():
                continue
            layer, head = (int(place) for place in np.unravel_index(np.nanargmax(own), own.shape))
            at = {"layer": layer, "group_query": i, "group_key": j}
            each = (results.group_weight.isel(head=head, **at) - results.equal_group_weight.isel(at)).values
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
                    float(weight[layer, head, i, j]),
                    float(equal[layer, i, j]),
                    float(interval.low),
                    float(interval.high),
                    int(there.sum()),
                    f"{len(set(drawn))} {called}",
                )
            )
    return sorted(found, key=lambda pair: -pair.difference)


def _mean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)
