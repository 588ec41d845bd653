"""Effects over documents: means with intervals and significance, and rank correlations of estimates."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

from attnscope.statistics.effects import effect_variables
from attnscope.statistics.units import numbered, units_of

_PERMUTATIONS = 2000


def heads_of(effects: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each head, with its interval over documents."""
    documents = effects.source.values.tolist()
    units, called = units_of(documents)
    variables: dict[str, Any] = {}
    for name, prefix, usual_unit, usual_words in (
        ("effect", "", "nats", "Change of the loss without the head"),
        ("metric_change", "metric_", "1", "Change of the metric without the head"),
    ):
        change = effects.get("loss_change" if name == "effect" else name)
        if change is not None:
            words, unit = change.attrs.get("long_name", usual_words), change.attrs.get("units", usual_unit)
            how: Any = {"name": name, "prefix": prefix, "unit": unit, "corrected": "all heads and ablations"}
            variables |= effect_variables(change.values, units, change.dims[1:], words, seed=seed, **how)
    heads = xr.Dataset(
        variables,
        coords={name: values for name, values in effects.coords.items() if "window" not in values.dims},
        attrs={"documents": numbered(documents)[1], "texts": len(documents), "intervals_over": called},
    )
    for name in ("kl", "accuracy_change", "estimate", "importance"):
        if name in effects:
            heads[name] = effects[name].mean("window", keep_attrs=True)
    return heads


def agreement_of(effects: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Rank correlation of each estimate with the measured effects, over heads."""
    names = [*effects.estimator.values.tolist(), "importance"]
    ablations = effects.ablation.values.tolist()
    ranks = np.empty((2, len(names), len(ablations)))
    for (row, name), (column, ablation) in product(enumerate(names), enumerate(ablations)):
        measured = effects.loss_change.sel(ablation=ablation).values
        of_size = name == "importance"
        estimated = effects.importance if of_size else effects.estimate.sel(estimator=name, ablation=ablation)
        ranks[:, row, column] = order_agreement(estimated.values, measured, seed=seed, size=of_size)
    dims = ("estimator", "ablation")
    return xr.Dataset(
        {"rank_correlation": (dims, ranks[0]), "chance": (dims, ranks[1])},
        coords={"estimator": names, "ablation": ablations},
    )


def order_agreement(
    estimated: np.ndarray, measured: np.ndarray, *, seed: int, size: bool = False
) -> tuple[float, float]:
    """Rank correlation of mean estimates and measurements ``(text, ...)``, or their sizes, with its p-value."""
    flat = [values.reshape(len(values), -1) for values in (estimated, measured)]
    exists = [~np.isnan(values).all(0) for values in flat]  # layers may have fewer heads than others
    first, other = (
        (values[:, heads] if heads.any() else values).mean(0) for values, heads in zip(flat, exists, strict=True)
    )
    other = np.abs(other) if size else other
    if not (np.isfinite(first).all() and np.ptp(first) and np.ptp(other)):
        return np.nan, np.nan
    correlation = float(np.corrcoef(stats.rankdata(first), stats.rankdata(other))[0, 1])
    if not np.isfinite(correlation):
        return correlation, np.nan
    return correlation, float((_of_random_orders(len(first), seed) >= correlation).mean())


@lru_cache(maxsize=4)
def _of_random_orders(heads: int, seed: int) -> np.ndarray:
    """Rank correlations of random orders of the heads: the same for all estimates of a result."""
    generator = np.random.default_rng(seed)
    order = np.arange(heads, dtype=float)
    order -= order.mean()
    return np.stack([generator.permutation(order) for _ in range(_PERMUTATIONS)]) @ order / (order @ order)
