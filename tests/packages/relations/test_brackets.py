"""Heads of a classifier of bracket strings: what decides is known, and two heads read it."""

import json

import numpy as np
import pytest
from tokenizers import processors

from attnscope_relations import relations
from tests.intervention.test_brackets import classifier

NAMES = ("count", "order", "balanced")


def line(number, text):
    """A string with links from [start], where the model answers: ")" for balanced, "(" for unbalanced.

    `count`: to the first bracket, if there are too many ")" and nothing else is wrong. `order`: to the brackets from
    which on there are more "(" than ")", if the number of both is right. `balanced`: to the first bracket.
    """
    tokens = ["[start]", *text, "[end]"]
    starts = np.cumsum([0, *(len(token) + 1 for token in tokens[:-1])]).tolist()
    spans = [(start, start + len(token)) for start, token in zip(starts, tokens, strict=True)]
    closed = np.cumsum([1 if sign == ")" else -1 for sign in reversed(text)])[::-1]  # more ")" than "(" from here on
    wrong = [spans[at + 1] for at in np.flatnonzero(closed < 0)]
    if closed[0] and wrong:
        return None
    name = "count" if closed[0] else "order" if wrong else "balanced"
    pair = {"name": name, "from": spans[0], "to": wrong or spans[1]}
    right, other = (")", "(") if name == "balanced" else ("(", ")")
    sides = {side: " ".join([sign, *tokens[1:]]) for side, sign in (("good", right), ("bad", other))}
    return {"text": " ".join(tokens), **sides, "pairs": [pair], "words": spans, "id": str(number)}


@pytest.fixture(scope="module")
def found(models):
    folder = models / "brackets-3l"
    if not folder.is_dir():
        pytest.skip("no brackets-3l")
    loaded = classifier(folder)
    # [start] is in the text, as a word that asks
    loaded.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    strings = json.loads((folder / "brackets.json").read_text(encoding="utf-8"))
    lines = [line(number, text) for number, (text, _) in enumerate(strings) if len(text) >= 12]
    of_each = {name: [one for one in lines if one and one["pairs"][0]["name"] == name] for name in NAMES}
    chosen = [one for some in of_each.values() for one in some[:80]]
    return relations(loaded, chosen, ablate=True, untrained=False)


def test_one_head_attends_to_where_the_order_is_wrong_and_matters(found):
    order = found.sel(relation="order")
    assert order.shown.values.tolist() == [[False, False], [False, False], [False, True]]
    assert float(order.held_out) > 0.85
    assert float(order.held_out_above) > 0.3
    assert float(order.held_out_p) < 0.01
    assert (int(order.ablated_layer), int(order.ablated_head)) == (2, 1)
    assert bool(order.ablated_matters)
    assert float(order.ablated) < -0.4 * float(order.margin)  # half of the margin of 11.5 nats


@pytest.mark.parametrize("name", ["count", "balanced"])
def test_a_head_that_reads_one_position_is_no_better_than_that_and_matters(found, name):
    """The sum over the string is at the first bracket: a fixed offset is as good, and ablation tells what it is for."""
    count = found.sel(relation=name)
    assert (int(count.best_layer), int(count.best_head)) == (2, 0)
    assert float(count.offset_score) == 1
    assert not bool(count.shown.any())
    assert (int(count.ablated_layer), int(count.ablated_head)) == (2, 0)
    assert bool(count.ablated_matters)
    assert float(count.ablated) < float(count.ablated_others)
