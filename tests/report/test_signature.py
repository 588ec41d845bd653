"""A signature is one value: compared, written as JSON, and cited in one line."""

import json

import pytest

from attnscope import AttnscopeError
from attnscope.report.signature import Signature

WHOLE = Signature(
    "scan",
    model={"name": "org/small", "class": "M", "sha256": "0" * 64},
    tokenizer={"sha256": "1" * 64},
    corpus={"sha256": "2" * 64},
    settings={"window": 64, "stride": None, "statistics": list("abcd"), "frequencies": (3, 8), "paper": True},
    versions={"attnscope": "0.1.0", "torch": "2.13.0"},
)


def test_json_brings_back_an_equal_signature_and_leaves_out_what_it_has_not():
    assert Signature.from_json(WHOLE.to_json()) == WHOLE
    assert set(json.loads(WHOLE.to_json())) == {"command", "model", "tokenizer", "corpus", "settings", "versions"}
    assert list(json.loads(WHOLE.to_json())) == sorted(json.loads(WHOLE.to_json()))


def test_the_line_names_what_is_set():
    assert WHOLE.format() == (
        f"scan|model:org/small|sha:{WHOLE.short}|frequencies:3+8|paper:yes|statistics:4|window:64|version:0.1.0"
    )


def test_two_sets_of_heads_are_not_written_as_one():
    lines = [
        Signature("intervene", settings={"together": sets}).format() for sets in (["0.1+0.3", "2.0"], ["0.1+0.3+2.0"])
    ]
    assert ["together:0.1+0.3,2.0" in lines[0], "together:0.1+0.3+2.0" in lines[1]] == [True, True]


def test_two_signatures_differ_where_anything_in_them_differs():
    other = Signature.of({**WHOLE.to_dict(), "settings": {**WHOLE.settings, "window": 32}})
    assert other != WHOLE
    assert other.short != WHOLE.short
    assert WHOLE.differences(other) == ["settings.window is 64, not 32"]
    assert WHOLE.differences(WHOLE) == []


def test_a_part_that_no_signature_has_is_rejected():
    with pytest.raises(AttnscopeError, match="colour of a signature is 'red'"):
        Signature.of({"command": "scan", "colour": "red"})
