"""`examples`: where in a corpus a head attends most strongly, in context, and the features that these pairs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.modalities import reject_modalities
from attnscope.detection.common import ExamplePair, common_features
from attnscope.intervention.calls import checked_heads
from attnscope.kernels.call import AttentionCall
from attnscope.measure.contexts import context, sides_of
from attnscope.measure.maps import weight_rows
from attnscope.measure.rows import LEAST_KEYS
from attnscope.measure.texts import TextReader
from attnscope.options import ScanReading
from attnscope.read.encoded import Sources
from attnscope.read.groups import kinds_of
from attnscope.store.arrays import in_a_row
from attnscope.store.runs import RunFolder, load_part
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.read.windows import Window

#: What rows are ranked by, over uniform attention: the largest weight; that times the norm of the value; the entropy.
RANKINGS = ("weight", "value_norm", "entropy")
_AT_ONCE = 1 << 14  # windows in memory, about


@dataclass(frozen=True)
class Choice:
    """Which rows count, and how they are ranked."""

    k: int
    by: str
    query: str | None
    key: str | None
    sinks: bool


def matcher(wanted: str | None, name: str) -> Callable[[str], bool]:
    """Whether a token is the wanted one, or matches a pattern between slashes; any token if nothing is wanted."""
    if wanted is None:
        return lambda _: True
    if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":  # noqa: PLR2004
        try:
            pattern = re.compile(wanted[1:-1])
        except re.error as error:
            raise AttnscopeError(f"{name} is {wanted!r:.60}, which is no regular expression: {error}") from None
        return lambda token: pattern.fullmatch(token.strip()) is not None
    if not wanted.strip():
        raise AttnscopeError(f"{name} is {wanted!r}; expected a token, or a pattern between slashes")
    return lambda token: token.strip() == wanted.strip()


@dataclass(frozen=True, eq=False)
class Sides:
    """The tokens of a window on both sides of a call, and which of them count."""

    queries: Window
    keys: Window
    rows: np.ndarray  # ``(query,)``
    columns: np.ndarray  # ``(key,)``


class ExampleReader(TextReader):
    """The strongest row of every window for some heads, and one at random."""

    command = "examples"
    median_of = 4096  # windows drawn at random, of which the median is taken

    def __init__(
        self, model: Model | None, texts: Sources, settings: ScanReading, heads: Sequence[Any], choice: Choice
    ) -> None:
        source = MODEL if model is None else model
        reject_modalities(self.command, source, texts, field=settings["field"], revision=settings["revision"])
        self.choice, self.heads = choice, [(int(layer), int(head)) for layer, head in heads]
        self.is_query, self.is_key = matcher(choice.query, "query"), matcher(choice.key, "key")
        super().__init__(model, texts, settings)
        if "positions" in self.notes:
            raise AttnscopeError(f"{self.notes['positions']} Examples need attention between tokens")
        existing = [(site.index, head) for site in self.sites for head in range(site.heads)]
        self.heads = checked_heads(self.heads, existing, "heads, --heads")

    def signature_settings(self) -> dict[str, Any]:
        signed = super().signature_settings()
        names = ("limit", "seed", "window", "stride", "batch_size", "words")
        return {name: signed[name] for name in names if name in signed} | {"heads": self.heads} | vars(self.choice)

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        read = self.read(items, numbers)
        arrays = _empty(len(items), len(self.heads))

        def look(site: Site, call: AttentionCall) -> None:
            for column, (layer, head) in enumerate(self.heads):
                if layer != site.index:
                    continue
                for text, window in enumerate(items):
                    sides, draw = self.sides(window, site.kind), [self.settings["seed"], numbers[text], layer, head]
                    for name, values in self._rows(call, text, head, sides, draw).items():
                        arrays[name][text, column] = values

        self.run(read, look, numbers)
        random = np.random.PCG64(self.settings["seed"]).advance(
            numbers[0]
        )  # its number for a window is always the same
        dims = {name: ("window", "chosen", "drawn")[: array.ndim] for name, array in arrays.items()}
        return xr.Dataset(
            {name: (dims[name], array) for name, array in arrays.items()}
            | {"length": ("window", np.array([len(window) for window in items]))}
            | {"draw": ("window", np.random.Generator(random).random(len(items)))},
            coords={"window": np.array(numbers)},
        )

    def sides(self, window: Window, kind: str) -> Sides:
        """Both sides of a call; neither special tokens nor, by default, the first one count."""
        queries, keys = sides_of(window, kind)
        rows = np.array([not special for special in queries.special])
        columns = np.ones(len(keys), bool)
        if not self.choice.sinks:
            columns = ~np.array(keys.special)
            columns[:1] &= kind == "cross"
        rows &= [self.is_query(token) for token in queries.tokens]
        columns &= [self.is_key(token) for token in keys.tokens]
        return Sides(queries, keys, rows, columns)

    def _rows(self, call: AttentionCall, text: int, head: int, sides: Sides, draw: list[int]) -> dict[str, Any]:
        """Score, weight, query and key of the strongest row and of a random one, and what rows see."""
        shape, positions = (len(sides.rows), len(sides.columns)), (call.query.shape[2], call.key.shape[2])
        if shape[0] > positions[0] or shape[1] > positions[1]:
            raise AttnscopeError(f"a layer attends over {positions[1]} positions, but the window has {shape[1]} tokens")
        score, weight, key = np.full(shape[0], np.nan), np.zeros(shape[0]), np.zeros(shape[0], np.int64)
        columns = torch.from_numpy(sides.columns).to(call.key.device)
        norms = call.value[text, head // call.group, : shape[1]].float().norm(dim=-1)
        first, left, right = 0, 0, 0
        for block in weight_rows(call, head, shape[0], text=text):
            rows = slice(first, first + len(block))
            allowed = call.allowed(text, head, rows)[:, : shape[1]]
            counts, weights = allowed & columns, block[:, : shape[1]]
            of_rows = _strongest(weights, counts, allowed, norms, self.choice.by)
            score[rows], weight[rows], key[rows] = (values.double().cpu().numpy() for values in of_rows)
            reach = _reach(allowed, first)
            first, left, right = rows.stop, max(left, reach[0]), max(right, reach[1])
        candidates = np.flatnonzero(sides.rows & np.isfinite(score))
        if not candidates.size:
            return {"rows": 0}
        strongest = candidates[np.argmax(score[candidates])]
        drawn = [strongest, candidates[np.random.default_rng(draw).integers(len(candidates))]]
        values = {"row_score": score[drawn], "row_weight": weight[drawn], "row_query": drawn, "row_key": key[drawn]}
        return values | {"rows": len(candidates), "left": left, "right": right}

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        return {self.command: self.made(self.command, lambda: self._examples(measured))}

    def _examples(self, batches: Iterable[xr.Dataset]) -> xr.Dataset:
        """The examples, from the rows of all windows, read batch by batch in any order."""
        waiting: list[xr.Dataset] = []
        windows = tokens = 0
        for results in batches:
            windows, tokens = windows + results.sizes["window"], tokens + int(results.length.sum())
            waiting.append(results)
            if sum(part.sizes["window"] for part in waiting) > _AT_ONCE:
                waiting = [self._remaining(in_a_row(waiting))]
        chosen = self._chosen(self._remaining(in_a_row(waiting)), windows)
        return chosen.assign_attrs({"windows": windows, "tokens": tokens} | self.attributes | self.notes)

    def _remaining(self, results: xr.Dataset) -> xr.Dataset:
        """The windows that can still be examples: a part of them has the same examples as all."""
        results = results.sortby("window")
        remain = results.draw.values <= np.sort(results.draw.values)[: self.median_of][-1]
        for column in range(len(self.heads)):
            sets = self._sets(results, column)
            remain[np.concatenate([sets["top"], sets["random"]])] = True
        return results.isel(window=remain)

    def stored(self, run: RunFolder) -> xr.Dataset:
        return load_part(run)

    def _chosen(self, results: xr.Dataset, count_of_all: int) -> xr.Dataset:
        chosen: list[tuple[int, str, int, int]] = []
        for column in range(len(self.heads)):
            for name, windows in self._sets(results, column).items():
                chosen += [(column, name, int(at), int(name == "random")) for at in windows]
        if not chosen:
            wanted = {"query": self.choice.query, "key": self.choice.key}
            tokens = "".join(f", and the {name} be {value!r}" for name, value in wanted.items() if value is not None)
            raise AttnscopeError(
                f"found no example in {count(count_of_all, 'window')}: a query must see {LEAST_KEYS} keys "
                f"or more{tokens}. Give longer texts, or other tokens"
            )
        windows = self.windows_at({int(results.window[at]) for _, _, at, _ in chosen})
        rows = [self._row(results, windows, *one) for one in chosen]
        pairs: dict[tuple[int, int], list[ExamplePair]] = {head: [] for head in self.heads}
        for (column, name, at, _), row in zip(chosen, rows, strict=True):
            if name == "top":
                sides = self.sides(windows[row["window_number"]], self.sites[row["layer"]].kind)
                extent = int(results.left[at, column]), int(results.right[at, column])
                pairs[row["layer"], row["head"]].append(_pair(sides, row, extent))
        features = common_features(pairs)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return xr.Dataset(
            {name: ("example", _array(values)) for name, values in columns.items()}
            | {f"feature_{name}": ("feature", _array(values)) for name, values in features.items()},
            attrs={"by": self.choice.by, "k": str(self.choice.k)},
        ).set_coords(["set"])

    def _sets(self, results: xr.Dataset, column: int) -> dict[str, np.ndarray]:
        """The windows of each set: the strongest, those around the median, and random ones by their rows."""
        score, draw, k = results.row_score.values[:, column, 0], results.draw.values, self.choice.k
        order = np.argsort(-score, kind="stable")[: np.isfinite(score).sum()]
        rest = order[k:]
        rest = rest[draw[rest] <= np.sort(draw)[: self.median_of][-1]]
        begin = max(0, (len(rest) - k) // 2)
        rows = results.rows.values[order, column]
        drawn = order[np.argsort(-(draw[order] ** (1 / np.maximum(rows, 1))))[:k]]  # Efraimidis and Spirakis 2006
        return {"top": order[:k], "middle": rest[begin : begin + k], "random": drawn}

    def _row(
        self, results: xr.Dataset, windows: Mapping[int, Window], column: int, name: str, at: int, drawn: int
    ) -> dict[str, Any]:
        (layer, head), number = self.heads[column], int(results.window[at])
        sides = self.sides(windows[number], self.sites[layer].kind)
        query, key = (int(results[side][at, column, drawn]) for side in ("row_query", "row_key"))
        return {
            "set": name,
            "layer": layer,
            "head": head,
            "score": float(results.row_score[at, column, drawn]),
            "weight": float(results.row_weight[at, column, drawn]),
            "query": query,
            "key": key,
            "query_token": sides.queries.tokens[query],
            "key_token": sides.keys.tokens[key],
            "window_number": number,
            "text": str(windows[number].source),
            "context": json.dumps(context(sides.queries, sides.keys, query, key), ensure_ascii=False),
        }


def _empty(windows: int, heads: int) -> dict[str, np.ndarray]:
    """Arrays of a batch: NaN, and no position, where no row counts."""
    numbers = {name: np.full((windows, heads, 2), np.nan, np.float32) for name in ("row_score", "row_weight")}
    positions = {name: np.full((windows, heads, 2), -1, np.int32) for name in ("row_query", "row_key")}
    return numbers | positions | {name: np.zeros((windows, heads), np.int32) for name in ("rows", "left", "right")}


def _strongest(
    weights: Tensor, counts: Tensor, allowed: Tensor, norms: Tensor, by: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Score of each row over uniform attention (NaN where it does not count); weight and number of its key."""
    sees = allowed.sum(-1)
    score, key = (weights * norms if by == "value_norm" else weights).masked_fill(~counts, -1.0).max(-1)
    weight = weights.gather(-1, key[:, None])[:, 0]
    counted = (sees >= LEAST_KEYS) & (score >= 0)
    score = score * sees
    if by == "entropy":
        counted &= weight >= weights.max(-1).values
        score = sees.log() + torch.xlogy(weights, weights).sum(-1)
    return score.masked_fill(~counted, torch.nan), weight, key


def _reach(allowed: Tensor, first: int) -> tuple[int, int]:
    """How far rows from `first` on see to the left and to the right."""
    sees = allowed.any(-1)
    if not bool(sees.any()):
        return 0, 0
    queries = torch.arange(first, first + len(allowed), device=allowed.device)[sees]
    low, high = allowed[sees].int().argmax(-1), (allowed.shape[1] - 1) - allowed[sees].flip(-1).int().argmax(-1)
    return int((queries - low).max().clamp_min(0)), int((high - queries).max().clamp_min(0))


def _pair(sides: Sides, row: Mapping[str, Any], extent: tuple[int, int]) -> ExamplePair:
    queries, keys = ([token.strip() for token in side.tokens] for side in (sides.queries, sides.keys))
    kinds = kinds_of(sides.queries), kinds_of(sides.keys)
    reach = extent if sides.queries is sides.keys else None
    return ExamplePair(queries, keys, *kinds, sides.rows, sides.columns, reach, row["query"], row["key"])


def _array(values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=object if values and isinstance(values[0], str) else None)
