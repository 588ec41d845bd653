"""What a page says of groups of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope._group_pairs import CAUTION, MeanGroupWeights, group_pairs, no_interval_said, said_of
from attnscope.report._embed import numbers

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

_PAIRS = 30  # that the page lists


def group_data(result: xr.Dataset) -> dict[str, Any] | None:
    """Weights of groups on groups, head by head in the order layer by layer; None where there are no groups.

    Groups that no text has are left out.
    """
    if not {"group_weight", "place_group_weight", "equal_group_weight"} <= set(result.variables):
        return None
    means = MeanGroupWeights.of(result)
    kept = means.present

    def flat(values: np.ndarray) -> Any:
        chosen = values[:, :, kept][..., kept]
        return numbers(chosen.reshape(-1, len(kept), len(kept)))

    return {
        "names": [str(name) for name in result.group_query.values[kept]],
        "weight": flat(means.weight),
        "places": flat(means.places),
        "equal": flat(means.equal),
    }


def group_rows(result: xr.Dataset) -> dict[str, Any] | None:
    """The pairs of groups between which a head looks most, and what to know of them."""
    if "group_weight" not in result.variables:
        return None
    every = group_pairs(result)
    pairs = [pair for pair in every if pair.above > 0]
    rows = [
        {
            "query": pair.query,
            "key": pair.key,
            "head": f"{pair.layer}.{pair.head}",
            "numbers": [f"{value:.3f}" for value in (pair.weight, pair.equal, pair.places)],
            "above": f"{pair.above:+.3f}".replace("-", "−"),
            "interval": "–"
            if pair.low != pair.low
            else f"{pair.low:.3f} to {pair.high:.3f}".replace("-", "−"),
            "over": pair.over,
            "chance": {True: "yes", False: "not shown", None: "not known"}[pair.beyond_chance],
        }
        for pair in pairs[:_PAIRS]
    ]
    return {
        "rows": rows,
        "above": len(pairs),
        "said": said_of(every),
        "caution": no_interval_said(pairs[:_PAIRS]) + CAUTION,
    }
