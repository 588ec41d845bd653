"""Links and their error rate: by hand, on a public aligner, against rates that need no model, and at the edges."""

import math

import numpy as np
import pytest

from attnscope.support.errors import AttnscopeError
from attnscope_lineage.links import (
    Gold,
    controls,
    controls_in_words,
    links,
    pharaoh,
    read_gold,
    score_alignments,
    within,
)
from attnscope_lineage.parallel_text import read_lines


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
    found = read_gold(folder / f"{name}.awesome-align.out", 0).possible
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


def test_an_empty_sentence_has_no_links():
    assert links(np.zeros((0, 3))) == links(np.zeros((3, 0))) == links(np.zeros((2, 2))) == frozenset()


def test_files_are_read_and_written(tmp_path):
    (tmp_path / "gold").write_text("1-1 2p1 3?2\n\n2-1\n")
    gold = read_gold(tmp_path / "gold")
    assert gold.sure == [{(0, 0)}, frozenset(), {(1, 0)}]
    assert gold.possible == [{(0, 0), (1, 0), (2, 1)}, frozenset(), {(1, 0)}]
    (tmp_path / "links").write_text("\n".join(map(pharaoh, gold.possible)) + "\n")
    assert read_gold(tmp_path / "links", 0).possible == gold.possible


@pytest.mark.parametrize("line", ["1", "1-", "a-b", "1-2-3", "0-1", "1--2", "１-1", "9" * 99])
def test_what_is_no_link_is_rejected_with_its_line(tmp_path, line):
    (tmp_path / "gold").write_text(f"1-1\n{line}\n")
    with pytest.raises(AttnscopeError, match=r"line 2: '.{1,60} is not a link; expected 1-2"):
        read_gold(tmp_path / "gold")


def test_mistakes_are_reported():
    with pytest.raises(AttnscopeError, match="threshold must be above 0"):
        links(np.ones((1, 1)), "threshold", 0.0)
    with pytest.raises(AttnscopeError, match="the alignment has 1 lines and the sure links has 2"):
        score_alignments([frozenset()], [frozenset()] * 2, [frozenset()] * 2)


LENGTHS = [(6, 4), (3, 5), (1, 2), (9, 7)]


def random_links(rng, *, each=1):
    """For every target word `each` different source words, or as many as there are."""
    found = []
    for sources, targets in LENGTHS:
        drawn = rng.random((targets, sources)).argsort(1)[:, :each].tolist()
        found.append(frozenset((source, target) for target, few in enumerate(drawn) for source in few))
    return found


def made_up_gold(rng):
    sure = random_links(rng)
    possible = [one | more for one, more in zip(sure, random_links(rng, each=2), strict=True)]
    return Gold([links | {(99, 0)} for links in sure], possible)  # one link past the end of each


@pytest.mark.parametrize("each", [1, 2])
def test_chance_is_what_random_links_come_to(each):
    rng = np.random.default_rng(0)
    gold = made_up_gold(rng)
    draws = [random_links(rng, each=each) for _ in range(4000)]
    rates = np.array([score_alignments(links, gold.sure, gold.possible).error_rate for links in draws])
    found = controls(draws[0], gold, LENGTHS)
    assert found.chance == pytest.approx(rates.mean(), abs=4 * rates.std() / 4000**0.5)
    # 2.33 standard deviations below the mean; the standard error of one over 4,000 draws is 1.1%
    assert (found.chance - found.chance_level) / 2.3263 == pytest.approx(rates.std(), rel=0.05)


def of_corpus(rng, pairs):
    """Pairs whose links are right with a chance of their own: pairs differ from each other, as real ones do."""
    lengths = [(int(size), int(size)) for size in rng.integers(3, 12, pairs)]
    sure = [frozenset((word, word) for word in range(size)) for size, _ in lengths]
    right = rng.beta(2, 3, pairs)
    made = [
        frozenset((word if rng.random() < share else (word + 1) % size, word) for word in range(size))
        for (size, _), share in zip(lengths, right, strict=True)
    ]
    return made, Gold(sure, sure), lengths


def test_the_interval_holds_the_rate_of_many_more_pairs():
    rng = np.random.default_rng(2)
    found = [controls(*of_corpus(rng, 40)) for _ in range(400)]
    held = np.mean([one.lower <= 0.6 <= one.upper for one in found])
    assert 0.92 < held < 0.98  # nominal 0.95, give or take 0.011
    assert np.isnan(controls(*of_corpus(rng, 5)).lower)


def test_the_diagonal_is_called_better_only_where_it_is_reported():
    rng = np.random.default_rng(3)
    made, gold, lengths = of_corpus(rng, 40)
    rate = score_alignments(made, gold.sure, gold.possible).error_rate
    found = controls(made, gold, lengths)
    assert found.above > 0
    assert "diagonal 0.0% (significantly better)" in controls_in_words(vars(found) | {"error_rate": rate})
    few = controls(made[:5], Gold(gold.sure[:5], gold.possible[:5]), lengths[:5])
    assert "diagonal 0.0% (too few sentence pairs" in controls_in_words(vars(few) | {"error_rate": rate})
    # gold links beside the diagonal in as many pairs as links are: neither is better but by chance
    told = 0
    for _ in range(200):
        size = 6
        one, other = (
            frozenset((word, word) for word in range(size)),
            frozenset((5 - word, word) for word in range(size)),
        )
        sure = [one if rng.random() < 0.5 else other for _ in range(30)]
        aligned = [other] * 30
        told += controls(aligned, Gold(sure, sure), [(size, size)] * 30).above > 0
    assert told <= 12  # nominal 5 of 200; 13 or more would come by chance in 1 of 500


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


def test_the_best_of_many_random_heads_goes_as_low_as_is_reported():
    rng = np.random.default_rng(1)
    gold = made_up_gold(rng)
    many, lengths = Gold(gold.sure * 20, gold.possible * 20), LENGTHS * 20

    def drawn():
        return [links for _ in range(20) for links in random_links(rng)]

    level = controls(drawn(), many, lengths, chosen_of=8).chance_level
    assert level < controls(drawn(), many, lengths).chance_level
    lowest = [min(score_alignments(drawn(), many.sure, many.possible).error_rate for _ in range(8)) for _ in range(60)]
    assert np.mean(np.array(lowest) < level) <= 0.08  # nominal 0.01; 5 of 60 or more would come by chance in 1 of 1,000


def test_the_best_of_many_heads_needs_a_wider_interval():
    rng = np.random.default_rng(4)
    made, gold, lengths = of_corpus(rng, 20)
    one, best = controls(made, gold, lengths), controls(made, gold, lengths, chosen_of=16)
    assert np.isfinite(one.lower)
    assert np.isnan([best.lower, best.upper]).all()  # the best of 48 equal heads: 95% held the truth in 36% to 58%
    assert best.above < one.above < one.below < best.below
