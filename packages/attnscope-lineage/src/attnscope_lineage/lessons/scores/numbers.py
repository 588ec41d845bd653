"""The data of the lesson on scores, and its exercises."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch

from attnscope_lineage.lessons import Exercise

TOKENS = ["animal", "street", "crossed", "tired", "it"]
QUERY = [1.2, 0.9]
KEYS = [[1.5, 0.6], [0.2, 1.6], [-1.4, 0.9], [-0.9, -1.3], [1.0, -1.2]]
VALUES = [[1.3, 1.3], [-1.2, 1.5], [-1.7, -0.4], [0.1, -1.6], [1.6, -0.6]]

#: Of the first exercise: a query, its three keys and their values.
ASKED_QUERY = [2.0, 1.0, 0.0, 1.0]
ASKED_KEYS = [[1.0, 1.0, 0.0, 1.0], [0.0, 2.0, 1.0, 0.0], [1.0, 0.0, 2.0, -2.0]]
ASKED_VALUES = [[4.0, 0.0], [0.0, 2.0], [-2.0, 1.0]]


def numbers() -> dict[str, Any]:
    """The data of the page."""
    return {
        "tokens": TOKENS,
        "query": QUERY,
        "keys": KEYS,
        "values": VALUES,
        "asked": {"query": [ASKED_QUERY], "keys": ASKED_KEYS, "values": ASKED_VALUES},
    }


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    query, keys = torch.tensor(ASKED_QUERY, dtype=torch.float64), torch.tensor(ASKED_KEYS, dtype=torch.float64)
    scores = keys @ query
    return {
        "weights": Exercise(
            answer=_softmax(scores / sqrt(len(query))),
            mistakes={
                "no-scale": _softmax(scores),
                "scale-by-d": _softmax(scores / len(query)),
                "scores": (scores / sqrt(len(query))).tolist(),
                "no-exponential": (scores / scores.sum()).tolist(),
            },
        )
    }


def _softmax(scores: torch.Tensor) -> list[float]:
    return torch.softmax(scores, dim=-1).tolist()
