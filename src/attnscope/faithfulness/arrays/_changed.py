"""Weights put in the place of a head's own: mixed up, equal, or with some erased."""

import numpy as np
from jaxtyping import Bool, Float

from attnscope.array_checks import agree, finite
from attnscope.checks import check_real
from attnscope.faithfulness.arrays._checks import non_negative, visible_keys


def permuted_weights(
    weights: Float[np.ndarray, "query key"],
    generator: np.random.Generator,
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
) -> Float[np.ndarray, "query key"]:
    """Let the weights of each row change places, each row by itself, among the keys that it may look at.

    Parameters
    ----------
    weights
        A of one head.
    generator
        Where random numbers come from.
    allowed
        The mask, True where a query may look; by default everywhere.

    Raises
    ------
    AttnscopeError
        If a weight is negative, not finite, or on a key that the mask hides.

    References
    ----------
    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.

    Examples
    --------
    >>> causal = np.tril(np.ones((3, 3), dtype=bool))
    >>> weights = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0.7, 0.2, 0.1]])
    >>> shuffled = permuted_weights(weights, np.random.default_rng(0), causal)
    >>> bool((np.sort(shuffled) == np.sort(weights)).all()), bool(shuffled[~causal].any())
    (True, False)
    """
    weights = non_negative("weights", weights)
    allowed = visible_keys(weights, allowed)
    places = np.argsort(~allowed, axis=1, kind="stable")  # the keys of a row that count come first
    order = np.argsort(np.where(allowed, generator.random(weights.shape), 2.0), axis=1)
    shuffled = np.empty_like(weights)
    np.put_along_axis(shuffled, places, np.take_along_axis(weights, order, 1), 1)
    return shuffled


def uniform_weights(
    weights: Float[np.ndarray, "query key"], allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None
) -> Float[np.ndarray, "query key"]:
    """Give each row equal weights, as much in all as it had.

    Parameters
    ----------
    weights, allowed
        See `permuted_weights`.

    Raises
    ------
    AttnscopeError
        See `permuted_weights`.

    References
    ----------
    Wiegreffe and Pinter (2019), Attention is not not Explanation, EMNLP 2019, section 3.2.

    Examples
    --------
    >>> uniform_weights(np.array([[1.0, 0.0], [0.9, 0.1]]), np.array([[True, False], [True, True]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    weights = non_negative("weights", weights)
    allowed = visible_keys(weights, allowed)
    count = np.maximum(allowed.sum(1, keepdims=True), 1)
    return np.where(allowed, weights.sum(1, keepdims=True) / count, 0.0)


def erased_weights(
    weights: Float[np.ndarray, "query key"],
    importance: Float[np.ndarray, "other_query other_key"],
    fraction: float,
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
) -> Float[np.ndarray, "query key"]:
    r"""Erase the most important keys of each row, and let the others have its weight.

    Erasing key j alone moves the row's output by :math:`\alpha_j/(1-\alpha_j)\,(o - v_j)`.

    Parameters
    ----------
    weights, allowed
        See `permuted_weights`.
    importance
        By which keys are erased, the largest first.
    fraction
        Share of the keys that a row may look at; rounded up to whole keys. Where all are erased, or all that is left
        has no weight, the row is zero.

    Raises
    ------
    AttnscopeError
        See `permuted_weights`; or if `fraction` is not between 0 and 1, or an importance is NaN.

    References
    ----------
    Serrano and Smith (2019), Is Attention Interpretable?, ACL 2019, section 4.

    Examples
    --------
    >>> weights = np.array([[0.5, 0.25, 0.25]])
    >>> erased_weights(weights, weights, 1 / 3).tolist()
    [[0.0, 0.5, 0.5]]
    """
    check_real(0.0, 1.0, fraction=fraction)
    weights, importance = non_negative("weights", weights), finite("importance", importance)
    allowed = visible_keys(weights, allowed)
    for axis, what in enumerate(("queries", "keys")):
        agree(what, "weights", weights.shape[axis], "importance", importance.shape[axis])
    rank = np.argsort(np.argsort(np.where(allowed, -importance, np.inf), axis=1, kind="stable"), axis=1)
    count = np.ceil(fraction * allowed.sum(1, keepdims=True) - 1e-9)  # 0.1 of 10 keys is 1, not 2
    left = np.where(rank < count, 0.0, weights)
    remaining = left.sum(1, keepdims=True)
    return left * np.where(
        remaining > 0, weights.sum(1, keepdims=True) / np.where(remaining > 0, remaining, 1), 0
    )
