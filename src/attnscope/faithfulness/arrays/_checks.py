"""What every function here asks of weights and values before it starts."""

import numpy as np
from jaxtyping import Bool, Float

from attnscope.errors import AttnscopeError

_SAME_SUM = 1e-4  # of two rows of weights in single precision


def finite(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The array in float64, or an error that counts what is not a number.

    Examples
    --------
    >>> finite("values", np.ones(2, np.float32)).dtype
    dtype('float64')
    """
    values = np.asarray(array, dtype=np.float64)
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise AttnscopeError(
            f"{name} has {bad} entries of {values.size} that are NaN or infinite; all must be finite. "
            "Look for an overflow in half precision, and load the model in float32"
        )
    return values


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


def agree(what: str, first: str, size: int, second: str, other: int) -> None:
    """Raise unless two sizes are equal.

    Examples
    --------
    >>> agree("keys", "weights", 8, "values", 8)
    """
    if size != other:
        raise AttnscopeError(
            f"found {size} {what} in {first} and {other} in {second}; they must be equal. "
            "Take both from the same head and text"
        )


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
