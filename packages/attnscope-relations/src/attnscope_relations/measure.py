"""How heads attend along links: the weight on what a query belongs to, and whether it is the largest."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.forward import decoder_start
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.detection.roles import control
from attnscope.kernels.full import attend_in_full, weights_of
from attnscope.measure.rows import evenly
from attnscope.measure.texts import BATCH_TOKENS, TextReader
from attnscope.opened import Opened
from attnscope.read.texts import Corpus
from attnscope.read.windows import LinePairs, Window, Windows
from attnscope.read.words import WordedWindows, WordRule, in_words, word_rule_of
from attnscope.statistics.units import LEAST
from attnscope.store.arrays import in_a_row
from attnscope.store.run import Work
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count
from attnscope_relations.attended import OFFSETS, LayerRows, Query, Rows, sides_of_words
from attnscope_relations.contacts import Proteins, is_protein, precision_of
from attnscope_relations.data import LinkedText, digest
from attnscope_relations.readers.proteins import for_tokenizer
from attnscope_relations.shown import shown_texts
from attnscope_relations.summary import summary_of

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall
    from attnscope.options import ScanReading

Measured = TypeVar("Measured")

_RESIDUES = 200  # tokens of a model of proteins, at most: letters and special tokens
_OTHERS = 2  # texts with which each exchanges its links: one alone would be a noisy control


class RelationReader(TextReader):
    """Texts with links: of each head the weight along them, and the share of queries whose largest key is right."""

    command = "relations"
    windows: Sequence[Window]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        model: Model | None,
        texts: Sequence[LinkedText],
        settings: ScanReading,
        *,
        untrained: bool,
        together: bool = False,
        ablate: bool = False,
        only: Sequence[str] | None = None,
    ) -> None:
        sources, targets = [text.text for text in texts], [text.target for text in texts if text.target is not None]
        if targets and len(targets) < len(texts):
            raise AttnscopeError(
                f"found {len(targets)} translations of {len(texts)} texts; expected one of each, or none"
            )
        reject_modalities(self.command, MODEL if model is None else model, sources, revision=settings["revision"])
        self.untrained, self.together, self.ablate, self.is_paired = untrained, together, ablate, bool(targets)
        self.only = only
        session = Opened.of(model, sources)
        loaded = session.load(settings)
        if ablate:
            from attnscope_relations.ablation import check_ablation

            check_ablation(loaded, texts, together=together)
        texts = for_tokenizer(texts, loaded.tokenizer)
        sources = [text.text for text in texts]
        words = _rule(texts, settings)
        self.digest, self.rule = digest(texts), words.signature
        self.relations = tuple(dict.fromkeys(link.relation for text in texts for link in text.links))
        cut = _windows(texts, loaded, session.length(settings["window"]))
        numbers = {name: number for number, name in enumerate(self.relations)}
        worded = [*WordedWindows([window for _, window in cut], words)]
        queries = [[*_queries(text.links, window, numbers)] for (text, _), window in zip(cut, worded, strict=True)]
        asking = [
            (text, window, of)
            for (text, _), window, of in zip(cut, worded, queries, strict=True)
            if of or text.sure is not None
        ]
        linked = asking[: settings["limit"]]
        if not linked:
            raise AttnscopeError(
                f"found no link from one word to another within a window of {count(len(texts), 'text')}: use longer "
                "windows (--window), or other words (--words)"
            )
        windows = [window for _, window, _ in linked]
        self.queries = [of_window for _, _, of_window in linked]
        links, within = sum(len(text.links) for text in texts), sum(map(len, queries))
        longest = max(len(side) for window in windows for side in (window, window.target or window))
        size = settings["batch_size"] or max(1, BATCH_TOKENS // longest)
        settings = copy.copy(settings) | {"words": None, "targets": targets or None, "batch_size": size}
        super().__init__(loaded, sources, settings, windows)
        self.origin, self.reader, self.show = model, session.reader, ()
        kinds = ["cross"] if self.is_paired else ["self", "causal"]
        self.kind = next((kind for kind in kinds if any(site.kind == kind for site in self.sites)), "")
        self.measured = [site for site in self.sites if site.kind == self.kind]
        if not self.measured:
            raise AttnscopeError(
                f"{loaded.name} has no layer that attends from a translation to its text: give texts without targets"
                if self.is_paired
                else f"{loaded.name} has no layer that attends within a text"
            )
        self.texts = [text for text, _, _ in linked]
        self._lengths = [tuple(len(side) for side in sides_of_words(window)) for window in self.windows]
        others = self._others()
        self.exchanged = [
            [query for other in of_window for query in self.queries[other] if query.fits(*self._lengths[number])]
            for number, of_window in enumerate(others)
        ]
        if len(windows) == 1 and not self.is_paired:
            self.exchanged = [[*_moved(self.queries[0], sides_of_words(windows[0])[0].special)]]
        self.proteins = Proteins(self.texts, windows, others)
        if self.proteins and len(loaded.tokenizer) > _RESIDUES:
            self.notes["proteins"] = (
                f"The tokenizer has {len(loaded.tokenizer):,} tokens; models of proteins have fewer than {_RESIDUES}. "
                f"Was {loaded.name} trained on proteins?"
            )
        if within < links:
            self.notes["links"] = f"{links - within} of {links} links left out: within one word, or across windows."

    def signature_settings(self) -> dict[str, Any]:
        signed = super().signature_settings()
        names = ("limit", "seed", "window", "batch_size")
        return {name: signed[name] for name in names if name in signed} | {
            "links": self.digest,
            "words": self.rule,
            "untrained": self.untrained,
            **{name: True for name in ("together", "ablate") if getattr(self, name)},
            **({} if self.only is None else {"only": [*self.only]}),
        }

    def work(self) -> Work:
        """A pass over the texts, and one more with fresh weights."""
        if not self.untrained:
            return super().work()
        return replace(super().work(), passes=2.0, copies=1 if self.model.dtype.itemsize > 2 else 3)  # noqa: PLR2004

    def _others(self) -> list[list[int]]:
        """For each window some others, of the same number of words or the nearest."""
        random = np.random.default_rng(self.settings["seed"]).random(len(self._lengths))
        order = sorted(range(len(self._lengths)), key=lambda number: (self._lengths[number], random[number]))
        others: list[list[int]] = [[] for _ in order]
        for at, number in enumerate(order):
            near = sorted(
                (abs(self._lengths[other][0] - self._lengths[number][0]), abs(there - at), there, other)
                for there, other in enumerate(order[max(0, at - _OTHERS) : at + _OTHERS + 1], max(0, at - _OTHERS))
                if other != number
            )
            others[number] = [other for *_, other in near[:_OTHERS]]
        return others

    def measure_batch(self, items: Sequence[Window], numbers: Sequence[int]) -> xr.Dataset:
        asked, exchanged = ([queries[number] for number in numbers] for queries in (self.queries, self.exchanged))
        rows = Rows.of(items, [[*own, *others] for own, others in zip(asked, exchanged, strict=True)], self.kind)
        ranked: list[tuple[np.ndarray, np.ndarray]] = []

        def rank(_: Site, weights: Tensor) -> None:
            ranked.append(self.proteins.ranked(weights, numbers))

        layers = self.rows_of_layers(items, numbers, rows, rank if self.proteins else None)
        sums, others = (rows.sums(queries, layers, len(self.relations)) for queries in (asked, exchanged))
        variables = {f"window_{name}": values for name, values in sums.items()}
        variables |= {f"window_exchanged_{name}": others[name] for name in ("queries", "right", "weight")}
        if len(self.windows) < LEAST:  # too few for a test: what the first query shows is reported instead
            first = rows.of_first(items, asked, layers, len(self.relations))
            variables |= {f"first_{name}": values for name, values in first.items()}
        return xr.Dataset(
            {
                name: (_DIMS[values.ndim if name != "window_at_offset" else 0], values)
                for name, values in variables.items()
            }
            | {"length": ("window", np.array([len(in_words(window)) for window in items]))}
            | (self.proteins.variables(ranked, numbers) if self.proteins else {}),
            coords=layer_coordinates(self.measured)
            | {
                "relation": np.array(self.relations, dtype=object),
                "head": np.arange(max(site.heads for site in self.measured)),
                "offset": np.array(OFFSETS),
                "window": np.array(numbers),
                "source": ("window", np.array([window.source for window in items], dtype=object)),
            },
        )

    def rows_of_layers(
        self,
        items: Sequence[Window],
        numbers: Sequence[int],
        rows: Rows,
        also: Callable[[Site, Tensor], None] | None = None,
    ) -> list[LayerRows]:
        """Rows of a batch in every layer that is measured, in one pass; `also` gets each layer's weights."""
        layers: list[LayerRows] = []
        measured = {site.index for site in self.measured}

        def look(site: Site, call: AttentionCall) -> Tensor | None:
            if site.index not in measured:
                return None
            if rows.by_key.shape[1] != call.key.shape[2]:
                raise AttnscopeError(f"layer {site.index} does not attend from token to token, so it has no words")
            output, weights = attend_in_full(call)
            layers.append(rows.of_layer(weights, weights_of(evenly(call))))
            if also is not None:
                also(site, weights)
            return output

        self.run(self.read(items, numbers), look, numbers)
        return layers

    def kinds(self) -> Callable[[xr.Dataset], xr.Dataset] | None:
        def summarised(results: xr.Dataset) -> xr.Dataset:
            untrained = self._untrained() if self.untrained else None
            seed = self.settings["seed"]
            parts = [summary_of(results, untrained, seed).assign(precision_of(results, untrained, seed))]
            if self.together:
                from attnscope_relations.together import together

                parts.append(together(self, results))
                if self.proteins:
                    from attnscope_relations.contact_regression import contacts_together

                    parts.append(xr.Dataset(contacts_together(self, results, parts[0].precision)))
            if self.ablate and not self.proteins:
                from attnscope_relations.ablation import ablated

                parts.append(ablated(self, results, parts[0]))
            return xr.merge(parts, combine_attrs="override")

        return summarised

    def sample(self, results: xr.Dataset, show: Sequence[tuple[int, int]]) -> xr.Dataset | None:  # noqa: ARG002
        return shown_texts(self, results)

    def _untrained(self) -> xr.Dataset | None:
        """The same sums with fresh weights; None for weights that cannot be replaced."""
        return self.with_fresh_weights(
            lambda: in_a_row([self.measure_batch([*part.values()], [*part]) for part in self.parts()])
        )

    def with_fresh_weights(self, measure: Callable[[], Measured]) -> Measured | None:
        """What is measured with fresh weights; None for weights that cannot be replaced."""
        try:
            with control(self.model, "initialised", self.settings["seed"]):
                return measure()
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


def _windows(texts: Sequence[LinkedText], loaded: Any, length: int) -> list[tuple[LinkedText, Window]]:
    """Texts with each of their windows; a protein that is longer than one is left out."""
    cut: list[tuple[LinkedText, Window]] = []
    if texts[0].target is not None:
        sources, targets = (
            [*map(str, side)] for side in zip(*((text.text, text.target) for text in texts), strict=True)
        )
        sides = Corpus.from_sources(sources), Corpus.from_sources(targets)
        pairs = LinePairs(*sides, loaded.tokenizer, decoder_start(loaded.model), length=length)
        return [(text, replace(pair, source=text.document)) for text, pair in zip(texts, pairs, strict=True)]
    for text in texts:
        windows = [*Windows(Corpus.from_sources([text.text]), loaded.tokenizer, length=length)]
        if is_protein(text) and len(windows) > 1:
            continue
        cut += [(text, replace(window, source=text.document)) for window in windows]
    return cut


def _moved(queries: Sequence[Query], special: Sequence[bool]) -> Iterable[Query]:
    """The queries of a lone text at its other words near by, with keys at the same offset."""
    asked = {query.words for query in queries}
    for query in queries:
        for by in OFFSETS:
            words, keys = (tuple(word + by for word in of) for of in (query.words, query.keys))
            inside = all(0 <= word < len(special) and not special[word] for word in (*words, *keys))
            if inside and words not in asked:
                yield replace(query, words=words, keys=keys)


def _queries(links: Iterable[Any], window: Window, numbers: dict[str, int]) -> Iterable[Query]:
    """Links by numbers of words; those within one word are left out."""
    queries, keys = sides_of_words(window)
    of_queries = Places(queries)
    of_keys = of_queries if queries is keys else Places(keys)
    for link in links:
        words = of_queries.of(link.query)
        others = {word for span in link.keys for word in of_keys.of(span)}
        right = sorted(others - ({*words} if queries is keys else set()))
        if words and right:
            yield Query(numbers[link.relation], words, tuple(right))


class Places:
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
