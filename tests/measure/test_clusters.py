"""Clusters and their names, on profiles whose kinds are known."""

from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.measure.labels import cluster_profiles, direction, name_profile, over_texts, with_rows
from attnscope.measure.means import queries

KINDS = {
    "next-to-left": {-1: 0.7, 0: 0.1},
    "next-to-right": {1: 0.7, 0: 0.1},
    "self": {0: 0.8},
    "leftward": {-3: 0.1, -2: 0.15, -1: 0.2, 0: 0.1, 1: 0.05},
    "rightward": {3: 0.1, 2: 0.15, 1: 0.2, 0: 0.1, -1: 0.05},
    "flat": dict.fromkeys(range(-10, 11), 0.02),
}


def profile(kind):
    shares = np.zeros(21)
    for offset, share in KINDS[kind].items():
        shares[offset + 10] = share
    return shares


@pytest.mark.parametrize(
    ("shares", "name"),
    [
        ({-1: 0.29, 0: 0.05}, "leftward"),
        ({-1: 0.31, 0: 0.05}, "next-to-left"),
        ({0: 0.31, -1: 0.1, 1: 0.1}, "self"),
        ({0: 0.29, -1: 0.1, 1: 0.1}, "flat"),
        ({-1: 0.118, 1: 0.082}, "flat"),  # sides that differ by 0.18 of their sum
        ({-1: 0.122, 1: 0.078}, "leftward"),  # and by 0.22
        ({-1: 0.078, 1: 0.122}, "rightward"),
        ({-2: 0.5, 0: 0.1}, "leftward"),  # sharp, but no neighbour
        ({2: 0.5, 0: 0.1}, "rightward"),
    ],
)
def test_the_rule_at_its_edges(shares, name):
    profile = np.zeros(21)
    for offset, share in shares.items():
        profile[offset + 10] = share
    assert name_profile(profile) == name


def test_planted_kinds_are_found_again_whatever_the_seed():
    rng = np.random.default_rng(0)
    truth = [kind for kind in KINDS for _ in range(40)]
    shares = np.stack([profile(kind) for kind in truth]) + rng.normal(0, 0.004, (240, 21))
    for seed in (0, 7):
        found = cluster_profiles(shares, seed=seed)
        assert [found.names[label] for label in found.labels] == truth
        assert sorted(found.names) == sorted(KINDS)


def test_two_clusters_of_one_kind_are_numbered_and_equal_profiles_are_one():
    strong, weak = profile("next-to-left"), profile("next-to-left") / 2
    found = cluster_profiles(np.stack([strong, weak, strong, weak]), clusters=2)
    assert found.names == ("next-to-left", "next-to-left (no. 2)")
    assert found.centroids[0].max() > found.centroids[1].max()
    alike = cluster_profiles(np.stack([profile("self")] * 5), clusters=6)
    assert alike.names == ("self",)
    assert alike.inertia == pytest.approx(0, abs=1e-12)


def test_the_direction_is_that_of_the_other_tokens_and_unknown_if_they_are():
    assert direction(profile("next-to-left")) == -1
    assert direction(profile("rightward")) == pytest.approx((0.45 - 0.05) / 0.5)
    sums = np.array([[1.0, 0.0, 3.0], [np.nan, 0.0, 1.0], [0.0, 5.0, 0.0]])
    np.testing.assert_array_equal(direction(sums), [0.5, np.nan, 0.0])


def test_the_mathematics_have_every_name():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "mathematics.md").read_text(encoding="utf-8")
    assert all(f"`{kind}`" in text for kind in KINDS)


def test_statistics_over_texts_count_every_row_once():
    result = attnscope.scan(texts=["The tide is out.", "The tide comes in twice a day, and twice a day it goes out."])
    rows = result.length.values.astype(float)
    assert rows[1] > 2 * rows[0]
    whole = over_texts(with_rows(result, queries(result)))
    mean = np.average(result.entropy.transpose("window", "layer", "head"), axis=0, weights=rows)
    np.testing.assert_allclose(whole.entropy.transpose("layer", "head"), mean, rtol=1e-12)
    dims = ("layer", "head", "offset")
    np.testing.assert_array_equal(whole.band_sum.transpose(*dims), result.band_sum.sum("window").transpose(*dims))
