"""Packing what the keys of a window receive: a peak for each point of a line, and the keys at the top.

A share of all weight becomes one byte, on the scale of `_window.encode`, of what it is of the head's largest; where a
window has more keys than a line has points, a point is the largest of its keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.report._window import deflated, encode
from attnscope.statistics import context, key_side, recent_queries, top_places

if TYPE_CHECKING:
    import xarray as xr

POINTS = 1024
_ROOM = 4_000_000  # points of all heads and windows
_FEWEST = 128


def pack_received(sample: xr.Dataset, shown: list[list[int]]) -> dict[str, Any] | None:
    """What the page draws of attention received; None where the sample has none.

    ``heads`` has by ``"window.index"``, the index counting layer by layer, the packed line, the largest share, the top
    keys with their shares and those of equal weights, and the same of the last queries alone, where the sample has
    them; ``recent`` has by ``"window.layer"`` how many these are, ``equal`` the line and the largest share of equal
    weights; ``contexts`` by ``"window.side.position"`` the text about top keys beyond the `shown` tokens
    of each side of each window; ``each`` how many keys a point has in a window.
    """
    if "received" not in sample:
        return None
    sizes = sample.sizes
    room = _ROOM // max(1, sizes["window"] * sizes["layer"] * sizes["head"])
    points = min(POINTS, max(_FEWEST, room))
    packed: dict[str, Any] = {"heads": {}, "equal": {}, "contexts": {}, "keys": {}, "recent": {}}
    for window, layer in np.ndindex(sizes["window"], sizes["layer"]):
        equal = sample.equal_received.values[window, layer].astype(np.float64)
        keys = int(np.isfinite(equal).sum())
        if not keys:
            continue
        even = _share(equal[:keys])
        side = key_side(sample, layer)
        tokens = sample[f"{side}position_token"].values[window].tolist()
        number = int(side != "")
        packed["equal"][f"{window}.{layer}"] = _line(even, points)
        packed["keys"][f"{window}.{layer}"] = keys
        if "recent" in sample:
            packed["recent"][f"{window}.{layer}"] = recent_queries(sample, window, layer)
        for head in range(sizes["head"]):
            share = _share(sample.received.values[window, layer, head, :keys].astype(np.float64))
            if not np.isfinite(share).all():
                continue
            top = top_places(share)
            listed = [_listed(top, share, even)]
            if "recent" in sample:
                recent = _share(sample.recent.values[window, layer, head, :keys].astype(np.float64))
                even_recent = _share(sample.equal_recent.values[window, layer, :keys].astype(np.float64))
                of_recent = top_places(recent)
                listed.append(_listed(of_recent, recent, even_recent))
                top = np.union1d(top, of_recent)
            packed["heads"][f"{window}.{layer * sizes['head'] + head}"] = [*_line(share, points), *listed]
            for key in top:
                if key >= shown[window][number]:
                    packed["contexts"][f"{window}.{number}.{key}"] = context(tokens, int(key))
    return packed


def _listed(top: np.ndarray, share: np.ndarray, even: np.ndarray) -> list[list[int | float]]:
    """Keys with their shares and those of equal weights."""
    return [[int(key), round(float(share[key]), 6), round(float(even[key]), 6)] for key in top]


def _share(received: np.ndarray) -> np.ndarray:
    return received / max(float(received.sum()), 1e-30)


def _line(share: np.ndarray, points: int) -> tuple[str, float]:
    """The packed peaks, and the largest."""
    each = -(-len(share) // points)
    peaks = np.pad(share, (0, -len(share) % each)).reshape(-1, each).max(1)
    most = float(peaks.max())
    return deflated([encode(peaks / max(most, 1e-30))]), float(f"{most:.4g}")
