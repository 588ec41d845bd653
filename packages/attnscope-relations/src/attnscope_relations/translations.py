"""Translations with links that people made: of each head the error rate of the alignment that it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.read.spans import Span
from attnscope.read.texts import Corpus
from attnscope.read.windows import Window
from attnscope.statistics.units import membership, units_in
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.links import Links, read_gold
from attnscope_relations.attended import Query, sides_of_words
from attnscope_relations.data import Link, LinkedText, linked_texts
from attnscope_relations.measure import Places, RelationReader
from attnscope_relations.summary import best_of, by_unit, halves_of, interval_of, taken

LINKS, SURE = "links", "sure links"
_SIDES = ("{source}", "{target}")


def linked_pairs(texts: Any, targets: Any, gold: Path, first: int, prompt: str | None) -> list[LinkedText]:
    """Sentence pairs with their links: a text with its translation, or both in one text by a prompt."""
    if targets is None:
        raise AttnscopeError("links (--gold) are between texts and their translations: add them (--target)")
    sides = [_lines(texts), _lines(targets)]
    golds = read_gold(gold, first)
    texts_count, targets_count, pairs_count = map(len, (*sides, golds.sure))
    if not texts_count == targets_count == pairs_count:
        raise AttnscopeError(
            f"found {texts_count} texts, {targets_count} translations (--target) and links of {pairs_count} pairs "
            "(--gold); expected the same number of lines"
        )
    write = _pair if prompt is None else _prompted(prompt)
    has_possible = golds.sure != golds.possible
    pairs: list[LinkedText] = []
    lines = zip(*sides, golds.sure, golds.possible, strict=True)
    for number, (source, target, sure, possible) in enumerate(lines, start=1):
        if source.strip() and target.strip():
            named = {LINKS: possible, SURE: sure} if has_possible else {LINKS: sure}
            pairs.append(write(source, target, named, len(sure), f"line {number}"))
    return linked_texts(pairs)


def _lines(side: Any) -> list[str]:
    return [text.content for text in Corpus.from_sources(side, by_line=True, blank_lines=True)]


def _spans(text: str, start: int = 0) -> list[Span]:
    """Words between spaces."""
    return [(start + match.start(), start + match.end()) for match in re.finditer(r"\S+", text)]


def _with_spaces(words: Sequence[Span], length: int) -> tuple[Span, ...]:
    """Words with the spaces before each, and those at the end, so that a token of spaces is part of a word."""
    ends = [0, *(end for _, end in words[:-1]), length]
    return tuple(pairwise(ends)) if words else ()


def _links(named: Mapping[str, Links], sources: Sequence[Span], targets: Sequence[Span]) -> tuple[Link, ...]:
    """A link from each target word to all source words that it is linked to, by the name of the links."""
    links: list[Link] = []
    for name, pairs in named.items():
        for target, query in enumerate(targets):
            keys = [sources[source] for source, to in sorted(pairs) if to == target and source < len(sources)]
            if keys:
                links.append(Link(name, query, tuple(keys)))
    return tuple(links)


def _pair(source: str, target: str, named: Mapping[str, Links], sure: int, document: str) -> LinkedText:
    words, target_words = (_with_spaces(_spans(text), len(text)) for text in (source, target))
    return LinkedText(source, _links(named, words, target_words), document, words, target, target_words, sure=sure)


def _prompted(prompt: str) -> Callable[[str, str, Mapping[str, Links], int, str], LinkedText]:
    """Both sides in one text, as a decoder alone reads them."""
    if [prompt.count(side) for side in _SIDES] != [1, 1] or prompt.index(_SIDES[0]) > prompt.index(_SIDES[1]):
        raise AttnscopeError(
            f"prompt (--prompt) is {prompt!r:.60}; expected a text with {{source}} and then {{target}}, such as "
            '"English: {source} French: {target}"'
        )
    before, rest = prompt.split(_SIDES[0])
    between, after = rest.split(_SIDES[1])

    def write(source: str, target: str, named: Mapping[str, Links], sure: int, document: str) -> LinkedText:
        parts = (before, source, between, target, after)
        starts = np.cumsum([0, *map(len, parts[:-1])]).tolist()
        of_parts = [_spans(part, start) for part, start in zip(parts, starts, strict=True)]
        words = _with_spaces([span for of_part in of_parts for span in of_part], sum(map(len, parts)))
        ends = np.cumsum([len(of_part) for of_part in of_parts]).tolist()
        sources, targets = words[ends[0] : ends[1]], words[ends[2] : ends[3]]
        return LinkedText(
            "".join(parts),
            _links(named, sources, targets),
            document,
            words,
            target_words=targets,
            sources=sources,
            sure=sure,
        )

    return write


class TranslationReader(RelationReader):
    """Sentence pairs with links: the share of right queries, and the error rate of every target word's largest key."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.attributes["links"] = "cross" if self.is_paired else "prompt"
        self.others = self._others()
        # the numbers of the words with a token
        self.aligned = self._numbers([text.target_words for text in self.texts])
        if not self.is_paired:
            self._restrict()

    def _numbers(self, spans: Sequence[Sequence[Span]]) -> list[tuple[int, ...]]:
        """The numbers of words of each window, of the side that queries are of."""
        places = [Places(sides_of_words(window)[0]) for window in self.windows]
        return [
            tuple(dict.fromkeys(word for span in of_text for word in at.of(span)))
            for of_text, at in zip(spans, places, strict=True)
        ]

    def _restrict(self) -> None:
        """Let the words of the source alone count as keys, and put exchanged links on the words of the same number."""
        sources, targets = self._numbers([text.sources for text in self.texts]), self.aligned
        self.queries = [
            [replace(query, among=among) for query in queries]
            for queries, among in zip(self.queries, sources, strict=True)
        ]
        for number, others in enumerate(self.others):
            self.exchanged[number] = []
            for other in others:
                moves = dict(zip(sources[other], sources[number], strict=False))
                moves |= dict(zip(targets[other], targets[number], strict=False))
                for query in self.queries[other]:
                    words, keys = (tuple(moves[at] for at in of if at in moves) for of in (query.words, query.keys))
                    if words and keys:
                        self.exchanged[number].append(Query(query.relation, words, keys, sources[number]))

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        found = super().measure_batch(items, numbers)
        counts = np.array([self._counts(number) for number in numbers], float)
        names = ("window_links", "window_diagonal", "window_exchanged_links")
        return found.assign({name: ("window", counts[:, at]) for at, name in enumerate(names)})

    def _counts(self, number: int) -> tuple[int, int, int]:
        """Links of an alignment and sure ones; right ones on the diagonal; and the first for exchanged links."""
        text = self.texts[number]
        sources, targets = text.sources or text.words, text.target_words
        diagonal = [sources[(2 * at + 1) * len(sources) // (2 * len(targets))] for at in range(len(targets))]
        right = sum(diagonal[targets.index(link.query)] in link.keys for link in text.links)
        sure = self.relations.index(SURE) if SURE in self.relations else 0
        exchanged = sum(len(query.keys) for query in self.exchanged[number] if query.relation == sure)
        links = len(self.aligned[number])
        return links + (text.sure or 0), right if sure else 2 * right, len(self.others[number]) * links + exchanged

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        summarised = super().kinds()

        def with_rates(results: xr.Dataset) -> xr.Dataset:
            summary = xr.Dataset() if summarised is None else summarised(results)
            untrained = summary.untrained if "untrained" in summary else None
            return summary.assign(error_rates(results, untrained, self.settings["seed"]))

        return with_rates


_HEADS = ("layer", "head")


def error_rates(results: xr.Dataset, untrained: xr.DataArray | None, seed: int) -> dict[str, Any]:
    """Error rates (AER, Och and Ney 2003) of the alignments of heads, from sums over the queries of each pair.

    Each target word is aligned to the source word with the largest weight. With sure links S, possible ones P, S among
    them, and the alignment A, the rate is 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|). The best head is chosen on one half of
    the pairs and scored on the other.
    """
    member = membership(units_in(results)[0])
    sums = {name: by_unit(member, results[f"window_{name}"]) for name in _SUMS}
    relations = results.relation.values.tolist()
    both = [relations.index(LINKS), relations.index(SURE if SURE in relations else LINKS)]
    right, exchanged, chance = (sums[name][:, both].sum(1) for name in ("right", "exchanged_right", "chance"))
    links, whole = sums["links"], sums["links"].sum()
    shares = interval_of(right, links, seed)
    variables: dict[str, Any] = {
        name: (_HEADS, 1 - values, {"long_name": "Alignment error rate", "units": "share"})
        for name, values in zip(("error_rate", "error_rate_high", "error_rate_low"), shares, strict=True)
    }
    others = sums["exchanged_links"].sum()
    variables["error_rate_exchanged"] = (_HEADS, 1 - exchanged.sum(0) / (others or np.nan))
    if untrained is not None:
        counts = sums["queries"].sum(0)[both, None, None]
        fresh = np.nan_to_num(untrained.values[both]) * counts
        variables["error_rate_untrained"] = (_HEADS, 1 - fresh.sum(0) / whole)
    flat = right.reshape(len(right), 1, -1)
    halves = halves_of(len(member), seed)
    chosen, best = best_of(flat, links[:, None], halves)
    held_out = taken(flat, chosen, halves)
    heads = results.sizes["head"]
    of_held_out = [1 - float(values[0]) for values in interval_of(held_out, links, seed)]
    below = [float(values[0]) for values in interval_of(held_out - sums["diagonal"][:, None], links, seed)]
    scalars = {
        "held_out": of_held_out[0],
        "held_out_low": of_held_out[2],
        "held_out_high": of_held_out[1],
        "diagonal": 1 - sums["diagonal"].sum() / whole,
        "chance": 1 - chance.sum(0).mean() / whole,
        "below_diagonal": below[0],
        "below_diagonal_low": below[1],
        "below_diagonal_high": below[2],
        "best_layer": int(results.layer.values[best[0] // heads]),
        "best_head": int(best[0] % heads),
    }
    return variables | {f"error_rate_{name}": ((), value) for name, value in scalars.items()}


_SUMS = ("right", "exchanged_right", "chance", "queries", "links", "diagonal", "exchanged_links")
