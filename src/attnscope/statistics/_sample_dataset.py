"""The maps of a few windows as one dataset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.statistics._long_maps import long_dataset
from attnscope.statistics._map_weights import ROWS
from attnscope.statistics._sample import MapObserver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.corpus import Window

    Place = tuple[int, int]  # layer, head


def sample_dataset(
    observed: Sequence[MapObserver],
    windows: Sequence[Window],
    kinds: Sequence[str],
    heads: int,
    asked: Sequence[Place],
    *,
    with_decoder: bool = False,
) -> xr.Dataset:
    """Gather the maps of some windows.

    A map is one head in one window: ``layer_of``, ``head_of``, ``window_of (map)``. ``count (map, query)`` says how
    many ``key`` and ``weight (entry)`` a row lists, map after map and row after row; ``rest (map, query)`` is what it
    leaves out. ``tile_sum`` and ``tile_max (layer, head, tile_query, tile_key)`` are of the first window, in tiles of
    attribute ``tile`` tokens on a side; NaN for heads that are listed. ``token`` and ``special (window, query)`` are of
    the text; with a decoder beside the encoder, ``target_token`` and ``target_special`` are of what it reads.
    ``tokens`` and ``target_tokens (window)`` say how many tokens there are: beyond, rows are padding.

    ``received (window, layer, head, position)`` is what each key receives from all queries, ``equal_received (window,
    layer, position)`` what it would of equal weights, and ``position_token``, ``target_position_token (window,
    position)`` name all tokens, also where maps show the first ones alone. ``recent (window, layer, head, position)``
    and ``equal_recent`` are the same from the last queries, as many as attribute ``observation`` says, where a
    statistic is over these.
    """
    places = [(window, place) for window, observer in enumerate(observed) for place in observer.maps]
    maps = [observed[window].maps[place] for window, place in places]
    texts = {"": list(windows)} | (
        {"target_": [window.target or window for window in windows]} if with_decoder else {}
    )
    queries = max(len(text) for side in texts.values() for text in side)
    rows = max([min(queries, ROWS), *(len(parts[0]) for parts in maps)])

    def padded(part: int, dtype: type) -> np.ndarray:
        whole = np.zeros((len(maps), rows), dtype)
        for row, parts in zip(whole, maps, strict=True):
            row[: len(parts[part])] = parts[part]
        return whole

    def entries(part: int, dtype: type) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(parts[part] for parts in maps)]).astype(dtype)

    sample = xr.Dataset(
        {
            "count": (("map", "query"), padded(0, np.int32)),
            "rest": (("map", "query"), padded(3, np.float32)),
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
        attrs={"asked": json.dumps([list(place) for place in asked]), "tile": observed[0].tile},
    )
    for side, of_windows in texts.items():
        tokens = np.full((len(windows), rows), "", dtype=object)
        special = np.zeros((len(windows), rows), dtype=bool)
        for window, text in enumerate(of_windows):
            shown = min(rows, len(text))
            tokens[window, :shown], special[window, :shown] = text.tokens[:shown], text.special[:shown]
        sample = sample.assign_coords(
            {
                f"{side}token": (("window", "query"), tokens),
                f"{side}special": (("window", "query"), special),
                f"{side}tokens": ("window", [len(text) for text in of_windows]),
            }
        )
    first = {side: of_windows[0] for side, of_windows in texts.items()}
    long = long_dataset(observed[0].blocks, observed[0].block, len(kinds), heads, first)
    keys = _received(observed, texts, len(kinds), heads)
    return sample.merge(keys).merge(long).assign_attrs(keys.attrs | long.attrs)


def _received(
    observed: Sequence[MapObserver], texts: dict[str, list[Window]], layers: int, heads: int
) -> xr.Dataset:
    if not any(sample.received for sample in observed):
        return xr.Dataset()
    longest = max(len(keys) for sample in observed for keys in sample.received.values())

    def of_heads(each: Sequence[dict[Place, np.ndarray]]) -> np.ndarray:
        sums = np.full((len(observed), layers, heads, longest), np.nan, np.float32)
        for window, of_window in enumerate(each):
            for (layer, head), keys in of_window.items():
                sums[window, layer, head, : len(keys)] = keys
        return sums

    def of_layers(each: Sequence[dict[int, np.ndarray]]) -> np.ndarray:
        """What equal weights give, as of one head."""
        return of_heads([{(layer, 0): keys for layer, keys in of_window.items()} for of_window in each])[
            :, :, 0
        ]

    named = {
        f"{side}position_token": (
            ("window", "position"),
            np.array([[*text.tokens, *[""] * longest][:longest] for text in of_windows], dtype=object),
        )
        for side, of_windows in texts.items()
    }
    dims, last = ("window", "layer", "head", "position"), observed[0].last
    keys = xr.Dataset(
        {
            "received": (dims, of_heads([sample.received for sample in observed]), _words("all queries")),
            "equal_received": (
                (*dims[:2], "position"),
                of_layers([sample.equal for sample in observed]),
                _words("all queries, of equal weights"),
            ),
        },
        coords=named,
    )
    if last is None:
        return keys
    recent = of_heads([sample.recent for sample in observed])
    equal = of_layers([sample.equal_recent for sample in observed])
    of = f"the last {last} queries"
    keys["recent"] = (dims, recent, _words(of))
    keys["equal_recent"] = ((*dims[:2], "position"), equal, _words(f"{of}, of equal weights"))
    return keys.assign_attrs(observation=last)


def _words(of: str) -> dict[str, str]:
    return {"long_name": f"Sum of the weights on each key, over {of}", "units": "queries"}


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
