"""A head's scores in columns that mean something: the decomposition of W_Q W_K^T.

See docs/mathematics.md, Queries and keys as waves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnscope._arguments import typed
from attnscope.array_checks import agree, shaped
from attnscope.errors import AttnscopeError
from attnscope.mechanism.arrays._checks import weights_of

NEAR = 1e-3  # relative gap below which two singular values define only a joint subspace


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""``W_Q W_K^T = query diag(values) key^T``, with orthonormal columns on both sides.

    Attributes
    ----------
    query, key
        U_Q and U_K, shapes (width, column).
    values
        Singular values s, falling, without the scale :math:`1/\sqrt{r}` of the scores, shape (column,).
    group
        Columns of one number have singular values closer than a thousandth to the next: only the space they
        span together is defined, shape (column,).
    dropped
        Columns left out because their singular value is rounding noise.

    Examples
    --------
    >>> modes = reparametrize(np.eye(4)[:, :3], np.eye(4)[:, :3] * [3.0, 2.0, 0.0])
    >>> modes.values.tolist(), modes.dropped
    ([3.0, 2.0], 1)
    """

    query: Float[np.ndarray, "width column"]
    values: Float[np.ndarray, " column"]
    key: Float[np.ndarray, "key_width column"]
    group: Int[np.ndarray, " column"]
    dropped: int


@typed
def reparametrize(
    query_weight: Float[np.ndarray, "width r"], key_weight: Float[np.ndarray, "key_width key_r"]
) -> Decomposition:
    r"""Decompose a head's :math:`W_A = W_Q W_K^T = U_Q S U_K^T` in O(width r²).

    The scores ``X W_A X^T`` are then :math:`\sum_j s_j q_j k_j^T` with ``q = X U_Q`` and ``k = X U_K``. Only
    W_A matters to a head: ``(W_Q G, W_K G^-T)`` gives the same decomposition, while the raw columns of ``X
    W_Q`` are arbitrary. The largest entry of each column of U_Q is positive.

    Parameters
    ----------
    query_weight, key_weight
        W_Q and W_K of one head, shapes (width, r), so that ``Q = X W_Q``. With biases: see `affine`.

    Returns
    -------
    Decomposition
        At most r columns; those with ``s <= width eps s_1`` are left out. A head of zeros has no column.

    Raises
    ------
    AttnscopeError
        If the weights have different numbers of columns or entries are not finite.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.3; EMNLP 2023, section 4.2, equations 13 and 14.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> query, key, mix = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), rng.normal(size=(4, 4))
    >>> modes, again = reparametrize(query, key), reparametrize(query @ mix, key @ np.linalg.inv(mix).T)
    >>> bool(np.allclose(modes.query, again.query)), bool(np.allclose(modes.values, again.values))
    (True, True)
    """
    query_weight, key_weight = weights_of(query_weight, key_weight)
    agree("columns", "W_Q", query_weight.shape[1], "W_K", key_weight.shape[1])
    if not len(query_weight) or not len(key_weight):
        raise AttnscopeError(
            f"W_Q has {len(query_weight)} rows and W_K {len(key_weight)}; expected at least one in each"
        )
    first, inner = np.linalg.qr(query_weight)
    second, other = np.linalg.qr(key_weight)
    left, values, right = np.linalg.svd(inner @ other.T, full_matrices=False)
    width = max(len(query_weight), len(key_weight))
    kept = int((values > width * np.finfo(float).eps * values[:1]).sum())
    query, key, values = first @ left[:, :kept], second @ right[:kept].T, values[:kept]
    sign = np.sign(query[np.abs(query).argmax(0), np.arange(kept)])
    near = np.diff(values) > -NEAR * values[:-1]
    group = np.concatenate([np.zeros(min(kept, 1), np.int64), np.cumsum(~near)])
    return Decomposition(query * sign, values, key * sign, group, query_weight.shape[1] - kept)


def affine(
    weight: Float[np.ndarray, "width r"], bias: Float[np.ndarray, " bias_r"]
) -> Float[np.ndarray, "affine_width r"]:
    """A weight with its bias below it, for inputs with a 1 at their end: ``[X, 1] [W; b] = X W + b``.

    Everything here then applies to a head with biases, exactly.

    Parameters
    ----------
    weight
        Shape (width, r).
    bias
        Shape (r,).

    Returns
    -------
    numpy.ndarray
        Shape (width + 1, r), float64.

    Raises
    ------
    AttnscopeError
        If the bias has another length or entries are not finite.

    Examples
    --------
    >>> inputs, weight, bias = np.ones((4, 3)), np.eye(3), np.array([1.0, 0.0, -1.0])
    >>> (append_one(inputs) @ affine(weight, bias))[0].tolist()
    [2.0, 1.0, 0.0]
    """
    weight, bias = shaped("the weight", weight, "width, r"), shaped("the bias", bias, "r")
    agree("columns", "the weight", weight.shape[1], "the bias", len(bias))
    return np.vstack([weight, bias])


@typed
def append_one(inputs: Float[np.ndarray, "position width"]) -> Float[np.ndarray, "position affine_width"]:
    """[X, 1]: the inputs that weights from `affine` expect, shape (position, width + 1), float64.

    Raises
    ------
    AttnscopeError
        If the inputs are no table of finite real numbers.

    Examples
    --------
    >>> append_one(np.zeros((2, 1))).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    values = shaped("the inputs", inputs, "position, width")
    return np.hstack([values, np.ones((len(values), 1))])
