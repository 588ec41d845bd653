"""Weights put in the place of a head's own: mixed up, equal, or with some erased."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import rel_entr

from attnscope.support.checks import agree, check_real, finite
from attnscope.support.errors import AttnscopeError


def permuted_weights(
    weights: Float[np.ndarray, "query key"],
    generator: np.random.Generator,
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
) -> Float[np.ndarray, "query key"]:
    """Let the weights of each row change places, each row by itself, among the keys that it may look at.

    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.
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

    Serrano and Smith (2019), Is Attention Interpretable?, ACL 2019, section 4.
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
    return left * np.where(remaining > 0, weights.sum(1, keepdims=True) / np.where(remaining > 0, remaining, 1), 0)


_SAME_SUM = 1e-4  # of two rows of weights in single precision


def non_negative(name: str, array: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """The same, of numbers of which none may be below 0."""
    values = finite(name, array)
    if values.size and values.min() < 0:
        raise AttnscopeError(
            f"{name} has an entry of {values.min():.3g}; expected none below 0: give them after the softmax"
        )
    return values


def same_sums(first: Float[np.ndarray, "*batch outcome"], other: Float[np.ndarray, "*others"]) -> None:
    """Raise unless rows that are to be compared hold as much weight."""
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
    """Which keys each query may look at, all where nothing is said; no weight may lie on another."""
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


def total_variation(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch other_outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Total variation distance, :math:`\mathrm{TVD} = \tfrac12\sum_j |p_j - q_j|`."""
    p, q = _pair(p, q)
    return np.asarray(np.abs(p - q).sum(-1) / 2)


def jensen_shannon(
    p: Float[np.ndarray, "*batch outcome"], q: Float[np.ndarray, "*batch other_outcome"]
) -> Float[np.ndarray, "*batch"]:
    r"""Jensen-Shannon divergence, :math:`\tfrac12\mathrm{KL}(p\|m) + \tfrac12\mathrm{KL}(q\|m)`, m half of the sum.

    With distributions, :math:`0 \le \mathrm{JSD} \le \ln 2` and
    :math:`\mathrm{TVD}^2/2 \le \mathrm{JSD} \le \mathrm{TVD}\,\ln 2`.

    Lin (1991), Divergence measures based on the Shannon entropy, IEEE Transactions on Information Theory 37.
    """
    p, q = _pair(p, q)
    middle = (p + q) / 2
    divergence = (rel_entr(p, middle).sum(-1) + rel_entr(q, middle).sum(-1)) / 2
    return np.asarray(np.maximum(divergence, 0.0))


def _pair(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, q = non_negative("the first distribution", p), non_negative("the second distribution", q)
    agree("outcomes", "the first distribution", p.shape[-1], "the second distribution", q.shape[-1])
    same_sums(p, q)
    return p, q


def norm_weights(
    weights: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "value_key value_r"],
    output: Float[np.ndarray, "r width"],
) -> Float[np.ndarray, "query key"]:
    r"""Size of what each key adds to each query through one head: :math:`\lVert\alpha_{ij} f(x_j)\rVert`.

    :math:`f(x) = (x W_V + b_V) W_O`; over all keys and heads the vectors and b_O sum to the layer's output.

    Kobayashi, Kuribayashi, Yokoi and Inui (2020), Attention is Not Only a Weight: Analyzing Transformers with Vector
    Norms, EMNLP 2020, equation 3.
    """
    weights = non_negative("weights", weights)
    values, output = finite("values", values), finite("W_O", output)
    agree("keys", "weights", weights.shape[1], "values", len(values))
    agree("columns", "values", values.shape[1], "rows of W_O", len(output))
    return weights * np.linalg.norm(values @ output, axis=1)
