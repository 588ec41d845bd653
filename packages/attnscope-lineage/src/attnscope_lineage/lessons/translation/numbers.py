"""The translators that the lesson on translation runs in its page, and its exercises."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope_lineage.lessons import Exercise
from attnscope_lineage.lessons.weights import packed
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.parallel_text import DAYS, MONTHS, SMALL, TENS, TRANSLATIONS, generate_task

MODELS = Path(__file__).parent / "models"
#: The models: a fixed vector, and attention with three score functions (configs/lessons, scripts/lesson_models.py).
KINDS = ("fixed", "dot", "bilinear", "additive")
SHORTEST, LONGEST = 4, 40  # words of a sentence

#: The score functions on small numbers: three annotations, and the matrices of the bilinear and the additive score.
ANNOTATIONS, STATE = [[1.2, 0.4], [-0.6, 1.1], [0.3, -1.3]], [0.9, 0.7]
BILINEAR, ADDITIVE = (
    [[0.0, 1.5], [-1.5, 0.0]],
    {"query": [[1.0, 0.0], [0.0, 1.0]], "key": [[1.0, 0.5], [-0.5, 1.0]], "bias": [0.0, 0.0], "direction": [1.5, -1.0]},
)
#: Of the exercises: scores and annotations of three source words, and the probabilities of a target of three words.
SCORES, CHOICES = [2.0, 1.0, 0.0], [[4.0, 0.0], [0.0, 2.0], [-2.0, 6.0]]
RIGHT, OWN = [0.5, 0.8, 0.25], [0.5, 0.1, 0.05]


def numbers() -> dict[str, Any]:
    """All models, the words that they know, sentences to begin with, and what was measured on held-out sentences."""
    names = json.loads((MODELS / "vocabulary.json").read_text(encoding="utf-8"))
    ids = dict(zip(names, range(len(names)), strict=True))
    return {
        "models": {kind: _model(kind) for kind in KINDS},
        "vocabulary": {word: ids[word] for word in [*TRANSLATIONS, "and"]},
        "translations": TRANSLATIONS,
        "written": {word: ids[word] for word in TRANSLATIONS.values()},
        "names": names,
        "task": {"days": DAYS, "months": MONTHS, "small": SMALL, "tens": TENS},
        "sentences": _sentences(),
        "longest": LONGEST,
        "measured": json.loads((MODELS / "measured.json").read_text(encoding="utf-8")),
        "training": json.loads((MODELS / "training.json").read_text(encoding="utf-8")),
        "small": {"h": ANNOTATIONS, "s": STATE, "weight": BILINEAR, **ADDITIVE},
        "asked": {"e": SCORES, "h": CHOICES, "right": RIGHT, "own": OWN},
    }


def _sentences() -> list[str]:
    """Held-out sentences, one of each length that the task has."""
    by_length: dict[int, str] = {}
    for sentence in generate_task(400, seed=7, longest=12, held_out=True).joined(3, seed=7).source:
        by_length.setdefault(len(sentence.split()), sentence)
    return [by_length[length] for length in sorted(by_length) if SHORTEST <= length <= LONGEST]


def _model(kind: str) -> dict[str, Any]:
    model = RecurrentForConditionalGeneration.from_pretrained(MODELS / kind, dtype=torch.float32)
    copies = {"encoder.embedding.weight", "decoder.embedding.weight", "lm_head.weight"}
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in copies}
    tensors["embedding"] = tensors.pop("embedding.weight")
    return packed(tensors) | {"attention": model.config.attention, "parameters": model.num_parameters()}


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    scores, annotations = _of(SCORES), _of(CHOICES)
    weights = scores.softmax(0)
    losses = [-log(p) for p in RIGHT]
    return {
        "weights": Exercise(
            answer=weights.tolist(),
            mistakes={
                "no-exponential": (scores / scores.sum()).tolist(),
                "sigmoid": scores.sigmoid().tolist(),
                "largest": [1.0, 0.0, 0.0],
                "exponentials": scores.exp().tolist(),
                "reversed": weights.flip(0).tolist(),
                "scaled": (scores / len(scores) ** 0.5).softmax(0).tolist(),
            },
        ),
        "context": Exercise(
            answer=(weights @ annotations).tolist(),
            mistakes={
                "last": annotations[-1].tolist(),
                "largest": annotations[0].tolist(),
                "mean": annotations.mean(0).tolist(),
                "scores": (scores @ annotations).tolist(),
                "no-exponential": (scores / scores.sum() @ annotations).tolist(),
                "sum": annotations.sum(0).tolist(),
                "divided": (weights @ annotations / len(scores)).tolist(),
                "reversed": (weights.flip(0) @ annotations).tolist(),
                "sign": (weights @ annotations.abs()).tolist(),
            },
        ),
        "loss": Exercise(
            answer=sum(losses),
            mistakes={
                "own-words": -sum(log(p) for p in OWN),
                "product": float(_of(RIGHT).prod()),
                "sum": sum(RIGHT),
                "sign": -sum(losses),
                "mean": sum(losses) / len(losses),
                "bits": sum(losses) / log(2),
                "decimal": sum(losses) / log(10),
                "last": losses[-1],
                "log-of-sum": -log(sum(RIGHT)),
                "missing": sum(1 - p for p in RIGHT),
                "complement": 1 - float(_of(RIGHT).prod()),
                "inverse": 1 / float(_of(RIGHT).prod()),
            },
        ),
    }


def _of(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
