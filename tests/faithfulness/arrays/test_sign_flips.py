"""Means told from 0 by flipping signs: as many false ones as are said, however the means come."""

import numpy as np
import pytest

from attnscope.measure.documents import above_zero, differs_from_zero


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_means_in_blocks_are_told_as_they_are_together(rng):
    parts = rng.normal(np.linspace(-1, 1, 9), 1.0, (12, 9))
    (together,) = above_zero([parts], 12)
    np.testing.assert_array_equal(np.concatenate(above_zero(np.split(parts, 3, axis=1), 12)), together)
    assert 0 < together.sum() < together.size


def test_few_families_of_nothing_have_one_that_is_told(rng):
    families = rng.normal(0.0, 1.0, (400, 10, 6))
    for told in (lambda values: above_zero([values], 10)[0], lambda values: differs_from_zero(values, rng)):
        found = sum(told(family).any() for family in families)
        assert found <= 0.05 * 400 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_what_lies_below_is_told_apart_but_not_above():
    parts = np.full((8, 1), -1.0)
    assert not above_zero([parts], 8)[0].any()
    assert differs_from_zero(parts, np.random.default_rng(0)).all()


def test_what_is_nowhere_or_not_known_is_not_told():
    parts = np.stack([np.ones(8), np.zeros(8), np.r_[np.nan, np.ones(7)]], axis=1)
    assert above_zero([parts], 8)[0].tolist() == [True, False, False]
    assert differs_from_zero(parts, np.random.default_rng(0)).tolist() == [True, False, False]


def test_skewed_families_of_nothing_have_few_that_are_told(rng):
    """Without the correction for skewness, 0.25 of these."""
    families = rng.exponential(1.0, (100, 20, 12)) - 1
    assert np.mean([differs_from_zero(family, rng).any() for family in families]) < 0.12
    assert np.mean([above_zero([-family], 20)[0].any() for family in families]) < 0.12
