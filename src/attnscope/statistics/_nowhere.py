"""Offsets at which no query has a key that it may look at: a weight there is no 0, there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope._documents import called_in
from attnscope.statistics._catalogue import EQUAL

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

_AT = "weight_at"


def without_nowhere(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of a call, with NaN for the weight at offsets at which no head may look at anything.

    Examples
    --------
    >>> import torch
    >>> weight, equal = torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[0.5, 0.0]]])
    >>> numbers = without_nowhere({"weight_at": weight, "equal_weight_at": equal})
    >>> numbers["weight_at"].tolist(), numbers["equal_weight_at"].tolist()
    ([[[0.0, nan], [0.0, nan]]], [[[0.5, nan]]])
    """
    if _AT not in numbers:
        return numbers
    names = (_AT, f"{EQUAL}{_AT}")
    own, equal = ((numbers[name] > 0).any(1, keepdim=True) for name in names)
    somewhere = own | equal
    return numbers | {name: numbers[name].where(somewhere, float("nan")) for name in names}


def notes_of_nowhere(results: xr.Dataset, unit: str) -> dict[str, str]:
    """Why the weight at some of the chosen offsets is not there, in some windows or layers or in all; else nothing.

    Examples
    --------
    >>> import xarray as xr
    >>> weight = (("text", "layer", "head", "chosen_offset"), [[[[0.5, 0.1, float("nan")]]]])
    >>> along = {"chosen_offset": [-1, 0, 1], "layer": [0]}
    >>> results = xr.Dataset({"weight_at": weight, "length": ("text", [9])}, along)
    >>> notes_of_nowhere(results, "tokens")
    {'offsets': 'weight_at_1: none, for the mask lets no query look there.'}
    """
    if _AT not in results or "text" not in results[_AT].dims:
        return {}
    sizes = results.window_length if "window_length" in results else results.length
    known = results[_AT].notnull().any("head").transpose("chosen_offset", "text", "layer").values
    said = [
        (int(offset), _why(known[row], abs(int(offset)), sizes.values, results, unit))
        for row, offset in enumerate(results.chosen_offset.values)
    ]
    told = " ".join(f"{_AT}_{offset}: {why}." for offset, why in said if why)
    return {"offsets": told} if told else {}


def _why(known: np.ndarray, distance: int, sizes: np.ndarray, results: xr.Dataset, unit: str) -> str:
    """Of one offset, known ``(text, layer)``."""
    each = "pools" if "window_count" in results else called_in(results.attrs)["windows"]
    if not known.any():
        if sizes.max() <= distance:
            return f"none, for the longest window has {int(sizes.max())} {unit}"
        return "none, for the mask lets no query look there"
    reasons: list[str] = []
    layers = results["layer"].values[~known.any(0)].tolist()
    if layers:
        reasons.append(
            f"none in layers {', '.join(map(str, layers))}, where the mask lets no query look there"
        )
    missing = int((~known.any(1)).sum())
    if missing:
        reasons.append(
            f"the mean is over {len(known) - missing} of {len(known)} {each}; the others have no query for it"
        )
    return "; ".join(reasons)
