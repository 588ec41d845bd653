"""Spectra of tables whose waves are known, and the levels of white noise."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from attnscope_yamamoto2023.arrays.spectrum import (
    amplitude_spectrum,
    fisher_g_test,
    fisher_tail,
    largest_mean,
    largest_quantile,
)

LENGTH = 512
EPS = np.finfo(float).eps


def wave(frequency, length=LENGTH):
    return np.cos(2 * np.pi * frequency * np.arange(length) / length)[:, None]


def noise(columns, *, length=LENGTH, sigma=0.02, seed=0):
    return np.random.default_rng(seed).normal(0, sigma, (length, columns))


def test_null_levels_are_those_of_berts_initialisation():
    """Mechanism D1: 0.401 and 0.243 / 0.533 for N(0, 0.02^2) over 512 positions."""
    found = amplitude_spectrum(noise(768))
    # each column's variance is known to sqrt(2 / 512); their mean over 768 columns to 0.2%
    for name, level in (("mean", 0.401), ("lower_quartile", 0.243), ("upper_quartile", 0.533)):
        assert float(found[f"null_{name}"]) == pytest.approx(level, rel=5e-3)
        # 255 x 768 amplitudes of relative spread about 0.5
        assert float(found[name][1:256].mean()) == pytest.approx(level, rel=5 * 0.5 / np.sqrt(255 * 768) + 2e-3)
    assert not found.is_peak.any()


def test_largest_of_many_white_columns():
    """Mechanism D2: 1.21 for N = 768, against simulation."""
    scale = np.full(768, 0.02 * np.sqrt(LENGTH))
    assert largest_mean(scale) == pytest.approx(1.21, abs=0.005)
    drawn = np.abs(np.fft.rfft(noise(768 * 8), axis=0))[1:256].reshape(255, 8, 768).max(-1)
    assert drawn.mean() == pytest.approx(largest_mean(scale), rel=5 * 0.1 / np.sqrt(drawn.size))
    assert (drawn < largest_quantile(scale, 0.9)).mean() == pytest.approx(0.9, abs=5 * np.sqrt(0.9 * 0.1 / drawn.size))
    assert largest_mean(np.zeros(3)) == largest_quantile(np.zeros(3), 0.5) == 0.0


@pytest.mark.parametrize("frequency", [1, 50, 255])
def test_whole_wave_has_amplitude_half_t_in_its_bin_only(frequency):
    """Mechanism D3."""
    found = amplitude_spectrum(wave(frequency))["mean"].values
    expected = np.zeros(257)
    expected[frequency] = LENGTH / 2
    # each term of the sum is off by the rounding of an angle up to 2 pi 255
    np.testing.assert_allclose(found, expected, atol=LENGTH * 2 * np.pi * 255 * EPS)


@pytest.mark.parametrize("length", [4, 15, 64])
def test_power_is_that_of_the_table(length):
    """Mechanism D4, Parseval."""
    table = noise(5, length=length)
    power = amplitude_spectrum(table).power.values
    once = power[0] + (power[-1] if length % 2 == 0 else 0)
    twice = power[1 : (length + 1) // 2].sum()
    assert (once + 2 * twice) / length == pytest.approx((table**2).sum(), rel=1e-13)


def table_of(amplitudes):
    """One column whose amplitudes are given, from frequency 0 to T/2."""
    return np.fft.irfft(np.array(amplitudes, dtype=float))[:, None]


@pytest.mark.parametrize(("slow", "peaks"), [(0.1, [20]), (100.0, [])])
def test_what_noise_of_the_same_variance_would_hide_is_no_peak(slow, peaks):
    amplitudes = np.full(33, 0.1)
    amplitudes[1], amplitudes[20] = slow, 0.5
    found = amplitude_spectrum(table_of(amplitudes))
    assert float(found.local_ratio[20]) == pytest.approx(5)
    assert np.flatnonzero(found.is_peak).tolist() == peaks


def test_a_falling_slope_has_no_peak():
    """Slow waves alone, as in GPT-1 and BART: every slow frequency is high above its local median, none a maximum."""
    frequency = np.arange(1, LENGTH // 2 + 1)
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 2 * np.pi, (len(frequency), 64))
    angle = 2 * np.pi * np.outer(np.arange(LENGTH), frequency) / LENGTH
    slope = frequency[:, None] ** -1.5 * np.exp(1j * phase)
    table = (np.exp(1j * angle) @ slope).real + noise(64, sigma=0.002)
    found = amplitude_spectrum(table)
    assert (found.local_ratio[3:5] > 2).all()
    assert not found.is_peak.any()
    above = amplitude_spectrum(table + 0.2 * wave(30))
    assert above.frequency[above.is_peak].values.tolist() == [30]


def test_a_line_is_removed_and_only_a_line():
    line = np.arange(LENGTH)[:, None] * 0.3 - 7
    found = amplitude_spectrum(line + wave(50), detrend="linear")
    # the least-squares line of a wave is not quite 0: it leaves about 6 / (pi f) amplitudes of slope
    assert float(found["mean"][50]) == pytest.approx(LENGTH / 2, rel=1e-2)
    assert int(found.peak_frequency[0]) == 50
    assert float(found.fisher_g[0]) > 0.99
    assert int(amplitude_spectrum(line + wave(50)).peak_frequency[0]) == 1
    assert float(amplitude_spectrum(line, detrend="linear")["mean"].max()) < LENGTH * 150 * 10 * EPS


def exact_tail(x, bins):
    x = Fraction(x)
    return float(
        sum((-1) ** (k - 1) * comb(bins, k) * (1 - k * x) ** (bins - 1) for k in range(1, bins + 1) if k * x < 1)
    )


@pytest.mark.parametrize("bins", [2, 3, 20, 255])
def test_fishers_tail_equals_rational_arithmetic(bins):
    """Mechanism D12, and below x = 0.015, where the sum in float64 fails."""
    x = np.unique(np.r_[1.0001 / bins, np.geomspace(1.01 / bins, 0.999, 25)])
    expected = np.array([exact_tail(one, bins) for one in x])
    np.testing.assert_allclose(fisher_tail(x, bins), expected, rtol=2e-9, atol=1e-300)


def test_fishers_tail_of_long_texts_near_its_lower_end():
    """There the terms reach 10^200 and float64 has nothing left; the tail is 1 - P(all below), 1 to 12 digits."""
    assert fisher_tail(np.array([1.5, 3.0]) / 2047, 2047) == pytest.approx([1.0, 1.0], abs=1e-12)
    x = (np.log(2047) + 2) / 2047
    # asymptotically 1 - exp(-m exp(-m x)); corrections of order ln(m)^2 / m
    assert fisher_tail(np.array([x]), 2047)[0] == pytest.approx(-np.expm1(-np.exp(-2)), rel=0.04)


def test_fishers_tail_at_the_published_point_and_at_its_ends():
    """Mechanism D12: the 1% point at m = 255 is 0.039."""
    at = fisher_tail(np.array([0.0385, 0.0395]), 255)
    assert at[0] > 0.01 > at[1]
    assert fisher_tail(np.array([1 / 255, 1.0, np.nan]), 255)[:2].tolist() == [1.0, 0.0]
    assert fisher_tail(np.array([1.0]), 1).tolist() == [1.0]
    # two frequencies: g is uniform on (1/2, 1)
    assert fisher_tail(np.array([0.6, 0.75]), 2) == pytest.approx([0.8, 0.5])


@pytest.mark.parametrize("length", [63, 64])
def test_fishers_probability_is_uniform_under_white_noise(length):
    found = fisher_g_test(noise(4000, length=length))
    for level in (0.01, 0.1, 0.5):
        error = np.sqrt(level * (1 - level) / 4000)
        assert float((found.fisher_p <= level).mean()) == pytest.approx(level, abs=4 * error)


def test_total_power_and_not_the_mean_survives_a_rotation():
    """Mechanism D5."""
    table = noise(8) + 0.1 * wave(50) @ np.eye(1, 8)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))[0]
    one, other = amplitude_spectrum(table), amplitude_spectrum(table @ turn)
    np.testing.assert_allclose(one.power, other.power, rtol=1e-11)
    assert abs(float(one["mean"][50] - other["mean"][50])) > 0.1 * float(one["mean"][50])


def test_the_local_ratio_leaves_the_frequency_itself_out():
    amplitudes = np.arange(1.0, 18.0) ** 2
    found = amplitude_spectrum(table_of(amplitudes), neighbours=1)
    np.testing.assert_allclose(found.local_ratio[2:-1], amplitudes[2:-1] / ((amplitudes[1:-2] + amplitudes[3:]) / 2))
