"""The whole map of a window that is too long to list, in blocks: exact sums and largest weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.kernels.blocks import block_size, block_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Window

if TYPE_CHECKING:
    Place = tuple[int, int]  # layer, head

SIDE = 512  # blocks on a side of a map, at most
CELLS = 4_000_000  # over all heads
WORDS = 8  # tokens that name a block


def long_block(heads: int, tokens: int) -> int:
    """Tokens on a side of a block, so that the maps of all heads keep to their room."""
    return block_size(tokens, max(1, min(SIDE, int((CELLS / heads) ** 0.5))))


def blocks_of(call: AttentionCall, log_sum_exp: Tensor, size: int) -> np.ndarray:
    """Sums and largest weights of all heads on the first text, ``(2, head, query_block, key_block)``."""
    blocks = block_weights(call, log_sum_exp, size)
    return np.stack([part[0].float().cpu().numpy() for part in (blocks.total, blocks.largest)])


def long_dataset(
    observed: Mapping[Place, np.ndarray], size: int, layers: int, heads: int, texts: Mapping[str, Window]
) -> xr.Dataset:
    """``block_sum`` and ``block_max (layer, head, block_query, block_key)`` of the first window, and its blocks'
    names.
    """
    if not observed:
        return xr.Dataset()
    shapes = [both.shape[1:] for both in observed.values()]
    sides = max(rows for rows, _ in shapes), max(columns for _, columns in shapes)
    whole = np.full((2, layers, heads, *sides), np.nan, np.float32)
    for (layer, head), both in observed.items():
        whole[:, layer, head, : both.shape[1], : both.shape[2]] = both
    dims = ("layer", "head", "block_query", "block_key")
    named = {
        f"{side}block_text": (
            f"{side}block",
            np.array(["".join(text.tokens[at : at + WORDS]) for at in range(0, len(text), size)], dtype=object),
        )
        for side, text in texts.items()
    }
    return xr.Dataset(
        {"block_sum": (dims, whole[0]), "block_max": (dims, whole[1])}, coords=named, attrs={"block": size}
    )


def top(received: Tensor, count: int) -> Tensor:
    """Share of all weight on the keys that receive most, so many of them: ``(batch, head)``; NaN if there is none."""
    return _shares(received).topk(min(count, received.shape[-1])).values.sum(-1)


def effective(received: Tensor) -> Tensor:
    """Effective number of keys, exp of the entropy of what they receive: ``(batch, head)``."""
    shares = _shares(received)
    return shares.xlogy(shares).sum(-1).neg().exp()


def _shares(received: Tensor) -> Tensor:
    return received / received.sum(-1, keepdim=True)
