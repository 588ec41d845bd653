"""Heads find their partners: by number where models are kin, by profile where they are not."""

import numpy as np
import pytest

from attnscope.difference import match_heads


def profiles(seed, layers=4, heads=6):
    return np.random.default_rng(seed).dirichlet(np.full(9, 0.3), (layers, heads))


def test_a_tuned_model_keeps_its_numbers():
    before = profiles(0)
    after = 0.8 * before + 0.2 * profiles(1)
    partner, rule = match_heads(before, after)
    assert rule == "number"
    assert (partner == np.arange(6)).all()


@pytest.mark.parametrize("seed", range(5))
def test_permuted_heads_are_found_again(seed):
    before, generator = profiles(seed), np.random.default_rng(seed + 100)
    orders = np.stack([generator.permutation(6) for _ in range(4)])
    after = np.take_along_axis(before, orders[..., None], 1) + generator.normal(0, 0.005, before.shape)
    partner, rule = match_heads(before, after, matching="profile")
    assert rule == "profile"
    np.testing.assert_array_equal(
        np.take_along_axis(orders, partner, 1), np.broadcast_to(np.arange(6), (4, 6))
    )


def test_models_that_are_no_kin_are_rarely_taken_for_it():
    rules = [match_heads(profiles(seed), profiles(seed + 1000), seed=seed)[1] for seed in range(200)]
    assert np.mean([rule == "number" for rule in rules]) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)


def test_layers_of_fewer_heads_keep_to_those_they_have():
    before = profiles(3)
    before[0, 4:] = np.nan
    partner, _ = match_heads(before, before[:, [1, 0, 3, 2, 4, 5]], matching="profile")
    assert partner[0].tolist() == [1, 0, 3, 2, 4, 5]
