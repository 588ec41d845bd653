"""The texts on a page: their words and links, and the word that every head chooses for each query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.store.arrays import by_layer
from attnscope_relations.attended import LayerRows, Query, Rows, sides_of_words

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.watch import Site
    from attnscope.read.windows import Window
    from attnscope_relations.contacts import Protein
    from attnscope_relations.measure import RelationReader
    from attnscope_relations.speech import SpeechReader

_TEXTS, _EACH = 12, 3  # texts, and those with each relation
_WORDS = 40  # of a text; longer ones only where a relation has no other
_MAPS, _CELLS = 6, 600  # translations or proteins whose map is drawn, and words or residues of one
_NO_WORDS: dict[str, Any] = {"words": [], "target": [], "links": []}
_SOUNDS = 3  # whose times of words are drawn
_ARRAYS = ("choice", "weight")


@dataclass(frozen=True)
class ShownLink:
    """A query of a shown text and its right answers, by numbers of words."""

    number: int  # along ``link`` in the sample
    relation: str
    query: tuple[int, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ShownText:
    """A text as it is drawn; a protein has a map and no words."""

    name: str
    words: list[str]  # of the keys
    target: list[str]  # of the queries, if these are in a translation; else empty
    links: list[ShownLink]
    map: np.ndarray | None = None  # ``(query, key)``: of the best head, by words or by residues
    contacts: np.ndarray | None = None  # ``(residue, residue)``: 1 for contacts, NaN for pairs that do not count
    # of a sound: its words with start and end, and the start of each word by heads, or sets of them; seconds
    said: Sequence[tuple[str, float, float]] = ()
    times: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Any])


def in_order(results: xr.Dataset) -> list[int]:
    """Numbers of the relations: linked ones first, then those whose best head is furthest above the controls."""
    above, weight = (results[name].max(("layer", "head")).values for name in ("above", "weight"))
    above = np.where(np.isfinite(results.held_out_p), results.held_out_above, above)
    keys = (-np.nan_to_num(weight), -np.nan_to_num(above, nan=-np.inf), ~results.linked.values)
    return [at for at in np.lexsort(keys).tolist() if results.queries[at] > 0]


def best_head(results: xr.Dataset) -> tuple[int, int]:
    """Layer and head whose maps are drawn: that which ranks contacts or aligns best, or the best of a relation."""
    if "precision" in results:
        return int(results.precision_best_layer[0]), int(results.precision_best_head[0])
    if "error_rate" in results:
        return int(results.error_rate_best_layer), int(results.error_rate_best_head)
    first = results.isel(relation=in_order(results)[0])
    return int(first.best_layer), int(first.best_head)


def shown_texts(reader: RelationReader, results: xr.Dataset) -> xr.Dataset:
    """Some texts with each relation, measured once more.

    ``choice`` has the number of the word with the largest weight, -1 for a query that sees none, and ``weight`` the
    weight on it: ``(link, layer, head)`` each. ``text`` has words and links as JSON, which `texts_of` reads. ``map_0``
    and others are those of the best head.
    """
    nothing = _empty(results)
    if not (results.queries > 0).any():
        return nothing
    texts: list[dict[str, Any]] = []
    arrays: list[tuple[np.ndarray, ...]] = []
    maps: dict[str, Any] = {}
    best, windows = best_head(results), [*reader.windows]
    for number in _chosen(reader, results):
        at = len(texts)
        window, protein = windows[number], reader.proteins.proteins[number]
        if protein is not None:
            if len(protein.tokens) <= _CELLS:
                features = _features(reader, number, window, protein, best)
                contacts = np.full(features.shape, np.nan)
                contacts[protein.first, protein.second] = contacts[protein.second, protein.first] = protein.contact
                dims = (f"first_{at}", f"second_{at}")
                maps |= {f"map_{at}": (dims, features), f"contacts_{at}": (dims, contacts)}
                texts.append({"name": str(window.source)} | _NO_WORDS)
            continue
        text, of_links, whole = _text(reader, number, window, best)
        if text["links"]:
            texts.append(text)
            arrays.append(of_links)
            if whole is not None:
                maps[f"map_{at}"] = ((f"query_{at}", f"key_{at}"), whole)
    if not texts:
        return nothing
    empty = np.zeros((0, results.sizes["layer"], results.sizes["head"]))
    joined = [np.concatenate(of) for of in zip(*arrays, strict=True)] or [empty] * len(_ARRAYS)
    written = np.array([json.dumps(text, ensure_ascii=False) for text in texts], dtype=object)
    variables = {name: (("link", "layer", "head"), values) for name, values in zip(_ARRAYS, joined, strict=True)}
    return nothing.assign(variables | maps).assign_coords(text=written).assign_attrs(best=f"{best[0]}.{best[1]}")


def shown_sounds(reader: SpeechReader, results: xr.Dataset) -> xr.Dataset:
    """The first sounds with when their words begin, in the data and by the chosen heads, those published and the best.

    ``text`` has words and times as JSON, which `texts_of` reads; nothing without times.
    """
    nothing = _empty(results)
    if "error" not in results:
        return nothing
    layer, head = np.unravel_index(int(np.nanargmin(results.error.values)), results.error.shape)
    best = np.zeros(results.error.shape)
    best[layer, head] = 1
    sets = {"chosen heads": results.chosen.values, f"head {int(results.decoder_layer[layer])}.{head}": best}
    if "listed" in results:
        sets["published heads"] = results.listed.values
    members = np.stack([*sets.values()]).astype(float)
    texts: list[str] = []
    for number, maps in zip(range(_SOUNDS), reader.maps(members), strict=False):
        said, spoken = reader.said[number], reader.spoken[number]
        words, begins = spoken.begins_by(maps, reader.seconds)
        written = [
            [said.text[slice(*said.words[word])], float(spoken.begins[word]), float(spoken.ends[word])]
            for word in words
        ]
        times = {name: of_set.round(3).tolist() for name, of_set in zip(sets, begins, strict=True)}
        name = str(results.source.values[number])
        texts.append(json.dumps({"name": name, "said": written, "times": times} | _NO_WORDS, ensure_ascii=False))
    return nothing.assign_coords(text=np.array(texts, dtype=object))


def texts_of(sample: xr.Dataset | None) -> Iterator[ShownText]:
    """The texts of a sample."""
    if sample is None or "text" not in sample:
        return
    number = 0
    for at, text in enumerate(sample["text"].values):
        written = json.loads(text)
        links = [
            ShownLink(number + row, relation, tuple(query), tuple(keys))
            for row, (relation, query, keys) in enumerate(written["links"])
        ]
        number += len(links)
        maps = {
            name: sample[f"{name}_{at}"].values if f"{name}_{at}" in sample else None for name in ("map", "contacts")
        }
        said = [(str(word), float(start), float(end)) for word, start, end in written.get("said", ())]
        sides = written["words"], written["target"]
        yield ShownText(written["name"], *sides, links, **maps, said=said, times=written.get("times", {}))


def _empty(results: xr.Dataset) -> xr.Dataset:
    """A sample of a result without texts."""
    return xr.Dataset(coords={name: results[name].values for name in ("layer", "head")}, attrs={"requested": "[]"})


def _chosen(reader: RelationReader, results: xr.Dataset) -> list[int]:
    """Numbers of the first windows with each relation, short ones first."""
    relations = in_order(results)
    having = {relation: list[int]() for relation in relations}
    for number, _ in enumerate(reader.windows):
        for relation in {query.relation for query in reader.queries[number]}.intersection(relations):
            having[relation].append(number)
    lengths = [max(len(side) for side in sides_of_words(window)) for window in reader.windows]
    each, most = (_MAPS, _MAPS) if reader.is_paired or reader.proteins else (_EACH, _TEXTS)
    first = {
        (window.text, window.target and window.target.text): number
        for number, window in [*enumerate(reader.windows)][::-1]
    }
    once = {*first.values()}
    chosen: set[int] = set()
    for relation in relations:
        numbers = sorted(once.intersection(having[relation]), key=lambda number: (lengths[number] > _WORDS, number))
        wanted = min(each - len(chosen.intersection(numbers)), most - len(chosen))
        chosen.update([number for number in numbers if number not in chosen][: max(0, wanted)])
    return sorted(chosen)


def _text(
    reader: RelationReader, number: int, window: Window, best: tuple[int, int]
) -> tuple[dict[str, Any], tuple[np.ndarray, ...], np.ndarray | None]:
    """Words and links of a text, what heads choose for each link, and for a translation the map of the best head."""
    queries, keys = sides_of_words(window)
    of_queries, of_keys = _plain(queries), _plain(keys)
    drawn = reader.is_paired and max(len(queries), len(keys)) <= _CELLS
    every = [Query(0, (word,), ()) for word in of_queries] if drawn else []
    rows = Rows.of([window], [[*reader.queries[number], *every]], reader.kind)
    layers = reader.rows_of_layers([window], [number], rows)
    row_of = rows.numbers[0]
    visible = torch.stack([layer.visible[0].cpu() for layer in layers]).any(0)
    links = [query for query in reader.queries[number] if visible[row_of[query.words], list(query.keys)].any()]
    at = [row_of[query.words] for query in links]
    compact = np.full(len(keys) + 1, -1)
    compact[[*of_keys]] = [*of_keys.values()]
    chosen = [_choices(layer, at) for layer in layers] if links else []
    choice, weight = (by_layer(values) for values in zip(*chosen, strict=True)) if links else [np.zeros(0)] * 2
    arrays = (compact[np.nan_to_num(choice, nan=-1).astype(int)], weight)
    whole = None
    if drawn:
        layer = [site.index for site in reader.measured].index(best[0])
        weights = layers[layer].weights[0, best[1]].float().cpu().numpy()
        whole = weights[np.ix_([row_of[query.words] for query in every], [*of_keys])]
    text = {
        "name": str(window.source),
        "words": [keys.tokens[word].strip() for word in of_keys],
        "target": [queries.tokens[word].strip() for word in of_queries] if reader.is_paired else [],
        "links": [
            [
                reader.relations[one.relation],
                [of_queries[word] for word in one.words],
                [of_keys[word] for word in one.keys],
            ]
            for one in links
        ],
    }
    return text, arrays, whole


def _choices(layer: LayerRows, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The word that each head of a layer chooses in some rows, and the weight on it: ``(row, head)``."""
    weights, largest = layer.weights[0, :, rows].float().cpu(), layer.largest[0, :, rows].cpu()
    on_largest = weights.gather(-1, largest[..., None])[..., 0]
    sees = layer.visible[0, rows].cpu().any(-1)
    return torch.where(sees, largest, -1).T.double().numpy(), on_largest.T.numpy()


def _features(
    reader: RelationReader, number: int, window: Window, protein: Protein, best: tuple[int, int]
) -> np.ndarray:
    """The features by which the best head ranks pairs, ``(residue, residue)``."""
    features: list[np.ndarray] = []

    def keep(site: Site, weights: Tensor) -> None:
        if site.index == best[0]:
            features.append(protein.features(weights[0, best[1]][None]).float().cpu().numpy()[0])

    reader.rows_of_layers([window], [number], Rows.of([window], [[]], reader.kind), keep)
    return features[0]


def _plain(window: Window) -> dict[int, int]:
    """The numbers of a window's words, counted without special ones."""
    plain = [word for word, special in enumerate(window.special) if not special]
    return {word: number for number, word in enumerate(plain)}
