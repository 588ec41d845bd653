"""Weights through all layers (docs/mathematics.md, What weights miss)."""

import networkx as nx
import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.intervention.arrays.paths import attention_flow, gradient_attention, rollout

A = np.random.default_rng(0).dirichlet(np.full(7, 0.4), (3, 7))


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


def linear_read_out(weights, values, read):
    """y = sum of read * (A V): linear in A."""
    return (read * (weights @ values)).sum()


def test_i16_of_a_linear_read_out_gradient_times_attention_sums_to_the_value():
    rng = np.random.default_rng(1)
    weights = torch.from_numpy(rng.dirichlet(np.ones(5), (1, 2, 5))).requires_grad_()
    values, read = torch.from_numpy(rng.normal(size=(2, 5, 3))), torch.from_numpy(rng.normal(size=(2, 5, 3)))
    value = linear_read_out(weights, values, read)
    (gradient,) = torch.autograd.grad(value, weights)
    assert float((weights * gradient).sum().detach()) == pytest.approx(float(value.detach()))  # no b_O here
    each, gradient = weights.detach().numpy(), gradient.numpy()
    for place in [(0, 0, 1, 2), (0, 1, 4, 0)]:  # by finite differences
        moved = each.copy()
        moved[place] += 1e-4
        change = linear_read_out(torch.from_numpy(moved), values, read) - linear_read_out(
            torch.from_numpy(each), values, read
        )
        assert float(change) / 1e-4 == pytest.approx(gradient[place], rel=1e-8)
    kept = np.maximum(each * gradient, 0).mean(1)[0]
    np.testing.assert_allclose(gradient_attention(each, gradient)[-1], np.eye(5) + kept, rtol=1e-12)


def test_relevance_goes_through_all_layers():
    weights = np.random.default_rng(2).dirichlet(np.ones(4), (3, 2, 4))
    gradients = np.random.default_rng(3).normal(size=weights.shape)
    each = np.maximum(weights * gradients, 0).mean(1)
    found = gradient_attention(weights, gradients)[-1]
    one = np.eye(4)
    np.testing.assert_allclose(found, (one + each[2]) @ (one + each[1]) @ (one + each[0]), rtol=1e-12)
    np.testing.assert_array_equal(gradient_attention(weights, -np.ones_like(weights))[-1], one)


def test_bad_input_is_refused():
    with pytest.raises(AttnscopeError, match="gradients of shape"):
        gradient_attention(A[None], A[None, :1])
    with pytest.raises(AttnscopeError, match="7 tokens in the queries and 6 in the keys"):
        rollout(A[:, :, :6])
    with pytest.raises(AttnscopeError, match="residual"):
        rollout(A, residual=2.0)
