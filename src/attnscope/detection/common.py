"""Features that examples of a head share beyond uniform attention in the same windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

from attnscope.measure.rows import LEAST_KEYS

LEVEL = 0.05  # false discovery rate
SHARED = 2  # examples that have a feature, at least, for it to be in common
_ROWS = 512  # of a window at a time
#: Features that relate the key to the query.
RELATIONS = ("same token", "token after an earlier occurrence of the query")
Feature = tuple[str, Hashable]


@dataclass(frozen=True, eq=False)
class ExamplePair:
    """One example: a query and a key of a window, and the other possible pairs."""

    queries: Sequence[str]  # tokens
    keys: Sequence[str]
    query_kinds: Sequence[str]  # such as punctuation
    key_kinds: Sequence[str]
    rows: Bool[np.ndarray, " query"]  # queries and keys that count
    columns: Bool[np.ndarray, " key"]
    extent: tuple[int, int] | None  # reach of queries to the left and to the right; None for cross-attention
    query: int
    key: int

    def features(self) -> set[Feature]:
        """Features of this pair."""
        own: set[Feature] = {
            ("query token", self.queries[self.query]),
            ("key token", self.keys[self.key]),
            ("query kind", self.query_kinds[self.query]),
            ("key kind", self.key_kinds[self.key]),
        }
        if self.extent is not None:
            own.add(("offset", self.key - self.query))
        related = self._related(np.array([self.query]), np.array([self.key]))
        return own | {("relation", name) for name, holds in related.items() if holds[0, 0]}

    def shares(self) -> dict[Feature, float]:
        """Share of every feature, where a random query that counts attends uniformly to the keys that it sees."""
        shares: dict[Feature, float] = defaultdict(float)
        keys = np.flatnonzero(self.columns)
        of_key, row_count, rows = np.zeros(len(keys)), 0, np.flatnonzero(self.rows)
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            offsets = keys[None] - part[:, None]
            visible, sees = np.ones(offsets.shape, bool), np.full(len(part), len(self.keys))
            if self.extent is not None:
                left, right = self.extent
                visible = (-offsets <= left) & (offsets <= right)
                sees = np.minimum(part + right, len(self.keys) - 1) - np.maximum(part - left, 0) + 1
            sees = (sees >= LEAST_KEYS) & visible.any(1)
            part, offsets, visible = part[sees], offsets[sees], visible[sees]
            weights = visible / visible.sum(1, keepdims=True)
            row_count += len(part)
            of_key += weights.sum(0)
            for row in map(int, part):
                shares["query token", self.queries[row]] += 1
                shares["query kind", self.query_kinds[row]] += 1
            if self.extent is not None and offsets.size:
                low = int(offsets.min())
                sums = np.bincount((offsets - low).ravel(), weights.ravel())
                for at in np.flatnonzero(sums):
                    shares["offset", int(at) + low] += float(sums[at])
            for name, holds in self._related(part, keys).items():
                shares["relation", name] += float((weights * holds).sum())
        for key, weight in zip(keys.tolist(), of_key.tolist(), strict=True):
            shares["key token", self.keys[key]] += weight
            shares["key kind", self.key_kinds[key]] += weight
        return {feature: share / max(row_count, 1) for feature, share in shares.items()}

    def _related(self, rows: np.ndarray, keys: np.ndarray) -> dict[str, np.ndarray]:
        """Which pairs have each of `RELATIONS`, ``(row, key)``."""
        queries = np.array(self.queries, dtype=object)[rows, None]
        related = {RELATIONS[0]: queries == np.array(self.keys, dtype=object)[None, keys]}
        if self.extent is not None:
            before = np.array([None, *self.keys[:-1]], dtype=object)[None, keys]
            related[RELATIONS[1]] = (queries == before) & (keys[None] <= rows[:, None])
        return related


def common_features(pairs: Mapping[tuple[int, int], Sequence[ExamplePair]]) -> dict[str, list[Any]]:
    """All features of the examples of each head, most surprising first, tested together; see `examples`."""
    rows: list[tuple[Any, ...]] = []
    possible = 0
    for (layer, head), examples in pairs.items():
        shares = [pair.shares() for pair in examples]
        possible += len({feature for share in shares for feature in share})
        found: dict[Feature, int] = defaultdict(int)
        for pair in examples:
            for feature in pair.features():
                found[feature] += 1
        for feature, number in found.items():
            if number < SHARED:
                continue
            chances = np.clip([share.get(feature, 0.0) for share in shares], 0.0, 1.0)
            p = at_least(number, chances)
            rows.append((layer, head, *feature, number, len(examples), float(chances.sum()), p))
    rows.sort(key=lambda row: (row[:2], row[-1]))
    p = np.array([row[-1] for row in rows])
    beyond = np.ones(max(possible - len(p), 0))  # features that fewer examples have, with p = 1
    significant = scipy.stats.false_discovery_control(np.concatenate([p, beyond]))[: len(p)] <= LEVEL if rows else p > 1
    names = ("layer", "head", "kind", "value", "found", "of", "expected", "p")
    columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return columns | {"value": [str(value) for value in columns["value"]], "significant": significant.tolist()}


def at_least(number: int, chances: Float[np.ndarray, " example"]) -> float:
    """Probability that at least `number` of independent events happen (the Poisson-binomial distribution)."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(np.clip(distribution[number:].sum(), 0.0, 1.0))
