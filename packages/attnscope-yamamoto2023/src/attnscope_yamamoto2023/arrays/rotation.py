"""The rotation from a head's queries to its keys, completed to a square matrix.

See mathematics.md, Phase map.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Complex, Float
from scipy.linalg import schur

from attnscope.explanation.arrays.checks import weights_of
from attnscope.explanation.arrays.decomposition import Decomposition, reparametrize
from attnscope.support.checks import agree, shortly
from attnscope.support.errors import AttnscopeError

_SAME_COSINE = 1e-8  # closer ones may have mixed in rounding

Completion = Literal["minimal", "lapack", "haar", "thin"]
COMPLETIONS: tuple[Completion, ...] = ("minimal", "lapack", "haar", "thin")


def check_completion(completion: object) -> Completion:
    """Reject an unknown kind of completion."""
    for one in COMPLETIONS:
        if completion == one:
            return one
    raise AttnscopeError(f"completion is {shortly(completion)}; expected one of {', '.join(COMPLETIONS)}")


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
    check_completion(completion)
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
