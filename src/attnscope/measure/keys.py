"""The keys that receive most, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

TOP = 10
AROUND = 8  # tokens on either side


class TopKey(TypedDict):
    """A key that receives much: its share of all weight and what equal weights would give it, and the text about it."""

    position: int
    share: float
    equal_share: float
    before: str
    token: str
    after: str


class TopKeys(TypedDict):
    """The keys that receive most from a head in a window; ``recent_keys`` from its last queries alone."""

    window: int
    layer: int
    head: int
    keys: list[TopKey]
    recent_keys: NotRequired[list[TopKey]]
    recent_queries: NotRequired[int]


def top_places(shares: np.ndarray, count: int = TOP) -> np.ndarray:
    """Numbers of the largest shares, largest first; none of what is 0 or NaN."""
    known = np.nan_to_num(shares)
    order = np.argsort(-known, kind="stable")[:count]
    return order[known[order] > 0]


def context(tokens: Sequence[str], place: int) -> tuple[str, str, str]:
    """Text before a token, the token, and text behind it."""
    before = tokens[max(0, place - AROUND) : place]
    return "".join(before), tokens[place], "".join(tokens[place + 1 : place + 1 + AROUND])


def key_side(sample: xr.Dataset, layer: int) -> str:
    """Which text a layer's keys are of: "" is the text, "target_" what a decoder reads."""
    of_decoder = str(sample.layer_kind.values[layer]) == "causal" and "target_position_token" in sample
    return "target_" if of_decoder else ""


def top_keys(sample: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[TopKeys]:
    """The keys that receive most in each window of a sample, of these heads: with position, share and text."""
    if "received" not in sample:
        return []
    rows: list[TopKeys] = []
    for layer, head in heads:
        for window in range(sample.sizes["window"]):
            keys = _listed(sample, "received", window, layer, head)
            if not keys:
                continue
            row = TopKeys(window=window, layer=layer, head=head, keys=keys)
            if "recent" in sample:
                row["recent_keys"] = _listed(sample, "recent", window, layer, head)
                row["recent_queries"] = recent_queries(sample, window, layer)
            rows.append(row)
    return rows


def recent_queries(sample: xr.Dataset, window: int, layer: int) -> int:
    """How many queries of a window ``recent`` is over: all, where it has no more than were asked for."""
    of_decoder = str(sample.layer_kind.values[layer]) != "self" and "target_tokens" in sample
    tokens = sample["target_tokens" if of_decoder else "tokens"].values[window]
    return min(int(sample.attrs["observation"]), int(tokens))


def _listed(sample: xr.Dataset, name: str, window: int, layer: int, head: int) -> list[TopKey]:
    shares = _shares(sample[name].values[window, layer, head])
    equal = _shares(sample[f"equal_{name}"].values[window, layer])
    tokens = sample[f"{key_side(sample, layer)}position_token"].values[window].tolist()
    return [
        TopKey(
            position=int(place),
            share=float(shares[place]),
            equal_share=float(equal[place]),
            before=before,
            token=token,
            after=after,
        )
        for place in top_places(shares)
        for before, token, after in [context(tokens, int(place))]
    ]


def _shares(received: np.ndarray) -> np.ndarray:
    total = np.nansum(received, -1, keepdims=True, dtype=np.float64)
    return received / np.where(total > 0, total, 1)
