"""The data of the lesson on queries, keys and values, and its exercises."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor, tensor

from attnscope_lineage.lessons import Exercise

#: A dictionary: headwords as vectors (animal, feline, vehicle), and what an entry says (purrs, is big, has wheels).
ENTRIES = ["cat", "lion", "dog", "car", "bus"]
HEADWORDS = [[1.0, 1.0, 0.0], [1.0, 0.9, 0.1], [1.4, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.1, 1.1]]
CONTENTS = [[1.0, 0.0, 0.0], [0.3, 1.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.4, 1.0], [0.0, 1.0, 1.0]]
SOUGHT = {"cat": [1.0, 1.0, 0.0], "tiger": [1.0, 1.0, 0.1], "wolf": [1.0, 0.1, 0.0], "truck": [0.0, 0.0, 1.2]}

TOKENS = ["animal", "street", "tired", "it"]
X = [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.5, 0.0], [0.5, 0.0, 0.0, 1.0], [0.5, 0.5, 1.0, 0.0]]
W_Q = [[0.0, 1.0], [1.0, 0.0], [2.0, 0.5], [0.0, 1.0]]
W_K = [[2.0, 0.0], [-1.0, 0.5], [0.0, 0.0], [0.5, 1.0]]
W_V = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 1.0]]
PLANE = [[1.5, 0.2], [-0.7, 1.3], [-1.2, -0.8], [0.6, -1.4]]

#: Of the exercise on scores.
ASKED_X, ASKED_QUERY_MAP, ASKED_KEY_MAP = [[1.0, 2.0], [3.0, 0.0]], [[1.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [0.0, -1.0]]
#: Of the exercise on shapes.
LENGTH, WIDTH, KEY_WIDTH, VALUE_WIDTH = 5, 8, 4, 6


def numbers() -> dict[str, Any]:
    """The data of the page."""
    return {
        "entries": ENTRIES,
        "headwords": HEADWORDS,
        "contents": CONTENTS,
        "sought": SOUGHT,
        "tokens": TOKENS,
        "x": X,
        "queryMap": W_Q,
        "keyMap": W_K,
        "valueMap": W_V,
        "plane": PLANE,
        "asked": {"x": ASKED_X, "queryMap": ASKED_QUERY_MAP, "keyMap": ASKED_KEY_MAP},
    }


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    return {"scores": _scores(), "shapes": _shapes(), "swap": _swap()}


def _scores() -> Exercise:
    x, query_map, key_map = (tensor(one, dtype=torch.float64) for one in (ASKED_X, ASKED_QUERY_MAP, ASKED_KEY_MAP))
    queries, keys = x @ query_map, x @ key_map
    mistakes = {
        "no-maps": x @ x.T,
        "one-map": queries @ queries.T,
        "transposed": keys @ queries.T,
        "no-transpose": queries @ keys,
        "map-from-the-left": (query_map @ x) @ (key_map @ x).T,
        "keys-unmapped": queries @ x.T,
        "key-map-alone": keys @ keys.T,
        "maps-transposed": (x @ query_map.T) @ (x @ key_map.T).T,
        "elementwise": queries * keys,
        "scaled": queries @ keys.T / sqrt(2),
        "map-not-transposed": queries @ key_map @ x.T,
    }
    return _exercise(queries @ keys.T, mistakes)


def _shapes() -> Exercise:
    """Shapes of K, V, S and the output, measured on tensors."""
    x = torch.zeros(LENGTH, WIDTH)
    keys, values = x @ torch.zeros(WIDTH, KEY_WIDTH), x @ torch.zeros(WIDTH, VALUE_WIDTH)
    scores = keys @ keys.T
    answer = _shapes_of(keys, values, scores, scores @ values)
    mistakes = {
        "width-of-keys": _shapes_of(keys, keys, scores, scores @ keys),
        "output-of-keys": _shapes_of(keys, values, scores, scores @ keys),
        "scores-by-width": _shapes_of(keys, values, keys.T @ keys, scores @ values),
        "columns": answer.flip(-1),
        "model-width": _shapes_of(x, x, scores, scores @ x),
        "output-of-model": _shapes_of(keys, values, scores, x),
        "scores-as-keys": _shapes_of(keys, values, keys, scores @ values),
        "scores-of-model": _shapes_of(keys, values, x.T @ x, scores @ values),
        "output-of-scores": _shapes_of(keys, values, scores, scores),
    }
    return _exercise(answer, mistakes)._replace(decimals=1)


def _shapes_of(*arrays: Tensor) -> Tensor:
    return tensor([list(array.shape) for array in arrays], dtype=torch.float64)


def _swap() -> Exercise:
    """Whether weights and output differ after an exchange of two rows of V, measured."""
    x = tensor(X)
    queries, keys, values = (x @ tensor(one) for one in (W_Q, W_K, W_V))
    weights = torch.softmax(queries @ keys.T / sqrt(keys.shape[-1]), dim=-1)
    swapped = values[[1, 0, 2, 3]]
    changed = not torch.allclose(weights @ values, weights @ swapped)
    answers = ["nothing", "output", "weights", "both"]
    answer = "output" if changed else "nothing"
    return Exercise(answer, {one: one for one in answers if one != answer})


def _exercise(answer: Tensor, mistakes: dict[str, Tensor]) -> Exercise:
    return Exercise(answer.tolist(), {name: wrong.tolist() for name, wrong in mistakes.items()})
