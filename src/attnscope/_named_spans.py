"""How much heads look at each span of a text while it is written, beside what size and place alone give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nulls import with_nulls

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class SpanUse:
    """A span, the mean weight on it, and the head that looks most at it.

    Attributes
    ----------
    span
        Its name.
    weight, equal, places
        Mean weight on it over all heads, that of equal weights, and that by the places of each head alone; means over
        new tokens and texts.
    layer, head
        The head whose weight is furthest above the larger of the other two.
    most, most_equal, most_places
        Weights of that head, in the order of `weight, equal, places`.

    Where keys are of another text, what places give is not known, and is NaN.
    """

    span: str
    weight: float
    equal: float
    places: float
    layer: int
    head: int
    most: float
    most_equal: float
    most_places: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return with_nulls(asdict(self))


def span_uses(results: xr.Dataset) -> list[SpanUse]:
    """Each span that some text has, in its order.

    Parameters
    ----------
    results
        From `attnscope.generate`, or from `attnscope.watch` around ``generate()``.

    Examples
    --------
    >>> import xarray as xr
    >>> dims, weights = ("sequence", "step", "layer", "head", "span"), np.array([0.2, 0.6]).reshape(1, 1, 1, 2, 1)
    >>> results = xr.Dataset(
    ...     {
    ...         "span_weight": (dims, weights),
    ...         "place_span_weight": (dims, weights / 2),
    ...         "equal_span_weight": ([name for name in dims if name != "head"], np.full((1, 1, 1, 1), 0.25)),
    ...     },
    ...     {"span": ["question"], "layer": [0], "head": [0, 1]},
    ... )
    >>> [use] = span_uses(results)
    >>> round(use.weight, 3), use.head, use.most, round(use.most_places, 3)
    (0.4, 1, 0.6, 0.3)
    """
    over = ("sequence", "step")
    weight, places = (
        results[name].mean(over).transpose("span", "layer", "head").values
        for name in ("span_weight", "place_span_weight")
    )
    equal = results.equal_span_weight.mean(over).transpose("span", "layer").values[..., None]
    equal = np.where(np.isnan(weight), np.nan, equal)
    rows: list[SpanUse] = []
    for number, span in enumerate(results.span.values):
        if np.isnan(weight[number]).all():
            continue
        above = weight[number] - np.fmax(equal[number], places[number])
        layer, head = (int(place) for place in np.unravel_index(np.nanargmax(above), above.shape))
        known = ~np.isnan(weight[number])
        mean, mean_equal, mean_places = (
            float(value[number][known].mean()) for value in (weight, equal, places)
        )
        most, most_equal, most_places = (
            float(value[number, layer, head]) for value in (weight, equal, places)
        )
        rows.append(
            SpanUse(
                span=str(span),
                weight=mean,
                equal=mean_equal,
                places=mean_places,
                layer=int(results.layer[layer]),
                head=int(results["head"][head]),
                most=most,
                most_equal=most_equal,
                most_places=most_places,
            )
        )
    return rows
