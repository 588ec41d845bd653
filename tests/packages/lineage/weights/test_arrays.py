"""Replacement weights and flow on bare arrays, against definitions, other solvers and identities."""

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.spatial.distance import jensenshannon

from attnscope import AttnscopeError
from attnscope_lineage.weights.arrays import (
    adversarial_weights,
    attention_flow,
    erased_weights,
    jensen_shannon,
    total_variation,
    uniform_weights,
)
from attnscope_lineage.weights.calls import Sides
from attnscope_lineage.weights.profiles import Rollout

# --- other weights with the same output (mathematics.md, Are weights an explanation?) ---


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


# --- weights mixed up, made equal, erased (mathematics.md, Are weights an explanation?) ---


CAUSAL = np.tril(np.ones((7, 7), dtype=bool))


def random_weights(allowed=CAUSAL, seed=0):
    raw = np.random.default_rng(seed).exponential(size=allowed.shape) * allowed
    return raw / raw.sum(1, keepdims=True)


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


# --- distances of distributions: bounds (mathematics.md, Are weights an explanation?), and cases by hand ---


def test_i8_each_bounds_the_other():
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.full(12, 0.2), 2000) for _ in range(2))
    tvd, jsd = total_variation(p, q), jensen_shannon(p, q)
    assert (jsd >= 0).all()
    assert (jsd <= np.log(2) + 1e-12).all()
    assert (tvd**2 / 2 <= jsd + 1e-12).all()
    assert (jsd <= tvd * np.log(2) + 1e-12).all()


def test_they_are_what_scipy_and_the_definition_say():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), (2, 5)), rng.dirichlet(np.ones(6), (2, 5))
    np.testing.assert_allclose(jensen_shannon(p, q), jensenshannon(p, q, axis=-1) ** 2, rtol=1e-9)
    events = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1)  # TVD is the largest difference of any event
    np.testing.assert_allclose(total_variation(p, q), np.abs((p - q) @ events).max(-1), rtol=1e-12)


# --- weights through all layers (mathematics.md, Limits of weights) ---


A = np.random.default_rng(0).dirichlet(np.full(7, 0.4), (3, 7))


def rollout(layers, residual=0.5):
    """The shares after each layer of one text."""
    rolled = Rollout(Sides(layers.shape[1], 0))
    return np.stack([rolled.step("self", (1 - residual) * torch.from_numpy(layer), residual) for layer in layers])


def test_i11_rollout_keeps_the_sums_of_rows_and_knows_who_looks_at_itself():
    np.testing.assert_allclose(rollout(A).sum(-1), 1, rtol=1e-12)
    np.testing.assert_array_equal(rollout(np.tile(np.eye(7), (3, 1, 1)))[-1], np.eye(7))
    equal = rollout(np.full((60, 7, 7), 1 / 7))[-1]
    np.testing.assert_allclose(equal, 1 / 7, atol=1e-12)
    np.testing.assert_allclose(rollout(A, residual=0.0)[-1], A[2] @ A[1] @ A[0], rtol=1e-12)


def test_rollout_counts_paths():
    """A chain that looks one back: after two layers, binomial shares."""
    chain = np.eye(5, k=-1)
    chain[0, 0] = 1
    np.testing.assert_allclose(rollout(np.tile(chain, (2, 1, 1)))[-1][4], [0, 0, 0.25, 0.5, 0.25])


def test_i12_the_flow_through_one_layer_is_the_layer():
    np.testing.assert_allclose(attention_flow(A[:1]), 0.5 * np.eye(7) + 0.5 * A[0], atol=1e-12)


def test_i12b_flow_lies_between_rollout_and_one_and_is_the_smallest_cut():
    found = attention_flow(A, [0, 4])
    assert (found >= rollout(A)[-1][[0, 4]] - 1e-12).all()
    assert (found <= 1 + 1e-12).all()
    assert (found > rollout(A)[-1][[0, 4]] + 1e-3).any()
    graph = nx.DiGraph()
    for layer, matrix in enumerate(0.5 * np.eye(7) + 0.5 * A):
        for i, j in np.ndindex(7, 7):
            graph.add_edge((layer + 1, i), (layer, j), capacity=matrix[i, j])
    cut, _ = nx.minimum_cut(graph, (3, 4), (0, 2))
    assert found[1, 2] == pytest.approx(cut)


def test_flow_says_its_limit():
    with pytest.raises(AttnscopeError, match="found 65 tokens; attention flow takes at most 64"):
        attention_flow(np.full((1, 65, 65), 1 / 65))
    with pytest.raises(AttnscopeError, match="at most 6"):
        attention_flow(A, limit=6)
