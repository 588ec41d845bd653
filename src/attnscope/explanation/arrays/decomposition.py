"""A head's scores in unique columns: the decomposition of W_Q W_K^T.

See mathematics.md, Queries and keys as waves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attnscope.explanation.arrays.checks import weights_of
from attnscope.support.checked import checked
from attnscope.support.checks import agree, shaped
from attnscope.support.errors import AttnscopeError

NEAR = 1e-3  # relative gap below which two singular values define only a joint subspace


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""``W_Q W_K^T = query diag(values) key^T``, with orthonormal columns on both sides."""

    query: Float[np.ndarray, "width column"]  # u_Q and U_K, shapes (width, column)
    # singular values s, falling, without the scale :math:`1/\sqrt{r}` of the scores, shape (column,)
    values: Float[np.ndarray, " column"]
    key: Float[np.ndarray, "key_width column"]  # u_Q and U_K, shapes (width, column)
    # columns of one number have singular values closer than a thousandth to the next: only the space they span
    # together is defined, shape (column,)
    group: Int[np.ndarray, " column"]
    dropped: int  # columns left out because their singular value is rounding noise


@checked
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
        W_Q and W_K of one head, shapes (width, r), so that ``Q = X W_Q``. With biases: see `append_one`.

    Returns
    -------
    Decomposition
        At most r columns; those with ``s <= width eps s_1`` are left out. A head of zeros has no column.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, section 3.3; EMNLP 2023, section 4.2, equations 13 and 14.
    """
    query_weight, key_weight = weights_of(query_weight, key_weight)
    agree("columns", "W_Q", query_weight.shape[1], "W_K", key_weight.shape[1])
    if not len(query_weight) or not len(key_weight):
        raise AttnscopeError(
            f"W_Q has {len(query_weight)} rows and W_K {len(key_weight)}; expected at least one in each"
        )
    first, inner = np.linalg.qr(query_weight)
    second, other = np.linalg.qr(key_weight)
    # W_Q W_K^T = Q1 (R1 R2^T) Q2^T: the singular values are those of the small matrix, r x r
    left, values, right = np.linalg.svd(inner @ other.T, full_matrices=False)
    rank = int((values > max(len(query_weight), len(key_weight)) * np.finfo(float).eps * values[:1]).sum())
    query, key, values = first @ left[:, :rank], second @ right[:rank].T, values[:rank]
    sign = np.sign(query[np.abs(query).argmax(0), np.arange(rank)])
    near = np.diff(values) > -NEAR * values[:-1]
    group = np.concatenate([np.zeros(min(rank, 1), np.int64), np.cumsum(~near)])
    return Decomposition(query * sign, values, key * sign, group, query_weight.shape[1] - rank)


def append_one(inputs: Float[np.ndarray, "position width"]) -> Float[np.ndarray, "position affine_width"]:
    """[X, 1], for weights with their bias in a row below: ``[X, 1] [W; b] = X W + b``."""
    values = shaped("the inputs", inputs, "position, width")
    return np.hstack([values, np.ones((len(values), 1))])
