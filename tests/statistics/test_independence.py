"""Text independence on planted variance components and label distributions."""

import numpy as np
import pytest
from scipy.stats import f_oneway

from attnscope.statistics.agreement import (
    effective_labels,
    independence,
    label_information,
    label_shares,
    sign_agreement,
)


def intraclass_correlation(values):
    labels = np.zeros(values.shape, int)
    return independence(labels, values, values[..., None], clusters=1)["direction_icc"].value


def between_head_share(profiles):
    labels = np.zeros(profiles.shape[:2], int)
    return independence(labels, profiles[..., 0], profiles, clusters=1)["profile_between_heads"].value


def test_the_intraclass_correlation_is_that_of_the_analysis_of_variance():
    """F = MSB / MSW, so ICC(1) = (F - 1) / (F + C - 1) with C texts."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4)) + np.arange(4)
    ratio = f_oneway(*values.T).statistic
    assert intraclass_correlation(values) == pytest.approx((ratio - 1) / (ratio + 2))
    assert intraclass_correlation(rng.normal(size=(200, 100))) == pytest.approx(0, abs=0.01)
    assert np.isnan([intraclass_correlation(np.ones(shape)) for shape in ((1, 5), (5, 5))]).all()


def test_a_label_of_fewer_than_one_text_in_a_hundred_is_no_third_label():
    labels = np.stack([np.arange(400) % 2] * 2, 1)
    labels[:3, 0] = 2
    labels[:5, 1] = 2
    found = independence(labels, labels * 1.0, np.ones((400, 2, 3)), clusters=3)
    assert found["at_most_two_labels"].value == 0.5


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
    assert between_head_share(heads + noise) == pytest.approx(heads.var(1).sum() / (heads.var(1).sum() + 4), abs=0.06)


def test_signs_agree_with_the_median():
    values = np.array([[1.0, -1.0], [2.0, 1.0], [-3.0, -2.0], [1.0, -5.0]])
    assert sign_agreement(values).tolist() == [0.75, 0.75]
    unknown = np.array([[1.0, np.nan], [2.0, np.nan], [-9.0, 1.0]])  # the mean of the first is negative
    np.testing.assert_array_equal(sign_agreement(unknown), [2 / 3, np.nan])
    found = independence(np.zeros((3, 2), int), unknown, np.ones((3, 2, 3)), clusters=1)
    assert np.isnan(found["sign_agreement"].value)


def test_intervals_hold_the_truth_though_few_texts_set_heads_apart_by_chance():
    """12 heads, a tenth of whose profiles' squares lies between them: of 8 texts it looks like a fifth."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(12, 5))
    means *= np.sqrt(60 / 9 / ((means - means.mean(0)) ** 2).sum())
    held = []
    for _ in range(300):
        profiles = means + rng.normal(size=(8, 12, 5))
        found = independence(np.zeros((8, 12), int), profiles[..., 0], profiles, clusters=1)
        share = found["profile_between_heads"]
        held.append(share.low <= 0.1 <= share.high)
    assert 0.9 < np.mean(held) < 0.98  # nominal 0.95, give or take 0.013


def test_sums_over_documents_give_what_the_texts_give():
    """Each statistic by its definition, text by text."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (40, 5))
    directions = rng.normal(size=(40, 5)) + rng.normal(size=5)
    directions[rng.random((40, 5)) < 0.2] = 0
    profiles = rng.random((40, 5, 4))
    found = independence(labels, directions, profiles, clusters=3, units=rng.integers(0, 8, 40).tolist())
    shares = label_shares(labels, 3)
    assert found["majority_share"].value == pytest.approx(shares.max(-1).mean())
    assert found["effective_labels"].value == pytest.approx(effective_labels(shares).mean())
    assert found["direction_icc"].value == pytest.approx(intraclass_correlation(directions))
    assert found["sign_agreement"].value == pytest.approx(sign_agreement(directions).mean())
    assert found["profile_between_heads"].value == pytest.approx(between_head_share(profiles))


def test_windows_of_one_document_are_not_counted_as_so_many_texts():
    """Each document 9 times over is no more evidence than once: the interval stays as wide."""
    rng = np.random.default_rng(0)
    labels = (rng.random((30, 6)) < 0.4).astype(int)
    profiles = rng.random((30, 6, 3))

    def width(times, documents):
        many = [np.repeat(one, times, 0) for one in (labels, profiles[..., 0] - 0.5, profiles)]
        found = independence(*many, clusters=2, units=documents)["profile_between_heads"]
        return found.high - found.low

    once = width(1, None)
    assert width(9, np.repeat(np.arange(30), 9).tolist()) == pytest.approx(once)
    assert width(9, None) < 0.5 * once


def test_fewer_than_six_units_have_no_interval():
    profiles = np.random.default_rng(0).random((6, 3, 4))
    for count in (5, 6):
        some = profiles[:count]
        found = independence(np.arange(count * 3).reshape(count, 3) % 2, some[..., 0], some, clusters=2)
        share = found["profile_between_heads"]
        assert np.isfinite(share.value)
        assert np.isfinite([share.low, share.high]).tolist() == [count == 6] * 2


def test_six_labels_by_chance_give_a_majority_of_a_fifth():
    """100 texts, six equally likely labels: majority share 0.22 on average (mechanism C8)."""
    rng = np.random.default_rng(0)
    shares = label_shares(rng.integers(0, 6, (100, 2000)), 6)
    assert shares.max(-1).mean() == pytest.approx(0.22, abs=0.01)
    assert np.quantile(shares.max(-1), 0.99) == pytest.approx(0.28, abs=0.015)
