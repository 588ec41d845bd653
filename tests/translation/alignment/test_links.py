"""Links and their error rate: by hand, on a public aligner's output, and at the edges."""

import math

import numpy as np
import pytest

from attnscope.lineage.links import links, pharaoh, read_gold, read_links, score_alignments, within
from attnscope.lineage.parallel_text import read_lines
from attnscope.support.errors import AttnscopeError


def test_the_error_rate_by_hand():
    found = [frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(0, 1)})]
    sure = [frozenset({(0, 0), (2, 1)}), frozenset()]
    possible = [frozenset({(1, 1)}), frozenset({(0, 1), (0, 0)})]
    score = score_alignments(found, sure, possible)
    # A∩S: 1. A∩P: (0,0) is sure and so possible, (1,1), and (0,1) of the second: 3. |A| = 4, |S| = 2.
    assert score.error_rate == 1 - (1 + 3) / (4 + 2)
    assert score.precision == 3 / 4
    assert score.recall == 1 / 2
    assert score.links == 4


@pytest.mark.parametrize(("name", "published", "sure", "outside"), [("jaen", 37.4, 13562, 6), ("enfr", 4.1, 4038, 0)])
def test_a_public_aligner_has_its_published_error_rate(data, name, published, sure, outside):
    folder = data / "alignments"
    gold = read_gold(folder / f"{name}.gold")
    found = read_links(folder / f"{name}.awesome-align.out")
    assert sum(map(len, gold.sure)) == sure
    assert round(100 * score_alignments(found, gold.sure, gold.possible).error_rate, 1) == published
    pairs = [line.split("|||") for line in read_lines(folder / f"{name}.src-tgt")]
    kept = [
        within(possible, len(source.split()), len(target.split()))
        for (source, target), possible in zip(pairs, gold.possible, strict=True)
    ]
    assert sum(map(len, gold.possible)) - sum(map(len, kept)) == outside


def test_gold_against_itself_has_no_error_and_nothing_against_gold_all():
    gold = [frozenset({(0, 0), (3, 1)})]
    assert score_alignments(gold, gold, gold).error_rate == 0
    assert score_alignments([frozenset()], gold, gold).error_rate == 1
    nothing = score_alignments([frozenset()], [frozenset()], [frozenset()])
    assert math.isnan(nothing.error_rate)
    assert math.isnan(nothing.precision)


def test_every_rule_finds_a_planted_permutation():
    order = np.random.default_rng(0).permutation(7)
    weights = np.full((7, 7), 0.3 / 6)
    weights[np.arange(7), order] = 0.7
    planted = {(int(source), target) for target, source in enumerate(order)}
    for rule in ("argmax", "intersection", "threshold"):
        assert links(weights, rule, threshold=0.5) == planted


def test_rules_differ_where_two_words_want_one():
    weights = np.array([[0.9, 0.1, 0.0], [0.6, 0.2, 0.2], [0.0, 0.0, 0.0]])
    assert links(weights) == {(0, 0), (0, 1)}
    assert links(weights, "intersection") == {(0, 0)}
    assert links(weights, "threshold", 0.2) == {(0, 0), (0, 1), (1, 1), (2, 1)}


def test_an_empty_sentence_has_no_links():
    assert links(np.zeros((0, 3))) == links(np.zeros((3, 0))) == links(np.zeros((2, 2))) == frozenset()


def test_files_are_read_and_written(tmp_path):
    (tmp_path / "gold").write_text("1-1 2p1 3?2\n\n2-1\n")
    gold = read_gold(tmp_path / "gold")
    assert gold.sure == [{(0, 0)}, frozenset(), {(1, 0)}]
    assert gold.possible == [{(0, 0), (1, 0), (2, 1)}, frozenset(), {(1, 0)}]
    (tmp_path / "links").write_text("\n".join(map(pharaoh, gold.possible)) + "\n")
    assert read_links(tmp_path / "links") == gold.possible


@pytest.mark.parametrize("line", ["1", "1-", "a-b", "1-2-3", "0-1", "1--2", "１-1", "9" * 99])
def test_what_is_no_link_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "gold").write_text(f"1-1\n{line}\n")
    with pytest.raises(AttnscopeError, match=r"line 2: '.{1,60} is not a link; expected such as 1-2"):
        read_gold(tmp_path / "gold")


def test_mistakes_are_said():
    with pytest.raises(AttnscopeError, match="threshold must be above 0"):
        links(np.ones((1, 1)), "threshold", 0.0)
    with pytest.raises(AttnscopeError, match="the alignment has 1 lines and the sure links has 2"):
        score_alignments([frozenset()], [frozenset()] * 2, [frozenset()] * 2)


def test_a_threshold_is_compared_in_the_weights_own_precision():
    weights = np.array([[0.7]], np.float32)  # a little less than 0.7 in double precision
    assert links(weights, "threshold", 0.7) == {(0, 0)}
