"""A made-up result of random numbers, and a sample window whose weights are known by the kind of each head.

Kinds of head: `previous` and `next` (sharp, one token away), `left` and `right` (broad, one-sided), `sink`
(first token), `marks` (special tokens), `self`, `flat`, and `mixed` (left on some texts, flat on others).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.kernels.bins import bin_ranges
from attnscope.results.page.scan import write_with
from attnscope.results.reports import report_of

NAMES = ["next-to-left", "next-to-right", "leftward", "rightward", "self", "flat"]
KINDS = ["previous", "next", "left", "right", "sink", "marks", "self", "flat", "mixed"]
LABELS = {"previous": 0, "next": 1, "left": 2, "right": 3, "self": 4} | dict.fromkeys(
    ("sink", "marks", "flat", "mixed"), 5
)
REACH = 10
STATISTICS = [
    *("entropy", "first_token", "special_tokens", "mean_offset", "offset_spread", "max_weight", "gini_simpson"),
    "outside",
]
HOSTILE = [
    *("</script><img src=x onerror=alert(1)>", "<!--", "\"'`&amp;", "日本語", "🙂", "👩‍👩‍👧", "שלום", "مرحبا"),
    *("a\tb\n", "\x00\x07\x1b", "\u202ertl\u2028", "$x_1$", "\uffff"),  # UTF-8: no lone surrogate can be a token
    *("", "  ", "{{ 7 * 7 }}", " word ", "\u3000"),
]
_TEXT = "A corpus is more than a heap of sentences . Each head of a model reads it with a habit of its own : one 猫 は"


@dataclass(frozen=True)
class Planted:
    """A result, its sample window, and the kind of every head."""

    result: xr.Dataset
    sample: xr.Dataset
    kinds: np.ndarray  # (layer, head) of str

    def listed(self, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and weights ``(query, rank)`` that the sample lists of a head."""
        queries = self.sample.sizes["query"]
        rank = int(self.sample["count"].values[0, 0])
        shape = (*self.kinds.shape, queries, rank)
        return tuple(self.sample[name].values.reshape(shape)[layer, head] for name in ("key", "weight"))


def planted(
    layers: int = 4, heads: int = 4, texts: int = 12, tokens: int = 32, rank: int = 8, *, seed: int = 0
) -> Planted:
    """Make a result of the given sizes; `rank` may equal `tokens` for a complete map."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(KINDS, size=(layers, heads))
    kinds.flat[: len(KINDS)] = KINDS[: kinds.size]
    strength = rng.uniform(0.6, 1.4, size=(layers, heads))
    return Planted(_result(kinds, texts, rng), _sample(kinds, strength, tokens, rank, rng), kinds)


def translated(sample: xr.Dataset, kind: str, tokens: int) -> xr.Dataset:
    """The same window with a decoder beside the encoder that reads t0, t1, ...; all layers of one kind."""
    length = sample.sizes["query"]
    target = np.array([[*(f"t{i}" for i in range(tokens)), *[""] * (length - tokens)]], dtype=object)
    rows = length if kind == "self" else tokens
    kept = np.repeat(np.tile(np.arange(length) < rows, sample.sizes["map"]), sample["count"].values.ravel())
    sample = sample.isel(entry=np.flatnonzero(kept)).copy(deep=True)
    sample["count"][:, rows:] = 0
    return sample.assign_coords(
        layer_kind=("layer", [kind] * sample.sizes["layer"]),
        target_token=(("window", "query"), target),
        target_special=(("window", "query"), (np.arange(length) == 0)[None]),
        target_tokens=("window", [tokens]),
    )


def words(count: int) -> list[str]:
    """Tokens of a window, with a mark at each end."""
    body = _TEXT.split()
    return ["[CLS]", *(body[i % len(body)] for i in range(count - 2)), "[SEP]"][:count]


def _weights(kind: str, strength: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Weights of a head on a window of n tokens, shape (query, key)."""
    offset = np.arange(n)[None, :] - np.arange(n)[:, None]
    scores = {
        "previous": 7.0 * (offset == -1),
        "next": 7.0 * (offset == 1),
        "left": np.where(offset < 0, 3.0 + offset / 4.0, 0.0),
        "right": np.where(offset > 0, 3.0 - offset / 4.0, 0.0),
        "mixed": np.zeros((n, n)),
        "sink": 6.0 * (np.arange(n) == 0)[None, :] * np.ones((n, 1)),
        "marks": 5.0 * np.isin(np.arange(n), [0, n - 1])[None, :] * np.ones((n, 1)),
        "self": 6.0 * (offset == 0),
        "flat": np.zeros((n, n)),
    }[kind]
    scores = strength * scores + 0.7 * rng.standard_normal((n, n))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _result(kinds: np.ndarray, texts: int, rng: np.random.Generator) -> xr.Dataset:
    """Random numbers in the place of statistics; labels by the kinds, those of mixed heads by turns."""
    layers, heads = kinds.shape
    n = 48
    of_head = ("window", "layer", "head")
    numbers = {name: rng.uniform(0.1, 0.9, (texts, layers, heads)) for name in STATISTICS}
    numbers["mean_offset"] = rng.normal(0, 5, (texts, layers, heads))
    band = n * (1 - numbers["outside"])[..., None] * rng.dirichlet(np.full(2 * REACH + 1, 0.3), (texts, layers, heads))
    label = np.broadcast_to(np.vectorize(LABELS.get)(kinds), (texts, layers, heads)).copy()
    label[::2][:, kinds == "mixed"] = LABELS["left"]
    shares = np.stack([(label == c).mean(axis=0) for c in range(len(NAMES))], axis=-1)
    lean = rng.uniform(-1, 1, (texts, layers, heads))
    spread = np.exp(-(shares * np.log(np.maximum(shares, 1e-300))).sum(-1))
    centroid = np.stack(
        [band[label == c].mean(axis=0) if (label == c).any() else np.zeros(21) for c in range(len(NAMES))]
    )
    length_free = band / (n - np.abs(np.arange(-REACH, REACH + 1)))
    units = {"entropy": "nats", "mean_offset": "tokens", "offset_spread": "tokens"}
    result = xr.Dataset(
        {
            **{name: (of_head, numbers[name], {"units": units.get(name, "share")}) for name in STATISTICS},
            "band_sum": ((*of_head, "offset"), band),
            "profile": ((*of_head, "offset"), length_free),
            "length": ("window", np.full(texts, n)),
            "label": (of_head, label),
            "centroid": (("cluster", "offset"), centroid, {"units": "tokens"}),
            "majority_share": (("layer", "head"), shares.max(-1)),
            "effective_labels": (("layer", "head"), spread),
            "direction": (("layer", "head"), lean.mean(axis=0)),
            "direction_sign_agreement": (
                ("layer", "head"),
                (np.sign(lean) == np.sign(np.median(lean, axis=0))).mean(axis=0),
            ),
        },
        coords={
            "window": range(texts),
            "cluster": NAMES,
            "source": ("window", [f"article {i}" for i in range(texts)]),
            "start": ("window", np.zeros(texts, dtype=int)),
            "layer": range(layers),
            "layer_name": ("layer", [f"encoder.layer.{i}" for i in range(layers)]),
            "layer_kind": ("layer", ["self"] * layers),
            "head": range(heads),
            "offset": range(-REACH, REACH + 1),
        },
        attrs={
            "model": "planted-heads",
            "signature": json.dumps(
                {
                    "model": {"name": "planted-heads", "hash": "3f9c1a7e"},
                    "corpus": {"name": "a made-up text", "hash": "b81d02c4", "texts": texts},
                    "settings": {"offsets": REACH, "clusters": len(NAMES), "seed": 0},
                    "versions": {"attnscope": "0.1.0", "torch": "2.9.0"},
                }
            ),
            "summary": json.dumps(
                {
                    "icc": {
                        "directed heads": {"value": 0.812, "low": 0.774, "high": 0.846},
                        "flat heads": {"value": 0.041, "low": 0.012, "high": 0.083},
                    },
                    "heads with at most two labels": 14,
                    "mutual information of label and head, share of the label's entropy": 0.71,
                }
            ),
        },
    )
    result["entropy"].attrs["long_name"] = "Entropy of the weights"
    return result


def _sample(kinds: np.ndarray, strength: np.ndarray, tokens: int, rank: int, rng: np.random.Generator) -> xr.Dataset:
    layers, heads = kinds.shape
    key = np.zeros((layers, heads, tokens, rank), dtype=np.uint16)
    weight = np.zeros((layers, heads, tokens, rank), dtype=np.float32)
    for at in np.ndindex(layers, heads):
        full = _weights(kinds[at], strength[at], tokens, rng)
        order = np.argsort(-full, axis=-1, kind="stable")[:, :rank]
        key[at], weight[at] = order, np.take_along_axis(full, order, axis=-1)
    order = np.argsort(key, axis=-1)
    key, weight = (np.take_along_axis(part, order, axis=-1) for part in (key, weight))
    rest = np.clip(1 - weight.sum(-1), 0, None) if rank < tokens else np.zeros((layers, heads, tokens))
    names = words(tokens)
    maps = layers * heads
    return xr.Dataset(
        {
            "count": (("map", "query"), np.full((maps, tokens), rank)),
            "rest": (("map", "query"), rest.reshape(maps, tokens)),
            "key": ("entry", key.ravel().astype(np.int32)),
            "weight": ("entry", weight.ravel()),
        },
        coords={
            "layer": range(layers),
            "head": range(heads),
            "layer_kind": ("layer", ["self"] * layers),
            "window_of": ("map", np.zeros(maps, dtype=int)),
            "layer_of": ("map", np.repeat(range(layers), heads)),
            "head_of": ("map", np.tile(range(heads), layers)),
            "token": (("window", "query"), np.array([names], dtype=object)),
            "special": (("window", "query"), np.array([[name in ("[CLS]", "[SEP]") for name in names]])),
            "tokens": ("window", [tokens]),
        },
        attrs={"requested": "[]", "tile": 0},
    )


def in_tiles(made: Planted, head: tuple[int, int], tile: int) -> xr.Dataset:
    """The sample of a complete map in which one head is kept in tiles."""
    sample = made.sample
    queries = sample.sizes["query"]
    at = head[0] * sample.sizes["head"] + head[1]
    weight = sample["weight"].values.reshape(-1, queries, queries)[at]
    side = queries // tile
    tiled = weight.reshape(side, tile, side, tile)
    both = np.full((2, sample.sizes["layer"], sample.sizes["head"], side, side), np.nan)
    both[0][head], both[1][head] = tiled.sum((1, 3)), tiled.max((1, 3))
    kept = np.arange(sample.sizes["map"]) != at
    entries = np.repeat(kept, queries * queries)
    dims = ("layer", "head", "tile_query", "tile_key")
    return (
        sample.isel(map=np.flatnonzero(kept), entry=np.flatnonzero(entries))
        .assign(tile_sum=(dims, both[0]), tile_max=(dims, both[1]))
        .assign_attrs(tile=tile)
    )


def with_blocks(result: xr.Dataset) -> xr.Dataset:
    """The result with made-up shares of the weight that the best blocks hold, each larger than the one before."""
    rng = np.random.default_rng(7)
    texts, layers, heads = (result.sizes[name] for name in ("window", "layer", "head"))
    found = result.assign_coords(kept=[5, 10, 25])
    found["block_recall"] = (
        ("window", "layer", "head", "kept"),
        np.sort(rng.uniform(0.3, 1.0, (texts, layers, heads, 3)), axis=-1),
    )
    found["equal_block_recall"] = (
        ("window", "layer", "kept"),
        np.sort(rng.uniform(0.05, 0.3, (texts, layers, 3)), axis=-1),
    )
    return found


def with_bins(result: xr.Dataset, reach: int = 100) -> xr.Dataset:
    """The result with made-up sums of the weights in bins that double, none of them to the right."""
    rng = np.random.default_rng(11)
    texts, layers, heads = (result.sizes[name] for name in ("window", "layer", "head"))
    ranges = np.array(bin_ranges(0, reach))
    found = result.assign_coords(bin_first=("offset_bin", ranges[:, 0]), bin_last=("offset_bin", ranges[:, 1]))
    rows = result.length.values[:, None, None, None]
    left = ranges[:, 0] <= 0
    sums = np.zeros((texts, layers, heads, len(ranges)))
    sums[..., left] = rng.dirichlet(np.full(left.sum(), 0.4), sums.shape[:-1])
    found["bin_sum"] = (("window", "layer", "head", "offset_bin"), sums * rows)
    equal = np.where(left, ranges[:, 1] - ranges[:, 0] + 1.0, 0.0)
    even = np.broadcast_to(equal / equal.sum(), (texts, layers, len(ranges)))
    found["equal_bin_sum"] = (("window", "layer", "offset_bin"), even * rows[..., 0])
    return found


def with_groups(result: xr.Dataset, names: tuple[str, ...] = ("user", "<b>", "never")) -> xr.Dataset:
    """The result with random weights of groups on groups, of which the last is in no text."""
    rng = np.random.default_rng(5)
    texts, layers, heads = (result.sizes[name] for name in ("window", "layer", "head"))
    count = len(names)
    found = result.assign_coords(group_query=list(names), group_key=list(names))
    for name, size in (("group_weight", heads), ("position_group_weight", heads), ("equal_group_weight", 0)):
        values = np.full((texts, layers, *([size] if size else []), count, count), np.nan)
        values[..., :-1, :-1] = rng.dirichlet(np.ones(count - 1), values.shape[:-1])[..., :-1, :]
        dims = ("window", "layer", *(["head"] if size else []), "group_query", "group_key")
        found[name] = (dims, values)
    return found


def scan_page(result, sample, path):
    """Write the page of a scan with a sample of its windows."""
    return write_with(report_of("scan", result), sample, path)
