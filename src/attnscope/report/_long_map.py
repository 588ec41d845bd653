"""Packing the map of a whole long window in blocks, as the page zooms it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.figures.reading import sides
from attnscope.report._window import deflated, encode

if TYPE_CHECKING:
    import xarray as xr


def pack_long(sample: xr.Dataset) -> dict[str, Any] | None:
    """What the page draws of a long window; None where the sample has none.

    ``heads`` has by index, counting layer by layer, two planes: the share of the queries' weight in each block, and the
    largest weight. ``texts`` begin the blocks of each text, ``tokens`` count it, ``block`` is the tokens on a side.
    """
    if "block_sum" not in sample:
        return None
    size = int(sample.attrs["block"])
    names = [side for side in ("", "target_") if f"{side}block_text" in sample.variables]
    tokens = [int(sample[f"{side}tokens"].values[0]) for side in names]
    packed: dict[str, str] = {}
    for index, (layer, head) in enumerate(np.ndindex(sample.sizes["layer"], sample.sizes["head"])):
        queries, keys = (tokens[names.index(side)] for side in sides(sample, int(sample.layer[layer])))
        at = (layer, head, slice(-(-queries // size)), slice(-(-keys // size)))
        total, most = (sample[name].values[at].astype(np.float64) for name in ("block_sum", "block_max"))
        if np.isnan(total).any():
            continue
        in_row = np.minimum(size, queries - size * np.arange(len(total)))
        packed[str(index)] = deflated([encode(total / in_row[:, None]), encode(most)])
    texts = [[str(text) for text in sample[f"{side}block_text"].values] for side in names]
    return {"block": size, "tokens": tokens, "texts": texts, "heads": packed}
