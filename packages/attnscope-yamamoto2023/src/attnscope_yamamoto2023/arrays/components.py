"""The number of dimensions of positions: in their table (PCA) and in hidden states (CCA).

See mathematics.md, Principal components.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.explanation.arrays.checks import NotDefinedError, over, series
from attnscope.support.checked import checked
from attnscope.support.checks import agree, shaped
from attnscope.support.errors import AttnscopeError

_CLIPPED = 1e-6  # tolerance by which a correlation may exceed 1
_GOOD = 0.01  # ... and where the covariance itself is rounded, or its smallest components are left out


@checked
def principal_components(table: Float[np.ndarray, "position column"], *, centred: bool = True) -> xr.Dataset:
    r"""Singular values of a position table and the share of its variance in the leading ones.

    Parameters
    ----------
    table
        Shape (position, column).
    centred
        Whether the columns' means are removed first, as in principal component analysis.

    Returns
    -------
    xarray.Dataset
        Over ``component`` (from 1): ``singular_value`` and ``cumulative_share``,
        :math:`\sum_{k \le K} \sigma_k^2 / \sum_k \sigma_k^2`.

    References
    ----------
    Yamamoto and Matsuzaki (2023), NLP2023, appendix B and figure 9; EMNLP 2023, section 4.1.2 and figure 12.
    """
    columns = series("the table", table)
    values = np.linalg.svd(columns - columns.mean(0) if centred else columns, compute_uv=False)
    total = (values**2).sum()
    if not total > _rounding(columns):
        raise NotDefinedError("the table is the same at every position; expected one that varies")
    return xr.Dataset(
        over(
            "component",
            singular_value=(values, "singular value"),
            cumulative_share=(np.cumsum(values**2) / total, "cumulative share of variance"),
        ),
        over("component", component=(np.arange(1, len(values) + 1), "principal component")),
        {"centred": int(centred)},
    )


@checked
def canonical_correlations(
    position_mean: Float[np.ndarray, "position width"],
    covariance: Float[np.ndarray, "state_width state_width"],
    table: Float[np.ndarray, "row column"],
    texts: int,
    *,
    variance: float = 0.999,
    rounding: float = 0.0,
    strong: float = 0.5,
) -> xr.Dataset:
    r"""Canonical correlations of hidden states with the position table, from the states' moments alone.

    With the states Z of all tokens and the table row Y of each token's position, :math:`Z_c^T Y_c = C (\bar
    Z_{pos} - \bar Z)^T (E - \bar E)`: so the position means suffice. Both sides are whitened by their leading
    principal components, because others would amplify noise.

    Parameters
    ----------
    position_mean
        Mean state at each position over the texts, shape (position, width).
    covariance
        Total covariance of the states over all tokens, shape (width, width); see `StateMoments`.
    table
        The position table's rows for the same positions, shape (position, column).
    texts
        Number of texts behind the moments.
    variance
        Share of variance to keep on either side; 1 keeps all components above rounding.
    rounding
        Error of the covariance as a share of its largest eigenvalue, about 1e-7 where products were summed in float32.
        Only components of the states with 100 times as much variance are kept; correlations are then good to 1%.
    strong
        Correlations above this and above ``null_correlation`` are counted.

    Returns
    -------
    xarray.Dataset
        ``correlation`` over ``component`` (from 1, falling); without dimension ``strong_components`` and
        ``null_correlation``, the largest correlation that independent noise would show: :math:`\sqrt{a(1-b)}
        + \sqrt{b(1-a)}`, a and b being the kept dimensions of either side over the number of tokens (1 where
        there are fewer tokens than dimensions). Attributes ``state_rank``, ``table_rank``, ``tokens``.

    References
    ----------
    Raghu et al. (2017), SVCCA; Yamamoto and Matsuzaki (2023), EMNLP, section 4.1.2 and figure 4.
    The null level is the edge of the spectrum of Wachter (1980).
    """
    means, table = series("the position means", position_mean), series("the table", table)
    covariance = shaped("the covariance", covariance, "width, width")
    agree("positions", "the position means", len(means), "the table", len(table))
    for size in covariance.shape:
        agree("columns", "the position means", means.shape[1], "the covariance", size)
    if not 0 < variance <= 1 or texts < 1:
        raise AttnscopeError(
            f"variance is {variance} and texts {texts}; expected a share of variance in (0, 1] and at least one text"
        )
    tokens = texts * len(means)
    power, basis = np.linalg.eigh((covariance + covariance.T) / 2)
    power, basis = power[::-1], basis[:, ::-1]
    if not power[0] > 0:
        raise NotDefinedError("the covariance of the states is zero; expected states that vary")
    rank = _leading(power, variance, max(len(power) * np.finfo(float).eps, rounding / _GOOD))
    left, values, _ = np.linalg.svd(table - table.mean(0), full_matrices=False)
    if not values[0] ** 2 > _rounding(table):
        raise NotDefinedError("the table is the same at every position; expected one that varies")
    rows = _leading(values**2, variance, (max(table.shape) * np.finfo(float).eps) ** 2)
    # (position, component): positions in the whitened states; left is already whitened, up to sqrt(T)
    whitened = (means - means.mean(0)) @ basis[:, :rank] / np.sqrt(power[:rank])
    correlations = np.linalg.svd(whitened.T @ left[:, :rows] / np.sqrt(len(means)), compute_uv=False)
    if correlations.max() > 1 + (_GOOD if rounding or variance < 1 else _CLIPPED):
        raise AttnscopeError(
            f"a correlation is {correlations.max():.3g}, above 1: the covariance is not the total covariance of the "
            "states behind the position means. Take both from one StateMoments"
        )
    return _correlations(np.minimum(correlations, 1.0), rank, rows, tokens, strong)


def _rounding(columns: Float[np.ndarray, "row column"]) -> float:
    """Rounding error in the sum of squares of constant columns after their means are removed."""
    return float((len(columns) * np.finfo(float).eps) ** 2 * (columns**2).sum())


def _leading(power: np.ndarray, variance: float, least: float) -> int:
    """Number of leading components with this share of variance, without those below rounding."""
    sound = int((power > least * power[0]).sum())
    share = np.cumsum(power[:sound]) / power[:sound].sum()
    return sound if variance == 1 else min(sound, int(np.searchsorted(share, variance)) + 1)


def _correlations(correlations: np.ndarray, states: int, rows: int, tokens: int, strong: float) -> xr.Dataset:
    a, b = min(states / tokens, 1.0), min(rows / tokens, 1.0)
    null = 1.0 if a + b >= 1 else np.sqrt(a * (1 - b)) + np.sqrt(b * (1 - a))
    count = int((correlations > max(strong, null)).sum())
    return xr.Dataset(
        over("component", correlation=(correlations, "canonical correlation"))
        | over(
            "",
            strong_components=(count, f"correlations above {strong} and above the largest of noise"),
            null_correlation=(float(null), "largest correlation of independent noise"),
        ),
        coords=over("component", component=(np.arange(1, len(correlations) + 1), "canonical component")),
        attrs={"state_rank": states, "table_rank": rows, "tokens": tokens, "strong": strong},
    )
