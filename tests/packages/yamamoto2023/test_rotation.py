"""The rotation between queries and keys, its completions, the shift it amounts to, and controls."""

import numpy as np
import pytest
from scipy.linalg import expm, null_space, subspace_angles

from attnscope.explanation.arrays.correlation import cross_spectrum
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope_yamamoto2023.arrays.phase_map import phase_map, shift_controls
from attnscope_yamamoto2023.arrays.rotation import COMPLETIONS, head_rotation
from tests.explanation.planted_waves import planted

WIDTH, R = 30, 5
FULL = ("minimal", "lapack", "haar")
CLOSE = 1e-12  # products of orthogonal matrices of some 30 to 100 rows


def head(seed=0, *, width=WIDTH, r=R):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(width, r)), rng.normal(size=(width, r))


def operator(rotation):
    """U_K U_Q^T as a matrix: the eigenvectors turned, the rest left alone."""
    w = rotation.vectors
    turned = (w * (rotation.moduli * np.exp(1j * rotation.angles))) @ w.conj().T
    return turned + np.eye(len(w)) * (rotation.parked > 0) - w @ w.conj().T * (rotation.parked > 0)


def active(rotation):
    return np.abs(np.sin(rotation.angles)) > 1e-6


@pytest.mark.parametrize("completion", FULL)
def test_every_completion_takes_query_directions_to_key_directions(completion):
    """Mechanism F3: U_K U_Q^T = V U^T + V_2 O U_2^T is orthogonal and maps u_j to v_j."""
    query, key = head()
    parts, turn = reparametrize(query, key), operator(head_rotation(query, key, completion=completion))
    np.testing.assert_allclose(turn.imag, 0, atol=CLOSE)
    np.testing.assert_allclose(turn @ turn.conj().T, np.eye(WIDTH), atol=CLOSE)
    np.testing.assert_allclose(turn @ parts.query, parts.key, atol=CLOSE)


@pytest.mark.parametrize(("width", "r"), [(30, 5), (96, 16), (12, 6), (10, 6), (8, 8)])
def test_the_minimal_completion_leaves_d_minus_2r_dimensions_alone(width, r):
    """Mechanism F2: d - 2r eigenvalues are 1. A map of determinant -1 has one more, and a -1."""
    dets = set()
    for seed in range(10):
        query, key = head(seed, width=width, r=r)
        found = head_rotation(query, key)
        assert found.parked == max(width - 2 * r, 0)
        assert len(found.angles) + found.parked == width
        np.testing.assert_allclose(found.moduli, 1, atol=CLOSE)
        if width >= 2 * r:
            det = round(np.linalg.det(operator(found)).real)
            real = np.sort(np.abs(found.angles[~active(found)]))
            np.testing.assert_allclose(real, [] if det == 1 else [0, np.pi], atol=1e-6)
            # it is the sign of det(U^T V)
            parts = reparametrize(query, key)
            assert det == np.sign(np.linalg.det(parts.query.T @ parts.key))
            dets.add(det)
    assert width < 2 * r or dets == {-1, 1}


@pytest.mark.parametrize("size", [1e-1, 1e-6, 1e-10])
def test_eigenvectors_of_nearly_equal_angles_are_orthonormal(size):
    """Keys turned against queries by tiny angles, whose cosines rounding cannot tell apart."""
    query, _ = head()
    rng = np.random.default_rng(1)
    skew = rng.normal(size=(WIDTH, WIDTH))
    key = expm(size * (skew - skew.T)) @ query
    found = head_rotation(query, key)
    vectors = found.vectors
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(vectors.shape[1]), atol=CLOSE)
    parts = reparametrize(query, key)
    np.testing.assert_allclose(operator(found) @ parts.query, parts.key, atol=1e-10)


def test_the_thin_block_has_eigenvalues_inside_the_disc():
    """Mechanism F6, F6b."""
    query, key = head()
    parts, found = reparametrize(query, key), head_rotation(query, key, completion="thin")
    assert (found.moduli <= 1 + CLOSE).all()
    assert found.moduli.max() < 0.99
    inner = parts.query.T @ parts.key
    cosines = np.linalg.svd(inner, compute_uv=False)
    np.testing.assert_allclose(np.sort(cosines), np.sort(np.cos(subspace_angles(parts.query, parts.key))), atol=CLOSE)
    assert found.least_cosine == pytest.approx(cosines.min(), abs=CLOSE)
    rest = null_space(parts.query.T).T @ null_space(parts.key.T)
    assert np.linalg.svd(rest, compute_uv=False).min() == pytest.approx(found.least_cosine, abs=CLOSE)


@pytest.mark.parametrize("offset", [-2, 1, 3])
def test_planted_offsets_are_minus_the_shift_of_every_eigenvector(offset):
    """Mechanism F9, F10: (K p)_i = (Q p)_(i + Delta) with Delta = -offset; the reverse does not hold."""
    model = planted(offset=offset, weights=(2.0, 1.8, 1.6, 1.4, 1.2), r=10)
    found = head_rotation(model.query, model.key)
    moving = active(found)
    assert moving.sum() == 10
    series = model.inputs @ found.vectors[:, moving]
    signed = np.fft.fftfreq(256, 1 / 256)[np.abs(np.fft.fft(series, axis=0)).argmax(0)]
    assert sorted(signed) == sorted([*model.frequencies, *(-f for f in model.frequencies)])
    # one that runs backwards, exp(-2 pi j f i / T), has an angle that counts backwards too
    np.testing.assert_allclose(256 * found.angles[moving] / (2 * np.pi * signed), -offset, atol=1e-10)
    turned = np.exp(1j * found.angles[moving]) * series
    forward, backward = np.roll(series, offset, axis=0), np.roll(series, -offset, axis=0)
    np.testing.assert_allclose(turned, forward, atol=1e-10)
    assert np.abs(turned - backward).max() > 0.1
    result = phase_map(model.inputs, model.query, model.key)
    assert float(result.line_shift) == pytest.approx(-offset, abs=1e-9)
    assert float(result.share_near) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("completion", FULL)
def test_energy_is_conserved(completion):
    """Mechanism F21: the sum of g^2 over eigenvectors is that of the DFT of Q; binned or not."""
    model = planted(noise=0.3)
    found = phase_map(model.inputs, model.query, model.key, completion=completion, bins=17)
    power = (np.abs(np.fft.rfft(model.inputs, axis=0)) ** 2).sum(1)
    np.testing.assert_allclose(found.total_energy, power, rtol=1e-10)
    np.testing.assert_allclose(found.energy.sum("angle") + found.real_energy, power, rtol=1e-10)


def test_the_uniform_share_is_that_of_angles_drawn_evenly():
    model = planted(noise=0.05, content=0.3)
    found = phase_map(model.inputs, model.query, model.key, band=(10, 40)).sel(frequency=slice(10, 40))
    energy, tokens = (found.energy.sum("angle").values, len(model.inputs) / (2 * np.pi * found.frequency.values))
    angles = np.random.default_rng(0).uniform(-np.pi, np.pi, (4000, 1))
    near = (np.abs(angles * tokens - float(found.line_shift)) <= 1) @ energy / energy.sum()
    error = near.std() / len(angles) ** 0.5
    assert float(found.uniform_share) == pytest.approx(near.mean(), abs=4 * error)
    assert float(found.uniform_share) > 20 * error


def test_a_head_without_shift_shows_no_line_but_an_offset():
    """Mechanism F.3: eigenvalues 1 carry no direction."""
    model = planted(offset=0)
    found = phase_map(model.inputs, model.query, model.key)
    assert np.isnan(float(found.line_shift))
    np.testing.assert_allclose(found.real_energy, found.total_energy)
    assert float(cross_spectrum(model.inputs, model.query, model.key).band_offset) == pytest.approx(0, abs=1e-10)


def test_controls_lose_the_line():
    """Mechanism F.6."""
    model, other = planted(noise=0.05, content=0.3), planted(noise=0.05, seed=7)
    found = shift_controls(model.inputs, model.query, model.key, other_key=other.key, band=(10, 40), draws=2)
    assert found.control.values.tolist() == ["head", "other key", "permuted 0", "permuted 1", "random 0", "random 1"]
    assert float(found.band_offset[0]) == pytest.approx(-2, abs=0.05)
    assert float(found.share_near[0]) > 0.9
    assert float(found.coherence[0]) > 0.95
    assert (np.abs(found.band_offset[1:] + 2) > 1).all()
    assert float(found.share_near[1:].max()) < float(found.uniform_share[0]) + 0.2
    assert float(found.coherence[1:].max()) < 0.8
    assert float(found.coherence_at_offset[0]) == pytest.approx(float(found.coherence[0]), abs=0.05)
    assert float(np.abs(found.coherence_at_offset[1:]).max()) < 0.5


def test_a_head_of_zeros_has_neither_shift_nor_rotation():
    inputs, zero = np.random.default_rng(0).normal(size=(16, 6)), np.zeros((6, 2))
    spectrum = cross_spectrum(inputs, zero, zero)
    assert np.isnan(float(spectrum.band_offset))
    assert not spectrum.cross_amplitude.any()
    for completion in COMPLETIONS:
        found = phase_map(inputs, zero, zero, completion=completion)
        assert found.sizes["frequency"] == 9
    assert head_rotation(zero, zero).parked == 6


def test_nothing_of_width_by_width_is_formed_unless_asked():
    """The minimal completion of a wide head takes memory for width x 2r, not width x width."""
    import tracemalloc

    width = 3000
    query, key = head(width=width, r=4)
    inputs = np.random.default_rng(0).normal(size=(16, width))
    tracemalloc.start()
    phase_map(inputs, query, key)
    cross_spectrum(inputs, query, key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < width * width * 8 / 4


def test_the_minimal_completion_is_nearest_to_the_identity():
    """Mechanism F4: of all orthogonal maps from u_j to v_j it has the largest trace."""
    query, key = head()
    best = np.trace(operator(head_rotation(query, key))).real
    for seed in range(20):
        other = head_rotation(query, key, completion="haar", seed=seed)
        assert np.cos(other.angles).sum() < best
    assert np.cos(head_rotation(query, key, completion="lapack").angles).sum() < best


def test_coherence_is_averaged_by_amplitude_over_the_band():
    inputs, query, key = np.random.default_rng(0).normal(size=(64, WIDTH)), *head()
    found = shift_controls(inputs, query, key, band=(5, 20), draws=1).sel(control="head")
    one = cross_spectrum(inputs, query, key, band=(5, 20)).sel(frequency=slice(5, 20))
    turned = np.cos(one.phase + 2 * np.pi * one.frequency * one.band_offset / 64)
    weights = one.cross_amplitude
    assert float(found.coherence) == pytest.approx(np.average(one.coherence, weights=weights))
    assert float(found.coherence_at_offset) == pytest.approx(np.average(one.coherence * turned, weights=weights))
    assert float(found.cross_amplitude) == pytest.approx(float(weights.sum()))


def test_words_that_match_themselves_are_coherent_at_offset_0_only():
    """A head of content: in shuffled text it is as coherent as before, but shows no shift."""
    words = np.random.default_rng(0).normal(size=(128, 8))
    found = shift_controls(words, np.eye(8), np.eye(8))
    np.testing.assert_allclose(found.coherence.sel(control=["head", "permuted 0"]), 1, atol=1e-9)
    np.testing.assert_allclose(found.band_offset.sel(control=["head", "permuted 0"]), 0, atol=1e-9)
    ahead = shift_controls(np.hstack([words, np.roll(words, 1, 0)]), np.eye(16)[:, :8], np.eye(16)[:, 8:])
    assert ahead.band_offset[0] == pytest.approx(1, abs=1e-9)
    assert ahead.coherence_at_offset[0] == pytest.approx(1, abs=1e-9)
    assert abs(float(ahead.coherence_at_offset.sel(control="permuted 0"))) < 0.3


@pytest.mark.parametrize("offset", [-2, 2])
def test_energy_at_all_angles_does_not_draw_the_line_to_0(offset):
    """A median over all energy is pulled to 0 by what lies on no line, and by what wraps at high frequencies."""
    model = planted(offset=offset, noise=0.6, content=0.5, length=128, frequencies=(10, 14, 22, 38, 54), width=64)
    found = phase_map(model.inputs, model.query, model.key)
    assert float(found.line_shift) == pytest.approx(-offset, abs=0.25)
    assert float(found.line_chance) <= 0.01
    assert float(found.share_near) > 1.3 * float(found.uniform_share)
