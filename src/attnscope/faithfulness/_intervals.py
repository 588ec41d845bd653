"""Means over texts, with intervals that draw whole documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope._arguments import typed
from attnscope._documents import DRAWS, LEAST, LEVEL


def document_draws(documents: Sequence[str], draws: int, seed: int) -> Float[np.ndarray, "draw text"]:
    """How often each text is taken in each draw: texts of one document come together.

    Examples
    --------
    >>> sorted(set(map(tuple, document_draws(["a", "a", "b"], 50, seed=0).tolist())))
    [(0.0, 0.0, 2.0), (1.0, 1.0, 1.0), (2.0, 2.0, 0.0)]
    """
    names, which = np.unique(np.asarray(documents, dtype=object).astype(str), return_inverse=True)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    return counts[:, which].astype(np.float64)


@typed
def with_intervals(
    effects: xr.Dataset, names: Sequence[str], documents: Sequence[str], *, draws: int = DRAWS, seed: int = 0
) -> xr.Dataset:
    """Add to each variable its mean over texts and the percentile interval of a bootstrap over documents.

    Texts where a value is NaN do not count. Of fewer than 6 documents there is no interval: NaN.

    Parameters
    ----------
    effects
        Variables along ``text`` and other dimensions.
    names
        Names of those that get an interval.
    documents
        The document that each text is from.
    draws, seed
        Number of draws and seed of the bootstrap.

    Examples
    --------
    >>> values = xr.Dataset({"tvd": (("text", "head"), np.tile([[0.1, 0.0], [0.3, 0.0]], (4, 1)), {"units": "share"})})
    >>> intervals = with_intervals(values, ["tvd"], list("abcdefgh"))
    >>> [intervals[f"tvd_{end}"].values.round(3).tolist() for end in ("mean", "low", "high")]
    [[0.2, 0.0], [0.125, 0.0], [0.275, 0.0]]
    """
    weights = document_draws(documents, draws, seed)
    several = len(set(documents)) >= LEAST
    added: dict[str, xr.DataArray] = {}
    for name in names:
        values = effects[name].transpose("text", ...)
        known = np.isfinite(values.values)
        flat = np.where(known, values.values, 0.0).reshape(len(values), -1)
        count = known.reshape(len(values), -1).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = flat.sum(0) / count.sum(0)
            drawn = (weights @ flat) / (weights @ count)
        low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
        drawable = several & (count.sum(0) > 0)
        if drawable.any():
            ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
            low[drawable], high[drawable] = np.nanquantile(drawn[:, drawable], ends, axis=0)
        like = values.isel(text=0, drop=True)
        for end, part in (("mean", mean), ("low", low), ("high", high)):
            said = {"mean": "mean over texts", "low": "2.5 % point", "high": "97.5 % point"}[end]
            attrs = values.attrs | {"long_name": f"{values.attrs.get('long_name', name)}, {said}"}
            added[f"{name}_{end}"] = like.copy(data=part.reshape(like.shape)).assign_attrs(attrs)
    return effects.assign(added)
