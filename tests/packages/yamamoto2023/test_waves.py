"""The waves in the columns of W_Q W_K^T."""

import numpy as np
import pytest

from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope_yamamoto2023.arrays.spectrum import maximum_spectrum, query_key_waves
from tests.explanation.planted_waves import planted, waves

EPS = np.finfo(float).eps
WIDTH, R, LENGTH = 40, 6, 64


def head(seed=0, *, width=WIDTH, r=R):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(width, r)), rng.normal(size=(width, r)), rng.normal(size=(LENGTH, width))


def test_a_head_of_zeros_has_no_columns():
    found = reparametrize(np.zeros((8, 3)), np.ones((8, 3)))
    assert found.query.shape == found.key.shape == (8, 0)
    assert found.dropped == 3
    waves_of = query_key_waves(np.random.default_rng(0).normal(size=(16, 8)), np.zeros((8, 3)), np.ones((8, 3)))
    assert int(waves_of.periodic_columns) == 0
    assert waves_of.sizes["column"] == 0


def test_nearly_equal_singular_values_are_grouped():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    values = np.array([5.0, 4.0, 3.999, 3.998, 2.0, 1.99])
    found = reparametrize(basis[:, :6] * values, basis[:, 6:])
    assert found.group.tolist() == [0, 1, 1, 1, 2, 3]
    noted = query_key_waves(np.random.default_rng(1).normal(size=(16, 12)), basis[:, :6] * values, basis[:, 6:])
    assert noted.near_degenerate.values.tolist() == [False, True, True, True, False, False]


def test_importance_is_the_norm_of_a_columns_part_of_the_scores():
    """Mechanism E6."""
    query, key, inputs = head()
    found, parts = query_key_waves(inputs, query, key, permutations=0), reparametrize(query, key)
    for column in range(R):
        part = parts.values[column] * np.outer(inputs @ parts.query[:, column], inputs @ parts.key[:, column])
        assert float(found.importance[column]) == pytest.approx(np.linalg.norm(part), rel=1e-12)
    assert found.null_periodic_columns.size == 0


def test_planted_waves_are_counted_and_paired():
    model = planted(noise=0.05, content=0.5)
    found = query_key_waves(model.inputs, model.query, model.key)
    wave = found.isel(column=slice(10))
    # strongest first: each weight is that of a cosine and a sine
    assert wave.query_frequency.values.tolist() == np.repeat(model.frequencies, 2).tolist()
    assert wave.key_frequency.values.tolist() == np.repeat(model.frequencies, 2).tolist()
    assert wave.periodic.all()
    assert wave.partner.values.tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]
    assert int(found.periodic_columns) == 10
    assert float(found.null_periodic_columns.mean()) <= 2 * found.attrs["level"] * 16
    apart = np.abs(np.angle(np.exp(1j * (wave.query_phase.values[::2] - wave.query_phase.values[1::2]))))
    np.testing.assert_allclose(apart, np.pi / 2, atol=0.1)


def test_smooth_text_is_periodic_by_white_noise_but_not_in_another_order():
    """Mechanism E.4: why rows are permuted. A random walk has no wave, but slow power."""
    walk = np.cumsum(np.random.default_rng(0).normal(size=(256, 8)), axis=0)
    found = query_key_waves(walk, np.eye(8), np.eye(8), lowest=1)
    assert int(found.periodic_columns) == 8
    assert float(found.null_periodic_columns.mean()) < 1


def test_maximum_spectrum_is_the_largest_and_names_its_column():
    columns = np.random.default_rng(0).normal(size=(LENGTH, 30)) + 2 * waves(LENGTH, (9,))[:, :1] * np.eye(1, 30, 17)
    found = maximum_spectrum(columns)
    each = np.abs(np.fft.rfft(columns, axis=0))
    np.testing.assert_allclose(found.maximum, each.max(1), rtol=1e-12)
    assert int(found.strongest_column[9]) == 17
    above = found.frequency[1:32][found.maximum[1:32] > found.null_99]
    assert 9 in above.values
    assert above.size <= 3


def test_slow_waves_are_not_called_periodic():
    model = planted(frequencies=(1, 2, 20), weights=(3.0, 2.5, 2.0))
    found = query_key_waves(model.inputs, model.query, model.key)
    fast = found.query_frequency >= 3
    assert int(found.query_frequency.min()) == 1
    assert not found.periodic[~fast].any()
    assert int(query_key_waves(model.inputs, model.query, model.key, lowest=1).periodic.sum()) > int(
        found.periodic.sum()
    )


def test_the_level_of_a_maximum_follows_each_columns_variance():
    rng = np.random.default_rng(1)
    columns = rng.normal(size=(512, 200)) * rng.uniform(0.1, 3, 200)
    found = maximum_spectrum(columns)
    inner = found.maximum[1:256]
    assert float(inner.mean()) == pytest.approx(float(found.null_mean), rel=5 * 0.15 / np.sqrt(255))
    assert float((inner > found.null_99).mean()) < 0.04
