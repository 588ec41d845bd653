"""Checks of input arrays, and labels of results."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from attnscope.support.checks import agree, shaped
from attnscope.support.errors import AttnscopeError

FEWEST = 4  # positions: with fewer there is no frequency between the mean and the fastest alternation
_LOWEST = 3  # frequency of a band by default, where there is one: slower waves count as drift


class NotDefinedError(AttnscopeError):
    """An analysis is not defined for this model."""


Values = np.ndarray | np.generic | float | int | bool
Labelled = tuple[tuple[str, ...], Values, dict[str, str]]


def labelled(dims: str, values: Values, long_name: str, units: str = "1") -> Labelled:
    """A variable of a Dataset: dimensions (separated by spaces), values, long name and unit."""
    return tuple(dims.split()), values, {"long_name": long_name, "units": units}


def over(dims: str, **variables: tuple[Values, str] | tuple[Values, str, str]) -> dict[str, Labelled]:
    """Variables with the same dimensions, by name: values, long name and unit."""
    return {name: labelled(dims, values, *words) for name, (values, *words) in variables.items()}


def frequencies(count: int, length: int) -> dict[str, Labelled]:
    """The coordinate of the lowest frequencies of a text or table."""
    return over("frequency", frequency=(np.arange(count), "frequency", f"cycles per {length} tokens"))


def series(name: str, array: Float[np.ndarray, "position column"]) -> Float[np.ndarray, "position column"]:
    """Columns over positions in float64; an error if they are too short for a frequency."""
    values = shaped(name, array, "position, column")
    if len(values) < FEWEST:
        raise AttnscopeError(
            f"{name} has {len(values)} positions; at least {FEWEST} are needed. Use a longer text or table"
        )
    return values


def head_arrays(
    inputs: Float[np.ndarray, "position width"],
    query_weight: Float[np.ndarray, "query_width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
) -> tuple[Float[np.ndarray, "position width"], Float[np.ndarray, "width r"], Float[np.ndarray, "width key_r"]]:
    """X, W_Q and W_K of a head in float64; an error if their sizes do not fit."""
    values = series("X", inputs)
    query, key = weights_of(query_weight, key_weight)
    agree("columns", "X", values.shape[1], "W_Q (its rows)", len(query))
    agree("columns", "X", values.shape[1], "W_K (its rows)", len(key))
    return values, query, key


def weights_of(
    query_weight: Float[np.ndarray, "query_width r"], key_weight: Float[np.ndarray, "key_width key_r"]
) -> tuple[Float[np.ndarray, "query_width r"], Float[np.ndarray, "key_width key_r"]]:
    """W_Q and W_K in float64."""
    return shaped("W_Q", query_weight, "width, r"), shaped("W_K", key_weight, "width, r")


def check_offsets(offsets: tuple[int, int] | None) -> None:
    """Reject a range of offsets in the wrong order; None means all offsets."""
    if offsets is not None and offsets[0] > offsets[1]:
        raise AttnscopeError(
            f"offsets are {offsets[0]} to {offsets[1]}; expected the lowest and the highest, in tokens"
        )


def in_band(length: int, band: tuple[int, int] | None) -> Bool[np.ndarray, " frequency"]:
    """Mask of the frequencies of ``0..length // 2`` in a band, ends included."""
    highest = (length - 1) // 2
    low, high = band or (_LOWEST if highest >= _LOWEST else 1, highest)
    frequency = np.arange(length // 2 + 1)
    chosen = (frequency >= max(low, 1)) & (frequency <= min(high, highest))
    if not chosen.any():
        raise AttnscopeError(
            f"the band {low} to {high} contains no frequency of a text of {length} tokens: choose two ascending "
            f"numbers from 1 to {highest} cycles per {length} tokens"
        )
    return chosen


def weighted_median(values: Float[np.ndarray, " item"], weights: Float[np.ndarray, " item"]) -> float:
    """The least value at which half of the weight is reached; NaN without weight."""
    if not weights.sum() > 0:
        return float("nan")
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
