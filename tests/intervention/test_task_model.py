"""The bundled causal model does the tasks of `attnscope.pairs`, on pairs that it was not trained on."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODELS, OWN_TEXTS
from attnscope.capture.load import load_model

CARD = json.loads((MODELS["bundled:tasks"] / "card.json").read_text(encoding="utf-8"))
SOLVED = [task for task, share in CARD["held_out_pairs_right"].items() if share >= 0.9]


@pytest.fixture(scope="module")
def tokenizer_of_tasks():
    return AutoTokenizer.from_pretrained(MODELS["bundled:tasks"])


@pytest.mark.parametrize("task", SOLVED)
def test_it_prefers_the_answer_in_held_out_pairs(task):
    """The answer depends on the word that differs."""
    tree = attnscope.patch("bundled:tasks", task, heads=[(0, 0)])
    pairs = tree["pairs"].to_dataset()
    assert pairs.sizes["pair"] == 50
    assert float((pairs.clean > 0).mean()) == pytest.approx(CARD["held_out_pairs_right"][task], abs=0.021)
    assert float((pairs.corrupted < 0).mean()) >= 0.85


def test_words_said_twice_are_copied_by_induction_heads(tokenizer_of_tasks):
    """Random words that it knows, said twice: only copying predicts the second half."""
    words = OWN_TEXTS["bundled:tasks"].read_text(encoding="utf-8").split()
    known = sorted({word for word in words if word.isalpha() and len(tokenizer_of_tasks.tokenize(f" {word}")) == 1})
    random = np.random.default_rng(0)
    said = [random.choice(known, 20, replace=False).tolist() for _ in range(8)]
    texts = [tokenizer_of_tasks(" " + " ".join([*one, *one]))["input_ids"] for one in said]
    model = load_model("bundled:tasks", device="cpu").model
    with torch.no_grad():
        logits = model(torch.tensor(texts)).logits
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].mT, torch.tensor(texts)[:, 1:], reduction="none")
    assert float(losses[:, :20].mean()) > 4
    assert float(losses[:, 21:].mean()) < 1
    found = attnscope.scan("bundled:tasks", texts, offsets=[-19])
    weight = found.weight_at.mean("window").squeeze("chosen_offset")
    assert int((weight > 0.3).sum()) >= 2
    assert int(weight.max("head").argmax("layer")) > 0  # it needs a head before it


def test_its_texts_are_read_by_default_in_every_way_of_opening_it():
    lines = OWN_TEXTS["bundled:tasks"].read_text(encoding="utf-8").splitlines()
    alone = attnscope.scan("bundled:tasks", limit=4)
    shared = attnscope.Session("bundled:tasks", limit=4).scan()
    given = attnscope.scan("bundled:tasks", lines[:4])
    for found in (alone, shared):
        assert found.length.values.tolist() == given.length.values.tolist()


@pytest.mark.parametrize(("noun", "verb"), [("key", "is"), ("keys", "are")])
def test_it_generates_the_answer(noun, verb):
    found = attnscope.generate("bundled:tasks", f"The {noun} near the houses", new_tokens=2)
    assert found.written.values.tolist() == [f" {verb} old"]


def test_half_of_what_it_takes_is_left_for_a_prompt():
    found = attnscope.generate("bundled:tasks", "The key near the houses")
    assert json.loads(found.attrs["signature"])["settings"]["new_tokens"] == 32


def test_a_path_of_pairs_as_a_string_is_named(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"clean": "a", "corrupted": "b"}\n')
    with pytest.raises(attnscope.AttnscopeError, match=r"is the string .*; in Python a file is a pathlib.Path: give"):
        attnscope.patch("bundled:tasks", str(path))
