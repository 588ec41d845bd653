"""What every function here asks of weights and values before it starts."""

import numpy as np
from jaxtyping import Bool, Float

from attnscope.array_checks import agree, finite
from attnscope.errors import AttnscopeError

_SAME_SUM = 1e-4  # of two rows of weights in single precision


def non_negative(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The same, of numbers of which none may be below 0.

    Examples
    --------
    >>> non_negative("weights", np.array([0.5, -0.5]))
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: weights has an entry of -0.5; expected none below 0: give them after the softmax
    """
    values = finite(name, array)
    if values.size and values.min() < 0:
        raise AttnscopeError(
            f"{name} has an entry of {values.min():.3g}; expected none below 0: give them after the softmax"
        )
    return values


def same_sums(first: Float[np.ndarray, "*batch outcome"], other: Float[np.ndarray, "*others"]) -> None:
    """Raise unless rows that are to be compared hold as much weight.

    Examples
    --------
    >>> same_sums(np.array([0.5, 0.5]), np.array([0.5, 0.0]))
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: found rows that sum to 1 and 0.5; distances are of rows with equal sums: ...
    """
    sums = np.broadcast_arrays(first.sum(-1), other.sum(-1))
    apart = np.abs(sums[0] - sums[1]) > _SAME_SUM
    if apart.any():
        here, there = (float(each[apart].flat[0]) for each in sums)
        raise AttnscopeError(
            f"found rows that sum to {here:.4g} and {there:.4g}; distances are of rows with equal sums: "
            "renormalise both"
        )


def visible_keys(
    weights: Float[np.ndarray, "query key"], allowed: Bool[np.ndarray, "mask_query mask_key"] | None
) -> Bool[np.ndarray, "query key"]:
    """Which keys each query may look at, all where nothing is said; no weight may lie on another.

    Examples
    --------
    >>> visible_keys(np.eye(2), np.array([[True, False], [True, False]]))
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: query 1 has a weight of 1 on a key that it may not look at: give the mask of ...
    """
    if allowed is None:
        return np.ones(weights.shape, dtype=bool)
    for axis, what in enumerate(("queries", "keys")):
        agree(what, "weights", weights.shape[axis], "the mask", allowed.shape[axis])
    outside = np.where(allowed, 0.0, weights).max(1, initial=0.0)
    if outside.any():
        query = int(outside.argmax())
        raise AttnscopeError(
            f"query {query} has a weight of {outside[query]:.3g} on a key that it may not look at: give the mask of "
            "these weights"
        )
    return allowed
