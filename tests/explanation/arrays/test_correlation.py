"""Cross-correlation of queries and keys against its definition and against the scores."""

import numpy as np
import pytest

from attnscope.explanation.arrays.correlation import cross_correlation, profile_agreement
from attnscope.explanation.arrays.decomposition import reparametrize
from tests.explanation.planted_waves import planted, waves

LENGTH, COLUMNS = 30, 5
EPS = np.finfo(float).eps


def draw(seed=0, *, length=LENGTH, columns=COLUMNS, mean=0.7):
    rng = np.random.default_rng(seed)
    return (rng.normal(mean, 1, (length, columns)), rng.normal(-mean, 1, (length, columns)), rng.uniform(1, 3, columns))


def by_loops(query, key):
    length, columns = query.shape
    found = np.zeros((columns, 2 * length - 1))
    for t in range(1 - length, length):
        for i in range(length):
            if 0 <= i + t < length:
                found[:, t + length - 1] += query[i] * key[i + t]
    return found


def offset_trace(scores):
    """Sum and mean of a square matrix along each offset, from the lowest."""
    length = len(scores)
    trace = np.array([np.trace(scores, offset=t) for t in range(1 - length, length)])
    return trace, trace / (length - np.abs(np.arange(1 - length, length)))


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("length", [4, 5, 30, 33])
def test_covariance_equals_the_loops_for_both_signs(length):
    """Mechanism G1."""
    query, key, s = draw(length=length)
    found = cross_correlation(query, key, s)
    np.testing.assert_allclose(found.covariance, by_loops(query, key), atol=100 * EPS * length)
    assert found.offset.values.tolist() == list(range(1 - length, length))


def test_weighted_sum_is_the_trace_of_the_scores():
    """Mechanism G3, for every offset, and C1: np.trace has this sign."""
    query, key, s = draw()
    scores = (query * s) @ key.T
    found, (trace, mean) = cross_correlation(query, key, s), offset_trace(scores)
    np.testing.assert_allclose(found.trace, trace, atol=1e-12)
    np.testing.assert_allclose(found.trace_mean, mean, atol=1e-12)


def test_centring_keys_is_centring_the_rows_of_the_scores():
    """Mechanism G6, G6b, G7; attention is blind to it. Centring queries too removes what is the same in every row."""
    query, key, s = draw()
    scores = (query * s) @ key.T
    centred = scores - scores.mean(-1, keepdims=True)
    np.testing.assert_allclose(softmax(centred), softmax(scores), atol=1e-13)
    found = cross_correlation(query, key, s, mode="centre_k")
    np.testing.assert_allclose(found.trace, offset_trace(centred)[0], atol=1e-12)
    assert found.attrs["mode"] == "centre_k"
    both = cross_correlation(query, key, s, mode="centre_both")
    np.testing.assert_allclose(both.trace, offset_trace(centred - centred.mean(0))[0], atol=1e-12)


@pytest.mark.parametrize("frequency", [50, 10, 4, 1])
def test_the_taper_pulls_slow_waves_to_zero_and_dividing_by_it_does_not(frequency):
    """Mechanism G9: by min(|t0|, 1 / (w^2 T)) tokens; at f = 1 a planted -2 is reported as 0."""
    q = waves(512, (frequency,))
    angle = 2 * np.pi * frequency * 2 / 512
    k = q @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # k_i = q_(i + 2)
    found = cross_correlation(q, k)
    pull = min(2.0, 512 / (2 * np.pi * frequency) ** 2)
    moved = float(found.trace_peak_refined.sel(range="near")) + 2
    # the estimate of the pull is of first order in 1 / (w T); a parabola through a cosine adds w^2 / 24 of it
    assert moved == pytest.approx(pull, abs=0.15 * pull + 0.01)
    if frequency == 1:
        assert int(found.trace_peak_offset.sel(range="near")) == 0
    # without the taper the trace is a cosine about -2
    assert float(found.trace_peak_corrected) == pytest.approx(-2.0, abs=1e-6)


@pytest.mark.parametrize("shift", [-7, -2, 0, 1, 10])
def test_planted_shifts_are_found_exactly(shift):
    """Mechanism G10, with noise and words in the way."""
    for more in ({}, {"noise": 0.05}, {"noise": 0.05, "content": 0.3}):
        model = planted(offset=shift, **more)
        parts = reparametrize(model.query, model.key)
        found = cross_correlation(model.inputs @ parts.query, model.inputs @ parts.key, parts.values)
        assert found.trace_peak_offset.values.tolist() == [shift, shift]


def test_a_spike_is_distinguished_from_a_wave():
    rng = np.random.default_rng(0)
    slow = waves(256, (8,))[:, :1]
    smooth = np.convolve(rng.normal(size=256 + 4), np.ones(1), "valid")[:256, None]
    q = np.hstack([slow, smooth + 0.5 * slow])
    k = np.roll(q, -1, axis=0) * np.array([1.0, 1.0])
    found = cross_correlation(q, k)
    assert found.peak_offset.sel(range="near").values.tolist() == [-1, -1]
    assert found.quarter_period.values.tolist() == [8.0, 8.0]
    assert found.is_spike.values.tolist() == [False, True]
    # a wave falls to half its height a sixth of its period from the top on either side, sooner by the taper
    assert float(found.peak_width[0, 0]) == pytest.approx(32 / 3, rel=0.05)
    assert float(found.peak_width[1, 0]) < 3


def test_noise_is_not_clear():
    """Mechanism G.6: white noise has a scale of 1 / sqrt(T)."""
    rng = np.random.default_rng(0)
    found = cross_correlation(rng.normal(size=(512, 100)), rng.normal(size=(512, 100)))
    assert found.attrs["noise"] == pytest.approx(0.044, abs=5e-4)
    assert float(found.correlation.sel(offset=0).std()) == pytest.approx(found.attrs["noise"], rel=0.3)
    assert float(found.peak_clear.sel(range="near").mean()) < 0.01


def test_the_ends_are_no_peaks_and_columns_of_zeros_have_none():
    query, key = np.zeros((6, 2)), np.zeros((6, 2))
    query[0, 0], key[5, 0] = 1.0, 1.0
    found = cross_correlation(query, key)
    assert int(found.covariance[0].values.argmax()) == 10  # offset 5, the last: what lies beyond is not known
    assert np.isnan(found.peak_offset).all()
    assert np.isnan(found.peak_refined).all()
    assert np.isnan(found.correlation[1]).all()
    assert np.isnan(found.peak_height[1]).all()
    assert not found.peak_clear[1].any()
    assert not found.is_spike[1]


def test_profiles_agree_by_their_largest_and_their_order():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=21)
    weights = np.exp(scores)
    found = profile_agreement(weights, scores, band=10)
    assert found.equal_argmax
    assert float(found.spearman) == pytest.approx(1, abs=1e-14)
    assert float(profile_agreement(weights, -scores, band=10).spearman) == pytest.approx(-1, abs=1e-14)
    assert int(found.score_argmax) == scores.argmax() - 10
    assert np.isnan(profile_agreement(weights, 0 * scores, band=10).spearman)


def test_the_mean_over_offsets_is_a_constant():
    """Mechanism G4."""
    query, key, _ = draw()
    found = cross_correlation(query, key)
    size = np.linalg.norm(query, axis=0) * np.linalg.norm(key, axis=0)
    level = query.sum(0) * key.sum(0) / (2 * LENGTH - 1)
    expected = (found.covariance.values - level[:, None]) / size[:, None]
    np.testing.assert_allclose(found.correlation, expected, atol=1e-14)


def test_constants_leave_a_triangle():
    """Mechanism G8: removing the mean over offsets does not remove it; centring does."""
    query, key = np.full((LENGTH, 1), 2.0), np.full((LENGTH, 1), 3.0)
    found = cross_correlation(query, key)
    taper = LENGTH - np.abs(np.arange(1 - LENGTH, LENGTH))
    np.testing.assert_allclose(found.covariance[0], 6 * taper, rtol=1e-13)
    np.testing.assert_allclose(found.correlation[0], (taper - LENGTH**2 / (2 * LENGTH - 1)) / LENGTH, atol=1e-14)
    np.testing.assert_allclose(cross_correlation(query, key, mode="centre_k").trace, 0, atol=1e-12)
