"""The decomposition of W_Q W_K^T."""

import numpy as np

from attnscope.explanation.arrays.decomposition import append_one, reparametrize

EPS = np.finfo(float).eps
WIDTH, R, LENGTH = 40, 6, 64


def head(seed=0, *, width=WIDTH, r=R):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(width, r)), rng.normal(size=(width, r)), rng.normal(size=(LENGTH, width))


def test_the_decomposition_is_that_of_the_whole_matrix():
    """Mechanism E1, E1b: values and, up to joint signs, vectors."""
    query, key, _ = head()
    found = reparametrize(query, key)
    left, values, right = np.linalg.svd(query @ key.T)
    np.testing.assert_allclose(found.values, values[:R], rtol=1e-13)
    sign = np.sign((left[:, :R] * found.query).sum(0))
    # vectors are known to eps s_1 over the gap of their value
    gap = np.abs(np.diff(values[: R + 1])).min() / values[0]
    np.testing.assert_allclose(found.query, left[:, :R] * sign, atol=100 * EPS / gap)
    np.testing.assert_allclose(found.key, right[:R].T * sign, atol=100 * EPS / gap)
    assert found.dropped == 0
    assert found.group.tolist() == list(range(R))


def test_columns_lost_in_rounding_are_dropped():
    """Mechanism E5: beyond the rank, singular values are rounding noise."""
    query, key, _ = head()
    query[:, 4] = query[:, 0] + query[:, 1]
    found = reparametrize(query, key)
    assert (len(found.values), found.dropped) == (R - 1, 1)
    rest = np.linalg.svd(query @ key.T, compute_uv=False)[R - 1 :]
    assert rest.max() < WIDTH * EPS * found.values[0]


def test_only_the_product_of_the_weights_matters():
    """Mechanism E3."""
    query, key, _ = head()
    mix = np.random.default_rng(9).normal(size=(R, R))
    one, other = reparametrize(query, key), reparametrize(query @ mix, key @ np.linalg.inv(mix).T)
    loss = 100 * np.linalg.cond(mix) * EPS
    np.testing.assert_allclose(one.values, other.values, rtol=loss)
    gap = np.abs(np.diff(one.values)).min() / one.values[0]
    np.testing.assert_allclose(one.query, other.query, atol=loss / gap)
    np.testing.assert_allclose(one.key, other.key, atol=loss / gap)


def test_biases_are_part_of_the_affine_weights():
    """Mechanism A6."""
    query, key, inputs = head()
    rng = np.random.default_rng(3)
    query_bias, key_bias = rng.normal(size=R), rng.normal(size=R)
    scores = (inputs @ query + query_bias) @ (inputs @ key + key_bias).T
    found = reparametrize(np.vstack([query, query_bias]), np.vstack([key, key_bias]))
    extended = append_one(inputs)
    again = (extended @ found.query * found.values) @ (extended @ found.key).T
    np.testing.assert_allclose(again, scores, atol=1e-13 * np.abs(scores).max())


def test_a_head_of_zeros_has_no_columns():
    decomposed = reparametrize(np.zeros((8, 3)), np.ones((8, 3)))
    assert decomposed.query.shape == decomposed.key.shape == (8, 0)
    assert decomposed.dropped == 3
