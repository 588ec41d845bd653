"""A whole text aligned: the planted head is found, judged and shown."""

import json

import numpy as np
import pytest
import xarray as xr

import attnscope
import attnscope_lineage
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.alignment import links_of, report
from attnscope_lineage.links import Gold, pharaoh
from tests.packages.lineage.translation.small_translators import Reordering, small_model, small_tokenizer

SOURCES = ["a b a b", "b a", "a", "", " ".join(["a b"] * 30)]
TARGETS = ["b a b a", "a b", "a", "", " ".join(["b a"] * 30)]


def reverse(count):
    return frozenset((i, count - 1 - i) for i in range(count))


@pytest.fixture(scope="module")
def gold():
    sure = [reverse(len(line.split())) for line in SOURCES]
    sure[1] |= {(7, 1)}  # past the end
    return Gold(sure, list(sure))


def run(**options):
    return attnscope_lineage.align(Reordering(), SOURCES, TARGETS, tokenizer=small_tokenizer(), **options)


@pytest.mark.parametrize("end", ["drop", "keep", "null"])
def test_the_head_that_aligns_is_found_among_all(gold, end):
    aligned = run(gold=gold, end=end)
    assert (int(aligned["links"].coords["layer"]), int(aligned["links"].coords["head"])) == (0, 1)
    assert links_of(aligned) == [pharaoh(reverse(len(line.split()))) for line in SOURCES]
    scores = aligned["scores"]
    assert scores["gold_links_outside"] == 1
    # 67 links, all sure; 68 are sure: the one past the end cannot be found
    assert scores["error_rate"] == pytest.approx(1 - 2 * 67 / (67 + 68), rel=1e-12)
    rates = aligned["heads"]["error_rate"].values
    assert rates[0, 1] == scores["error_rate"]
    np.testing.assert_array_equal(np.delete(rates.ravel(), 1), 1)


def test_pairs_to_show_go_from_the_best_to_the_worst_and_leave_out_the_long_and_empty(gold):
    aligned = run(gold=gold, shown=10)
    assert report(aligned).notes[-1].startswith("2 sentence pairs without a figure")
    pairs = aligned["shown"].children
    rates = [pair["error_rate"].item() for pair in pairs.values()]
    assert rates == sorted(rates)
    assert sorted(pairs) == ["1", "2", "3"]
    for line, pair in pairs.items():
        assert pair["links"].item() == links_of(aligned)[int(line) - 1]
        np.testing.assert_array_equal(pair["weights"], np.eye(len(pair["source"]))[::-1])
    assert [*run(shown=2)["shown"].children] == ["1", "2"]


def test_the_signature_names_all_that_the_links_depend_on(gold):
    signature = json.loads(run(gold=gold, rule="intersection").attrs["signature"])
    assert signature["text"]["pairs"] == 5
    assert signature["settings"] == {
        "layer": None, "head": None, "end": "drop", "step": "predicts", "words": "space", "batch_size": 16,
        "rule": "intersection", "shown": 0,
    }  # fmt: skip
    judged, alone = signature["text"], json.loads(run(layer=0, head=1).attrs["signature"])["text"]
    assert alone == {name: value for name, value in judged.items() if name != "gold_sha256"}
    turned = Gold(gold.sure[::-1], gold.possible[::-1])  # gold chooses the head, and rates depend on it
    assert json.loads(run(gold=turned).attrs["signature"])["text"]["gold_sha256"] != judged["gold_sha256"]
    by_threshold = json.loads(run(rule="threshold").attrs["signature"])["settings"]
    assert by_threshold["threshold"] == 0.2
    with pytest.raises(AttnscopeError, match=r"found a threshold \(--threshold\) with the rule"):
        run(threshold=0.9)
    other = attnscope_lineage.align(Reordering(), ["b"], ["b"], tokenizer=small_tokenizer())
    assert json.loads(other.attrs["signature"])["text"]["source_sha256"] != signature["text"]["source_sha256"]


def test_mistakes_are_reported(gold):
    with pytest.raises(AttnscopeError, match="the gold file has 1"):
        run(gold=Gold(gold.sure[:1], gold.possible[:1]))
    with pytest.raises(AttnscopeError, match=r"the target has no spaces between words.*--words piece"):
        attnscope_lineage.align(small_model("bart"), ["a cat"], ["猫がここにいます"], tokenizer=small_tokenizer())
    for name, wrong in {"end": "none", "step": "next", "words": "letters", "rule": "best"}.items():
        with pytest.raises(AttnscopeError, match=f"{name} is '{wrong}'.*; expected '"):
            run(**{name: wrong})
    with pytest.raises(AttnscopeError, match="found layer 9; expected"):
        attnscope_lineage.align(small_model("bart"), ["a"], ["a"], tokenizer=small_tokenizer(), layer=9)


STORED = ["a b a b", "b a", "a", ""], ["b a b a", "a b", "b", ""]
SURE = [frozenset({(0, 3)}), frozenset({(0, 1), (7, 1)}), frozenset(), frozenset()]


@pytest.mark.parametrize(
    "options",
    [
        {"gold": Gold(SURE, SURE), "shown": 3, "end": "keep"},  # one column more than words
        {"gold": Gold(SURE[2:] * 2, SURE[2:] * 2), "rule": "threshold", "threshold": 1.0},
        {"shown": 2},
    ],
    ids=["judged", "without a sure link", "no gold"],
)
def test_what_was_written_comes_back(options, tmp_path):
    options |= {"tokenizer": small_tokenizer()}
    aligned = attnscope_lineage.align(Reordering(), *STORED, **options)
    opened = attnscope_lineage.align(Reordering(), *STORED, **options, out=tmp_path / "run")
    xr.testing.assert_identical(opened, attnscope.open_run(tmp_path / "run"))
    assert opened.attrs.pop("run") == str(tmp_path / "run")
    xr.testing.assert_identical(opened, aligned)
    assert (tmp_path / "run" / "links.txt").read_text().splitlines() == links_of(aligned)


def test_links_are_rows():
    rows = run(gold=Gold([frozenset()] * 5, [frozenset()] * 5), layer=0, head=1)["links"].to_dataset()
    found = np.stack([rows.line, rows.source_word, rows.target_word], -1).tolist()
    assert found[:7] == [[1, 0, 3], [1, 1, 2], [1, 2, 1], [1, 3, 0], [2, 0, 1], [2, 1, 0], [3, 0, 0]]
    assert found[7] == [5, 0, 59]


def test_without_any_link_all_heads_are_alike_and_no_rate_is_known():
    none = [frozenset()] * 2
    how = {"tokenizer": small_tokenizer(), "gold": Gold(none, none), "rule": "threshold", "threshold": 1.0}
    aligned = attnscope_lineage.align(small_model("t5"), SOURCES[:2], TARGETS[:2], **how)
    assert links_of(aligned) == ["", ""]
    assert np.isnan(aligned["heads"]["error_rate"].values).all()
    assert np.isnan(aligned["scores"]["error_rate"])
    assert report(aligned).finding.sentences
