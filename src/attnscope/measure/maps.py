"""Maps of weights: the best blocks, the largest weights, tiles, and blocks of windows that are too long for tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.kernels.blocks import BLOCK, block_size, block_weights
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.full import row_weights
from attnscope.measure.rows import equal_rows, evenly
from attnscope.read.windows import Window

KEPT = (5, 10, 25)  # percent of the blocks


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Weights of a call in blocks of 64 queries by 64 keys."""

    total: Tensor  # ``(batch, head, query_block, key_block)``: sum of the weights of the queries that count
    seen: Tensor  # ``(batch, 1, query_block, key_block)``: whether any of them may attend to a key of the block

    @classmethod
    def of(
        cls, call: AttentionCall, log_sum_exp: Tensor, counted: Tensor, equal: AttentionCall | None = None
    ) -> tuple[BlockSums, BlockSums]:
        """Those of a call and those of uniform attention; `counted` is ``(batch, query)``, False on padding."""
        even = evenly(call) if equal is None else equal
        level = equal_rows(call, Need()).log_sum_exp if equal is None else measure(even, Need())[1].log_sum_exp
        weights, null = (
            block_weights(each, lse.masked_fill(~counted[:, None], torch.inf), BLOCK).total
            for each, lse in ((call, log_sum_exp), (even, level))
        )
        seen = null[:, :1] > 0
        return cls(weights, seen), cls(null[:, :1], seen)

    def recall(self) -> Tensor:
        r"""Share of the weight in the best blocks of each block row, ``(batch, head, kept)``."""
        return self._held(self.total, self.seen)

    def map_recall(self) -> Tensor:
        """Share of the weight in the best blocks of the whole map."""
        return self._held(self.total.flatten(2)[:, :, None], self.seen.flatten(2)[:, :, None])

    @staticmethod
    def _held(total: Tensor, seen: Tensor) -> Tensor:
        best = total.double().sort(-1, descending=True).values.cumsum(-1)
        count = seen.sum(-1)
        held: list[Tensor] = []
        for percent in KEPT:
            last = ((count * percent + 99) // 100).clamp_min(1) - 1
            held.append(best.gather(-1, last.expand(best.shape[:-1])[..., None])[..., 0].sum(-1))
        return torch.stack(held, -1) / best[..., -1].sum(-1, keepdim=True)


ROWS = 4096  # tokens of a window: more than a reader can read
ENOUGH = 0.95  # of a map's weight: the rest is not worth its space
_EACH_ROW = 8  # weights that every row lists at least
_SMALL = 128**2  # weights: a map of no more is listed whole
_OCTAVES = 20  # below 1: weights that count
_FINE = 19  # bits of a float's mantissa that do not matter: weights are counted in 16 levels an octave,
_ONE = 127 << 4  # of which this is the weight 1
_ROWS_AT_ONCE = 512


def weight_rows(
    call: AttentionCall, head: int, rows: int, at_once: int = _ROWS_AT_ONCE, *, text: int = 0
) -> Iterator[Tensor]:
    """The first rows of one head's weights on one text, in blocks."""
    of_head, rows = call.part(slice(head, head + 1), slice(text, text + 1)), min(rows, call.query.shape[2])
    for first in range(0, rows, at_once):
        yield row_weights(of_head, slice(first, min(rows, first + at_once))).weights[0, 0]


def largest_weights(call: AttentionCall, head: int, room: int) -> tuple[np.ndarray, ...]:
    """The largest weights of one head over all rows, and some of every row."""
    least = _least_weight(call, head, room)
    parts: list[tuple[Tensor, ...]] = []
    for weights in weight_rows(call, head, ROWS):
        few = torch.zeros_like(weights, dtype=torch.bool)
        few.scatter_(-1, weights.topk(min(_EACH_ROW, weights.shape[-1])).indices, value=True)
        listed = (few | (weights >= least)) & (weights > 2.0**-_OCTAVES)
        rest = (weights.sum(-1) - (weights * listed).sum(-1)).clamp_min(0)
        parts.append((listed.sum(-1), listed.nonzero()[:, 1], weights[listed], rest, few[listed]))
    counts, keys, weights, rest, few = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return counts.astype(np.int32), keys.astype(np.int32), weights, rest, few


def share_room(maps: Sequence[dict[tuple[int, int], tuple[np.ndarray, ...]]], room: int) -> None:
    """Cut maps down to `room` weights together: each lists what it needs, or as much as any other that is cut."""
    sizes = [len(parts[1]) for of_window in maps for parts in of_window.values()]
    if sum(sizes) <= room:
        return
    level, left = 0, room
    for number, size in enumerate(sorted(sizes)):
        level = left // (len(sizes) - number)
        if size > level:
            break
        left -= size
    for of_window in maps:
        for head, parts in of_window.items():
            if len(parts[1]) > level:
                of_window[head] = _cut(parts, level)


def _cut(parts: tuple[np.ndarray, ...], size: int) -> tuple[np.ndarray, ...]:
    """The `size` largest of a map's weights, and the few that every row lists."""
    counts, keys, weights, rest, few = parts
    largest = np.zeros(len(weights), bool)
    largest[np.argpartition(weights, len(weights) - size)[len(weights) - size :]] = True
    listed = largest | few
    query = np.repeat(np.arange(len(counts)), counts)
    left_out = np.bincount(query[~listed], weights[~listed], len(counts))
    counts = np.bincount(query[listed], minlength=len(counts)).astype(np.int32)
    return counts, keys[listed], weights[listed], (rest + left_out).astype(rest.dtype), few[listed]


def _least_weight(call: AttentionCall, head: int, room: int) -> float:
    """The threshold from which all weights are listed: as many as fit, or enough of the mass."""
    count = torch.zeros(_ONE + 1, dtype=torch.int64)
    for weights in weight_rows(call, head, ROWS):
        level = weights.contiguous().view(torch.int32).flatten() >> _FINE
        count += torch.bincount(level.clamp_max(_ONE), minlength=_ONE + 1).cpu()
    least = (torch.arange(_ONE + 1, dtype=torch.int32) << _FINE).view(torch.float32).double()
    count[least < 2.0**-_OCTAVES] = 0
    from_top = count.flip(0)
    mass = (from_top * least.flip(0)).cumsum(0)
    fits = int((from_top.cumsum(0) <= room).sum())
    enough = int((mass < ENOUGH * mass[-1]).sum()) + 1
    if int(count.sum()) <= _SMALL:
        enough = fits
    return float(least[_ONE + 1 - max(1, min(fits, enough))])


def in_tiles(call: AttentionCall, head: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum and maximum of one head's weights in tiles."""
    parts: list[tuple[Tensor, Tensor]] = []
    for every in weight_rows(call, head, ROWS, at_once=tile * max(1, _ROWS_AT_ONCE // tile)):
        weights = every[:, :ROWS]
        beyond = [(-size) % tile for size in weights.shape]
        padded = torch.nn.functional.pad(weights, (0, beyond[1], 0, beyond[0]))
        tiled = padded.unflatten(1, (-1, tile)).unflatten(0, (-1, tile))
        parts.append((tiled.sum((1, 3)), tiled.amax((1, 3))))
    total, largest = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return total, largest


Place = tuple[int, int]  # layer, head


SIDE = 512  # blocks on a side of a map, at most
CELLS = 4_000_000  # over all heads
WORDS = 8  # tokens that name a block


def long_block(heads: int, tokens: int) -> int:
    """Tokens on a side of a block, so that the maps of all heads fit."""
    return block_size(tokens, max(1, min(SIDE, int((CELLS / heads) ** 0.5))))


def blocks_of(call: AttentionCall, log_sum_exp: Tensor, size: int) -> np.ndarray:
    """Sums and largest weights of all heads on the first text, ``(2, head, query_block, key_block)``."""
    blocks = block_weights(call, log_sum_exp, size)
    return np.stack([part[0].float().cpu().numpy() for part in (blocks.total, blocks.largest)])


def long_dataset(
    observed: Mapping[Place, np.ndarray], size: int, layers: int, heads: int, texts: Mapping[str, Window]
) -> xr.Dataset:
    """``block_sum``, ``block_max (layer, head, block_query, block_key)`` of the first window, and block names."""
    if not observed:
        return xr.Dataset()
    shapes = [both.shape[1:] for both in observed.values()]
    sides = max(rows for rows, _ in shapes), max(columns for _, columns in shapes)
    whole = np.full((2, layers, heads, *sides), np.nan, np.float32)
    for (layer, head), both in observed.items():
        whole[:, layer, head, : both.shape[1], : both.shape[2]] = both
    dims = ("layer", "head", "block_query", "block_key")
    named: dict[str, tuple[str, np.ndarray]] = {}
    for side, text in texts.items():
        words = ["".join(text.tokens[at : at + WORDS]) for at in range(0, len(text), size)]
        named[f"{side}block_text"] = f"{side}block", np.array(words, dtype=object)
    return xr.Dataset(
        {"block_sum": (dims, whole[0]), "block_max": (dims, whole[1])}, coords=named, attrs={"block": size}
    )
