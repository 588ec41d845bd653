"""How well an estimate ranks heads: the right value, and a chance that is right where it ranks nothing."""

import numpy as np
import pytest
from scipy import stats

from attnscope.intervention.effects import order_agreement


def test_an_order_of_noise_is_rarely_called_sure():
    generator = np.random.default_rng(0)
    pairs = generator.standard_t(3, size=(400, 2, 8, 12))
    chances = [order_agreement(*pair, seed=0)[1] for pair in pairs]
    assert 0.02 < np.mean(np.array(chances) < 0.05) < 0.08


def test_it_is_of_means_over_texts():
    generator = np.random.default_rng(1)
    truth = generator.normal(size=12)
    first, other = (truth + generator.normal(size=(9, 12)) for _ in range(2))
    own, chance = order_agreement(first, other, seed=0)
    assert own == pytest.approx(stats.spearmanr(first.mean(0), other.mean(0)).statistic)
    assert chance < 0.01
