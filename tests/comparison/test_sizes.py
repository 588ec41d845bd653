"""Sizes of changes: the same in both directions, and of a unit that does not vanish where heads are alike."""

import numpy as np
import pytest

import attnscope
from attnscope import contrasts
from attnscope.comparison.diff import changes_of, sizes
from tests.comparison.test_contrasts import scan_of


def alike_and_apart(seed, heads=(5, 8)):
    """Means of heads that are alike, as in an untrained model, and of heads that are not."""
    generator = np.random.default_rng(seed)
    return 0.96 + generator.normal(0, 4e-6, heads), 0.4 + generator.normal(0, 0.03, heads)


@pytest.mark.parametrize("seed", range(3))
def test_sizes_are_the_same_in_both_directions(seed):
    before, after = alike_and_apart(seed)
    there, back = sizes(after - before, before, after), sizes(before - after, after, before)
    np.testing.assert_allclose(there, -back, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_no_size_is_above_twice_the_root_of_the_number_of_heads(seed):
    before, after = alike_and_apart(seed)
    assert np.abs(sizes(after - before, before, after)).max() < 2.5
    one = before.copy()
    before[2, 3] -= 0.25
    one[2, 3] += 0.25
    size = sizes(one - before, before, one)
    assert size[2, 3] == pytest.approx(2 * np.sqrt(before.size), rel=0.02)
    assert np.abs(np.delete(size.ravel(), 19)).max() < 1e-3


def test_a_head_that_is_not_there_has_no_part_in_it():
    before, after = np.array([[0.1, 0.3, np.nan]]), np.array([[0.2, 0.3, np.nan]])
    size = sizes(after - before, before, after)
    assert np.isnan(size[0, 2])
    np.testing.assert_allclose(size[:, :2], sizes((after - before)[:, :2], before[:, :2], after[:, :2]))


def test_of_two_scans_what_changed_most_is_the_same_in_both_directions():
    """An untrained model, whose heads are alike, beside one whose heads are not."""
    before = attnscope.scan(limit=8, window=32)[["entropy", "max_weight", "profile"]].copy(deep=True)
    noise = np.random.default_rng(0)
    alike = before.copy(deep=True)
    for name in ("entropy", "max_weight"):
        alike[name] = (alike[name].dims, float(alike[name].mean()) + 1e-5 * noise.normal(size=alike[name].shape))
    there, back = (changes_of(attnscope.diff(*pair)) for pair in ((alike, before), (before, alike)))
    most = [(row["statistic"], row["layer"], row["head"], round(row["size"], 6)) for row in there[:5]]
    assert most == [(row["statistic"], row["layer"], row["partner"], round(-row["size"], 6)) for row in back[:5]]
    assert max(abs(row["size"]) for row in there) < 10


def test_texts_held_apart_have_sizes_of_the_same_unit():
    """Heads that are alike over all texts, but not in those of one value."""
    values = np.full((16, 1, 2), 2.0) + np.random.default_rng(0).normal(0, 1e-3, (16, 1, 2))
    values[:8, 0, 0] += 0.5
    values[8:, 0, 1] += 0.5
    found = contrasts(scan_of(values, ["a"] * 8 + ["b"] * 8, np.arange(16)))
    assert np.abs(found["size"]).max() < 2.1
    np.testing.assert_allclose(found["size"].sel(by="a"), -found["size"].sel(by="b"))
