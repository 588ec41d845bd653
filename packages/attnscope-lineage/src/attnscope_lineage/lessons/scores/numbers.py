"""The data of the lesson on scores, and its exercises."""

from __future__ import annotations

from math import inf, log, sqrt
from typing import Any

import torch
from torch import Tensor, tensor

from attnscope_lineage.lessons import Exercise

TOKENS = ["animal", "street", "crossed", "tired", "it"]
QUERY = [1.2, 0.9]
KEYS = [[1.5, 0.6], [0.2, 1.6], [-1.4, 0.9], [-0.9, -1.3], [1.0, -1.2]]
VALUES = [[1.3, 1.3], [-1.2, 1.5], [-1.7, -0.4], [0.1, -1.6], [1.6, -0.6]]

#: Scores of a sentence that is padded to five tokens.
PADDED = ["the", "animal", "was", "tired", "⟨pad⟩"]
SCORES = [
    [0.9, 0.4, -0.3, 0.2, 1.1],
    [0.3, 1.2, 0.1, 1.9, 0.8],
    [-0.2, 1.6, 0.5, 0.4, 1.4],
    [0.1, 2.1, 0.6, 0.7, 0.9],
    [0.5, 0.2, 0.4, 0.6, 1.8],
]
#: A sentence whose last word is one of two; a vector says how much a word is a living thing, a place, a function word.
SENTENCE = ["the", "animal", "did", "not", "cross", "the", "street", "because", "it", "was"]
LAST = ["tired", "wide"]
VECTORS = {
    "animal": [1.8, 0.0, 0.0],
    "street": [0.0, 1.8, 0.0],
    "tired": [1.7, 0.1, 0.0],
    "wide": [0.1, 1.7, 0.0],
    "cross": [0.5, 0.5, 0.0],
    "it": [0.4, 0.4, 0.3],
}
FUNCTION_WORD = [0.0, 0.0, 1.0]

#: Of the first exercise: a query and three keys.
ASKED_QUERY = [2.0, 1.0, 0.0, 1.0]
ASKED_KEYS = [[1.0, 1.0, 0.0, 1.0], [0.0, 2.0, 1.0, 0.0], [1.0, 0.0, 2.0, -2.0]]
#: Of the second: scaled scores of the second of four tokens.
ASKED_ROW, ASKED_TOKEN = [1.0, 0.0, 2.0, 1.0], 1
#: Of the third: scaled scores of two tokens, their keys and values.
ASKED_SCORES = [[2.0, 0.0], [1.0, 0.0]]
ASKED_SMALL_KEYS = [[1.0, 1.0], [-1.0, 2.0]]
ASKED_VALUES = [[4.0, 0.0], [0.0, 2.0]]


def numbers() -> dict[str, Any]:
    """The data of the page."""
    return {
        "tokens": TOKENS,
        "query": QUERY,
        "keys": KEYS,
        "values": VALUES,
        "padded": PADDED,
        "scores": SCORES,
        "sentence": SENTENCE,
        "last": LAST,
        "vectors": {word: VECTORS.get(word, FUNCTION_WORD) for word in (*SENTENCE, *LAST)},
        "asked": {"query": [ASKED_QUERY], "keys": ASKED_KEYS},
        "askedRow": ASKED_ROW,
        "askedOutput": {"scores": ASKED_SCORES, "keys": ASKED_SMALL_KEYS, "values": ASKED_VALUES},
    }


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    return {"weights": _weights(), "mask": _mask(), "output": _output()}


def _weights() -> Exercise:
    query, keys = _of(ASKED_QUERY), _of(ASKED_KEYS)
    products = keys @ query
    scores = products / sqrt(len(query))
    mistakes = {
        "no-scale": products.softmax(-1),
        "scale-by-d": (products / len(query)).softmax(-1),
        "scores": scores,
        "no-exponential": products / products.sum(),
        "products": products,
        "scores-by-d": products / len(query),
        "multiplied": (products * sqrt(len(query))).softmax(-1),
        "exponentials": scores.exp(),
        "base-two": (scores * log(2)).softmax(-1),
    }
    return _exercise(scores.softmax(-1), mistakes)


def _mask() -> Exercise:
    scores, positions = _of(ASKED_ROW), torch.arange(len(ASKED_ROW))
    later, earlier = positions > ASKED_TOKEN, positions < ASKED_TOKEN
    mistakes = {
        "no-mask": scores.softmax(-1),
        "mask-after": scores.softmax(-1).masked_fill(later, 0.0),
        "mask-as-zero": scores.masked_fill(later, 0.0).softmax(-1),
        "first-alone": (positions == 0).double(),
        "one-too-many": scores.masked_fill(positions > ASKED_TOKEN + 1, -inf).softmax(-1),
        "equal": (positions <= ASKED_TOKEN).double() / (ASKED_TOKEN + 1),
        "mask-transposed": scores.masked_fill(earlier, -inf).softmax(-1),
    }
    return _exercise(scores.masked_fill(later, -inf).softmax(-1), mistakes)


def _output() -> Exercise:
    scores, keys, values = _of(ASKED_SCORES), _of(ASKED_SMALL_KEYS), _of(ASKED_VALUES)
    weights = scores.softmax(-1)
    mistakes = {
        "columns": scores.softmax(0) @ values,
        "keys": weights @ keys,
        "no-softmax": scores @ values,
        "transposed": weights.T @ values,
        "columns-transposed": scores.softmax(0).T @ values,
        "weights": weights,
        "weights-of-columns": scores.softmax(0),
        "scaled-again": (scores / sqrt(2)).softmax(-1) @ values,
        "mean": values.mean(0).expand_as(values),
        "exchanged": (weights @ values).flip(0),
        "values-exchanged": weights @ values.flip(0),
    }
    return _exercise(weights @ values, mistakes)


def _of(values: list[Any]) -> Tensor:
    return tensor(values, dtype=torch.float64)


def _exercise(answer: Tensor, mistakes: dict[str, Tensor]) -> Exercise:
    return Exercise(answer.tolist(), {name: wrong.tolist() for name, wrong in mistakes.items()})
