"""Several heads together: logistic regression over the weights of all heads, and trees of its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.read.windows import Window
from attnscope.statistics.discovery import significant
from attnscope.statistics.units import LEAST, numbered, units_in
from attnscope.support.numbers import count
from attnscope_relations.attended import OFFSETS, Query, Rows, sides_of_words
from attnscope_relations.measure import Places, RelationReader
from attnscope_relations.summary import SIZE, chances, interval_of
from attnscope_relations.trees import arborescence

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDS = 5
#: Inverse strength of the L2 penalty (C of scikit-learn's LogisticRegression), on standardised weights.
STRENGTH = 0.1
DIRECTIONS = ("forward", "back")  # from the query to the other word, or from that to the query
#: Ways to choose a word for each query.
METHODS = ("together", "one head", "offset", "chance", "untrained")
#: Ways to choose a tree for each sentence.
PARSERS = ("together", "one head", "offset", "word before", "word after", "untrained")
_ROOM = 1 << 30  # bytes of weights from word to word that are kept
_PAIRS = 50_000  # of words, to which one regression is fitted
_LEVEL = 0.05
_OTHERS = 20  # wrong words of each query among them, at most


@dataclass(frozen=True, eq=False)
class Attended:
    """The attention of every head from word to word of one text."""

    weights: np.ndarray  # ``(head, word, word)``: the heads of all layers; 0 from words that are no queries
    visible: np.ndarray  # ``(word, word)``: other words that count as keys, and that the mask shows in some layer
    is_one_text: bool  # whether the keys are words of the same text, which attend back


@dataclass(frozen=True, eq=False)
class Choice:
    """A query, the words that it may belong to, and those that it does."""

    text: int
    words: tuple[int, ...]
    candidates: np.ndarray  # ``(candidate,)``: numbers of words
    right: np.ndarray  # ``(candidate,)``

    @property
    def correct(self) -> np.ndarray:
        """The words that it belongs to."""
        return self.candidates[self.right]

    def features(self, attended: Mapping[int, Attended]) -> np.ndarray:
        """The weights of all heads from the query to each candidate, and back, ``(feature, candidate)``."""
        of_text, query = attended[self.text], list(self.words)
        to = of_text.weights[:, query][..., self.candidates].mean(1)
        if not of_text.is_one_text:
            return to
        return np.concatenate([to, of_text.weights[:, self.candidates][..., query].sum(2)])


def together(reader: RelationReader, results: xr.Dataset) -> xr.Dataset:
    """The words that all heads together find for each relation, and trees; see `summarised` and `parsed`."""
    units, _ = units_in(results)
    of_text, _ = numbered(units)
    seed, texts = reader.settings["seed"], _within_room(reader, of_text)
    if len(texts) < len(of_text):
        reader.notes["together"] = (
            f"Heads are put together on {len(texts)} of {count(len(of_text), 'text')}, those of random documents: "
            f"their weights from word to word take {_ROOM >> 30} GiB."
        )
    attended = gathered(reader, texts)
    fresh = reader.with_fresh_weights(partial(gathered, reader, texts)) if reader.untrained else None
    relations = [_choices(reader, attended, number) for number in range(len(reader.relations))]
    crossed = [Crossed.of(choices, attended, fresh, of_text, seed) for choices in relations]
    heads = [(site.index, head) for site in reader.measured for head in range(site.heads)]
    whole = summarised(crossed, heads, results, seed)
    return whole.merge(parsed(_sentences(reader, attended), attended, fresh, of_text, heads, results, seed))


def _within_room(reader: RelationReader, of_text: np.ndarray) -> list[int]:
    """The texts whose weights are kept: all, or those of the first documents in a random order."""
    heads = sum(site.heads for site in reader.measured)
    order = np.random.default_rng(reader.settings["seed"]).permutation(int(of_text.max()) + 1)
    texts: list[int] = []
    used = 0
    for number in sorted(range(len(of_text)), key=lambda number: (order[of_text[number]], number)):
        queries, keys = sides_of_words(reader.windows[number])
        used += 4 * heads * len(queries) * len(keys)
        if used > _ROOM and texts:
            break
        texts.append(number)
    return sorted(texts)


def gathered(reader: RelationReader, texts: Sequence[int]) -> dict[int, Attended]:
    """The weights from word to word of some texts, in one pass over them."""
    attended: dict[int, Attended] = {}
    for first in range(0, len(texts), reader.batch_size):
        numbers = texts[first : first + reader.batch_size]
        attended |= zip(
            numbers, _of_batch(reader, [reader.windows[number] for number in numbers], numbers), strict=True
        )
    return attended


def _of_batch(reader: RelationReader, windows: Sequence[Window], numbers: Sequence[int]) -> Iterator[Attended]:
    queries = [
        [Query(0, (word,), ()) for word, special in enumerate(sides_of_words(window)[0].special) if not special]
        for window in windows
    ]
    rows = Rows.of(windows, queries, reader.kind)
    layers = reader.rows_of_layers(windows, numbers, rows)
    weights = np.concatenate([layer.weights.float().cpu().numpy() for layer in layers], 1)
    visible = np.any([layer.visible.cpu().numpy() for layer in layers], 0)
    for at, (window, of_window) in enumerate(zip(windows, queries, strict=True)):
        sizes = [len(side) for side in sides_of_words(window)]
        words = [query.words[0] for query in of_window]
        whole = Attended(
            np.zeros((weights.shape[1], *sizes), dtype=np.float32), np.zeros(sizes, dtype=bool), reader.kind != "cross"
        )
        whole.weights[:, words] = weights[at, :, : len(words), : sizes[1]]
        whole.visible[words] = visible[at, : len(words), : sizes[1]]
        yield whole


def _choices(reader: RelationReader, attended: Mapping[int, Attended], relation: int) -> list[Choice]:
    """The queries of a relation, each with all other words that it sees."""
    choices: list[Choice] = []
    for text, of_text in attended.items():
        if reader.proteins.proteins[text] is not None:
            continue  # contacts depend on separation more than on an offset: their regression has that control
        for query in reader.queries[text]:
            if query.relation != relation:
                continue
            visible = np.any(of_text.visible[list(query.words)], axis=0)
            if of_text.is_one_text:
                visible[list(query.words)] = False
            candidates = np.flatnonzero(visible)
            right = np.isin(candidates, query.keys)
            if right.any():
                choices.append(Choice(text, query.words, candidates, right))
    return choices


# --- logistic regression, cross-validated by document ---


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of words to fit to: all right ones of each query, and of the others at most 20, a random choice."""

    features: np.ndarray  # ``(pair, feature)``
    right: np.ndarray  # ``(pair,)``
    query: np.ndarray  # ``(pair,)``: number of the query

    @classmethod
    def of(cls, choices: Sequence[Choice], attended: Mapping[int, Attended], seed: int) -> Pairs:
        """The pairs of some queries; of many queries fewer others each, so that 50,000 pairs are enough for them."""
        random = np.random.default_rng(seed)
        most = max(1, min(_OTHERS, _PAIRS // len(choices) - 1))
        features: list[np.ndarray] = []
        right: list[np.ndarray] = []
        for choice in choices:
            others = np.flatnonzero(~choice.right)
            others = others if len(others) <= most else np.sort(random.choice(others, most, replace=False))
            pairs = np.concatenate([np.flatnonzero(choice.right), others])
            features.append(choice.features(attended)[:, pairs].T)
            right.append(choice.right[pairs])
        query = np.repeat(np.arange(len(choices)), [len(one) for one in right])
        return cls(np.concatenate(features), np.concatenate(right), query)

    def fit(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients ``(feature,)`` of the regression for some queries, of weights and of standardised ones.

        0 if all pairs of these queries are right.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        chosen = queries[self.query]
        right = self.right[chosen]
        if right.all():
            nothing = np.zeros(self.features.shape[1])
            return nothing, nothing
        scaler = StandardScaler()
        features = scaler.fit_transform(self.features[chosen].astype(np.float64))
        weights = LogisticRegression(C=STRENGTH, tol=1e-6, max_iter=1000).fit(features, right).coef_[0]
        return weights / scaler.scale_, weights


@dataclass(frozen=True, eq=False)
class Crossed:
    """What is chosen for each query by what was fitted, or best, on other documents."""

    unit: np.ndarray  # ``(query,)``
    scores: Mapping[str, Sequence[np.ndarray]]  # by method, of each query a number for each candidate
    right: Mapping[str, np.ndarray]  # by method, whether the largest is right, ``(query,)``
    weights: np.ndarray  # ``(feature,)``: coefficients of standardised weights, fitted to all documents
    feature: int  # that is best alone, over all documents

    @classmethod
    def of(
        cls,
        choices: Sequence[Choice],
        attended: Mapping[int, Attended],
        fresh: Mapping[int, Attended] | None,
        of_text: np.ndarray,
        seed: int,
    ) -> Crossed | None:
        """None with fewer than 6 documents."""
        unit = np.array([of_text[choice.text] for choice in choices], dtype=int)
        present = np.unique(unit)
        if len(present) < LEAST:
            return None
        fold = folds(len(present), seed)[np.searchsorted(present, unit)]
        pairs = Pairs.of(choices, attended, seed)
        alone = np.stack([share_right(choice.features(attended), choice.right) for choice in choices])
        feature = _best_of_others(alone, fold)
        scores = {
            "together": _fitted(choices, attended, pairs, fold),
            "one head": [choice.features(attended)[one] for choice, one in zip(choices, feature, strict=True)],
        }
        if fresh is not None:
            scores["untrained"] = _fitted(choices, fresh, Pairs.of(choices, fresh, seed), fold)
        rights = [choice.right for choice in choices]
        right = {name: np.array([*map(share_right, of_method, rights)]) for name, of_method in scores.items()}
        at_offset = np.stack([np.isin(choice.words[0] + np.array(OFFSETS), choice.correct) for choice in choices])
        right["offset"] = at_offset[np.arange(len(choices)), _best_of_others(at_offset, fold)].astype(float)
        right["chance"] = np.array([choice.right.mean() for choice in choices])
        weights = pairs.fit(np.ones(len(choices), dtype=bool))[1]
        return cls(unit, scores, right, weights, int(alone.sum(0).argmax()))


def folds(units: int, seed: int) -> np.ndarray:
    """The fold of each unit, from 0 to 4."""
    return np.random.default_rng(seed).permutation(units) % FOLDS


def share_right(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Whether the largest score ``(..., candidate)`` is right: of equal ones the share that is."""
    largest = scores == scores.max(-1, keepdims=True)
    return np.asarray((largest & right).sum(-1) / largest.sum(-1))


def _best_of_others(right: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """The column, for each query, of ``(query, column)`` that is right most often in the other folds."""
    best = np.array([right[fold != number].sum(0).argmax() for number in range(FOLDS)])
    return best[fold]


def _fitted(
    choices: Sequence[Choice], attended: Mapping[int, Attended], pairs: Pairs, fold: np.ndarray
) -> list[np.ndarray]:
    """Log odds of each candidate of each query, but for a constant, by the regression of the other folds."""
    coefficients = [pairs.fit(fold != number)[0] for number in range(FOLDS)]
    return [coefficients[one] @ choice.features(attended) for choice, one in zip(choices, fold, strict=True)]


def summarised(
    crossed: Sequence[Crossed | None], heads: Sequence[tuple[int, int]], results: xr.Dataset, seed: int
) -> xr.Dataset:
    """Shares of queries for which each method is right, over ``(relation, by)``, and the weights of heads.

    ``together_shown``: all heads together are significantly above the fixed offset, a random word and, if it was
    measured, the untrained copy (an intersection-union test), and by 0.1 or more. ``together_gains``: significantly
    above the best head alone. The false discovery rate over all relations is 0.05 (Benjamini and Hochberg 1995).
    """
    relations = len(crossed)
    means = np.full((3, relations, len(METHODS)), np.nan)  # with ends
    gain = np.full((3, relations), np.nan)
    p, p_of_gain, above = (np.full(relations, np.nan) for _ in range(3))
    weights = np.full((relations, len(DIRECTIONS) * len(heads)), np.nan)
    best = np.full(relations, -1)
    for relation, one in enumerate(crossed):
        if one is None:
            continue
        queries = np.bincount(one.unit).astype(float)
        sums = {name: np.bincount(one.unit, weights=right) for name, right in one.right.items()}
        for name, of_method in sums.items():
            means[:, relation, METHODS.index(name)] = interval_of(of_method, queries, seed)
        weights[relation, : len(one.weights)], best[relation] = one.weights, one.feature
        controls = [name for name in sums if name not in {"together", "one head"}]
        p[relation] = np.max([_chance(sums["together"] - sums[name], queries) for name in controls])
        gained = sums["together"] - sums["one head"]
        p_of_gain[relation], gain[:, relation] = _chance(gained, queries), interval_of(gained, queries, seed)
        above[relation] = means[0, relation, 0] - max(means[0, relation, METHODS.index(name)] for name in controls)
    cells = ("relation", "by")
    variables: dict[str, Any] = {
        "together": (cells, means[0], {"long_name": "Share of queries whose chosen word is right", "units": "share"}),
        "together_low": (cells, means[1]),
        "together_high": (cells, means[2]),
        "together_above": ("relation", above),
        "together_p": ("relation", p),
        "together_shown": ("relation", significant(p) & (above >= SIZE)),
        "together_gain": ("relation", gain[0]),
        "together_gain_low": ("relation", gain[1]),
        "together_gain_high": ("relation", gain[2]),
        "together_gain_p": ("relation", p_of_gain),
        "together_gains": ("relation", significant(p_of_gain) & (gain[0] > 0)),
        "together_weight": (("relation", "direction", "layer", "head"), _by_head(weights, heads, results)),
        "together_feature": (("relation", "part"), np.array([_parts(int(feature), heads) for feature in best])),
    }
    return xr.Dataset(
        variables, coords={"by": list(METHODS), "direction": list(DIRECTIONS), "part": ["direction", "layer", "head"]}
    )


def _chance(differences: np.ndarray, queries: np.ndarray) -> float:
    """P-value of a mean difference over queries, from sums ``(unit,)``."""
    return float(chances(differences[:, None, None, None], queries[:, None]).item())


def _by_head(weights: np.ndarray, heads: Sequence[tuple[int, int]], results: xr.Dataset) -> np.ndarray:
    """Weights ``(..., feature)`` as ``(..., direction, layer, head)``; NaN for heads that a layer lacks."""
    layers = results.layer.values.tolist()
    whole = np.full((*weights.shape[:-1], len(DIRECTIONS), len(layers), results.sizes["head"]), np.nan)
    for at, (layer, head) in enumerate(heads):
        for direction in range(len(DIRECTIONS)):
            whole[..., direction, layers.index(layer), head] = weights[..., direction * len(heads) + at]
    return whole


def _parts(feature: int, heads: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Direction, layer and head of a feature; -1 for none."""
    return (-1, -1, -1) if feature < 0 else (feature // len(heads), *heads[feature % len(heads)])


# --- trees ---


@dataclass(frozen=True, eq=False)
class Sentence:
    """The words of a sentence that are in its tree."""

    words: np.ndarray  # ``(node,)``: their numbers
    root: int  # the node that depends on none
    heads: np.ndarray  # ``(node,)``: the node that each depends on
    choices: Sequence[Choice]  # of each node but the root


def _sentences(reader: RelationReader, attended: Mapping[int, Attended]) -> list[Sentence]:
    """Sentences with a tree, whose words are those of the data."""
    sentences: list[Sentence] = []
    for text, of_text in attended.items():
        heads = reader.texts[text].heads
        nodes = [word for word, head in enumerate(heads) if head is not None]
        if len(nodes) < 2 or not of_text.is_one_text:  # noqa: PLR2004 a word alone depends on none
            continue
        places = Places(sides_of_words(reader.windows[text])[0])
        numbers = [places.of(reader.texts[text].words[word]) for word in nodes]
        if any(len(words) != 1 for words in numbers) or len({*numbers}) < len(nodes):
            continue
        words = np.array([words[0] for words in numbers])
        of_word = {word: node for node, word in enumerate(nodes)}
        tree = np.array([of_word.get(heads[word] or 0, -1) if heads[word] != -1 else -1 for word in nodes])
        root = int(np.flatnonzero(tree < 0)[0])
        choices = [
            Choice(text, (int(word),), np.delete(words, node), np.delete(np.arange(len(words)), node) == tree[node])
            for node, word in enumerate(words)
            if node != root
        ]
        sentences.append(Sentence(words, root, tree, choices))
    return sentences


def parsed(
    sentences: Sequence[Sentence],
    attended: Mapping[int, Attended],
    fresh: Mapping[int, Attended] | None,
    of_text: np.ndarray,
    heads: Sequence[tuple[int, int]],
    results: xr.Dataset,
    seed: int,
) -> xr.Dataset:
    """Share of words with the right head word (unlabelled attachment), over ``parser``; the root of each tree is given.

    Trees are maximum spanning arborescences of the log odds of all heads together, and of the weights of one head;
    ``uas_shown`` is whether the former are significantly above all others. Punctuation is left out.
    """
    choices = [choice for sentence in sentences for choice in sentence.choices]
    crossed = Crossed.of(choices, attended, fresh, of_text, seed)
    if crossed is None:
        return xr.Dataset()
    right = {name: _attached(sentences, crossed.scores[name]) for name in crossed.scores}
    right["offset"] = crossed.right["offset"]
    for name, step in (("word before", -1), ("word after", 1)):
        hits = [
            sentence.heads[node] == node + step
            for sentence in sentences
            for node in range(len(sentence.heads))
            if node != sentence.root
        ]
        right[name] = np.array(hits, dtype=float)
    words = np.bincount(crossed.unit).astype(float)
    sums = {name: np.bincount(crossed.unit, weights=of_parser) for name, of_parser in right.items()}
    means = np.full((3, len(PARSERS)), np.nan)
    for name, of_parser in sums.items():
        means[:, PARSERS.index(name)] = interval_of(of_parser, words, seed)
    others = [name for name in sums if name != "together"]
    p = max(_chance(sums["together"] - sums[name], words) for name in others)
    above = means[0, 0] - max(means[0, PARSERS.index(name)] for name in others)
    return xr.Dataset(
        {
            "uas": ("parser", means[0], {"long_name": "Share of words with the right head word", "units": "share"}),
            "uas_low": ("parser", means[1]),
            "uas_high": ("parser", means[2]),
            "uas_p": p,
            "uas_above": above,
            "uas_shown": bool(p <= _LEVEL and above > 0),
            "uas_words": float(words.sum()),
            "uas_sentences": len(sentences),
            "uas_units": int((words > 0).sum()),
            "uas_weight": (("direction", "layer", "head"), _by_head(crossed.weights, heads, results)),
            "uas_feature": ("part", np.array(_parts(crossed.feature, heads))),
        },
        coords={"parser": list(PARSERS), "direction": list(DIRECTIONS)},
    )


def _attached(sentences: Sequence[Sentence], scores: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each word has the right head word in the tree of its sentence, in the order of the choices."""
    right: list[bool] = []
    each = iter(scores)
    for sentence in sentences:
        whole = np.zeros((len(sentence.words), len(sentence.words)))
        dependents = [node for node in range(len(sentence.words)) if node != sentence.root]
        for node in dependents:
            whole[node, np.arange(len(whole)) != node] = next(each)
        tree = arborescence(whole, sentence.root)
        right += [tree[node] == sentence.heads[node] for node in dependents]
    return np.array(right, dtype=float)
