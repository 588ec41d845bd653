"""Answers for all pairs: used for those without, an error where each has its own."""

import json

import pytest

from attnscope.intervention.pairs import Pair, pairs_of_input
from attnscope.support.errors import AttnscopeError

WHOLE = {"clean": "a b", "corrupted": "c b", "answer": " a", "wrong": " c"}
BARE = {"clean": "b b", "corrupted": "d b"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "pairs.jsonl").write_text(json.dumps(WHOLE) + "\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text("a\n", encoding="utf-8")
    return {
        "a file": tmp_path / "pairs.jsonl",
        "four files": [tmp_path / "lines.txt"] * 4,
        "mappings": [WHOLE, WHOLE],
        "pairs": [Pair(**WHOLE)],
    }


@pytest.mark.parametrize("name", ["a file", "four files", "mappings", "pairs"])
def test_answers_that_no_pair_uses_raise(files, name):
    with pytest.raises(
        AttnscopeError,
        match=r"no pair uses answer \(--answer\) and wrong \(--wrong\), because each has its own\. Leave them",
    ):
        pairs_of_input(files[name], answer="foo", wrong="bar")
    assert pairs_of_input(files[name])


def test_an_answer_is_used_where_one_pair_has_none():
    pairs = pairs_of_input([WHOLE, BARE], answer=" x", wrong=" y")
    assert [(pair.answer, pair.wrong) for pair in pairs] == [(" a", " c"), (" x", " y")]
    with pytest.raises(AttnscopeError, match=r"no pair uses wrong \(--wrong\), .* Leave it out"):
        pairs_of_input([WHOLE, BARE | {"wrong": " d"}], answer=" x", wrong=" y")
