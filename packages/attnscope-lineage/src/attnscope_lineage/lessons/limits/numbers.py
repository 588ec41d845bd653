"""The data of the lesson on limits, and its exercises.

`costs.json` is written by ``benchmarks/attention_cost.py``, `debate.json` by ``benchmarks/weights_debate.py``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.support.state import own_random_numbers
from attnscope_lineage.lessons import Exercise
from attnscope_lineage.lessons.limits.pronoun import End, adversarial, pronoun_model, read, vocabulary

HERE = Path(__file__).parent
SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
    "The trophy didn't fit into the suitcase because it was too big.",
    "The deer didn't cross the valley because it was too dark.",
)
#: Four values in the plane, and the weights of a row: one direction of weights leaves the output as it is.
VALUES = [[1.3, 1.0], [-1.1, 1.2], [-1.4, -0.9], [0.9, -1.3]]
WEIGHTS = [0.5, 0.1, 0.3, 0.1]
#: Of the exercises: a length, and three values with their weights and the first of the weights that are sought.
LENGTH, ASKED_VALUES, ASKED_WEIGHTS, FIRST = 4096, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2], 0.4


def numbers() -> dict[str, Any]:
    """The data of the page, as JSON can hold it."""
    read_json = (json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")) for name in ("costs", "debate"))
    costs, debate = read_json
    return {"costs": costs, "debate": debate, "values": VALUES, "weights": WEIGHTS, "free": free(), "model": model()}


def free() -> list[float]:
    """The direction in which weights move without a change of their sum or of the output; its largest entry is 1."""
    constraints = torch.tensor([[*value, 1.0] for value in VALUES], dtype=torch.float64)
    direction = torch.linalg.svd(constraints.T).Vh[-1]
    return (direction / direction[direction.abs().argmax()]).tolist()


@cache
@torch.no_grad()
def model() -> dict[str, Any]:
    """The end of `bundled:pronoun`, and its inputs of each sentence."""
    loaded = pronoun_model()[0]
    encoder: Any = loaded.encoder
    embedding: Any = loaded.get_input_embeddings()
    last = encoder.layers[-1]
    linear = {"out": last.self_attention.out_proj, "up": last.feed_forward.up, "down": last.feed_forward.down}
    norms = {"before": last.around_feed_forward.norm, "after": encoder.norm}
    return {
        "sentences": [_sentence(read([sentence])) for sentence in SENTENCES],
        "linear": {name: {"weight": _rounded(one.weight), "bias": _rounded(one.bias)} for name, one in linear.items()},
        "norms": {name: {"gain": _rounded(one.weight), "bias": _rounded(one.bias)} for name, one in norms.items()},
        "words": [word.replace("▁", "") for word in vocabulary()],
        "embedding": _rounded(embedding.weight),
    }


def _sentence(end: End) -> dict[str, Any]:
    with own_random_numbers():
        torch.manual_seed(0)
        far = adversarial(end)[0].tolist()
    return {
        "tokens": [token.replace("▁", "") for token in end.tokens[0]],
        "it": int(end.it[0]),
        "weights": end.weights[0].tolist(),
        "adversarial": far,
        "values": _rounded(end.values[0]),
        "state": _rounded(end.state[0]),
    }


def _rounded(values: Tensor) -> Any:
    """Nested lists of numbers with 6 decimals: as exact as float32 is where the page compares with PyTorch."""
    return [_rounded(row) for row in values] if values.ndim > 1 else [round(x, 6) for x in values.tolist()]


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    mebibytes = LENGTH**2 * 4 / 2**20
    output = sum(a * v for a, v in zip(ASKED_WEIGHTS, ASKED_VALUES, strict=True))
    last = (output - ASKED_VALUES[1] * (1 - FIRST)) / (ASKED_VALUES[2] - ASKED_VALUES[1])
    total = FIRST + sum(ASKED_WEIGHTS[1:])
    return {
        "memory": Exercise(
            answer=mebibytes,
            mistakes={
                "numbers": LENGTH**2 / 2**20,
                "bits": mebibytes * 8,
                "half": mebibytes / 2,
                "queries": LENGTH * 64 * 4 / 2**20,
                "million": LENGTH**2 * 4 / 10**6,
                "two": mebibytes * 2,
                "bytes": LENGTH**2 * 4,
                "kibibytes": LENGTH**2 * 4 / 2**10,
                "gibibytes": LENGTH**2 * 4 / 2**30,
                "not-squared": LENGTH * 4 / 2**20,
            },
        ),
        "other-weights": Exercise(
            answer=[FIRST, 1 - FIRST - last, last],
            mistakes={
                "sum": [FIRST, *ASKED_WEIGHTS[1:]],
                "scaled": [x / total for x in (FIRST, *ASKED_WEIGHTS[1:])],
                "moved": [FIRST, ASKED_WEIGHTS[1] - (FIRST - ASKED_WEIGHTS[0]), ASKED_WEIGHTS[2]],
                "same": ASKED_WEIGHTS,
                "from-the-third": [FIRST, ASKED_WEIGHTS[1], ASKED_WEIGHTS[2] - (FIRST - ASKED_WEIGHTS[0])],
                "equal-rest": [FIRST, (1 - FIRST) / 2, (1 - FIRST) / 2],
                "in-proportion": [FIRST, *((1 - FIRST) * x / sum(ASKED_WEIGHTS[1:]) for x in ASKED_WEIGHTS[1:])],
            },
        ),
        "permuted": Exercise(answer="here", mistakes={"needless": "needless", "never": "never", "random": "random"}),
    }
