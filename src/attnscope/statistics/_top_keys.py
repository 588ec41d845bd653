"""The keys that receive most, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

TOP = 10
AROUND = 8  # tokens on either side


def top_places(shares: np.ndarray, count: int = TOP) -> np.ndarray:
    """Numbers of the largest shares, largest first; none of what is 0 or NaN.

    Examples
    --------
    >>> top_places(np.array([0.1, 0.6, 0.0, 0.3, np.nan]), 5).tolist()
    [1, 3, 0]
    """
    known = np.nan_to_num(shares)
    order = np.argsort(-known, kind="stable")[:count]
    return order[known[order] > 0]


def context(tokens: Sequence[str], place: int) -> tuple[str, str, str]:
    """Text before a token, the token, and text behind it.

    Examples
    --------
    >>> context(["The", " tide", " comes", " in"], 2)
    ('The tide', ' comes', ' in')
    """
    before = tokens[max(0, place - AROUND) : place]
    return "".join(before), tokens[place], "".join(tokens[place + 1 : place + 1 + AROUND])


def key_side(sample: xr.Dataset, layer: int) -> str:
    """Which text a layer's keys are of: "" is the text, "target_" what a decoder reads."""
    of_decoder = str(sample.layer_kind.values[layer]) == "causal" and "target_position_token" in sample
    return "target_" if of_decoder else ""


def top_keys(sample: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The keys that receive most in each window of a sample, of these heads: with position, share and text.

    ``share`` is of all weight; ``equal_share`` is what the same key would have of equal weights.
    """
    if "received" not in sample:
        return []
    rows: list[dict[str, Any]] = []
    equal = _shares(sample.equal_received.values)
    for layer, head in heads:
        shares = _shares(sample.received.values[:, layer, head])
        for window, of_window in enumerate(shares):
            tokens = sample[f"{key_side(sample, layer)}position_token"].values[window].tolist()
            keys = [
                {
                    "position": int(place),
                    "share": float(of_window[place]),
                    "equal_share": float(equal[window, layer, place]),
                    **dict(zip(("before", "token", "after"), context(tokens, int(place)), strict=True)),
                }
                for place in top_places(of_window)
            ]
            if keys:
                rows.append({"window": window, "layer": layer, "head": head, "keys": keys})
    return rows


def _shares(received: np.ndarray) -> np.ndarray:
    total = np.nansum(received, -1, keepdims=True, dtype=np.float64)
    return received / np.where(total > 0, total, 1)
