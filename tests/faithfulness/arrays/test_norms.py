"""Norms of what tokens give, through a head and through a block (docs/mathematics.md, What weights miss)."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.intervention.arrays.block import block_norms, block_parts
from attnscope.intervention.arrays.changes import norm_weights

RNG = np.random.default_rng(0)
HEADS, TOKENS, R, WIDTH = 3, 6, 4, 12
A = RNG.dirichlet(np.ones(TOKENS), (HEADS, TOKENS))
X = RNG.normal(size=(TOKENS, WIDTH))
W_V, B_V = RNG.normal(size=(HEADS, WIDTH, R)), RNG.normal(size=(HEADS, 1, R))
W_O, B_O = RNG.normal(size=(HEADS, R, WIDTH)), RNG.normal(size=WIDTH)
V = X @ W_V + B_V
GAIN, SHIFT = RNG.normal(size=WIDTH), RNG.normal(size=WIDTH)


def layer_output():
    """Attention as a layer computes it."""
    return np.concatenate(list(A @ V), -1) @ W_O.reshape(-1, WIDTH) + B_O


def layer_norm(states):
    read, gain, shift = (torch.from_numpy(one) for one in (states, GAIN, SHIFT))
    return torch.nn.functional.layer_norm(read, (WIDTH,), gain, shift, 1e-5).numpy()


def rms_norm(states):
    return torch.nn.functional.rms_norm(torch.from_numpy(states), (WIDTH,), torch.from_numpy(GAIN), 1e-5).numpy()


def test_i13_what_the_keys_give_sums_to_the_output():
    parts = block_parts(A, V, W_O, np.zeros_like(X), bias=B_O)
    np.testing.assert_allclose(parts.attention.sum(1) + B_O, layer_output(), rtol=1e-10)
    alone = block_parts(A[:1], V[:1], W_O[:1], np.zeros_like(X))
    np.testing.assert_allclose(norm_weights(A[0], V[0], W_O[0]), np.linalg.norm(alone.attention, axis=-1), rtol=1e-10)


CASES = {
    "post": ({"norm": "layer", "gain": GAIN, "shift": SHIFT}, lambda made: layer_norm(made + X)),
    "post rms": ({"norm": "rms", "gain": GAIN}, lambda made: rms_norm(made + X)),
    "pre": ({}, lambda made: made + X),
    "inner": ({"norm": "rms", "gain": GAIN, "place": "attention"}, lambda made: rms_norm(made) + X),
    "inner layer": (
        {"norm": "layer", "gain": GAIN, "shift": SHIFT, "place": "attention"},
        lambda made: layer_norm(made) + X,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_i14_all_parts_sum_to_the_blocks_output(case):
    options, block = CASES[case]
    parts = block_parts(A, V, W_O, X, bias=B_O, **options)
    np.testing.assert_allclose(parts.total, block(layer_output()), atol=1e-12)
    found = block_norms(parts)
    other = parts.attention.sum(1) - parts.attention[range(TOKENS), range(TOKENS)]
    own = parts.attention[range(TOKENS), range(TOKENS)] + parts.residual
    mix, keep = np.linalg.norm(other, axis=1), np.linalg.norm(own, axis=1)
    np.testing.assert_allclose(found.mixing_ratio, mix / (mix + keep), rtol=1e-10)
    np.testing.assert_allclose(np.diag(found.norms), keep, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_i15_who_looks_at_itself_alone_mixes_nothing(case):
    own = np.tile(np.eye(TOKENS), (HEADS, 1, 1))
    found = block_norms(block_parts(own, V, W_O, X, bias=B_O, **CASES[case][0]))
    np.testing.assert_allclose(found.mixing_ratio, 0, atol=1e-12)
    np.testing.assert_allclose(found.norms - np.diag(np.diag(found.norms)), 0, atol=1e-12)


def test_across_texts_the_residual_stands_beside_all_keys():
    parts = block_parts(A[:, :2], V, W_O, X[:2])
    found = block_norms(parts, same_tokens=False)
    mix = np.linalg.norm(parts.attention.sum(1), axis=1)
    np.testing.assert_allclose(found.mixing_ratio, mix / (mix + np.linalg.norm(X[:2], axis=1)), rtol=1e-10)
    with pytest.raises(AttnscopeError, match="2 tokens in the queries and 6 in the keys"):
        block_norms(parts)


def test_a_sharp_look_at_nothing_weighs_nothing_and_a_faint_one_at_much_does():
    values = np.array([[0.0], [40.0], [1.0]])
    found = norm_weights(np.array([[0.9, 0.05, 0.05]]), values, np.ones((1, 4)))
    np.testing.assert_allclose(found, [[0.0, 4.0, 0.1]], atol=1e-12)


def test_bad_input_is_refused():
    with pytest.raises(AttnscopeError, match="a gain or shift and no norm"):
        block_parts(A, V, W_O, X, gain=GAIN)
    with pytest.raises(AttnscopeError, match="3 heads in weights and 2 in W_O"):
        block_parts(A, V, W_O[:2], X)
    with pytest.raises(AttnscopeError, match="4 columns in values and 3 in rows of W_O"):
        norm_weights(A[0], V[0], W_O[0, :3])
