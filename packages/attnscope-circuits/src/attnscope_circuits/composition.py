"""Products of weight matrices of heads, next to random matrices with the same singular values."""

from __future__ import annotations

import numpy as np
import scipy.special
import scipy.stats
from jaxtyping import Bool, Complex, Float, Int

_NEAR_0 = 1e-12


def composition_null(
    writer: Float[np.ndarray, "writer r"], reader: Float[np.ndarray, "reader s"], width: int
) -> tuple[float, Float[np.ndarray, "writer reader"], Float[np.ndarray, "writer reader"]]:
    r"""Mean, variance and shape of the squared composition of random matrices with these singular values.

    :math:`c^2 = \sum_{ij} p_i q_j x_{ij}^2` with the shares p and q of the squared singular values, and entries x of a
    random rotation of n = `width` dimensions: :math:`E x^4 = 3 / n(n+2)`, :math:`E x^2 y^2 = 1 / n(n+2)` in one row or
    column, and :math:`(n+1) / (n-1)n(n+2)` otherwise. The shape is the degrees of freedom of a chi-squared
    distribution as skewed as the sum of :math:`p_i q_j z_{ij}^2` with normal z.
    """
    shares = [values**2 / np.maximum((values**2).sum(-1, keepdims=True), _NEAR_0) for values in (writer, reader)]
    rows, columns = (shares[0] ** 2).sum(-1)[:, None], (shares[1] ** 2).sum(-1)
    both, n = rows * columns, width
    others = (1 - rows) * (1 - columns) * (n + 1) / max(n - 1, 1)
    fourth = (3 * both + rows + columns - 2 * both + others) / (n * (n + 2))
    cubes = (shares[0] ** 3).sum(-1)[:, None] * (shares[1] ** 3).sum(-1)
    return 1 / n, np.maximum(fourth - 1 / n**2, 0.0), both**3 / np.maximum(cubes, _NEAR_0**2) ** 2


def root_of(matrix: Float[np.ndarray, "head width r"]) -> Float[np.ndarray, "head r r"]:
    """A square R with ``R^T R = W^T W``: as much of W as norms of products need."""
    values, vectors = np.linalg.eigh(matrix.swapaxes(1, 2) @ matrix)
    return np.sqrt(np.maximum(values, 0.0))[:, :, None] * vectors.swapaxes(1, 2)


def spectrum(matrix: Float[np.ndarray, "head r width"]) -> Float[np.ndarray, "head r"]:
    """Singular values of wide matrices, rising."""
    return np.sqrt(np.maximum(np.linalg.eigvalsh(matrix @ matrix.swapaxes(1, 2)), 0.0))


def composition(
    left: Float[np.ndarray, "writer r width"],
    right: Float[np.ndarray, "reader width s"],
    left_values: Float[np.ndarray, "writer r"],
    right_values: Float[np.ndarray, "reader s"],
    dimensions: int,
) -> tuple[Float[np.ndarray, "writer reader"], Float[np.ndarray, "writer reader"]]:
    """Frobenius norm of the product of every pair, over both norms; and its p-value for random matrices."""
    product = left.reshape(-1, left.shape[2]) @ right.swapaxes(0, 1).reshape(right.shape[1], -1)
    squares = (product.reshape(len(left), left.shape[1], len(right), right.shape[2]) ** 2).sum((1, 3))
    norms = np.multiply.outer((left_values**2).sum(-1), (right_values**2).sum(-1))
    share = squares / np.where(norms > 0, norms, np.nan)
    mean, variance, shape = composition_null(left_values, right_values, dimensions)
    variance = np.where(variance > _NEAR_0, variance, np.nan)  # heads as wide as the stream: nothing is random
    return np.sqrt(share), scipy.stats.chi2.sf(shape + (share - mean) * np.sqrt(2 * shape / variance), shape)


def turned_spread(products: Float[np.ndarray, "*any r r"]) -> Float[np.ndarray, "*any"]:
    r"""Standard deviation of the trace of each matrix M if it were turned at random.

    With a random rotation Q of r dimensions, :math:`\mathrm{tr}(MQ)` has mean 0 and variance :math:`\|M\|_F^2 / r`, and
    is close to normal.
    """
    return np.asarray(np.sqrt((products**2).sum((-2, -1)) / products.shape[-1]))


def turned_p(products: Float[np.ndarray, "head r r"]) -> Float[np.ndarray, " head"]:
    """Two-sided p-value of the trace of each matrix if it were turned at random."""
    spread = turned_spread(products)
    trace = np.trace(products, axis1=1, axis2=2)
    return 2 * scipy.stats.norm.sf(np.abs(trace) / np.where(spread > 0, spread, np.nan))


def by_offset(
    query: Float[np.ndarray, "position r"],
    key: Float[np.ndarray, "position r"],
    offsets: Int[np.ndarray, " offset"],
    searched: Bool[np.ndarray, " offset"],
) -> tuple[Float[np.ndarray, " offset"], float]:
    """Mean score of positions at each offset, keys about their mean; p-value of the peak with keys turned at random.

    The mean is the trace of a product, as a score is q · k. Its spread under a random rotation differs between offsets:
    it is largest at 0, where a row of the table meets itself, and a large row adds to it. So the p-value is the sum
    over all offsets that are searched of the chance that the mean there is as high as the peak.
    """
    length, keys = len(query), key - key.mean(0)
    curve, spread = (np.full(len(offsets), np.nan) for _ in range(2))
    for at in np.flatnonzero(np.abs(offsets) < length):
        first, last = max(0, -offsets[at]), length - max(0, offsets[at])  # queries with a key at the offset
        product = keys[first + offsets[at] : last + offsets[at]].T @ query[first:last] / (last - first)
        curve[at], spread[at] = np.trace(product), turned_spread(product)
    valid = searched & np.isfinite(curve)
    peak = curve[valid].max(initial=-np.inf)
    return curve, float(min(1.0, scipy.stats.norm.sf(peak / np.maximum(spread[valid], _NEAR_0)).sum()))


_DRAWS = 999  # of phases
_TILTS = np.geomspace(1e-1, 1e6, 256)  # of Chernoff's bound


def peak_chances(
    sizes: Float[np.ndarray, "head pair"], waves: Complex[np.ndarray, "pair offset"], highest: np.ndarray, seed: int
) -> Float[np.ndarray, " head"]:
    r"""Chance that waves of these sizes and random phases reach as high as `highest` at any offset.

    By 999 draws; where none is as high, by Chernoff's bound for each offset, from
    :math:`E[e^{s \sum_c a_c \cos \varphi_c}] = \prod_c I_0(s a_c)`, times their number. So p is valid at every level,
    also below that of the draws.
    """
    phases = np.exp(2j * np.pi * np.random.default_rng(seed).random((_DRAWS, len(waves))))
    as_high = np.array(
        [(((phases * size) @ waves).real.max(1) >= height).sum() for size, height in zip(sizes, highest, strict=True)]
    )
    total = sizes.sum(1)
    tilts = _TILTS / np.where(total > 0, total, 1.0)[:, None]  # (head, tilt)
    below = np.log(scipy.special.i0e(tilts[..., None] * sizes[:, None])).sum(-1) + tilts * (total - highest)[:, None]
    bound = waves.shape[1] * np.exp(below.min(1))
    return np.where(as_high > 0, 1 + as_high, np.minimum(1, bound * (1 + _DRAWS))) / (1 + _DRAWS)
