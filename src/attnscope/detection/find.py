"""`find`: which heads attend from one word to another."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture.notes import layer_coordinates
from attnscope.detection.examples import PairReader, Sides
from attnscope.kernels.full import attend_in_full
from attnscope.measure.contexts import sides_of
from attnscope.read.words import in_words
from attnscope.statistics.effects import effect_variables
from attnscope.statistics.units import units_in
from attnscope.store.arrays import by_layer
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Bool, Float

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Window


#: What is measured in each window: its name, and a sentence.
_MEASURED = {
    "weight": "Weight from one word to the other",
    "uniform": "The same under uniform attention",
    "same_offset": "Mean weight at the same offset from other words of the text",
    "rank": "Rank of the word among the words of the text by weight, from 1",
    "strongest": "Position of the word that gets the most",
}


class WordReader(PairReader):
    """The weight from one word to another, in every head."""

    command = "find"

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        joins = tuple(word.strip() for word in self.asked.values())
        self.windows = self.words = replace(self.words, joins=joins)

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        read = self.read(items, numbers)
        layers: list[dict[str, np.ndarray]] = []

        def look(site: Site, call: AttentionCall) -> None:
            merged = read.words and read.words.merged(site.kind, call)
            if merged is None:
                raise AttnscopeError(f"layer {site.index} does not attend from token to token, so it has no words")
            weights = (attend_in_full(merged.call)[1] * merged.mass[..., None]).double().cpu().numpy()
            uniform = attend_in_full(merged.equal)[1].double().cpu().numpy()
            measured = {name: np.full(weights.shape[:2], np.nan) for name in _MEASURED}
            for text, window in enumerate(items):
                for name, values in _of_words(weights[text], uniform[text], self.sides(window, site.kind)).items():
                    measured[name][text] = values
            layers.append(measured)

        self.run(read, look, numbers)
        dims = ("window", "layer", "head")
        return xr.Dataset(
            {
                f"window_{name}": (dims, by_layer([layer[name] for layer in layers]), {"long_name": meaning})
                for name, meaning in _MEASURED.items()
            }
            | {"length": ("window", np.array([len(in_words(window)) for window in items]))},
            coords=layer_coordinates(self.sites)
            | {
                "head": np.arange(max(site.heads for site in self.sites)),
                "window": np.array(numbers),
                "source": ("window", np.array([window.source for window in items], dtype=object)),
                "start": ("window", np.array([window.start for window in items])),
            },
        )

    def sides(self, window: Window, kind: str) -> Sides:
        """The words on both sides of a call."""
        queries, keys = sides_of(in_words(window), kind)
        rows, columns = (
            np.array([not special and is_it(word) for word, special in zip(side.tokens, side.special, strict=True)])
            for side, is_it in ((queries, self.is_query), (keys, self.is_key))
        )
        return Sides(queries, keys, rows, columns)

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        return self._heads

    def _heads(self, results: xr.Dataset) -> xr.Dataset:
        has_both = (results.window_uniform.values > 0).any((1, 2))
        if not has_both.any():
            raise AttnscopeError(
                f"found no text with the words {self.asked['query']!r} and {self.asked['key']!r} among "
                f"{count(results.sizes['window'], 'window')}, where the first may attend to the second. Give other "
                "words, or patterns between slashes (/[Ii]t/)"
            )
        here = results.isel(window=has_both)
        units, called = units_in(results, has_both)
        position = here.window_same_offset.fillna(here.window_uniform)
        above = here.window_weight - np.maximum(here.window_uniform, position)
        dims, seed = ("layer", "head"), self.settings["seed"]
        first = next(window for number, window in enumerate(self.items()) if number == int(here.window[0]))
        keys = {site.index: self.sides(first, site.kind).keys for site in self.sites}
        strongest = [
            [keys[layer].tokens[int(word)].strip() if np.isfinite(word) else "" for word in heads]
            for layer, heads in zip(results.layer.values.tolist(), here.window_strongest.values[0], strict=True)
        ]
        variables: dict[str, Any] = {}
        for name, values, meaning in (
            ("weight", here.window_weight, "Weight from one word to the other"),
            ("above", above, "The same less the larger of both baselines"),
        ):
            variables |= effect_variables(values.values, units, dims, meaning, name=name, unit="share", seed=seed)
        # the larger of two noisy baselines is too large, so a weight below it is no finding
        higher = variables["shown"][1] & (variables["above"][1] > 0)
        variables["shown"] = dims, higher, {"long_name": "Whether it is significantly above both", "units": "1"}
        of_heads = {
            "uniform": here.window_uniform.mean("window"),
            "same_offset": here.window_same_offset.mean("window"),
            "rank": here.window_rank[0],
            "first_of": (here.window_rank == 1).where(here.window_rank.notnull()).mean("window"),
        }
        return xr.Dataset(
            variables
            | {name: (dims, values.values) for name, values in of_heads.items()}
            | {"strongest": (dims, np.array(strongest, dtype=object))},
            attrs=self.asked | {"with_both": int(has_both.sum()), "intervals_over": called},
        )


def _of_words(
    weights: Float[np.ndarray, "head query key"], uniform: Float[np.ndarray, "1 query key"], sides: Sides
) -> dict[str, Any]:
    """The weight from a word to another in one window, by head; None without both."""
    rows, columns = np.flatnonzero(sides.rows), np.flatnonzero(sides.columns)
    if not len(rows) or not len(columns):
        return {}
    seeing = uniform[0][rows][:, columns].sum(1) > 0
    rows = rows[seeing] if seeing.any() else rows  # the mask may hide the word from some, or in a layer from all
    of_keys = weights[:, rows].mean(1)
    counted = np.flatnonzero(~np.array(sides.keys.special) | sides.columns)
    # the wanted words together, before all others
    names = ["" if sides.columns[at] else sides.keys.tokens[at].strip() or " " for at in counted]
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    by_word = of_keys[:, counted] @ np.eye(len(first))[number]
    return {
        "weight": of_keys[:, columns].sum(-1),
        "uniform": uniform[0, rows][:, columns].sum(-1).mean(),
        "same_offset": _at_same_offset(weights, uniform[0] > 0, sides, rows, columns),
        "rank": 1 + (by_word[:, 1:] > by_word[:, :1]).sum(-1),
        "strongest": counted[first][by_word.argmax(-1)],
    }


def _at_same_offset(
    weights: Float[np.ndarray, "head query key"],
    seen: Bool[np.ndarray, "query key"],
    sides: Sides,
    rows: np.ndarray,
    columns: np.ndarray,
) -> Float[np.ndarray, " head"] | float:
    """Mean weight at the offsets of the pairs from other words; NaN if no other word reaches one of them."""
    if sides.queries is not sides.keys:
        return np.nan
    special = np.array(sides.queries.special)
    others = ~special & ~sides.rows
    total = np.zeros(len(weights))
    for query, key in product(rows, columns):
        if not seen[query, key]:
            continue
        at = np.arange(len(special))
        to = at + key - query
        inside = (to >= 0) & (to < len(special)) & others
        at, to = at[inside], to[inside]
        reach = seen[at, to] & ~special[to]
        if not reach.any():
            return np.nan
        total += weights[:, at[reach], to[reach]].mean(-1)
    return total / len(rows)
