"""Weights mixed up, made equal, erased (mathematics.md, Are weights an explanation?)."""

import numpy as np
import pytest

from attnscope.intervention.arrays import erased_weights, permuted_weights, uniform_weights

CAUSAL = np.tril(np.ones((7, 7), dtype=bool))


def random_weights(allowed=CAUSAL, seed=0):
    raw = np.random.default_rng(seed).exponential(size=allowed.shape) * allowed
    return raw / raw.sum(1, keepdims=True)


def test_a_permutation_keeps_what_a_row_holds_and_what_it_may_not_see():
    weights = random_weights()
    shuffled = permuted_weights(weights, np.random.default_rng(1), CAUSAL)
    np.testing.assert_array_equal(np.sort(shuffled, 1), np.sort(weights, 1))
    assert not shuffled[~CAUSAL].any()
    assert (shuffled != weights).any()


def test_all_permutations_are_equally_likely():
    found = permuted_weights(np.tile([0.5, 0.3, 0.2], (6000, 1)), np.random.default_rng(0))
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # chi-squared of 5 degrees of freedom, 0.001


def test_uniform_weights_are_equal_over_what_is_seen():
    weights = 0.8 * random_weights()  # a learned sink takes the rest
    np.testing.assert_allclose(uniform_weights(weights, CAUSAL), 0.8 * CAUSAL / CAUSAL.sum(1, keepdims=True))


def test_i18_erasing_one_key_moves_the_output_by_its_odds():
    rng = np.random.default_rng(4)
    weights, values = random_weights(np.ones((5, 7), dtype=bool)), rng.normal(size=(7, 3))
    before = weights @ values
    for key in range(7):
        erased = erased_weights(weights, np.tile(np.arange(7) == key, (5, 1)).astype(float), 1 / 7)
        odds = (weights[:, key] / (1 - weights[:, key]))[:, None]
        np.testing.assert_allclose(erased @ values - before, odds * (before - values[key]), atol=1e-12)


@pytest.mark.parametrize(("fraction", "left"), [(0.0, 10), (0.1, 9), (0.25, 7), (0.5, 5), (0.99, 0), (1.0, 0)])
def test_a_fraction_is_of_the_keys_that_are_seen(fraction, left):
    allowed = np.zeros((1, 14), dtype=bool)
    allowed[0, :10] = True
    weights = random_weights(allowed)
    erased = erased_weights(weights, weights, fraction, allowed)
    assert (erased > 0).sum() == left
    if left:
        assert erased.sum() == pytest.approx(1)
        np.testing.assert_array_equal(np.sort(np.argsort(-weights[0])[10 - left : 10]), np.flatnonzero(erased[0]))


def test_where_only_zeros_are_left_the_row_is_zero():
    assert not erased_weights(np.array([[1.0, 0.0]]), np.array([[1.0, 0.0]]), 0.5).any()
