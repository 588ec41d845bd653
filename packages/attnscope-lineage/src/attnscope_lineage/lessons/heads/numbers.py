"""The models that the lesson on heads runs in its page, and its exercises."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from attnscope.bundled import MODELS, NOUNS, SENTENCES
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_lineage.lessons import Exercise
from attnscope_lineage.lessons.weights import packed

HERE = Path(__file__).parent
#: Folders of the models, by their heads in a layer; their tokenizers are equal (scripts/lesson_models.py).
FOLDERS = {1: MODELS["bundled:pronoun"], 4: HERE / "four"}
VIEWED = 60  # held-out sentences over which the page takes means
LONGEST = 30  # words; with <s> and </s> all positions that the models have

#: Of the first exercise: the products of three queries and keys, in a layer of this width with two heads.
PRODUCTS, WIDTH, HEADS = [[4.0, 0.0, 2.0], [0.0, 4.0, 2.0], [2.0, 6.0, 0.0]], 8, 2
#: Of the second: the outputs of two heads for one word, and the matrix that joins them.
OUTPUTS, W_O = [[1.0, 2.0], [3.0, -1.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [0.0, -1.0]]
#: Of the third: the weights of three words, the last of which asks, their keys and their values.
WEIGHTS, KEYS, VALUES = [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.7, 0.2, 0.1]], [2.0, -1.0, 4.0], [10.0, 30.0, -5.0]


def numbers() -> dict[str, Any]:
    """Both models and the words that they know, and heads of two larger ones.

    `scripts/lesson_views.py` and `scripts/lesson_sound.py` write the latter.
    """
    tokenizer = AutoTokenizer.from_pretrained(FOLDERS[1])
    text = SENTENCES.read_text(encoding="utf-8") + NOUNS.read_text(encoding="utf-8")
    words = sorted({*re.findall(r"[\w']+|[.,]", text)}, key=lambda word: (word.lower(), word))
    ids = tokenizer.get_vocab()
    return {
        "models": {heads: _model(folder, heads) for heads, folder in FOLDERS.items()},
        "views": _viewed(),
        "order": _previous_word(),
        "digits": _digits(),
        "english": json.loads((HERE / "views.json").read_text(encoding="utf-8")),
        "sound": json.loads((HERE / "sound.json").read_text(encoding="utf-8")),
        "vocabulary": {word: ids[word if word in ".," else f"▁{word}"] for word in words},
        "names": [token.removeprefix("▁") for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))],
        "longest": LONGEST,
        "asked": {"products": PRODUCTS, "outputs": OUTPUTS, "W_O": W_O, "A": WEIGHTS, "K": KEYS, "V": VALUES},
    }


def _model(folder: Path, heads: int) -> dict[str, Any]:
    model = EncoderForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    tensors = {
        name.removeprefix("encoder.").replace("add_positions.position_embeddings.weight", "positions"): tensor
        for name, tensor in model.state_dict().items()
        if name not in {"encoder.embedding.weight", "lm_head.weight"}  # the table of words, three times
    }
    tensors["embedding"] = tensors.pop("embedding.weight")
    return packed(tensors) | {"heads": heads, "layers": model.config.encoder_layers}


def _viewed() -> list[dict[str, Any]]:
    """Held-out sentences, with the positions of "it", of the noun that it stands for, and of the reason."""
    lines = (path.read_text(encoding="utf-8").splitlines()[:VIEWED] for path in (SENTENCES, NOUNS))
    found: list[dict[str, Any]] = []
    for sentence, answer in zip(*lines, strict=True):
        words, others = (["<s>", *re.findall(r"[\w']+|[.,]", line)] for line in (sentence, answer))
        it = words.index("it")
        found.append(
            {"sentence": sentence, "it": it, "noun": words.index(others[it]), "reason": words.index("too") + 1}
        )
    return found


def _previous_word() -> dict[str, Any]:
    """The head of the bundled language model that attends to the word before, as the lesson on positions has it."""
    shown = json.loads((HERE.parent / "positions" / "shown.json").read_text(encoding="utf-8"))["models"]["bundled"]
    shares = {head["name"]: head["sums"][9] / shown["length"] for head in shown["heads"]}  # at offset -1
    best = max(shares, key=lambda name: shares[name])
    return {"head": best, "share": shares[best]}


def _digits() -> dict[str, Any]:
    """The model that reads pictures as sentences of patches, its words, and pictures to begin with."""
    folder = HERE / "digits"
    names, pictures, counts = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("vocabulary", "pictures", "measured")
    )
    return {"model": _model(folder, 4), "names": names, "pictures": pictures, "measured": counts}


def exercises() -> dict[str, Exercise]:
    """The exercises of the lesson."""
    products, outputs, joins = _of(PRODUCTS), _of(OUTPUTS), _of(W_O)
    weights, keys, values = _of(WEIGHTS), _of(KEYS), _of(VALUES)
    head_width = WIDTH // HEADS
    scores = products / head_width**0.5
    parts = outputs[:, None] @ joins.view(HEADS, -1, joins.shape[1])  # (head, 1, width)
    query = weights[-1]
    return {
        "row": Exercise(
            answer=scores.softmax(-1)[0].tolist(),
            mistakes={
                "model-width": (products / WIDTH**0.5).softmax(-1)[0].tolist(),
                "no-scale": products.softmax(-1)[0].tolist(),
                "columns": scores.softmax(-2)[0].tolist(),
                "scores": scores[0].tolist(),
                "products": products[0].tolist(),
                "scale-by-d": (products / head_width).softmax(-1)[0].tolist(),
                "heads": (products / HEADS**0.5).softmax(-1)[0].tolist(),
                "other-row": scores.softmax(-1)[1].tolist(),
                "no-exponential": (products[0] / products[0].sum()).tolist(),
            },
        ),
        "concat": Exercise(
            answer=(outputs.flatten() @ joins).tolist(),
            mistakes={
                "added-first": (outputs.sum(0) @ joins[:2]).tolist(),
                "one-head": parts[0, 0].tolist(),
                "second-head": parts[1, 0].tolist(),
                "swapped": (outputs.flip(0).flatten() @ joins).tolist(),
                "mean": parts.mean(0)[0].tolist(),
                "sign": (outputs.flatten() @ joins.abs()).tolist(),
                "interleaved": (outputs.T.flatten() @ joins).tolist(),
            },
        ),
        "output": Exercise(
            answer=float(query @ values),
            mistakes={
                "column": float(weights[:, -1] @ values),
                "keys": float(query @ keys),
                "largest": float(values[query.argmax()]),
                "own": float(values[-1]),
                "mean": float(values.mean()),
                "sum": float(values.sum()),
                "other-row": float(weights[0] @ values),
                "second-row": float(weights[1] @ values),
                "sign": float(query @ values.abs()),
            },
        ),
    }


def _of(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
