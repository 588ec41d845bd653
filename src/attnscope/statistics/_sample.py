"""The attention of a few windows, as a page shows it: some heads token by token, the others in tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.attention import Need, attend, column_sums, measure
from attnscope.errors import AttnscopeError
from attnscope.statistics._equal import equal_rows
from attnscope.statistics._long_maps import blocks_of
from attnscope.statistics._ranking import heads_apart, rank_heads
from attnscope.statistics._second_pass import evenly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall, RowMeasures
    from attnscope.capture import Site
    from attnscope.statistics._words import MergedCall, WordReading

    Place = tuple[int, int]  # layer, head

WINDOWS = 3
ROWS = 4096  # tokens of a window: more than a reader can read
WEIGHTS = 5_500_000  # listed one by one, over all maps: about 8 MB in a page
TILES = 400_000  # over all heads
ENOUGH = 0.95  # of a map's weight: the rest is not worth its room
_EACH_ROW = 8  # weights that every row lists at least,
_USUAL_ROW = 128  # and that it lists as a rule
_SMALL = 128**2  # weights: a map of no more is listed whole
_OCTAVES = 20  # below 1: weights that count
_FINE = 19  # bits of a float's mantissa that do not matter: weights are counted in 16 levels an octave,
_ONE = 127 << 4  # of which this is the weight 1
_ROWS_AT_ONCE = 512
KEYS = (
    1 << 23
)  # numbers of what keys receive, over all heads and windows: of more, listed heads alone have them


def refuse_absent(asked: Sequence[Place] | None, layers: int, heads: int) -> None:
    """Refuse heads to show that a model of so many layers, of so many heads at most, does not have.

    Examples
    --------
    >>> refuse_absent([(0, 9)], 3, 4)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: there is no head 0.9 to show: layers go from 0 to 2, heads from 0 to 3
    """
    for layer, head in asked or ():
        if not (0 <= layer < layers and 0 <= head < heads):
            raise AttnscopeError(
                f"there is no head {layer}.{head} to show: layers go from 0 to {layers - 1}, "
                f"heads from 0 to {heads - 1}"
            )


def shown_heads(results: xr.Dataset, asked: Sequence[Place], tokens: int, windows: int = 1) -> list[Place]:
    """Heads to list token by token: those asked for and those that lead the rankings; all, where there is room.

    Where nothing ranks heads, those that a statistic sets furthest apart take the place of those that lead.

    Examples
    --------
    >>> outside = np.linspace(0.0, 0.9, 1024).reshape(1, 32, 32)
    >>> results = xr.Dataset({"outside": (("text", "layer", "head"), outside)})
    >>> shown_heads(results, [(3, 6)], tokens=2048)
    [(3, 6), (0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    >>> len(shown_heads(results, [], tokens=20)), len(shown_heads(results, [], tokens=60, windows=3))
    (1024, 5)
    """
    layers, heads = results.sizes["layer"], results.sizes["head"]
    refuse_absent(asked, layers, heads)
    ranked = [
        (row["layer"], row["head"])
        for rows in zip_longest(*rank_heads(results).values())
        for row in rows
        if row is not None
    ]
    if not ranked and (apart := heads_apart(results)) is not None:
        ranked = apart[1]
    room = layers * heads * tokens * min(tokens, _USUAL_ROW) * windows <= WEIGHTS
    every = [(layer, head) for layer in range(layers) for head in range(heads)] if room else []
    return list(dict.fromkeys([*asked, *ranked, *every]))


@dataclass
class MapObserver:
    """Takes the maps of one window from a forward pass: `listed` heads token by token, all others in tiles.

    Parameters
    ----------
    listed
        Heads (layer, head).
    room
        How many weights the maps of this window may list together; what some do not need goes to the others.
    tile
        Tokens on a side of a tile; 0 for no tiles.
    layer_done
        Called after each layer.
    words
        The window by words, where these are shown instead of tokens.
    first_head
        From a site and its heads here to the number of the first, where other processes have those before.
    receiving
        Heads of which it is also taken what each key receives; none by default.
    last
        The last so many queries, from which alone it is taken beside that; of none by default.
    block
        Tokens on a side of the blocks that all heads are kept in beside that, to the end of a long window; 0 for none.
    """

    listed: Sequence[Place]
    room: int
    tile: int
    layer_done: Callable[[], None]
    words: WordReading | None = None
    first_head: Callable[[Site, int], int] | None = None
    receiving: Callable[[Place], bool] | None = None
    last: int | None = field(default=None, kw_only=True)
    block: int = 0
    maps: dict[Place, tuple[np.ndarray, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[np.ndarray, ...]]
    )
    tiles: dict[Place, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]
    )
    blocks: dict[Place, np.ndarray] = field(default_factory=dict[tuple[int, int], np.ndarray])
    received: dict[Place, np.ndarray] = field(default_factory=dict[tuple[int, int], np.ndarray])
    equal: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    recent: dict[Place, np.ndarray] = field(default_factory=dict[tuple[int, int], np.ndarray])
    equal_recent: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need())
        merged = None if self.words is None else self.words.merged(site.kind, call)
        call = call if merged is None else merged.call
        heads = call.query.shape[1]
        first = 0 if self.first_head is None else self.first_head(site, heads)
        places = [(site.index, first + head) for head in range(heads)]
        if self.receiving is not None and any(map(self.receiving, places)):
            self._receive(places, call, rows if merged is None else None, merged)
        if self.block:
            level = rows.log_sum_exp if merged is None else _level(call, None, merged)
            kept = blocks_of(call, level, self.block)
            self.blocks |= {place: kept[:, head] for head, place in enumerate(places)}
        for head, place in enumerate(places):
            if place in self.listed:
                self.maps[place] = largest_weights(call, head, self.room)
                share_room([self.maps], self.room)
            elif self.tile:
                self.tiles[place] = in_tiles(call, head, self.tile)
        self.layer_done()
        return output

    def _receive(
        self,
        places: Sequence[Place],
        call: AttentionCall,
        rows: RowMeasures | None,
        merged: MergedCall | None,
    ) -> None:
        """What each key receives, and what it would of equal weights."""
        level = _level(call, rows, merged)
        even = evenly(call) if merged is None else merged.equal
        level_of_equal = (
            equal_rows(call, Need()) if merged is None else measure(even, Need())[1]
        ).log_sum_exp
        kept: dict[int | None, Any] = {None: (self.received, self.equal)}
        if self.last is not None:
            kept[self.last] = self.recent, self.equal_recent
        for last, (own, equal) in kept.items():
            for head, sums in enumerate(column_sums(call, level, last=last)[0].float().cpu().numpy()):
                if self.receiving is not None and self.receiving(places[head]):
                    own[places[head]] = sums
            equal[places[0][0]] = column_sums(even, level_of_equal, last=last)[0, 0].float().cpu().numpy()


def _level(call: AttentionCall, rows: RowMeasures | None, merged: MergedCall | None) -> Tensor:
    """The log-sum-exp of each row; of words, of rows that sum to less."""
    level = (measure(call, Need())[1] if rows is None else rows).log_sum_exp
    return level if merged is None else level - merged.mass.log()


def weight_rows(
    call: AttentionCall, head: int, rows: int, at_once: int = _ROWS_AT_ONCE, *, text: int = 0
) -> Iterator[Tensor]:
    """The first rows of one head's weights on one text, some at a time.

    Parameters
    ----------
    call
        Arguments of the attention call.
    head
        Number of the head, from 0.
    rows
        Number of rows, from the first.
    at_once
        Number of rows in memory at a time.
    text
        Number of the text in the batch, from 0.

    Yields
    ------
    Tensor
        Weights ``(row, key)``, float32.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import AttentionCall
    >>> x = torch.zeros(1, 1, 3, 4)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> [part.tolist() for part in weight_rows(call, head=0, rows=2, at_once=1)]
    [[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]]
    """
    at = head // call.group
    bias = (
        None
        if call.bias is None
        else call.bias[min(text, len(call.bias) - 1), min(head, call.bias.shape[1] - 1)]
    )
    rows = min(rows, call.query.shape[2])
    for first in range(0, rows, at_once):
        part = slice(first, min(rows, first + at_once))
        yield attend(
            call.query[text, head, part].float(),
            call.key[text, at].float(),
            call.value[text, at].float(),
            call.allowed(text, head, part),
            call.scale,
            bias=None if bias is None else bias[part].float(),
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks[head].float().view(1, 1),
        )[1]


def largest_weights(call: AttentionCall, head: int, room: int) -> tuple[np.ndarray, ...]:
    """The largest weights of one head, whatever their rows, and some of every row.

    Returns
    -------
    tuple of numpy.ndarray
        How many weights each row lists; their keys, ascending within a row; the weights; what each row leaves out;
        which weights are among the few that every row lists.
    """
    least = _least_weight(call, head, room)
    parts: list[tuple[Tensor, ...]] = []
    for weights in weight_rows(call, head, ROWS):
        few = torch.zeros_like(weights, dtype=torch.bool)
        few.scatter_(-1, weights.topk(min(_EACH_ROW, weights.shape[-1])).indices, value=True)
        kept = (few | (weights >= least)) & (weights > 2.0**-_OCTAVES)
        rest = (weights.sum(-1) - (weights * kept).sum(-1)).clamp_min(0)
        parts.append((kept.sum(-1), kept.nonzero()[:, 1], weights[kept], rest, few[kept]))
    counts, keys, weights, rest, few = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return counts.astype(np.int32), keys.astype(np.int32), weights, rest, few


def share_room(maps: Sequence[dict[Place, tuple[np.ndarray, ...]]], room: int) -> None:
    """Cut maps down to `room` weights together: each lists what it needs, or as much as any other that is cut.

    The level to which they are cut only falls as maps are added, so that the order in which they come makes no
    difference.
    """
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
        for place, parts in of_window.items():
            if len(parts[1]) > level:
                of_window[place] = _cut(parts, level)


def _cut(parts: tuple[np.ndarray, ...], size: int) -> tuple[np.ndarray, ...]:
    """The `size` largest of a map's weights, and the few that every row lists."""
    counts, keys, weights, rest, few = parts
    largest = np.zeros(len(weights), bool)
    largest[np.argpartition(weights, len(weights) - size)[len(weights) - size :]] = True
    kept = largest | few
    query = np.repeat(np.arange(len(counts)), counts)
    left_out = np.bincount(query[~kept], weights[~kept], len(counts))
    counts = np.bincount(query[kept], minlength=len(counts)).astype(np.int32)
    return counts, keys[kept], weights[kept], (rest + left_out).astype(rest.dtype), few[kept]


def _least_weight(call: AttentionCall, head: int, room: int) -> float:
    """The weight from which on all are listed: as many as there is room for, or enough of the mass."""
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
    """Sum and maximum of one head's weights in tiles of so many queries by so many keys."""
    parts: list[tuple[Tensor, Tensor]] = []
    for every in weight_rows(call, head, ROWS, at_once=tile * max(1, _ROWS_AT_ONCE // tile)):
        weights = every[:, :ROWS]
        beyond = [(-size) % tile for size in weights.shape]
        padded = torch.nn.functional.pad(weights, (0, beyond[1], 0, beyond[0]))
        tiled = padded.unflatten(1, (-1, tile)).unflatten(0, (-1, tile))
        parts.append((tiled.sum((1, 3)), tiled.amax((1, 3))))
    total, largest = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return total, largest


def tile_size(heads: int, tokens: int) -> int:
    """Tokens on a side of a tile: a power of two, so large that the tiles of all heads keep to their room.

    Examples
    --------
    >>> tile_size(1024, 2048), tile_size(144, 512)
    (128, 16)
    """
    tile = 1
    while heads * (min(tokens, ROWS) / tile) ** 2 > TILES:
        tile *= 2
    return tile
