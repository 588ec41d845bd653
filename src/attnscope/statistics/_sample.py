"""The attention of a few windows, as a page shows it: some heads token by token, the others in tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.attention import Need, column_sums, measure
from attnscope.errors import AttnscopeError
from attnscope.statistics._equal import equal_rows
from attnscope.statistics._long_maps import blocks_of
from attnscope.statistics._map_weights import ROWS, in_tiles, largest_weights, share_room
from attnscope.statistics._ranking import heads_apart, rank_heads
from attnscope.statistics._second_pass import evenly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall, RowMeasures
    from attnscope.capture import Site
    from attnscope.statistics._words import MergedCall, WordReading

    Place = tuple[int, int]  # layer, head

WINDOWS = 3
WEIGHTS = 5_500_000  # listed one by one, over all maps: about 8 MB in a page
TILES = 400_000  # over all heads
_USUAL_ROW = 128  # weights that a row lists as a rule
# Numbers of what keys receive, over all heads and windows: of more, listed heads alone have them.
KEYS = 1 << 23


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
