"""Other weights with the same output (mathematics.md, Are weights an explanation?)."""

import numpy as np
import pytest
from scipy.optimize import minimize

from attnscope import AttnscopeError
from attnscope.intervention.arrays import adversarial_weights


def planted(keys=128, width=16, seed=0, concentration=1.0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(keys, concentration), 1), rng.normal(size=(keys, width))


def test_i9_the_top_weight_goes_to_nothing_and_the_output_stays():
    weights, values = planted()
    found = adversarial_weights(weights, values)
    assert found.top_before.item() == weights.max() > 0.03
    assert found.top_after.item() == 0
    assert found.jsd.item() > 0.3
    assert found.is_free.item()
    new = found.weights.values
    assert (new >= 0).all()
    np.testing.assert_allclose(new.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(new @ values, weights @ values, atol=1e-12)
    assert (new > 0).sum() <= 17  # a vertex: no more keys than equations


def test_i9b_few_keys_in_general_position_have_one_answer():
    weights, values = planted(keys=9, width=8)
    for objective in ("top_weight", "distance"):
        found = adversarial_weights(weights, values, objective=objective)
        assert not found.is_free.item()
        np.testing.assert_allclose(found.weights.values, weights, atol=1e-9)


def test_equal_values_let_all_weight_go_elsewhere():
    found = adversarial_weights(np.array([[0.9, 0.1, 0.0]]), np.ones((3, 2)), objective="distance")
    assert found.tvd.item() == pytest.approx(1.0)
    assert found.jsd.item() == pytest.approx(np.log(2))


def test_the_minimum_is_that_of_another_solver():
    weights, values = planted(keys=8, width=3, seed=5)
    top = int(weights.argmax())
    found = adversarial_weights(weights, values)
    other = minimize(
        lambda point: point[top],
        weights[0],
        bounds=[(0, None)] * 8,
        constraints=[
            {"type": "eq", "fun": lambda point: np.column_stack([values, np.ones(8)]).T @ (point - weights[0])}
        ],
        method="SLSQP",
    )
    assert found.top_after.item() == pytest.approx(other.fun, abs=1e-6)


def test_hidden_keys_stay_hidden():
    weights, values = planted(keys=40, width=4)
    allowed = np.arange(40)[None] < 20
    weights = np.where(allowed, weights, 0)
    weights /= weights.sum()
    found = adversarial_weights(weights, values, allowed=allowed)
    assert not found.weights.values[~allowed].any()
    assert found.is_free.item()


def test_a_text_that_is_too_long_is_rejected():
    with pytest.raises(AttnscopeError, match="found 3000 keys; the linear program takes at most 2048"):
        adversarial_weights(np.full((1, 3000), 1 / 3000), np.ones((3000, 2)))
