"""Features that examples of a head share beyond uniform attention from the same queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from attnscope.measure.rows import LEAST_KEYS
from attnscope.statistics.discovery import significant
from attnscope.statistics.tests import at_least

LEVEL = 0.05  # false discovery rate
SHARED = 2  # examples that have a feature, at least, for it to be in common
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

    def features(self) -> list[Feature]:
        """Features of this pair."""
        features: list[Feature] = [
            ("query token", self.queries[self.query]),
            ("key token", self.keys[self.key]),
            ("query kind", self.query_kinds[self.query]),
            ("key kind", self.key_kinds[self.key]),
        ]
        if self.extent is not None:
            features.append(("offset", self.key - self.query))
        related = self._related(self.query, np.array([self.key]))
        return features + [("relation", name) for name, holds in related.items() if holds[0]]

    @property
    def candidates(self) -> Int[np.ndarray, " row"]:
        """Queries that count and see enough keys."""
        rows = np.flatnonzero(self.rows)
        if self.extent is None:
            return rows
        left, right = self.extent
        sees = np.minimum(rows + right, len(self.keys) - 1) - np.maximum(rows - left, 0) + 1
        return rows[sees >= LEAST_KEYS]

    @property
    def relative_position(self) -> float:
        """Position of the query among all candidates, from 0 to 1."""
        rows = self.candidates
        return float((rows < self.query).sum() / max(len(rows) - 1, 1))

    def chances(self, positions: Sequence[float]) -> dict[Feature, float]:
        """Chance of every feature: of keys if the query attends uniformly, of queries if one of `positions` is drawn.

        A ranking can prefer early or late queries. So a query is not compared with all queries of its window, but with
        those at the relative positions of the examples.
        """
        chances: dict[Feature, float] = defaultdict(float)
        rows = self.candidates
        for position in positions:
            row = rows[round(position * (len(rows) - 1))]
            chances["query token", self.queries[row]] += 1 / len(positions)
            chances["query kind", self.query_kinds[row]] += 1 / len(positions)
        keys = np.flatnonzero(self.columns)
        if self.extent is not None:
            left, right = self.extent
            keys = keys[(self.query - left <= keys) & (keys <= self.query + right)]
        for key in keys.tolist():
            chances["key token", self.keys[key]] += 1 / len(keys)
            chances["key kind", self.key_kinds[key]] += 1 / len(keys)
            if self.extent is not None:
                chances["offset", key - self.query] += 1 / len(keys)
        for name, holds in self._related(self.query, keys).items():
            chances["relation", name] = float(holds.mean())
        return chances

    def _related(self, query: int, keys: Int[np.ndarray, " key"]) -> dict[str, Bool[np.ndarray, " key"]]:
        """Which keys have each of `RELATIONS` to a query."""
        token = self.queries[query]
        related = {RELATIONS[0]: np.array([self.keys[key] == token for key in keys], bool)}
        if self.extent is not None:
            after = [0 < key <= query and self.keys[key - 1] == token for key in keys]
            related[RELATIONS[1]] = np.array(after, bool)
        return related


def common_features(pairs: Mapping[tuple[int, int], Sequence[ExamplePair]]) -> dict[str, list[Any]]:
    """All features of the examples of each head, most surprising first, tested together; see `examples`."""
    rows: list[tuple[Any, ...]] = []
    possible = 0
    for (layer, head), examples in pairs.items():
        positions = [pair.relative_position for pair in examples]
        chances_of = [pair.chances(positions) for pair in examples]
        possible += len({feature for chances in chances_of for feature in chances})
        counts: dict[Feature, int] = defaultdict(int)
        for pair in examples:
            for feature in pair.features():
                counts[feature] += 1
        for feature, number in counts.items():
            if number < SHARED:
                continue
            chances = np.clip([chances_of_pair.get(feature, 0.0) for chances_of_pair in chances_of], 0.0, 1.0)
            p = at_least(number, chances)
            rows.append((layer, head, *feature, number, len(examples), float(chances.sum()), p))
    rows.sort(key=lambda row: (row[:2], row[-1]))
    p = np.array([row[-1] for row in rows])
    beyond = np.ones(max(possible - len(p), 0))  # features that fewer examples have, with p = 1
    passes = significant(np.concatenate([p, beyond]), LEVEL)[: len(p)]
    names = ("layer", "head", "kind", "value", "found", "of", "expected", "p")
    columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return columns | {"value": [str(value) for value in columns["value"]], "significant": passes.tolist()}
