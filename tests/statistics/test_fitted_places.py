"""The table of weights with given sums of rows and places: found again where it was made, in both kinds of array."""

import numpy as np
import pytest
import torch

from attnscope.measure.rows import fitted_places, row_factors

HEADS, ROWS, PLACES = 3, 12, 5


@pytest.fixture
def planted():
    """Sums of places and of rows of heads that know the place alone, with the counts, and their weights by place."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, (ROWS, PLACES)).astype(float)
    share, mass = rng.gamma(1.0, size=(HEADS, PLACES)), rng.uniform(0.5, 1.0, (HEADS, ROWS))
    weights = share[:, None] * counts
    weights *= (mass / weights.sum(-1))[..., None]
    return weights.sum(1), mass, counts, weights


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_planted_table_is_found_again(planted, kind):
    *given, weights = planted
    share, _ = fitted_places(*map(kind, given))
    row = row_factors(share, *map(kind, given[1:]))
    found = row[..., None] * share[:, None] * kind(given[2])
    np.testing.assert_allclose(found, weights, atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), given[1], rtol=1e-12)
