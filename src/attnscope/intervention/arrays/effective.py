"""What of a head's weights its output can see, and whether the output determines them."""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays.changes import non_negative, visible_keys
from attnscope.support.checks import agree, finite


def effective_attention(
    weights: Float[np.ndarray, "query key"],
    values: Float[np.ndarray, "value_key width"],
    *,
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
    with_ones: bool = False,
    tolerance: float | None = None,
) -> xr.Dataset:
    r"""Take out of the weights what the values do not let through.

    With U an orthonormal basis of the column space of V, :math:`A_\text{eff} = A U U^\top` gives the same output,
    :math:`A_\text{eff}V = AV`, and of all that do it has the least norm; the rest lies in the left null space of V.
    Where a mask hides keys, each row has the values of its own visible keys. Entries may be negative and rows need not
    sum to 1: they are no distribution, and are not made into one.

    Brunner, Liu, Pascual, Richter, Ciaramita and Wattenhofer (2020), On Identifiability in Transformers, ICLR 2020,
    section 3.
    """
    tolerance = _tolerance(values) if tolerance is None else tolerance
    weights, values = non_negative("weights", weights), finite("values", values)
    agree("keys", "weights", weights.shape[1], "values", len(values))
    allowed = visible_keys(weights, allowed)
    effective = np.zeros_like(weights)
    kept, expected = np.zeros(len(weights)), np.zeros(len(weights))
    rank = np.zeros(len(weights), dtype=np.int64)
    power = (weights**2).sum(1)
    for keys, rows in _groups(allowed):
        basis = column_basis(values[keys], with_ones=with_ones, tolerance=tolerance)
        part = weights[np.ix_(rows, keys)] @ basis
        effective[np.ix_(rows, keys)] = part @ basis.T
        rank[rows], kept[rows] = basis.shape[1], (part**2).sum(1)
        expected[rows] = _permuted_power(power[rows], weights[rows].sum(1), basis)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(power > 0, 1 - part / power, np.nan).clip(0, 1) for part in (kept, expected)]
    return xr.Dataset(
        {
            "weights": labelled("query key", effective, "effective weight"),
            "null_share": labelled("query", shares[0], "share of the squared weights in the null space of V", "share"),
            "null_share_permuted": labelled("query", shares[1], "the same, mean over permutations of the row", "share"),
            "rank": labelled("query", rank, "rank of the values of the visible keys"),
        }
    )


def identifiability(
    values: Float[np.ndarray, "key width"],
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
    *,
    tolerance: float | None = None,
) -> xr.Dataset:
    r"""Count in how many directions a row of weights could change and give the same output.

    All :math:`\alpha'` with :math:`V^\top\alpha' = V^\top\alpha` and the same sum make up an affine set of dimension
    :math:`n - \mathrm{rank}[V, 1]`, n being the number of visible keys. Where it is 0 the output determines the
    weights. Where it is not, weights may still be unique, as they must not be negative: `adversarial_weights` tells.

    Brunner et al. (2020), section 3.
    """
    tolerance = _tolerance(values) if tolerance is None else tolerance
    values = finite("values", values)
    allowed = np.ones((1, len(values)), dtype=bool) if allowed is None else allowed
    agree("keys", "the mask", allowed.shape[1], "values", len(values))
    rank, with_ones = (np.zeros(len(allowed), dtype=np.int64) for _ in range(2))
    for keys, rows in _groups(allowed):
        rank[rows] = column_basis(values[keys], with_ones=False, tolerance=tolerance).shape[1]
        with_ones[rows] = column_basis(values[keys], with_ones=True, tolerance=tolerance).shape[1]
    visible = allowed.sum(1)
    return xr.Dataset(
        {
            "visible": labelled("query", visible, "keys that the query may look at", "tokens"),
            "rank": labelled("query", rank, "rank of the values of the visible keys"),
            "rank_with_ones": labelled("query", with_ones, "rank of these values and a column of ones"),
            "free_dimensions": labelled(
                "query", visible - with_ones, "dimension of the weights that give the same output"
            ),
        }
    )


def column_basis(
    values: Float[np.ndarray, "key width"], *, with_ones: bool, tolerance: float
) -> Float[np.ndarray, "key rank"]:
    """Orthonormal columns that span those of V, by its singular values."""
    if with_ones:  # of the size of V, so that the tolerance means the same for both
        size = np.linalg.norm(values, 2) / np.sqrt(max(len(values), 1)) if values.any() else 1.0
        values = np.column_stack([values, np.full(len(values), size)])
    basis, size, _ = np.linalg.svd(values, full_matrices=False)
    return basis[:, size > tolerance * size.max(initial=0.0)]


def _tolerance(values: np.ndarray) -> float:
    return float(2 * np.finfo(values.dtype).eps * np.sqrt(max(min(values.shape), 1)))


def _groups(
    allowed: Bool[np.ndarray, "query key"],
) -> Iterator[tuple[Int[np.ndarray, " key"], Int[np.ndarray, " query"]]]:
    """Keys that are seen together, and the queries that see them."""
    masks, which = np.unique(allowed, axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        yield np.flatnonzero(mask), np.flatnonzero(which.ravel() == number)


def _permuted_power(
    power: Float[np.ndarray, " query"], total: Float[np.ndarray, " query"], basis: Float[np.ndarray, "key rank"]
) -> Float[np.ndarray, " query"]:
    r"""Mean of :math:`\lVert\alpha U\rVert^2` over permutations of a row of n weights."""
    keys, rank = basis.shape
    if keys < 2:  # noqa: PLR2004 nothing to permute
        return power * rank
    own = (power - total**2 / keys) / (keys - 1)
    common = (total**2 / keys - own) / keys
    return own * rank + common * (basis.sum(0) ** 2).sum()
