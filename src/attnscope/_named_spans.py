"""How much heads look at each span of a text while it is written, beside what size and place alone give."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nulls import with_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr


_ROUNDING = 1e-5  # of weights that a model gives in 32 bits


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
        The head whose weight is furthest above the larger of the other two; None where none is above, as where all
        keys are of the span.
    most, most_equal, most_places
        Weights of that head, in the order of `weight, equal, places`.

    Where keys are of another text, what places give is not known, and is NaN; so are the weights of no head.
    """

    span: str
    weight: float
    equal: float
    places: float
    layer: int | None
    head: int | None
    most: float
    most_equal: float
    most_places: float

    @property
    def named(self) -> str:
        """The head as tables have it, ``layer.head``; a dash where there is none."""
        return "–" if self.head is None else f"{self.layer}.{self.head}"

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
        is_above = bool(above[layer, head] > _ROUNDING)
        most, most_equal, most_places = (
            float(value[number, layer, head]) if is_above else float("nan")
            for value in (weight, equal, places)
        )
        rows.append(
            SpanUse(
                span=str(span),
                weight=mean,
                equal=mean_equal,
                places=mean_places,
                layer=int(results.layer[layer]) if is_above else None,
                head=int(results["head"][head]) if is_above else None,
                most=most,
                most_equal=most_equal,
                most_places=most_places,
            )
        )
    return rows


def dashes_said(uses: Sequence[SpanUse]) -> str:
    """Why a table of spans has no number in some places; nothing where it has all.

    Examples
    --------
    >>> nan = float("nan")
    >>> dashes_said([SpanUse("source", 1.0, 1.0, nan, None, None, nan, nan, nan)])
    'All keys are of the span: source. Keys of another text have no places: source.'
    """
    none = [use for use in uses if use.head is None]
    whole = ", ".join(use.span for use in none if use.equal >= 1 - _ROUNDING)
    below = ", ".join(use.span for use in none if use.equal < 1 - _ROUNDING)
    placeless = ", ".join(use.span for use in uses if use.places != use.places)
    said = [f"All keys are of the span: {whole}."] if whole else []
    said += [f"No head is above the larger of equal weights and its places: {below}."] if below else []
    said += [f"Keys of another text have no places: {placeless}."] if placeless else []
    return " ".join(said)
