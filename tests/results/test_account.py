"""A summary in Python has each note and each sentence that the tables on a terminal have."""

import json

import numpy as np
import pytest
import torch

import attnscope
from tests.families import tiny

TEXTS = ["The tide comes in twice a day.", "It rained 12 days, and 3 nights.", "Boats lie on the mud."] * 4


@pytest.fixture(scope="module")
def held_apart(tmp_path_factory):
    """Texts by language, and texts that all have one."""
    folder = tmp_path_factory.mktemp("texts")
    for name, languages in (("both", ["en", "fr"]), ("one", ["en"])):
        lines = [
            json.dumps({"text": text, "language": languages[number % len(languages)]})
            for number, text in enumerate(TEXTS)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def scans(held_apart):
    ids = np.random.default_rng(0).integers(3, 60, (8, 60)).tolist()
    torch.manual_seed(0)
    return {
        "bloom": attnscope.scan(tiny("bloom"), ids, tokenizer="bundled", device="cpu"),
        "groups": attnscope.scan(texts=TEXTS, groups="kinds"),
        "entropy": attnscope.scan(texts=TEXTS, statistics="entropy"),
        "both": attnscope.scan(texts=held_apart / "both.jsonl", by="language"),
        "one": attnscope.scan(texts=held_apart / "one.jsonl", by="language"),
    }


@pytest.fixture(scope="module")
def others():
    return {
        "explain": attnscope.explain(limit=2, window=24),
        "roles": attnscope.roles(texts=[*TEXTS, "No."], only="previous_token", controls="none"),
    }


def test_a_bias_by_distance_is_told_where_heads_are_local(scans):
    for summary in (repr(scans["bloom"].attnscope), scans["bloom"].attnscope._repr_html_()):
        assert "which by itself can make heads local" in summary


def test_groups_and_what_is_held_apart_are_in_the_summary(scans):
    groups, both, one = (scans[name] for name in ("groups", "both", "one"))
    assert "Furthest above both is head " in repr(groups.attnscope)
    for result, expected in ((both, "language: en ("), (one, "language: all texts have the value en")):
        assert expected in repr(result.attnscope)


def test_how_a_model_was_read_is_told_of_roles_and_explanations(others):
    assert "full windows of 24 tokens" in repr(others["explain"].attnscope)
    assert "left out" in repr(others["roles"].attnscope)
    tree = others["explain"].copy()
    tree.attrs["decoder"] = "Its decoder was read."
    assert "Its decoder was read." in repr(tree.attnscope)


def test_layers_that_are_counted_by_attention_are_told(scans):
    scan = scans["entropy"]
    named = scan.assign_coords(layer_name=("layer", [f"layers.{2 * number + 1}" for number in range(3)]))
    assert "Layers are counted by attention: 0 is layers.1" in repr(named.attnscope)
