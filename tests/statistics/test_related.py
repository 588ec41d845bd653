"""Two scores go together, or only their layers do."""

import numpy as np
import pytest
import scipy

from attnscope.statistics.agreement import related


def test_correlations_are_those_of_spearman_and_layers_alone_are_no_evidence():
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, 6, 8))
    second[2] = first[2] + 0.1 * generator.normal(size=8)
    found = related(first, second)
    assert found.whole == pytest.approx(scipy.stats.spearmanr(first.ravel(), second.ravel()).statistic)
    layers = [scipy.stats.spearmanr(first[layer], second[layer]).statistic for layer in range(6)]
    np.testing.assert_allclose(found.by_layer, layers)
    assert np.flatnonzero(found.p_by_layer < 0.05).tolist() == [2]
    depth = 5.0 * np.arange(6)[:, None]
    alone = related(generator.normal(size=(6, 8)) + depth, generator.normal(size=(6, 8)) + depth)
    assert alone.whole > 0.8
    assert alone.p > 0.05
    first[0], second[1, 0] = 1.0, np.nan  # equal scores, and a head without one
    assert np.isnan(related(first, second).by_layer[0])


def test_unrelated_scores_are_rarely_related():
    generator = np.random.default_rng(0)
    found = [related(*generator.normal(size=(2, 4, 6)), seed=seed) for seed in range(100)]
    assert np.mean([one.p < 0.05 for one in found]) <= 0.05 + 0.05
    assert np.mean([(one.p_by_layer < 0.05).any() for one in found]) <= 0.05 + 0.05
