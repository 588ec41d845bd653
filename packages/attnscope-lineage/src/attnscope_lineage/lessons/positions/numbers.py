"""The data of the lesson on positions, and its exercises.

`shown.json` and `claims.json` are written by ``benchmarks/paper_claims.py``, `figures.json` by
``benchmarks/paper_figures.py`` and `probes.json` by ``benchmarks/syntax_meaning.py``.
"""

from __future__ import annotations

import json
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import torch

from attnscope.report.language import translate
from attnscope_lineage.lessons import Exercise

HERE = Path(__file__).parent
WORDS = ["dog", "bites", "man"]
VECTORS = [[1.0, 0.0, 0.5, 0.2], [0.3, 0.9, -0.4, 0.6], [0.9, -0.2, -0.8, 0.4]]
WIDTH = 16  # of the sinusoids

#: Of the exercises: a pair of a sine and a cosine, a matrix of weights, and a phase at a frequency.
PAIR, TURN = [0.6, 0.8], pi / 3
WEIGHTS = [[0.2, 0.6, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2], [0.0, 0.1, 0.8, 0.1]]
LENGTH, FREQUENCY, ANGLE = 512, 48, 1.178


def numbers() -> dict[str, Any]:
    """The data of the page, as JSON can hold it."""
    claims = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    return {
        "words": WORDS,
        "vectors": VECTORS,
        "width": WIDTH,
        **json.loads((HERE / "shown.json").read_text(encoding="utf-8")),
        "figures": json.loads((HERE / "figures.json").read_text(encoding="utf-8")),
        "probes": json.loads((HERE / "probes.json").read_text(encoding="utf-8")),
        "claims": [
            {name: text if name == "name" else translate(text) for name, text in claim.items()}
            for claim in claims["claims"]
        ],
        "verdicts": {
            name: {**model, "claims": [{**row, "text": translate(row["text"])} for row in model["claims"]]}
            for name, model in claims["models"].items()
        },
        "decoders": claims["decoders"],
        "asked": {"pair": [PAIR], "weights": WEIGHTS},
    }


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    pair = torch.tensor(PAIR, dtype=torch.float64)
    turned = {turns: (_rotation(turns * TURN) @ pair).tolist() for turns in (-1, 1, 2)}
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    before = float(weights.diagonal(-1).sum())
    shift = LENGTH * ANGLE / (2 * pi * FREQUENCY)
    return {
        "turn": Exercise(
            answer=turned[1],
            mistakes={
                "transposed": turned[-1],
                "twice": turned[2],
                "added": [PAIR[0] + sin(TURN), PAIR[1] + cos(TURN)],
                "not-moved": PAIR,
                "exchanged": [turned[1][1], turned[1][0]],
                "no-minus": [turned[1][0], PAIR[0] * sin(TURN) + PAIR[1] * cos(TURN)],
                "elementwise": [PAIR[0] * cos(TURN), PAIR[1] * sin(TURN)],
                "radians": (_rotation(60.0) @ pair).tolist(),
            },
        ),
        "diagonal": Exercise(
            answer=before,
            mistakes={
                "next": float(weights.diagonal(1).sum()),
                "middle": float(weights.diagonal().sum()),
                "mean": before / 3,
                "share": before / len(WEIGHTS),
                "two-before": float(weights.diagonal(-2).sum()),
                "all-before": float(weights.tril(-1).sum()),
                "wrapped": before + WEIGHTS[0][-1],
            },
        ),
        "shift": Exercise(
            answer=-shift,
            mistakes={
                "sign": shift,
                "radians": -LENGTH * ANGLE / FREQUENCY,
                "radians-sign": LENGTH * ANGLE / FREQUENCY,
                "one-cycle": -LENGTH * ANGLE / (2 * pi),
                "length": -ANGLE / (2 * pi * FREQUENCY),
                "period": -LENGTH / FREQUENCY,
                "half-turn": -2 * shift,
            },
            decimals=1,
        ),
    }


def _rotation(angle: float) -> torch.Tensor:
    return torch.tensor([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]], dtype=torch.float64)
