"""The cross-spectrum of queries and keys: the shift at each frequency, and the line through the phases."""

from functools import partial

import numpy as np
import pytest

from attnscope.explanation.arrays.correlation import cross_spectrum
from tests.explanation.planted_waves import planted, roberta


def test_the_cross_spectrum_is_the_dft_of_the_circular_trace():
    """Mechanism F13."""
    model = planted(noise=0.5, content=0.4)
    found = cross_spectrum(model.inputs, model.query, model.key)
    scores, length = model.scores, len(model.inputs)
    circular = [np.trace(scores, offset=t) + (np.trace(scores, offset=t - length) if t else 0) for t in range(length)]
    expected = np.fft.rfft(circular)
    cross = found.cross_amplitude.values * np.exp(1j * found.phase.values)
    np.testing.assert_allclose(cross, expected, atol=1e-11 * np.abs(expected).max())


MODELS = {
    "clean": planted,
    "noise": partial(planted, noise=0.05, content=0.3),
    "to the right": partial(planted, offset=3),
    "none": partial(planted, offset=0),
    "far": partial(planted, offset=-25),
    "roberta, noise": partial(roberta, noise=0.05, content=0.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_shift_is_recovered_at_every_planted_frequency(name):
    """Mechanism F14. Beyond the wrap-around limit of a single frequency too ("far")."""
    model = MODELS[name]()
    found = cross_spectrum(model.inputs, model.query, model.key)
    at = found.sel(frequency=list(model.frequencies))
    tolerance = 1e-10 if name in {"clean", "to the right", "none", "far"} else 0.05
    np.testing.assert_allclose(at.offset, model.offset, atol=tolerance)
    np.testing.assert_allclose(at["shift"], -at.offset)
    assert float(found.band_offset) == pytest.approx(model.offset, abs=tolerance)
    if name == "far":
        assert (at.wrap_limit < 25).all()
        assert (np.abs(at.phase) < np.pi).all()


@pytest.mark.parametrize("build", [planted, roberta])
def test_the_shift_survives_a_perturbation_of_the_weights(build):
    """Mechanism F18: a random matrix of spectral norm 1 added to W_A moves the offset by less than 0.1."""
    model = build(noise=0.05, perturbation=1.0)
    found = cross_spectrum(model.inputs, model.query, model.key)
    assert float(found.band_offset) == pytest.approx(model.offset, abs=0.1)
    # a phase that is off by 1 / (2 sqrt(d) w), the noise in one plane, is off by T / (2 pi f) as many tokens
    frequency = np.array(model.frequencies)
    tokens = 3 * len(model.inputs) / (2 * np.pi * frequency) / (2 * np.sqrt(model.inputs.shape[1]) * 1.6)
    off = found.offset.sel(frequency=frequency) - model.offset
    assert (np.abs(off.values) < tokens).all()
    if build is roberta:
        assert float(np.abs(off).max()) < 0.1


def test_the_line_through_the_phases_and_its_errors():
    """A line's slope is a weighted sum of what it goes through, sum_i c_i y_i; its error is sqrt(sum_i c_i^2 r_i^2)."""
    model = planted(noise=0.2, content=0.3)
    found = cross_spectrum(model.inputs, model.query, model.key, band=(8, 60))
    length, inside = len(model.inputs), found.sel(frequency=found.in_band)
    frequency, weight = inside.frequency.values, np.sqrt(inside.cross_amplitude.values)
    phase = 2 * np.pi * frequency * inside["shift"].values / length
    line = np.polyfit(frequency, phase, 1, w=weight)
    parts = np.polyfit(frequency, np.eye(len(phase)), 1, w=weight)  # (slope and intercept, point)
    error = np.sqrt((parts**2 * (phase - np.polyval(line, frequency)) ** 2).sum(1))
    tokens = length / (2 * np.pi)
    assert float(found.slope_offset) == pytest.approx(-line[0] * tokens, rel=1e-9)
    assert float(found.slope_offset_error) == pytest.approx(error[0] * tokens, rel=1e-9)
    assert float(found.intercept) == pytest.approx(line[1], rel=1e-9)
    assert float(found.intercept_error) == pytest.approx(error[1], rel=1e-9)


def test_coherence_is_one_where_a_shift_is_planted():
    """Mechanism F15: elsewhere it is that of unrelated series."""
    model = planted(width=96, r=16, noise=0.2, perturbation=1.0)
    coherence = cross_spectrum(model.inputs, model.query, model.key).coherence
    planted_bins = coherence.frequency.isin(model.frequencies)
    assert float(coherence.where(planted_bins).min()) > 0.95
    assert float(coherence.where(~planted_bins).median()) < 0.5
    assert 0 <= float(coherence.min()) <= float(coherence.max()) <= 1


def test_one_shift_and_one_phase_are_distinguished():
    """A constant Delta is a line through 0; a constant phase is a level one."""
    shifted = planted(offset=-2, frequencies=(13, 19, 26, 31, 37))
    found = cross_spectrum(shifted.inputs, shifted.query, shifted.key)
    assert float(found.shift_concentration) == pytest.approx(1, abs=1e-12)
    assert float(found.phase_concentration) < 0.95
    assert float(found.slope_offset) == pytest.approx(-2, abs=1e-9)
    assert float(found.intercept) == pytest.approx(0, abs=1e-9)
    # the same waves, each turned by one angle
    turn = 0.8 * np.ones(5)
    plane = np.block([[np.diag(np.cos(turn)), np.diag(np.sin(turn))], [-np.diag(np.sin(turn)), np.diag(np.cos(turn))]])
    basis = np.linalg.lstsq(np.hstack(_waves(shifted)), shifted.inputs, rcond=None)[0]
    level = cross_spectrum(shifted.inputs, basis.T, basis.T @ plane)
    assert float(level.phase_concentration) == pytest.approx(1, abs=1e-12)
    assert float(level.slope_offset) == pytest.approx(0, abs=1e-9)
    assert abs(float(level.intercept)) == pytest.approx(0.8, abs=1e-9)


def test_a_single_frequency_gives_the_nearest_offset():
    """Mechanism F17: it cannot tell t0 from t0 + T / f."""
    model = planted(frequencies=(32,), weights=(2.0,), offset=-7, r=4)
    found = cross_spectrum(model.inputs, model.query, model.key, band=(32, 32))
    assert float(found.wrap_limit.sel(frequency=32)) == 4
    assert float(found.band_offset) == pytest.approx(1, abs=1e-9)  # -7 + 256 / 32
    assert np.isnan(float(found.slope_offset))


def _waves(model):
    angle = 2 * np.pi * np.outer(np.arange(len(model.inputs)), model.frequencies) / len(model.inputs)
    return np.cos(angle), np.sin(angle)
