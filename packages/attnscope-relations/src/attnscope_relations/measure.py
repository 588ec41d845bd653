"""How heads attend along links: the weight on what a query belongs to, and whether it is the largest."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.forward import decoder_start
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.detection.roles import control
from attnscope.kernels.full import weights_of
from attnscope.measure.contexts import sides_of
from attnscope.measure.rows import evenly
from attnscope.measure.texts import BATCH_TOKENS, TextReader
from attnscope.opened import Opened
from attnscope.read.texts import Corpus
from attnscope.read.windows import LinePairs, Window, Windows
from attnscope.read.words import WordedWindows, WordRule, in_words, word_rule_of
from attnscope.store.arrays import by_layer, in_a_row
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.data import LinkedText, digest
from attnscope_relations.summary import summary_of

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.options import ScanReading

_OTHERS = 2  # texts with which each exchanges its links: one alone would be a noisy baseline
OFFSETS = (*range(-10, 0), *range(1, 11))  # words: candidates for the best fixed offset


@dataclass(frozen=True)
class Query:
    """A query of a window with a link: its words, and those that it belongs to."""

    relation: int  # number of the relation
    words: tuple[int, ...]
    keys: tuple[int, ...]

    def fits(self, queries: int, keys: int) -> bool:
        """Whether it has words in a window of these numbers of words too."""
        return max(self.words) < queries and max(self.keys) < keys


class RelationReader(TextReader):
    """Texts with links: of each head the weight along them, and the share of queries whose largest key is right."""

    command = "relations"

    def __init__(
        self, model: Model | None, texts: Sequence[LinkedText], settings: ScanReading, *, untrained: bool
    ) -> None:
        sources, targets = [text.text for text in texts], [text.target for text in texts if text.target is not None]
        if targets and len(targets) < len(texts):
            raise AttnscopeError(
                f"found {len(targets)} translations of {len(texts)} texts; expected one of each, or none"
            )
        reject_modalities(self.command, MODEL if model is None else model, sources, revision=settings["revision"])
        self.untrained, self.is_paired = untrained, bool(targets)
        session = Opened.of(model, sources)
        loaded = session.load(settings)
        words = _rule(texts, settings)
        fitting, cut = _cut(texts, loaded, session.length(settings["window"]))
        if not fitting:
            raise AttnscopeError(f"none of {count(len(texts), 'text')} fits into a window: use a longer one (--window)")
        windows = [*WordedWindows([window for _, window in fitting], words)]
        limit = settings["limit"]
        windows = windows if limit is None else windows[:limit]
        longest = max(len(side) for window in windows for side in (window, window.target or window))
        size = settings["batch_size"] or max(1, BATCH_TOKENS // longest)
        settings = copy.copy(settings) | {"words": None, "targets": targets or None, "batch_size": size}
        self.digest, self.rule = digest(texts), words.signature
        self.relations = tuple(dict.fromkeys(link.relation for text in texts for link in text.links))
        super().__init__(loaded, sources, settings, windows)
        self.origin, self.reader = model, session.reader
        self.measured = [site for site in self.sites if (site.kind == "cross") == self.is_paired]
        if not self.measured:
            raise AttnscopeError(
                f"{loaded.name} has no layer that attends from a translation to its text: give texts without targets"
                if self.is_paired
                else f"{loaded.name} has no layer that attends within a text"
            )
        numbers = {name: number for number, name in enumerate(self.relations)}
        self.queries = [
            [*_queries(text.links, window, numbers)] for (text, _), window in zip(fitting, windows, strict=False)
        ]
        self.exchanged = self._exchanged()
        if cut:
            self.notes["cut"] = f"{cut} of {count(len(texts), 'text')} are longer than a window and left out."

    def signature_settings(self) -> dict[str, Any]:
        signed = super().signature_settings()
        names = ("limit", "seed", "window", "batch_size")
        return {name: signed[name] for name in names if name in signed} | {
            "links": self.digest,
            "words": self.rule,
            "untrained": self.untrained,
        }

    def _exchanged(self) -> list[list[Query]]:
        """For each window the queries of some others, of the same number of words or the nearest."""
        lengths = [tuple(len(side) for side in _sides(window)) for window in self.windows]
        random = np.random.default_rng(self.settings["seed"]).random(len(lengths))
        order = sorted(range(len(lengths)), key=lambda number: (lengths[number], random[number]))
        exchanged: list[list[Query]] = [[] for _ in lengths]
        for at, number in enumerate(order):
            others = sorted(
                (abs(lengths[other][0] - lengths[number][0]), abs(there - at), there, other)
                for there, other in enumerate(order[max(0, at - _OTHERS) : at + _OTHERS + 1], max(0, at - _OTHERS))
                if other != number
            )
            for *_, other in others[:_OTHERS]:
                exchanged[number] += [query for query in self.queries[other] if query.fits(*lengths[number])]
        return exchanged

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        read = self.read(items, numbers)
        kind = self.measured[0].kind
        asked, exchanged = (
            _Asked.of([queries[number] for number in numbers], items, kind)
            for queries in (self.queries, self.exchanged)
        )
        attended: list[_Attended] = []
        of_others: list[_Attended] = []
        layers = {site.index for site in self.measured}

        def look(site: Site, call: AttentionCall) -> None:
            if site.index not in layers or read.words is None:
                return
            text, target = read.words.numbers
            keys = target if site.kind == "causal" else text
            if keys.shape[1] != call.key.shape[2]:
                raise AttnscopeError(f"layer {site.index} does not attend from token to token, so it has no words")
            written = weights_of(call), weights_of(evenly(call))
            attended.append(asked.attended(*written, keys))
            of_others.append(exchanged.attended(*written, keys))

        self.run(read, look, numbers)
        shape = len(items), len(self.relations)
        sums, others = asked.sums(attended, shape), exchanged.sums(of_others, shape)
        variables = {f"window_{name}": values for name, values in sums.items()}
        variables |= {f"window_exchanged_{name}": others[name] for name in ("queries", "right", "weight")}
        return xr.Dataset(
            {
                name: (_DIMS[values.ndim if name != "window_at_offset" else 0], values)
                for name, values in variables.items()
            }
            | {"length": ("window", np.array([len(in_words(window)) for window in items]))},
            coords=layer_coordinates(self.measured)
            | {
                "relation": np.array(self.relations, dtype=object),
                "head": np.arange(max(site.heads for site in self.measured)),
                "offset": np.array(OFFSETS),
                "window": np.array(numbers),
                "source": ("window", np.array([window.source for window in items], dtype=object)),
            },
        )

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        return lambda results: summary_of(results, self._untrained() if self.untrained else None, self.settings["seed"])

    def _untrained(self) -> xr.Dataset | None:
        """The same sums with fresh weights; None for weights that cannot be replaced."""
        try:
            with control(self.model, "initialised", self.settings["seed"]):
                return in_a_row([self.measure_batch([*part.values()], [*part]) for part in self.parts()])
        except AttnscopeError as error:
            self.notes["untrained"] = f"No untrained copy was measured: {error}."
            return None


_DIMS = {
    0: ("window", "relation", "offset"),
    2: ("window", "relation"),
    3: ("window", "relation", "layer"),
    4: ("window", "relation", "layer", "head"),
}


def _rule(texts: Sequence[LinkedText], settings: ScanReading) -> WordRule:
    """The words of texts: those that they have, else those of a rule."""
    rule = word_rule_of(settings["words"] or "unicode")
    of_texts = {text.text: [*text.words] for text in texts if text.words}
    of_texts |= {text.target: [*text.target_words] for text in texts if text.target is not None and text.target_words}
    if not of_texts:
        return rule
    return WordRule(f"given with the texts, or {rule.signature}", lambda text: of_texts.get(text) or rule.spans(text))


def _cut(texts: Sequence[LinkedText], loaded: Any, length: int) -> tuple[list[tuple[LinkedText, Window]], int]:
    """Texts that fit into a window, each as one; and the number of the others."""
    fitting: list[tuple[LinkedText, Window]] = []
    start = decoder_start(loaded.model) if texts[0].target is not None else None
    for text in texts:
        corpus = Corpus.from_sources([text.text])
        if text.target is None:
            windows = [*Windows(corpus, loaded.tokenizer, length=length)]
        else:
            windows = [*LinePairs(corpus, Corpus.from_sources([text.target]), loaded.tokenizer, start, length=length)]
        if len(windows) == 1:
            fitting.append((text, replace(windows[0], source=text.document)))
    return fitting, len(texts) - len(fitting)


def _sides(window: Window) -> tuple[Window, Window]:
    """The words of the queries, and of the keys."""
    return sides_of(in_words(window), "cross" if window.target is not None else "self")


def _queries(links: Iterable[Any], window: Window, numbers: dict[str, int]) -> Iterable[Query]:
    """Links by numbers of words; those within one word are left out."""
    queries, keys = _sides(window)
    of_queries = _Places(queries)
    of_keys = of_queries if queries is keys else _Places(keys)
    for link in links:
        words = of_queries.of(link.query)
        others = {word for span in link.keys for word in of_keys.of(span)}
        right = sorted(others - ({*words} if queries is keys else set()))
        if words and right:
            yield Query(numbers[link.relation], words, tuple(right))


class _Places:
    """The characters of the words of a window."""

    def __init__(self, window: Window) -> None:
        self.numbers = [number for number, special in enumerate(window.special) if not special]
        spans = [window.spans[number] for number in self.numbers]
        letters = [window.text[first:last] for first, last in spans]
        # a token may begin with the space before a word
        self.starts = [last - len(word.lstrip()) for (_, last), word in zip(spans, letters, strict=True)]
        self.ends = [last for _, last in spans]

    def of(self, span: tuple[int, int]) -> tuple[int, ...]:
        """The words with characters of a span."""
        first, last = bisect_right(self.ends, span[0]), bisect_left(self.starts, span[1])
        return tuple(self.numbers[first:last])


@dataclass(frozen=True, eq=False)
class _Attended:
    """What queries with links do in one layer."""

    weight: Tensor  # ``(query, head)``: on what they belong to
    right: Tensor  # ``(query, head)``: whether the largest weight on another word is
    uniform: Tensor  # ``(query,)``: the weight of uniform attention
    chance: Tensor  # ``(query,)``: the share of the other words that are right
    seen: Tensor  # ``(query,)``: whether the mask shows what they belong to


@dataclass(frozen=True, eq=False)
class _Asked:
    """The queries with links of a batch."""

    queries: list[tuple[int, Query]]  # each with the number of its window
    of_query: Tensor  # ``(query,)``: that number
    right: Tensor  # ``(query, word)``: the words that it belongs to
    others: Tensor  # ``(query, word)``: words that count as keys, without its own
    # ``(token,)`` each, of the tokens of all queries: number of the query, window, position, share of the query
    member: Tensor
    window: Tensor
    position: Tensor
    share: Tensor

    @classmethod
    def of(cls, of_windows: Sequence[Sequence[Query]], windows: Sequence[Window], kind: str) -> _Asked:
        keys = [_sides(window)[1] for window in windows]
        counted = torch.zeros(len(windows), max(map(len, keys)), dtype=torch.bool)
        for number, side in enumerate(keys):
            counted[number, : len(side)] = ~torch.tensor(side.special)
            if kind == "causal" and not side.special[0]:
                counted[number, 0] = False  # many heads rest on the first token, whatever it is
        asked: list[tuple[int, Query]] = []
        members: list[tuple[int, int, int, float]] = []
        for number, (window, queries) in enumerate(zip(windows, of_windows, strict=True)):
            places: dict[int, list[int]] = {}
            for place, word in enumerate((window.target or window).words):
                # a translation's token is predicted by the row before its own
                places.setdefault(word, []).append(max(0, place - 1) if kind == "cross" else place)
            shown = counted[number].tolist()
            for query in queries:
                if any(shown[key] for key in query.keys):
                    for word in query.words:
                        share = 1 / len(places[word]) / len(query.words)
                        members += [(len(asked), number, place, share) for place in places[word]]
                    asked.append((number, query))
        of_query = torch.tensor([number for number, _ in asked], dtype=torch.long)
        right, others = torch.zeros(len(asked), counted.shape[1], dtype=torch.bool), counted[of_query]
        pairs = [(at, key) for at, (_, query) in enumerate(asked) for key in query.keys]
        right[[at for at, _ in pairs], [key for _, key in pairs]] = True
        right &= others
        if kind != "cross":
            own = [(at, word) for at, (_, query) in enumerate(asked) for word in query.words]
            others[[at for at, _ in own], [word for _, word in own]] = False
        member, window, position = (torch.tensor([one[part] for one in members], dtype=torch.long) for part in range(3))
        share = torch.tensor([one[3] for one in members])
        return cls(asked, of_query, right, others, member, window, position, share)

    def attended(self, weights: Tensor, uniform: Tensor, key_words: Tensor) -> _Attended:
        """What they do by the weights of a layer, ``(window, head, query, key)`` each, from token to token.

        The words of the keys are numbered, ``(window, key)``; -1 is padding.
        """
        device, words = weights.device, self.right.shape[1]
        of_query, right, others, member, window, position, share = (
            part.to(device)
            for part in (self.of_query, self.right, self.others, self.member, self.window, self.position, self.share)
        )
        places = key_words.to(device)[of_query]
        places = torch.where(places < 0, words, places)

        def by_words(written: Tensor) -> Tensor:
            """The mean over the tokens of a query, and the sum over those of each key."""
            rows = written.new_zeros(len(right), written.shape[1], written.shape[3])
            rows.index_add_(0, member, written[window, :, position] * share.to(written.dtype)[:, None, None])
            merged = written.new_zeros(len(right), written.shape[1], words + 1)
            return merged.scatter_add_(2, places[:, None].expand_as(rows), rows)[..., :words]

        of_heads, of_uniform = by_words(weights), by_words(uniform)[:, 0]
        visible = others & (of_uniform > 0)
        largest = of_heads.masked_fill(~visible[:, None], -1.0).argmax(-1)
        return _Attended(
            weight=(of_heads * right[:, None]).sum(-1),
            right=(right & visible).gather(1, largest),
            uniform=(of_uniform * right).sum(1),
            chance=(right & visible).sum(1) / visible.sum(1).clamp_min(1),
            seen=(right & visible).any(1),
        )

    def sums(self, layers: Sequence[_Attended], shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """Sums over the queries of each window and relation, of those that a layer sees: see `summary_of`."""
        seen = torch.stack([layer.seen for layer in layers]).any(0).cpu()
        asked = [one for one, is_seen in zip(self.queries, seen.tolist(), strict=True) if is_seen]
        cell = torch.tensor([window * shape[1] + query.relation for window, query in asked], dtype=torch.long)

        def summed(values: Tensor) -> np.ndarray:
            total = torch.zeros(shape[0] * shape[1], *values.shape[1:])
            return total.index_add_(0, cell, values.float()).unflatten(0, shape).numpy()

        def of_layers(name: str) -> np.ndarray:
            sums = [summed(getattr(layer, name).cpu()[seen]) for layer in layers]
            return by_layer(sums) if sums[0].ndim > 2 else np.stack(sums, -1)  # noqa: PLR2004 with heads

        places = torch.tensor([query.words[0] for _, query in asked])[:, None] + torch.tensor(OFFSETS)
        inside = (places >= 0) & (places < self.right.shape[1])
        hits = self.right[seen].gather(1, places.clamp(0, self.right.shape[1] - 1)) & inside
        return {name: of_layers(name) for name in ("right", "weight", "chance", "uniform")} | {
            "queries": summed(torch.ones(len(asked))),
            "at_offset": summed(hits),
        }
