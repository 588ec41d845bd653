"""A whole text aligned: the planted head is found, judged and shown."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope.lineage.align import load_alignment, write_alignment
from attnscope.lineage.links import Gold
from attnscope.store.folder import OwnedFolder
from attnscope.support.errors import AttnscopeError
from tests.translation.small_translators import Reordering, small_model, small_tokenizer

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
    return attnscope.align(Reordering(), SOURCES, TARGETS, tokenizer=small_tokenizer(), **options)


@pytest.mark.parametrize("end", ["drop", "keep", "null"])
def test_the_head_that_aligns_is_found_among_all(gold, end):
    aligned = run(gold=gold, end=end)
    assert (aligned.layer, aligned.head, aligned.chosen_on_gold) == (0, 1, True)
    assert aligned.links == [reverse(len(line.split())) for line in SOURCES]
    assert aligned.outside == 1
    # 67 links, all sure; 68 are sure: the one past the end cannot be found
    assert aligned.score.error_rate == pytest.approx(1 - 2 * 67 / (67 + 68), rel=1e-12)
    rates = aligned.heads["error_rate"].values
    assert rates[0, 1] == aligned.score.error_rate
    np.testing.assert_array_equal(np.delete(rates.ravel(), 1), 1)


def test_pairs_to_show_go_from_the_best_to_the_worst_and_leave_out_the_long_and_empty(gold):
    aligned = run(gold=gold, shown=10)
    assert aligned.passed_over == 2
    rates = [pair.error_rate for pair in aligned.pairs]
    assert rates == sorted(rates)
    assert sorted(pair.line for pair in aligned.pairs) == [1, 2, 3]
    for pair in aligned.pairs:
        assert pair.found == aligned.links[pair.line - 1]
        np.testing.assert_array_equal(pair.words.weights, np.eye(len(pair.words.source))[::-1])
    assert [pair.line for pair in run(shown=2).pairs] == [1, 2]


def test_the_signature_names_all_that_the_links_depend_on(gold):
    signature = json.loads(run(gold=gold, rule="intersection").signature)
    assert signature["text"]["pairs"] == 5
    assert signature["settings"] == {
        "layer": 0, "head": 1, "end": "drop", "step": "predicts", "words": "space", "batch_size": 16,
        "rule": "intersection",
    }  # fmt: skip
    judged, alone = signature["text"], json.loads(run(layer=0, head=1).signature)["text"]
    assert alone == {name: value for name, value in judged.items() if name != "gold_sha256"}
    turned = Gold(gold.sure[::-1], gold.possible[::-1])  # gold chooses the head, and rates depend on it
    assert json.loads(run(gold=turned).signature)["text"]["gold_sha256"] != judged["gold_sha256"]
    by_threshold = json.loads(run(rule="threshold").signature)["settings"]
    assert by_threshold["threshold"] == 0.2
    with pytest.raises(AttnscopeError, match=r"found a threshold \(--threshold\) with the rule"):
        run(threshold=0.9)
    other = attnscope.align(Reordering(), ["b"], ["b"], tokenizer=small_tokenizer())
    assert json.loads(other.signature)["text"]["source_sha256"] != signature["text"]["source_sha256"]


def test_mistakes_are_reported(gold):
    with pytest.raises(AttnscopeError, match="the gold file has 1"):
        run(gold=Gold(gold.sure[:1], gold.possible[:1]))
    with pytest.raises(AttnscopeError, match=r"the target has no spaces between words.*--words piece"):
        attnscope.align(small_model("bart"), ["a cat"], ["猫がここにいます"], tokenizer=small_tokenizer())
    for name, wrong in {"end": "none", "step": "next", "words": "letters", "rule": "best"}.items():
        with pytest.raises(AttnscopeError, match=f"{name} is '{wrong}'.*; expected '"):
            run(**{name: wrong})
    with pytest.raises(AttnscopeError, match="found layer 9; expected"):
        attnscope.align(small_model("bart"), ["a"], ["a"], tokenizer=small_tokenizer(), layer=9)


STORED = ["a b a b", "b a", "a", ""], ["b a b a", "a b", "b", ""]
SURE = [frozenset({(0, 3)}), frozenset({(0, 1), (7, 1)}), frozenset(), frozenset()]


def written_and_read(aligned, place):
    with OwnedFolder(place, "align") as folder:
        with folder.replacing("") as new:
            write_alignment(aligned, new)
        return load_alignment(folder)


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
    aligned = attnscope.align(Reordering(), *STORED, tokenizer=small_tokenizer(), **options)
    if aligned.heads is not None:  # a head without links, on a text without sure ones
        aligned.heads["precision"][1, 1] = np.nan
    opened = written_and_read(aligned, tmp_path / "run")
    bare = {"heads": None, "pairs": [], "score": None, "baselines": None}
    assert replace(opened, **bare).__dict__ == replace(aligned, **bare).__dict__
    assert (opened.heads is None) == (aligned.heads is None)
    if aligned.heads is not None:
        xr.testing.assert_identical(opened.heads, aligned.heads)
        np.testing.assert_equal(vars(opened.score), vars(aligned.score))
        np.testing.assert_equal(vars(opened.baselines), vars(aligned.baselines))
    assert len(opened.pairs) == len(aligned.pairs)
    for pair, kept in zip(aligned.pairs, opened.pairs, strict=True):
        np.testing.assert_equal(vars(kept) | {"words": None}, vars(pair) | {"words": None})
        assert (kept.words.source, kept.words.target) == (pair.words.source, pair.words.target)
        np.testing.assert_array_equal(kept.words.weights, pair.words.weights)
