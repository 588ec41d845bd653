"""Weights through all layers (mathematics.md, Limits of weights)."""

import networkx as nx
import numpy as np
import pytest

from attnscope import AttnscopeError
from attnscope.intervention.arrays import attention_flow, rollout

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
