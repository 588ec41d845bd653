"""The attention of a few windows for a page: some heads token by token, the others in tiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, call_of_weights
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.sums import column_sums
from attnscope.measure.maps import ROWS, blocks_of, in_tiles, largest_weights, long_dataset, share_room, weight_rows
from attnscope.measure.passes import WindowBatch
from attnscope.measure.ranking import heads_far_from_uniform, rank_heads
from attnscope.measure.rows import equal_rows, evenly
from attnscope.read.windows import Window, padded
from attnscope.read.words import in_words
from attnscope.support.errors import AttnscopeError

Place = tuple[int, int]  # layer, head


SAMPLE_WINDOWS = 3
WEIGHTS = 5_500_000  # listed one by one, over all maps: about 8 MB in a page
TILES = 400_000  # over all heads
_USUAL_ROW = 128  # weights in a typical row
# Numbers of received attention, over all heads and windows: beyond it, only for listed heads.
KEYS = 1 << 23


def reject_absent(show: Sequence[Place] | None, layers: int, heads: int) -> None:
    """Reject heads to show that a model with these numbers of layers and heads does not have."""
    for layer, head in show or ():
        if not (0 <= layer < layers and 0 <= head < heads):
            raise AttnscopeError(
                f"there is no head {layer}.{head} (show, --show): layers go from 0 to {layers - 1}, "
                f"heads from 0 to {heads - 1}"
            )


def shown_heads(results: xr.Dataset, show: Sequence[Place], tokens: int) -> list[list[Place]]:
    """Heads to list token by token in each window: the chosen ones, the first of the rankings, and all if they fit."""
    layers, heads = results.sizes["layer"], results.sizes["head"]
    reject_absent(show, layers, heads)
    ranked = leading_heads(results)
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    weights = len(every) * tokens * min(tokens, _USUAL_ROW)
    return [
        list(dict.fromkeys([*show, *ranked, *(every if weights * windows <= WEIGHTS else ())]))
        for windows in (1, *[SAMPLE_WINDOWS] * (SAMPLE_WINDOWS - 1))
    ]


def leading_heads(results: xr.Dataset) -> list[Place]:
    """The heads of the rankings, the first of each before the second ones; else those furthest from uniform."""
    each = zip_longest(*rank_heads(results).values())
    ranked = [(row["layer"], row["head"]) for rows in each for row in rows if row is not None]
    apart = None if ranked else heads_far_from_uniform(results)
    return list(dict.fromkeys(ranked if apart is None else apart[1]))


@dataclass
class MapObserver:
    """Takes the maps of one window from a forward pass: `listed` heads token by token, all others in tiles."""

    listed: Sequence[Place]  # heads (layer, head)
    room: int  # weights that the maps of this window may list together; unused space goes to other maps
    tile: int  # tokens on a side of a tile; 0 for no tiles
    layer_done: Callable[[], None]  # called after each layer
    words: WordBatch | None = None  # the window by words, if these are shown instead of tokens
    # heads whose received attention is also stored; none by default
    receiving: Collection[Place] | None = None
    # size of the observation window, whose received attention is also stored; 0 by default
    last: int | None = field(default=None, kw_only=True)
    # tokens on a side of the blocks of all heads, to the end of a long window; 0 for none
    block: int = 0
    maps: dict[Place, tuple[np.ndarray, ...]] = field(default_factory=dict[tuple[int, int], tuple[np.ndarray, ...]])
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
        places = [(site.index, head) for head in range(call.query.shape[1])]
        if self.receiving is not None and {*self.receiving} & {*places}:
            self._receive(places, call, rows if merged is None else None, merged)
        if self.block:
            of_blocks = blocks_of(call, rows.log_sum_exp if merged is None else _level(call, None, merged), self.block)
            self.blocks |= {place: of_blocks[:, head] for head, place in enumerate(places)}
        for head, place in enumerate(places):
            if place in self.listed:
                self.maps[place] = largest_weights(call, head, self.room)
                share_room([self.maps], self.room)
            elif self.tile:
                self.tiles[place] = in_tiles(call, head, self.tile)
        self.layer_done()
        return output

    def _receive(
        self, places: Sequence[Place], call: AttentionCall, rows: RowMeasures | None, merged: MergedCall | None
    ) -> None:
        """The attention that each key receives, and that under uniform attention."""
        level = _level(call, rows, merged)
        even = evenly(call) if merged is None else merged.equal
        level_of_equal = (equal_rows(call, Need()) if merged is None else measure(even, Need())[1]).log_sum_exp
        stores: dict[int | None, Any] = {None: (self.received, self.equal)}
        if self.last is not None:
            stores[self.last] = self.recent, self.equal_recent
        for last, (of_heads, equal) in stores.items():
            for head, sums in enumerate(column_sums(call, level, last=last)[0].float().cpu().numpy()):
                if self.receiving is not None and places[head] in self.receiving:
                    of_heads[places[head]] = sums
            equal[places[0][0]] = column_sums(even, level_of_equal, last=last)[0, 0].float().cpu().numpy()


def _level(call: AttentionCall, rows: RowMeasures | None, merged: MergedCall | None) -> Tensor:
    """The log-sum-exp of each row; for words, of rows with a smaller sum."""
    level = (measure(call, Need())[1] if rows is None else rows).log_sum_exp
    return level if merged is None else level - merged.mass.log()


def tile_size(heads: int, tokens: int) -> int:
    """Tokens on a side of a tile: a power of two, so that the tiles of all heads fit."""
    tile = 1
    while heads * (min(tokens, ROWS) / tile) ** 2 > TILES:
        tile *= 2
    return tile


def sample_dataset(
    observed: Sequence[MapObserver],
    windows: Sequence[Window],
    kinds: Sequence[str],
    heads: int,
    show: Sequence[Place],
    *,
    with_decoder: bool = False,
) -> xr.Dataset:
    """Gather the maps of some windows."""
    places = [(window, place) for window, observer in enumerate(observed) for place in observer.maps]
    maps = [observed[window].maps[place] for window, place in places]
    texts = {"": list(windows)} | ({"target_": [window.target or window for window in windows]} if with_decoder else {})
    queries = max(len(text) for side in texts.values() for text in side)
    rows = max([min(queries, ROWS), *(len(parts[0]) for parts in maps)])

    def of_rows(part: int, dtype: type) -> np.ndarray:
        whole = np.zeros((len(maps), rows), dtype)
        for row, parts in zip(whole, maps, strict=True):
            row[: len(parts[part])] = parts[part]
        return whole

    def entries(part: int, dtype: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(parts[part] for parts in maps)]).astype(dtype)

    sample = xr.Dataset(
        {
            "count": (("map", "query"), of_rows(0, np.int32)),
            "rest": (("map", "query"), of_rows(3, np.float32)),
            "key": ("entry", entries(1, np.int32)),
            "weight": ("entry", entries(2, np.float32)),
            **_tiles(observed[0], len(kinds), heads),
        },
        coords={
            "layer": np.arange(len(kinds)),
            "head": np.arange(heads),
            "layer_kind": ("layer", np.array(kinds, dtype=object)),
            "window_of": ("map", np.array([window for window, _ in places], dtype=np.int64)),
            "layer_of": ("map", np.array([layer for _, (layer, _) in places], dtype=np.int64)),
            "head_of": ("map", np.array([head for _, (_, head) in places], dtype=np.int64)),
            "source": ("window", np.array([window.source for window in windows], dtype=object)),
            "start": ("window", np.array([window.start for window in windows])),
        },
        attrs={"requested": json.dumps([list(place) for place in show]), "tile": observed[0].tile},
    )
    for side, of_windows in texts.items():
        tokens = np.full((len(windows), rows), "", dtype=object)
        special = np.zeros((len(windows), rows), dtype=bool)
        for window, text in enumerate(of_windows):
            visible = min(rows, len(text))
            tokens[window, :visible], special[window, :visible] = text.tokens[:visible], text.special[:visible]
        both = ("window", "query")
        named: dict[str, Any] = {"token": (both, tokens), "special": (both, special)}
        named["tokens"] = "window", [len(text) for text in of_windows]
        if any(text.roles for text in of_windows):
            named["role"] = both, np.array([[*text.roles, *[""] * rows][:rows] for text in of_windows], dtype=object)
        sample = sample.assign_coords({f"{side}{name}": own for name, own in named.items()})
    first = {side: of_windows[0] for side, of_windows in texts.items()}
    long = long_dataset(observed[0].blocks, observed[0].block, len(kinds), heads, first)
    keys = _received(observed, texts, len(kinds), heads)
    return sample.merge(keys).merge(long).assign_attrs(keys.attrs | long.attrs)


def _received(observed: Sequence[MapObserver], texts: dict[str, list[Window]], layers: int, heads: int) -> xr.Dataset:
    if not any(sample.received for sample in observed):
        return xr.Dataset()
    longest = max(len(keys) for sample in observed for keys in sample.received.values())
    tokens = {side: [[*text.tokens, *[""] * longest][:longest] for text in own] for side, own in texts.items()}
    named = {f"{side}position_token": (("window", "position"), np.array(own, object)) for side, own in tokens.items()}
    last, sizes = observed[0].last, {"window": len(observed), "layer": layers, "head": heads, "position": longest}
    of_layers = ("window", "layer", "position")  # uniform attention is the same in every head
    of, evenly = "all queries", ", under uniform attention"
    tables = [("received", "received", (*sizes,), of), ("equal_received", "equal", of_layers, f"{of}{evenly}")]
    if last is not None:
        of = f"the last {last} queries"
        tables += [("recent", "recent", (*sizes,), of), ("equal_recent", "equal_recent", of_layers, f"{of}{evenly}")]
    sums = xr.Dataset(coords=named, attrs={} if last is None else {"observation": last})
    for name, part, dims, which in tables:
        whole = np.full([sizes[dim] for dim in dims], np.nan, np.float32)
        for of_window, sample in zip(whole, observed, strict=True):
            for place, keys in getattr(sample, part).items():
                of_window[place][: len(keys)] = keys
        sums[name] = (dims, whole, {"long_name": f"Sum of the weights on each key, over {which}", "units": "queries"})
    return sums


def _tiles(observer: MapObserver, layers: int, heads: int) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    if not observer.tiles:
        return {}
    shapes = [total.shape for total, _ in observer.tiles.values()]
    shape = (2, layers, heads, max(rows for rows, _ in shapes), max(columns for _, columns in shapes))
    whole = np.full(shape, np.nan, np.float32)
    for (layer, head), both in observer.tiles.items():
        for part, tiles in enumerate(both):
            whole[part, layer, head] = 0
            whole[part, layer, head, : tiles.shape[0], : tiles.shape[1]] = tiles
    dims = ("layer", "head", "tile_query", "tile_key")
    return {"tile_sum": (dims, whole[0]), "tile_max": (dims, whole[1])}


_ROWS = 512  # of one head, in memory together


@dataclass(frozen=True, eq=False)
class MergedCall:
    """One attention call merged to words."""

    call: AttentionCall  # attention call of these weights, each row scaled to sum to 1; it has no output
    mass: Tensor  # sums of the rows, ``(batch, head, word)``
    equal: AttentionCall  # uniform attention over the visible tokens, merged to words, as one head


@dataclass(frozen=True, eq=False)
class WordBatch:
    """A batch of windows, read by tokens and measured by words."""

    words: WindowBatch  # the same windows with words as tokens
    # ``(batch, token)``: the number of each token's word, -1 on padding; of the text, and of the decoder's input
    numbers: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, windows: Sequence[Window], device: torch.device | str = "cpu") -> WordBatch:
        """Merge windows, and their targets."""
        words = WindowBatch.of([in_words(window) for window in windows], 0, device)
        sides = (windows, [window.target or window for window in windows])
        text, target = (padded([window.words for window in side], -1).to(device) for side in sides)
        return cls(words, (text, target))

    def merged(self, kind: str, call: AttentionCall) -> MergedCall | None:
        """The call from word to word; None if its positions are not the tokens."""
        text, target = self.numbers
        queries = text if kind == "self" else target
        keys = target if kind == "causal" else text
        if (queries.shape[1], keys.shape[1]) != (call.query.shape[2], call.key.shape[2]):
            return None
        return merge_call(call, queries.to(call.query.device), keys.to(call.query.device))

    def weights(self, site: Site, call: AttentionCall) -> Tensor:
        """The weights from word to word, ``(batch, head, word, word)``."""
        merged = self.merged(site.kind, call)
        if merged is None:
            raise AttnscopeError(
                f"layer {site.index} does not attend from token to token (pooled tokens, a prompt), so its weights "
                "cannot be merged to words: leave out words"
            )
        return attend_in_full(merged.call)[1] * merged.mass[..., None]


@torch.no_grad()
def merge_call(call: AttentionCall, queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]) -> MergedCall:
    """Merge tokens to words on both sides, by the number of each token's word; -1 for padding."""
    weights, mass = _words_words(call, queries, keys, range(call.query.shape[1]))
    equal, _ = _words_words(evenly(call), queries, keys, range(1))
    seen = (equal > 0) | (weights > 0).any(1, keepdim=True)
    return MergedCall(replace(call_of_weights(weights), mask=seen), mass, call_of_weights(equal))


def _words_words(call: AttentionCall, queries: Tensor, keys: Tensor, heads: range) -> tuple[Tensor, Tensor]:
    """Shares of each word's weight on each word, ``(batch, head, word, word)``, and the sums of the rows."""
    words = [int(side.max()) + 1 for side in (queries, keys)]
    wide = torch.promote_types(call.query.dtype, torch.float32)
    merged = torch.zeros(len(queries), len(heads), words[0] + 1, words[1] + 1, dtype=wide, device=queries.device)
    rows = torch.zeros(len(queries), len(heads), words[0] + 1, dtype=wide, device=queries.device)
    for text, (query_words, others) in enumerate(zip(queries % (words[0] + 1), keys % (words[1] + 1), strict=True)):
        for head in heads:
            first = 0
            for weights in weight_rows(call, head, len(query_words), _ROWS, text=text):
                at = query_words[first : first + len(weights)]
                on_words = weights.new_zeros(len(weights), words[1] + 1).index_add_(1, others, weights)
                merged[text, head].index_add_(0, at, on_words.to(wide))
                rows[text, head].index_add_(0, at, (weights.sum(-1) > 0).to(wide))
                first += len(weights)
    merged = merged[..., :-1, :-1] / rows[..., :-1, None].clamp_min(1)
    mass = merged.sum(-1, dtype=torch.float64)
    shares = merged / torch.where(mass > 0, mass, 1.0)[..., None].to(wide)
    return shares, torch.where((mass - 1).abs() < 1e-5, 1.0, mass)  # noqa: PLR2004 no learned sink
