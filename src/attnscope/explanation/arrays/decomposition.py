"""A head's scores in unique columns: the decomposition of W_Q W_K^T.

See mathematics.md, Queries and keys as waves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Complex, Float, Int
from scipy.linalg import schur

from attnscope.explanation.arrays.checks import choose, weights_of
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


_SAME_COSINE = 1e-8  # closer ones may have mixed in rounding

Completion = Literal["minimal", "lapack", "haar", "thin"]
COMPLETIONS: tuple[Completion, ...] = ("minimal", "lapack", "haar", "thin")


@dataclass(frozen=True, eq=False)
class RotationPlanes:
    r"""Eigenvectors of ``U_K U_Q^T``, which has the eigenvalues of ``R = U_Q^T U_K``."""

    angles: Float[np.ndarray, " vector"]  # angle of each eigenvalue in (-pi, pi], radians, shape (vector,)
    # size of each eigenvalue; 1 unless the completion is ``thin``, shape (vector,)
    moduli: Float[np.ndarray, " vector"]
    # w, orthonormal unless the completion is ``thin``, shape (width, vector)
    vectors: Complex[np.ndarray, "width vector"]
    parked: int  # dimensions orthogonal to all vectors, in which the completion does nothing (eigenvalue 1)
    completion: Completion  # how U_Q and U_K were completed to square matrices
    # smallest singular value of the r x r block ``U_Q^T U_K`` that the head determines, the cosine of the largest
    # angle between its query and key spaces
    least_cosine: float


def head_rotation(
    query_weight: Float[np.ndarray, "width r"],
    key_weight: Float[np.ndarray, "key_width key_r"],
    *,
    completion: Completion = "minimal",
    seed: int = 0,
) -> RotationPlanes:
    r"""Eigenvalues and eigenvectors of a completed rotation ``R = U_Q^T U_K``, so that ``U_K = U_Q R``."""
    choose("completion", completion, COMPLETIONS)
    query_weight, key_weight = weights_of(query_weight, key_weight)
    agree("rows", "W_Q", len(query_weight), "W_K", len(key_weight))
    parts = reparametrize(query_weight, key_weight)
    inner = parts.query.T @ parts.key
    cosines = np.linalg.svd(inner, compute_uv=False)
    least = float(cosines[-1]) if cosines.size else 1.0
    width = len(parts.query)
    if completion == "thin":
        values, vectors = np.linalg.eig(inner)
        return _rotation(values, parts.query @ vectors, width - len(values), completion, least)
    if completion == "minimal":
        left, values, _ = np.linalg.svd(np.hstack([parts.query, parts.key]), full_matrices=False)
        space = left[:, values > width * np.finfo(float).eps]  # span[U, V], of at most 2r dimensions
        query, key = space.T @ parts.query, space.T @ parts.key
        query_rest, key_rest = _complement(query), _complement(key)
        left, _, right = np.linalg.svd(key_rest.T @ query_rest)
        turn = key @ query.T + key_rest @ (left @ right) @ query_rest.T  # V U^T + V_2 O U_2^T, O the polar factor
    elif completion == "lapack":
        left, _, right = np.linalg.svd((parts.query * parts.values) @ parts.key.T)
        space, turn = np.eye(width), (left @ right).T
    else:
        space, turn = np.eye(width), _random(parts, np.random.default_rng(seed))
    # A rotation is normal: its symmetric part has the same invariant spaces, one for each cosine. Within these, a Schur
    # form gives eigenvectors that are orthonormal even where eigenvalues repeat
    cosines, basis = np.linalg.eigh((turn + turn.T) / 2)
    values, vectors = np.empty(len(turn), complex), np.empty(turn.shape, complex)
    inside = basis.T @ turn @ basis
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(cosines) > _SAME_COSINE) + 1).tolist(), len(turn)]):
        part = slice(first, last)
        triangle, turned = schur(inside[part, part], output="complex")[:2] if last > first else (turn, turn)
        values[part], vectors[:, part] = np.diag(triangle), basis[:, part] @ turned
    return _rotation(values, space @ vectors, width - len(turn), completion, least)


def _rotation(
    values: np.ndarray, vectors: np.ndarray, parked: int, completion: Completion, least: float
) -> RotationPlanes:
    angles = np.angle(values)
    angles = np.where(angles == -np.pi, np.pi, angles)
    return RotationPlanes(angles, np.abs(values), vectors.astype(np.complex128), parked, completion, least)


def _random(parts: Decomposition, rng: np.random.Generator) -> Float[np.ndarray, "width width"]:
    query_rest, key_rest = _complement(parts.query), _complement(parts.key)
    free = query_rest.shape[1]
    return parts.key @ parts.query.T + key_rest @ haar(free, free, rng) @ query_rest.T


def _complement(basis: Float[np.ndarray, "width column"]) -> Float[np.ndarray, "width rest"]:
    whole, _ = np.linalg.qr(basis, mode="complete")
    return whole[:, basis.shape[1] :]


def haar(rows: int, columns: int, rng: np.random.Generator) -> Float[np.ndarray, "rows columns"]:
    """Orthonormal columns drawn uniformly (Haar measure): QR of a normal matrix with R's diagonal positive."""
    basis, triangle = np.linalg.qr(rng.normal(size=(rows, columns)))
    return basis * np.where(np.diag(triangle) < 0, -1.0, 1.0)
