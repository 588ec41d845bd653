"""Heads find their partners: by number where models are kin, by profile where they are not."""

from itertools import permutations

import numpy as np
import pytest

from attnscope.comparison.matching import match_heads


def profiles(seed, layers=4, heads=6):
    return np.random.default_rng(seed).dirichlet(np.full(9, 0.3), (layers, heads))


def test_a_tuned_model_keeps_its_numbers():
    before = profiles(0)
    after = 0.8 * before + 0.2 * profiles(1)
    partner, rule, _ = match_heads(before, after)
    assert rule == "number"
    assert (partner == np.arange(6)).all()


@pytest.mark.parametrize("seed", range(5))
def test_permuted_heads_are_found_again(seed):
    before, generator = profiles(seed), np.random.default_rng(seed + 100)
    orders = np.stack([generator.permutation(6) for _ in range(4)])
    after = np.take_along_axis(before, orders[..., None], 1) + generator.normal(0, 0.005, before.shape)
    partner, rule, similarity = match_heads(before, after, matching="profile")
    assert (rule, similarity) == ("profile", "shown")
    np.testing.assert_array_equal(np.take_along_axis(orders, partner, 1), np.broadcast_to(np.arange(6), (4, 6)))


def test_models_that_are_no_kin_are_rarely_taken_for_it():
    found = [match_heads(profiles(seed), profiles(seed + 1000), seed=seed) for seed in range(40)]
    by_chance = 0.05 + 2 * np.sqrt(0.05 * 0.95 / 40)
    assert np.mean([one.rule == "number" for one in found]) <= by_chance
    pairs = [one.similarity for one in found if one.rule == "profile"]
    assert np.mean([similarity == "shown" for similarity in pairs]) <= by_chance
    assert "untested" not in pairs


@pytest.mark.parametrize("seed", range(40))
def test_ties_are_broken_the_same_in_both_directions(seed):
    """Heads that look at one place to three: many assignments are as good, some up to rounding."""
    generator = np.random.default_rng(seed)
    heads, looked_at = int(generator.integers(2, 7)), int(generator.integers(1, 4))
    before, after = np.eye(5)[generator.integers(0, 4, (2, 3, heads, looked_at))].mean(-2)
    there, back = (match_heads(*two, matching="profile") for two in ((before, after), (after, before)))
    np.testing.assert_array_equal(
        np.take_along_axis(back.partner, there.partner, 1), np.broadcast_to(np.arange(heads), (3, heads))
    )
    assert there.similarity == back.similarity
    for layer, partner in enumerate(there.partner):
        cost = np.abs(before[layer][:, None] - after[layer]).sum(-1) / 2
        least = min(cost[range(heads), order].sum() for order in map(list, permutations(range(heads))))
        assert cost[range(heads), partner].sum() == pytest.approx(least, abs=1e-12)


def test_a_few_heads_tell_nothing():
    """Of two layers of four heads one half in twenty parts all twins: that is no sign of kin."""
    before = profiles(0, layers=2, heads=4)
    assert match_heads(before, before[:, ::-1], matching="profile").similarity == "untested"
    assert match_heads(before[:, :1], before[:, :1])[1:] == ("number", "untested")


def test_layers_of_fewer_heads_keep_to_those_they_have():
    before = profiles(3)
    before[0, 4:] = np.nan
    partner, *_ = match_heads(before, before[:, [1, 0, 3, 2, 4, 5]], matching="profile")
    assert partner[0].tolist() == [1, 0, 3, 2, 4, 5]


def test_a_layer_without_profiles_has_no_pairs():
    known = profiles(0)
    known[1] = np.nan
    found = match_heads(known, known)
    assert found.rule == "number"
    assert found.partner.tolist() == np.broadcast_to(np.arange(known.shape[1]), known.shape[:2]).tolist()
