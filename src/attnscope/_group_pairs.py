"""Which head looks most from each group of tokens to each other, beside equal weights and its places alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._documents import LEAST, units_in
from attnscope._nulls import with_nulls
from attnscope.faithfulness.arrays import above_zero, by_document

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    import xarray as xr

SMALLEST = 0.01  # of the weight: nothing nearer to the larger null is called beyond chance
#: What a reader of the pairs has to know.
CAUTION = (
    "Places: a head with the same weight at each offset of the band, in each bin beyond it and on the first token, "
    "whatever stands there. What is above them is not a matter of offsets within the band; it may be one of single "
    "tokens or of other places (an offset beyond the band, the end of a text), and not of the group. Heads of "
    "untrained models prefer groups too: it does not say that anything was learned."
)
NULLS = f"Equal: equal weights over what a token may see. {CAUTION}"


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
        How many windows (in a scan of pools: pools) have both groups, and what the interval is over.
    beyond_chance
        Whether it is above both nulls beyond chance, by 0.01 or more: if no head were in any pair, one would be found
        in at most 5% of results (see `group_pairs`). None with fewer than 6 windows, where that is not known.
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
    beyond_chance: bool | None

    @property
    def above(self) -> float:
        """Weight less the larger of what equal weights and its places give."""
        return self.weight - max(self.equal, self.places)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return with_nulls(asdict(self) | {"above": self.above})


@dataclass(frozen=True, eq=False)
class MeanGroupWeights:
    """Means over the windows that have both groups, ``(layer, head, query group, key group)``; NaN where none has.

    Attributes
    ----------
    weight
        Mean weights of heads.
    equal
        Means of equal weights, the same for all heads of a layer.
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

    The largest of many heads is above both in nearly every pair, whatever the groups are. So what is above is held
    against signs at random: were there nothing, a document's part would be as likely to lie below. The largest t of all
    heads and pairs, over 1,000 choices of signs, says what there is by chance (Winkler et al. 2014).

    Parameters
    ----------
    results
        A scan with groups.

    Examples
    --------
    >>> import attnscope
    >>> results = attnscope.scan(limit=8, groups="kinds", statistics="entropy")
    >>> marks = next(pair for pair in group_pairs(results) if (pair.query, pair.key) == ("word start", "special"))
    >>> (marks.layer, marks.head), marks.weight > 10 * marks.equal
    ((1, 1), True)
    """
    means = MeanGroupWeights.of(results)
    told = _beyond_chance(results, means, units_in(results)[0])
    pairs: list[GroupPair] = []
    for i, query in enumerate(results.group_query.values):
        for j, key in enumerate(results.group_key.values):
            own = means.above[:, :, i, j]
            if not np.isfinite(own).any():
                continue
            layer, head = (int(place) for place in np.unravel_index(np.nanargmax(own), own.shape))
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
                    None if told is None else bool(told[layer, head, i, j]),
                )
            )
    return sorted(pairs, key=lambda pair: -pair.above)


def said_of(pairs: Sequence[GroupPair]) -> str:
    """In how many pairs some head is above both nulls, as far as that is known.

    Examples
    --------
    >>> said_of([])
    'No pair of groups is there'
    """
    if not pairs:
        return "No pair of groups is there"
    told = [pair for pair in pairs if pair.above > 0 and pair.beyond_chance]
    if any(pair.beyond_chance is None for pair in pairs):
        return (
            f"With fewer than {LEAST} windows chance is not known, which alone puts some head above both nulls in most "
            "pairs"
        )
    if not told:
        return f"In none of {len(pairs)} pairs a head is above both nulls beyond chance"
    return (
        f"In {len(told)} of {len(pairs)} pairs a head is above both nulls beyond chance, by {SMALLEST} or more (were "
        "there nothing, one would be found in at most 5% of such tables)"
    )


def no_interval_said(pairs: Sequence[GroupPair]) -> str:
    """Why pairs have no interval, with a space behind; nothing where all have one.

    Examples
    --------
    >>> no_interval_said([])
    ''
    """
    short = next((pair for pair in pairs if pair.low != pair.low), None)
    if short is None:
        return ""
    return f"A pair without an interval: fewer than {LEAST} {short.over.partition(' ')[2]} have both groups. "


def _beyond_chance(
    results: xr.Dataset, means: MeanGroupWeights, documents: Sequence[Hashable]
) -> np.ndarray | None:
    """Which weights are above both nulls beyond chance, ``(layer, head, query group, key group)``; None of too few."""
    names = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    if len(names) < LEAST:
        return None
    member = np.zeros((len(names), len(documents)))
    member[[names[name] for name in documents], np.arange(len(documents))] = 1
    told = above_zero((member @ above for above in _above(results, means)), len(names))
    return np.stack(told).reshape(means.weight.shape) & (means.above >= SMALLEST)


def _above(results: xr.Dataset, means: MeanGroupWeights) -> Iterator[np.ndarray]:
    """By how much each weight of each layer is above the larger null, ``(text, head and pair)``."""
    order = ("text", "head", "group_query", "group_key")
    for layer in range(results.sizes["layer"]):
        part = results.isel(layer=layer)
        weight, places = (
            part[name].transpose(*order).values for name in ("group_weight", "place_group_weight")
        )
        equal = part.equal_group_weight.transpose("text", "group_query", "group_key").values[:, None]
        above = weight - np.where(means.equal[layer] >= means.places[layer], equal, places)
        yield np.nan_to_num(above).reshape(len(above), -1)  # a text without a group tells nothing


def _mean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(0) / np.maximum(count, 1), np.nan)
