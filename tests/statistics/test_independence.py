"""Text independence on planted variance components and label distributions."""

import numpy as np
import pytest
from scipy.stats import f_oneway

from attnscope.statistics import (
    between_head_share,
    effective_labels,
    independence,
    intraclass_correlation,
    label_information,
    label_shares,
    sign_agreement,
)


def test_a_planted_intraclass_correlation_is_recovered():
    """Between-head variance 0.8, within 0.2: ICC 0.8 (mechanism C6)."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, np.sqrt(0.8), 400) + rng.normal(0, np.sqrt(0.2), (100, 400))
    assert intraclass_correlation(values) == pytest.approx(0.8, abs=0.04)


def test_the_intraclass_correlation_is_that_of_the_analysis_of_variance():
    """F = MSB / MSW, so ICC(1) = (F - 1) / (F + C - 1) with C texts."""
    values = np.random.default_rng(0).normal(size=(3, 4)) + np.arange(4)
    ratio = f_oneway(*values.T).statistic
    assert intraclass_correlation(values) == pytest.approx((ratio - 1) / (ratio + 2))


def test_a_label_of_fewer_than_one_text_in_a_hundred_is_no_third_label():
    labels = np.stack([np.arange(400) % 2] * 2, 1)
    labels[:3, 0] = 2
    labels[:5, 1] = 2
    found = independence(labels, labels * 1.0, np.ones((400, 2, 3)), clusters=3, resamples=2)
    assert found["at_most_two_labels"].value == 0.5


def test_heads_that_do_not_differ_have_no_correlation():
    rng = np.random.default_rng(0)
    assert intraclass_correlation(rng.normal(size=(200, 100))) == pytest.approx(0, abs=0.01)
    assert np.isnan(intraclass_correlation(np.ones((1, 5))))
    assert np.isnan(intraclass_correlation(np.ones((5, 5))))


def test_six_labels_by_chance_give_a_majority_of_a_fifth():
    """100 texts, six equally likely labels: majority share 0.22 on average (mechanism C8)."""
    rng = np.random.default_rng(0)
    shares = label_shares(rng.integers(0, 6, (100, 2000)), 6)
    assert shares.max(-1).mean() == pytest.approx(0.22, abs=0.01)
    assert np.quantile(shares.max(-1), 0.99) == pytest.approx(0.28, abs=0.015)


def test_effective_labels_count_equally_likely_ones():
    assert effective_labels(np.array([0.25] * 4)) == pytest.approx(4)
    assert effective_labels(np.array([1.0, 0.0])) == 1


def test_labels_that_follow_the_head_carry_all_information():
    constant = np.tile(np.arange(6), (50, 1))
    share, chance = label_information(constant)
    assert share == pytest.approx(1)
    assert chance < 0.1
    rng = np.random.default_rng(0)
    share, chance = label_information(rng.integers(0, 6, (400, 6)))
    assert share == pytest.approx(chance, abs=0.01)


def test_sums_of_squares_divide():
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(1, 30, 4))
    noise = rng.normal(size=(200, 30, 4))
    assert between_head_share(heads + 0 * noise) == pytest.approx(1)
    assert between_head_share(noise) == pytest.approx(1 / 200, abs=0.005)
    assert between_head_share(heads + noise) == pytest.approx(
        heads.var(1).sum() / (heads.var(1).sum() + 4), abs=0.06
    )


def test_signs_agree_with_the_median():
    values = np.array([[1.0, -1.0], [2.0, 1.0], [-3.0, -2.0], [1.0, -5.0]])
    assert sign_agreement(values).tolist() == [0.75, 0.75]
    assert sign_agreement(np.array([[1.0], [2.0], [-9.0]])) == pytest.approx(2 / 3)  # the mean is negative


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Percentile intervals over 60 texts for a known share of labels: about 95% of them hold it."""
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(60):
        labels = (rng.random((60, 8)) < 0.3).astype(int)  # the majority label has share 0.7
        profiles = rng.random((60, 8, 3))
        found = independence(labels, profiles[..., 0] - 0.5, profiles, clusters=2, seed=seed, resamples=200)[
            "majority_share"
        ]
        assert found.low <= found.value <= found.high
        hits += found.low <= 0.7 <= found.high
    assert 0.85 <= hits / 60 <= 1.0


def test_one_text_has_no_interval():
    found = independence(np.zeros((1, 3), int), np.ones((1, 3)), np.ones((1, 3, 2)), clusters=1)
    assert found["majority_share"].value == 1
    assert np.isnan(found["majority_share"].low)
