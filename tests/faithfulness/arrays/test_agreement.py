"""Ranks of weights beside ranks of importance."""

import itertools

import numpy as np
import pytest

from attnscope.intervention.arrays import rank_agreement


def test_weights_of_a_linear_model_agree_with_its_gradient():
    """y = sum of a_j w . x_j with a fixed: the gradient at x_j is a_j w, so that ranks agree in full."""
    rng = np.random.default_rng(0)
    weights, read = rng.dirichlet(np.ones(9), 4), rng.normal(size=5)
    gradient = np.linalg.norm(weights[:, :, None] * read, axis=-1)
    np.testing.assert_allclose(rank_agreement(weights, gradient)[0], 1)
    np.testing.assert_allclose(rank_agreement(weights, -gradient)[0], -1)


def test_tau_and_its_chance_by_all_orders():
    weights, importance = np.array([[0.5, 0.3, 0.15, 0.05]]), np.array([[4.0, 1.0, 3.0, 2.0]])

    def tau(one, other):
        pairs = itertools.combinations(range(4), 2)
        return sum(np.sign((one[i] - one[j]) * (other[i] - other[j])) for i, j in pairs) / 6

    found = rank_agreement(weights, importance)
    here = tau(weights[0], importance[0])
    assert found[0].item() == pytest.approx(here)
    every = [tau(order, importance[0]) for order in itertools.permutations(weights[0])]
    assert found[1].item() == pytest.approx(np.mean(np.abs(every) >= abs(here) - 1e-12))


def test_what_may_not_be_seen_or_is_not_known_does_not_count():
    weights, importance = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[3.0, 2.0, 1.0, 9.0]])
    assert rank_agreement(weights, importance)[0].item() < 1
    assert rank_agreement(weights, importance, np.array([[True, True, True, False]]))[0].item() == pytest.approx(1)
    importance[0, 3] = np.nan
    assert rank_agreement(weights, importance)[0].item() == pytest.approx(1)


def test_where_there_is_nothing_to_rank_there_is_no_tau():
    found = rank_agreement(np.array([[0.5, 0.5], [0.9, 0.1]]), np.ones((2, 2)))
    assert np.isnan(found[0]).all()
    assert np.isnan(rank_agreement(np.full((1, 4), 0.25), np.arange(4.0)[None])[1]).all()
