"""What patching many pairs comes to: means with intervals over pairs, and how well estimates rank them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.faithfulness._runs import ends_of
from attnscope.faithfulness._summary import order_agreement
from attnscope.faithfulness.arrays import by_document
from attnscope.faithfulness.passes import position_labels


@typed
def patched_of(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each patched place, with its interval over pairs.

    Parameters
    ----------
    pairs
        ``difference``, ``clean`` and ``corrupted`` of each pair, with the attributes ``direction`` and ``rounding``:
        what is smaller than this share of the differences counts as 0.
    seed
        Seed of the bootstrap.

    Returns
    -------
    xarray.Dataset
        Along the places that were patched: ``effect`` (logits: mean change of answer minus wrong answer from the run
        that is patched), ``recovered`` (share: the sum of the changes over the sum of the gaps between both runs), with
        ``_low`` and ``_high``, the ends of their 95% intervals by the bootstrap over pairs (NaN for fewer than 6), and
        ``shown``: whether the effect is told from 0, with all places looked at together, by flipping the signs of
        pairs; ``tested`` is False where that cannot be asked (fewer than 6 pairs). ``estimate`` is the mean where there
        is one; ``token`` names positions.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.1, (8, 2))
    >>> pairs = xr.Dataset(
    ...     {
    ...         "difference": (("pair", "head"), noise + [-1.0, 1.0]),
    ...         "clean": ("pair", np.full(8, 3.0)),
    ...         "corrupted": ("pair", np.full(8, -1.0)),
    ...     },
    ...     attrs={"direction": "denoising", "rounding": 1e-4},
    ... )
    >>> shown = patched_of(pairs)
    >>> shown.shown.values.tolist(), shown.recovered.values.round(1).tolist()
    ([False, True], [-0.0, 0.5])
    """
    source, base = ends_of(pairs)
    change = _changes(pairs)
    each, gaps = range(pairs.sizes["pair"]), (source - base).values
    plain = by_document(change.values, each, seed=seed)
    share = by_document(change.values, each, over=gaps, seed=seed)
    dims = change.dims[1:]
    variables: dict[str, xr.DataArray | tuple[tuple[object, ...], np.ndarray, dict[str, str]]] = {}
    for name, part, words, units in (
        ("effect", plain, "Change of answer minus wrong answer", "logits"),
        ("recovered", share, "Way from the patched run to the other", "share"),
    ):
        variables[name] = (dims, part.mean, {"long_name": words, "units": units})
        for end, said in (("low", "Lower"), ("high", "Upper")):
            value: np.ndarray = getattr(part, end)
            variables[f"{name}_{end}"] = (
                dims,
                value,
                {"long_name": f"{said} end of its 95% interval", "units": units},
            )
    together = {"long_name": "Effect told from 0, all places together", "units": "1"}
    variables["shown"] = (dims, plain.shown, together)
    variables["tested"] = (dims, plain.tested, {"long_name": "Whether that was tested", "units": "1"})
    if "estimate" in pairs:
        variables["estimate"] = pairs.estimate.mean("pair", keep_attrs=True, skipna=False)
    kept = {name: values for name, values in pairs.coords.items() if "pair" not in values.dims}
    attrs = {"pairs": pairs.sizes["pair"], "direction": pairs.attrs["direction"]}
    whole = xr.Dataset(variables, coords=kept, attrs=attrs)
    if "clean_token" in pairs.coords:
        labels = position_labels(pairs.clean_token.values.tolist(), pairs.corrupted_token.values.tolist())
        whole = whole.assign_coords(token=("position", np.array(labels, dtype=object)))
    return whole


def estimators_agreement(pairs: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """How well each estimate puts the places in the order of what was measured.

    Returns
    -------
    xarray.Dataset
        ``rank_correlation`` (Spearman's, of means over pairs) and ``chance``: the share of random orders that agree as
        well, ``(estimator)``. There is no interval: see `agreement_of`.
    """
    change = _changes(pairs).values
    names = pairs.estimator.values.tolist()
    rows = [order_agreement(pairs.estimate.sel(estimator=name).values, change, seed=seed) for name in names]
    columns = ("rank_correlation", "chance")
    return xr.Dataset(
        {
            name: ("estimator", np.array(values))
            for name, values in zip(columns, zip(*rows, strict=True), strict=True)
        },
        coords={"estimator": names},
    )


def _changes(pairs: xr.Dataset) -> xr.DataArray:
    """Change from the run that was patched, ``(pair, ...)``; what is within rounding is 0."""
    source, base = ends_of(pairs)
    change = pairs.difference - base
    limit = float(pairs.attrs["rounding"]) * (abs(source) + abs(base))
    return xr.where(abs(change) <= limit, 0.0, change, keep_attrs=True).transpose(*pairs.difference.dims)
