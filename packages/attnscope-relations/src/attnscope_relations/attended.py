"""Rows of attention that queries with links have in a layer, by words, and what they show of the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnscope.measure.contexts import sides_of
from attnscope.read.windows import Window
from attnscope.read.words import in_words
from attnscope.store.arrays import by_layer

OFFSETS = (*range(-10, 0), *range(1, 11))  # words: candidates for the best fixed offset


@dataclass(frozen=True)
class Query:
    """A query of a window with a link: its words, and those that it belongs to."""

    relation: int  # number of the relation
    words: tuple[int, ...]
    keys: tuple[int, ...]
    among: tuple[int, ...] = ()  # the words that count as keys in its window, if not all

    def fits(self, queries: int, keys: int) -> bool:
        """Whether it has words in a window of these numbers of words too."""
        return max(self.words) < queries and max(self.keys) < keys


def sides_of_words(window: Window) -> tuple[Window, Window]:
    """The words of the queries, and of the keys."""
    return sides_of(in_words(window), "cross" if window.target is not None else "self")


@dataclass(frozen=True, eq=False)
class LayerRows:
    """The rows of one layer, from words to words."""

    weights: Tensor  # ``(window, head, row, word)``
    uniform: Tensor  # ``(window, row, word)``: of uniform attention over the visible tokens
    visible: Tensor  # ``(window, row, word)``: other words that count as keys, and that the mask shows
    largest: Tensor  # ``(window, head, row)``: the one of them with the largest weight


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that the queries of a batch need: one for each set of words that is a query of a window."""

    numbers: Sequence[dict[tuple[int, ...], int]]  # of each window: the row of each of its queries
    by_query: Tensor  # ``(window, row, token)``: the mean over the tokens of a query
    by_key: Tensor  # ``(window, token, word)``: the sum over the tokens of a word
    others: Tensor  # ``(window, row, word)``: words that count as keys, without those of the query

    @classmethod
    def of(cls, windows: Sequence[Window], queries: Sequence[Sequence[Query]], kind: str) -> Rows:
        """The rows of queries of some windows, in layers of a kind."""
        numbers = [{words: row for row, words in enumerate(dict.fromkeys(one.words for one in of))} for of in queries]
        targets = [window.target or window for window in windows]
        keys = [sides_of_words(window)[1] for window in windows]
        rows, words = max(1, *map(len, numbers)), max(map(len, keys))
        by_query = torch.zeros(len(windows), rows, max(map(len, targets)))
        by_key = torch.zeros(len(windows), max(map(len, windows)), words)
        others = torch.zeros(len(windows), rows, words, dtype=torch.bool)
        for number, (window, target, side) in enumerate(zip(windows, targets, keys, strict=True)):
            among = next((query.among for query in queries[number] if query.among), ())
            predicts = kind == "cross" or bool(among)
            by_key[number, range(len(window)), window.words] = 1.0
            places: dict[int, list[int]] = {}
            for place, word in enumerate(target.words):
                # a translation's token is predicted by the row before its own
                places.setdefault(word, []).append(max(0, place - 1) if predicts else place)
            others[number, :, : len(side)] = ~torch.tensor(side.special)
            if among:
                others[number, :, [word for word in range(words) if word not in among]] = False
            if kind == "causal" and not side.special[0]:
                others[number, :, 0] = False  # many heads rest on the first token, whatever it is
            for query, row in numbers[number].items():
                for word in query:
                    by_query[number, row, places[word]] += 1 / len(places[word]) / len(query)
                if kind != "cross":
                    others[number, row, list(query)] = False
        return cls(numbers, by_query, by_key, others)

    def of_layer(self, weights: Tensor, uniform: Tensor) -> LayerRows:
        """The rows by the weights of a layer from token to token, ``(window, head, query, key)`` each."""
        by_query, by_key = self.by_query.to(weights)[:, None], self.by_key.to(weights)[:, None]
        of_heads = by_query @ weights @ by_key
        even = (by_query @ uniform @ by_key)[:, 0]
        visible = self.others.to(weights.device) & (even > 0)
        largest = of_heads.masked_fill(~visible[:, None], -1.0).argmax(-1)
        return LayerRows(of_heads, even, visible, largest)

    def sums(
        self, queries: Sequence[Sequence[Query]], layers: Sequence[LayerRows], relations: int
    ) -> dict[str, np.ndarray]:
        """Sums over the queries of each window and relation, ``(window, relation, ...)``: see `summary_of`.

        Queries count that see what they belong to in a layer at least.
        """
        asked = [(number, query) for number, of_window in enumerate(queries) for query in of_window]
        pairs = [(at, number, query, key) for at, (number, query) in enumerate(asked) for key in query.keys]
        window = torch.tensor([number for number, _ in asked], dtype=torch.long)
        row = torch.tensor([self.numbers[number][query.words] for number, query in asked], dtype=torch.long)
        cell = window * relations + torch.tensor([query.relation for _, query in asked], dtype=torch.long)
        member = torch.tensor([at for at, *_ in pairs], dtype=torch.long)
        key = torch.tensor([key for *_, key in pairs], dtype=torch.long)
        at = window[member], row[member]

        def of_queries(values: Tensor) -> Tensor:
            """Sums over the keys of each query."""
            return values.new_zeros(len(asked), *values.shape[1:]).index_add_(0, member, values)

        is_visible = [layer.visible.cpu()[*at, key] for layer in layers]
        in_some_layer = torch.stack(is_visible).any(0)
        seen = of_queries(in_some_layer.float()) > 0

        def summed(values: Tensor) -> np.ndarray:
            total = torch.zeros(len(queries) * relations, *values.shape[1:])
            return total.index_add_(0, cell[seen], values[seen].float()).unflatten(0, (-1, relations)).numpy()

        right: list[np.ndarray] = []
        weight: list[np.ndarray] = []
        chance: list[np.ndarray] = []
        uniform: list[np.ndarray] = []
        for layer, visible in zip(layers, is_visible, strict=True):
            largest = layer.largest.cpu()[at[0], :, at[1]]
            is_right = (largest == key[:, None]) & visible[:, None]
            right.append(summed(of_queries(is_right.float())))
            weight.append(summed(of_queries(layer.weights.float().cpu()[at[0], :, at[1], key])))
            uniform.append(summed(of_queries(layer.uniform.float().cpu()[*at, key])))
            count = layer.visible.sum(-1).cpu()[window, row].clamp_min(1)
            chance.append(summed(of_queries(visible.float()) / count))
        # at each offset from the first word of a query
        first = torch.tensor([query.words[0] for _, query in asked], dtype=torch.long)[member]
        hits = of_queries(((key - first)[:, None] == torch.tensor(OFFSETS)).float() * in_some_layer[:, None])
        return {
            "queries": summed(torch.ones(len(asked))),
            "right": by_layer(right),
            "weight": by_layer(weight),
            "chance": np.stack(chance, -1),
            "uniform": np.stack(uniform, -1),
            "at_offset": summed(hits),
        }

    def of_first(
        self, windows: Sequence[Window], queries: Sequence[Sequence[Query]], layers: Sequence[LayerRows], relations: int
    ) -> dict[str, np.ndarray]:
        """For the first query of each window and relation: the rank of what it belongs to, and the largest word.

        Arrays ``(window, relation, layer, head)``. The rank counts from 1, among visible words; without a query that
        sees what it belongs to it is NaN, and the word is empty.
        """
        heads = max(layer.weights.shape[1] for layer in layers)
        shape = len(windows), relations, len(layers), heads
        rank, largest = np.full(shape, np.nan), np.full(shape, "", dtype=object)
        for number, (window, of_window) in enumerate(zip(windows, queries, strict=True)):
            words = sides_of_words(window)[1].tokens
            first = {query.relation: query for query in reversed(of_window)}
            for relation, query in first.items():
                row = self.numbers[number][query.words]
                for at, layer in enumerate(layers):
                    visible = layer.visible[number, row]
                    keys = [key for key in query.keys if visible[key]]
                    if not keys:
                        continue
                    weights = layer.weights[number, :, row]
                    more = (weights > weights[:, keys].amax(-1, keepdim=True)) & visible
                    cell = number, relation, at, slice(weights.shape[0])
                    rank[cell] = 1 + more.sum(-1).cpu().numpy()
                    largest[cell] = [words[word].strip() for word in layer.largest[number, :, row].tolist()]
        return {"rank": rank, "largest": largest}
