"""Packing the attention of a few windows so small that a page can carry it.

A weight w becomes one byte on a logarithmic scale, `255 + round(254/16 log2 w)`: 0 for w < 2^-16, and within
2.2% of w elsewhere. A map's bytes are laid out in planes, because like beside like deflates best: for each row the
number of weights that it lists (low bytes, high bytes) and the mass that it leaves out; for each listed weight the
step from the key before it in its row (low bytes, high bytes) and the weight; then zlib and base64. A map in tiles is
two planes, row after row: the share of the queries' weight that lies on the keys of each tile, and the largest weight.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.figures.reading import axis_values, require, side_tokens, sides
from attnscope.figures.scan import Map, maps

if TYPE_CHECKING:
    import xarray as xr

OCTAVES, STEPS = 16, 254
_MOST_KEYS = 1 << 16  # so that a key has two bytes


@dataclass(frozen=True)
class PageWindows:
    """Some windows as the page holds them: what all heads share, and a packed string for each map.

    Attributes
    ----------
    shared
        The texts of each window, for each layer which of them its queries and its keys are, and the constants of the
        scale.
    maps
        From ``"window.index"``, the index of a head counting layer by layer, to the packed map and the share of the
        weight that it lists.
    tiles
        From ``"index"`` to the packed tiles of the first window.
    """

    shared: dict[str, Any]
    maps: dict[str, tuple[str, float]]
    tiles: dict[str, str]


def pack_windows(sample: xr.Dataset) -> PageWindows:
    """Pack the attention that `attnscope.scan` kept."""
    require(sample, ("token", "key", "weight", "count"), purpose="The report's sample windows")
    layers, heads = axis_values(sample, "layer"), axis_values(sample, "head")
    names = [side for side in ("", "target_") if f"{side}token" in sample.variables]
    texts = [
        [_text(sample.isel(window=window), side) for side in names]
        for window in range(sample.sizes["window"])
    ]
    packed: dict[str, tuple[str, float]] = {}
    for shown in maps(sample):
        index = layers.index(shown.layer) * len(heads) + heads.index(shown.head)
        packed[f"{shown.window}.{index}"] = _pack(shown), round(shown.share, 4)
    shared = {
        "windows": texts,
        "sides": [[names.index(side) for side in sides(sample, layer)] for layer in layers],
        "octaves": OCTAVES,
        "steps": STEPS,
        "tile": int(sample.attrs.get("tile", 0)),
    }
    return PageWindows(shared, packed, _tiles(sample, shared) if "tile_sum" in sample else {})


def encode(weights: np.ndarray) -> np.ndarray:
    """One byte per weight on the logarithmic scale.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.report import encode
    >>> encode(np.array([1.0, 0.5, 0.25, 1e-9, 0.0])).tolist()
    [255, 239, 223, 0, 0]
    """
    kept = weights >= 2.0**-OCTAVES
    level = STEPS + 1 + np.round(STEPS / OCTAVES * np.log2(np.where(kept, weights, 1.0)))
    return np.where(kept, np.clip(level, 1, STEPS + 1), 0).astype(np.uint8)


def _text(sample: xr.Dataset, side: str) -> dict[str, Any]:
    """Tokens of one text, as many as the page shows, and how many there are in all."""
    tokens = side_tokens(sample, side)
    return {
        "tokens": tokens,
        "special": [bool(mark) for mark in sample[f"{side}special"].values[: len(tokens)]],
        "total": int(sample[f"{side}tokens"]),
    }


def _pack(shown: Map) -> str:
    query, codes = shown.query, encode(shown.weight.astype(np.float64))
    kept = (codes > 0) & (shown.key < _MOST_KEYS)
    beyond = np.bincount(query[~kept], weights=shown.weight[~kept], minlength=len(shown.count))
    count = np.bincount(query[kept], minlength=len(shown.count))
    key, first = shown.key[kept], np.diff(query[kept], prepend=-1) > 0
    step = np.where(first, key, np.diff(key, prepend=0))
    planes = (*_bytes(count), encode(shown.rest + beyond), *_bytes(step), codes[kept])
    return deflated(planes)


def _tiles(sample: xr.Dataset, shared: dict[str, Any]) -> dict[str, str]:
    tile = shared["tile"]
    totals, largest = (sample[name].values.astype(np.float64) for name in ("tile_sum", "tile_max"))
    tiles: dict[str, str] = {}
    for index, (layer, head) in enumerate(np.ndindex(totals.shape[:2])):
        if np.isnan(totals[layer, head]).any():
            continue
        queries, keys = (len(shared["windows"][0][side]["tokens"]) for side in shared["sides"][layer])
        rows, columns = -(-queries // tile), -(-keys // tile)
        in_row = np.minimum(tile, queries - tile * np.arange(rows))
        planes = totals[layer, head, :rows, :columns] / in_row[:, None], largest[layer, head, :rows, :columns]
        tiles[str(index)] = deflated([encode(plane) for plane in planes])
    return tiles


def _bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high bytes of whole numbers below 65,536."""
    return (values & 0xFF).astype(np.uint8), (values >> 8).astype(np.uint8)


def deflated(planes: Any) -> str:
    """Bytes of arrays, compressed, as text."""
    return base64.b64encode(zlib.compress(b"".join(plane.tobytes() for plane in planes), 9)).decode("ascii")
