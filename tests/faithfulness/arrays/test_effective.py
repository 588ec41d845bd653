"""Effective attention and what the output determines (docs/mathematics.md, What weights miss)."""

import itertools

import numpy as np
import pytest

from attnscope import AttnscopeError
from attnscope.intervention.arrays.effective import effective_attention, identifiability

RNG = np.random.default_rng(0)
CAUSAL = np.tril(np.ones((24, 24), dtype=bool))


def planted(rank=5, keys=24, width=8):
    """V of a known rank."""
    rng = np.random.default_rng(1)
    return rng.dirichlet(np.ones(keys), keys), rng.normal(size=(keys, rank)) @ rng.normal(size=(rank, width))


@pytest.mark.parametrize("with_ones", [False, True])
def test_i10_the_output_is_the_same_and_no_weights_that_give_it_are_smaller(with_ones):
    weights, values = planted()
    found = effective_attention(weights, values, with_ones=with_ones).weights.values
    kept = np.column_stack([values, np.ones(24)]) if with_ones else values
    np.testing.assert_allclose(found @ kept, weights @ kept, atol=1e-12)
    np.testing.assert_allclose(found, weights @ kept @ np.linalg.pinv(kept), atol=1e-12)
    for _ in range(20):  # anything that adds nothing to the output makes it longer
        nothing = RNG.normal(size=weights.shape) @ (np.eye(24) - kept @ np.linalg.pinv(kept))
        assert (np.linalg.norm(found + nothing, axis=1) > np.linalg.norm(found, axis=1)).all()


def test_i10b_rows_keep_their_sum_only_with_the_ones():
    weights, values = planted()
    plain, summed = (effective_attention(weights, values, with_ones=ones).weights.sum("key") for ones in (False, True))
    assert (abs(plain - 1) > 1e-3).any()
    np.testing.assert_allclose(summed, 1, atol=1e-12)


def test_i10c_the_null_space_has_the_dimension_that_the_rank_leaves():
    weights, values = planted(rank=5)
    found = effective_attention(weights, values)
    assert set(found["rank"].values.tolist()) == {5}
    shares = 1 - (found.weights**2).sum("key").values / (weights**2).sum(1)
    np.testing.assert_allclose(found.null_share, shares, atol=1e-12)
    assert identifiability(values)["rank"].item() == 5
    assert identifiability(values).free_dimensions.item() == 24 - 6
    full = effective_attention(weights, RNG.normal(size=(24, 24)))
    np.testing.assert_allclose(full.weights, weights, atol=1e-9)
    np.testing.assert_allclose(full.null_share, 0, atol=1e-12)


def test_i10d_the_output_projection_takes_nothing_more_where_its_rows_are_independent():
    weights, values = planted()
    through = values @ RNG.normal(size=(8, 32))
    np.testing.assert_allclose(
        effective_attention(weights, through).weights, effective_attention(weights, values).weights, atol=1e-12
    )


def test_behind_a_mask_each_row_has_the_values_that_it_sees():
    weights, values = planted()
    weights = np.where(CAUSAL, weights, 0)
    found = effective_attention(weights, values, allowed=CAUSAL)
    assert not found.weights.values[~CAUSAL].any()
    assert found["rank"].values.tolist() == [min(row + 1, 5) for row in range(24)]
    for row in range(24):
        alone = effective_attention(weights[[row], : row + 1], values[: row + 1])
        np.testing.assert_allclose(found.weights[row, : row + 1], alone.weights[0], atol=1e-12)
    np.testing.assert_allclose(found.null_share[:5], 0, atol=1e-12)
    free = identifiability(values, CAUSAL)
    assert free.free_dimensions.values.tolist() == [max(0, row + 1 - 6) for row in range(24)]


def test_the_null_is_the_mean_over_all_permutations():
    weights, values = np.array([[0.6, 0.3, 0.1, 0.0, 0.0]]), RNG.normal(size=(5, 2))
    allowed = np.array([[True, True, True, True, False]])
    every = [
        effective_attention(np.array([[*order, 0.0]]), values, allowed=allowed).null_share.item()
        for order in itertools.permutations(weights[0, :4])
    ]
    found = effective_attention(weights, values, allowed=allowed)
    assert found.null_share_permuted.item() == pytest.approx(np.mean(every), abs=1e-12)


def test_the_tolerance_decides_what_counts_as_zero():
    values = np.diag([1.0, 1e-3, 1e-9])
    assert [identifiability(values, tolerance=limit)["rank"].item() for limit in (1e-12, 1e-6, 1e-2)] == [3, 2, 1]
    assert identifiability(values.astype(np.float32))["rank"].item() == 2  # beyond what single precision holds


def test_values_of_zero_determine_nothing():
    found = effective_attention(np.full((1, 3), 1 / 3), np.zeros((3, 2)))
    assert (found["rank"].item(), found.null_share.item(), found.weights.values.tolist()) == (0, 1.0, [[0.0] * 3])


def test_bad_input_is_refused():
    with pytest.raises(AttnscopeError, match="values has 1 entries of 4 that are NaN"):
        effective_attention(np.eye(2), np.array([[1.0, np.nan], [0.0, 1.0]]))
    with pytest.raises(AttnscopeError, match="2 keys in weights and 3 in values"):
        effective_attention(np.eye(2), np.ones((3, 2)))
