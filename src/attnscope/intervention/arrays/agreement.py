"""Whether weights rank tokens as another measure of importance does."""

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float
from scipy.stats import kendalltau

from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays.changes import visible_keys
from attnscope.support.checks import agree

FEWEST = 3  # tokens: two are in order half of the time


def rank_agreement(
    weights: Float[np.ndarray, "query key"],
    importance: Float[np.ndarray, "other_query other_key"],
    allowed: Bool[np.ndarray, "mask_query mask_key"] | None = None,
) -> xr.Dataset:
    r"""Kendall's :math:`\tau_b` between each row's weights and another importance of the same keys."""
    for axis, what in enumerate(("queries", "keys")):
        agree(what, "weights", weights.shape[axis], "importance", importance.shape[axis])
    counted = visible_keys(weights, allowed) & np.isfinite(importance)
    ranks = np.full((2, len(weights)), np.nan)
    for query, keys in enumerate(counted):
        own, other = weights[query, keys], importance[query, keys]
        if keys.sum() >= FEWEST and np.ptp(own) > 0 and np.ptp(other) > 0:
            ranks[:, query] = kendalltau(own, other)
    return xr.Dataset(
        {
            "tau": labelled("query", ranks[0], "Kendall's tau-b of weights and importance"),
            "p_value": labelled("query", ranks[1], "chance that a random order agrees as much"),
        }
    )
