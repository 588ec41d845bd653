"""Principal components and canonical correlations, against planted dimensions and definitions."""

import numpy as np
import pytest
from scipy.linalg import orth

from attnscope import AttnscopeError
from attnscope.explanation.evidence import StateMoments
from attnscope_yamamoto2023.arrays.components import canonical_correlations, principal_components
from tests.explanation.planted_waves import waves

# products of matrices of condition up to about 1e2 whose covariance is formed (condition squared)
ROUNDING = 1e-9


def sinusoidal(length, width):
    angle = np.outer(np.arange(length), np.exp(-np.arange(0, width, 2) / width * np.log(10_000)))
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, width)


def states(texts=7, length=40, width=6, *, seed=0):
    """Hidden states: a linear image of a table, a text's own part, a common mean."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(length, 4))
    image = table @ rng.normal(size=(4, width)) * np.linspace(1, 0.1, width)
    return table, image + rng.normal(size=(texts, length, width)) + 30


def direct(states, vectors):
    """Canonical correlations by their definition: cosines between the spans of the centred columns."""
    first, second = (orth(side - side.mean(0)) for side in (states, vectors))
    return np.linalg.svd(first.T @ second, compute_uv=False)


def moments_of(batches):
    total = StateMoments.zeros(*batches[0].shape[1:])
    for batch in batches:
        about = (batch - batch.mean((0, 1))).reshape(-1, batch.shape[-1])
        total.merge(StateMoments(len(batch), batch.mean(0), about.T @ about))
    return total


def test_planted_waves_give_paired_components():
    """Mechanism D6: cumulative sums of squared amplitudes."""
    amplitude = np.array([3.0, 2.0, 1.0])
    table = waves(64, (3, 9, 20)) * np.tile(amplitude, 2)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    found = principal_components(table @ turn)
    np.testing.assert_allclose(found.singular_value, np.repeat(amplitude, 2) * np.sqrt(32), rtol=1e-13)
    share = np.cumsum(np.repeat(amplitude**2, 2)) / (2 * (amplitude**2).sum())
    np.testing.assert_allclose(found.cumulative_share, share, rtol=1e-13)


def test_the_sinusoidal_table():
    """Mechanism D7: about 33.4% at 4 dimensions and 52.0% at 12."""
    share = principal_components(sinusoidal(512, 768)).cumulative_share
    assert [100 * float(share[k - 1]) for k in (4, 12)] == pytest.approx([33.4, 52.0], abs=0.1)


@pytest.mark.parametrize("parts", [[7], [1, 6], [3, 1, 3]])
def test_moments_do_not_depend_on_how_texts_arrive(parts):
    _, z = states()
    pieces = np.split(z, np.cumsum(parts)[:-1])
    moments = moments_of(pieces)
    flat = z.reshape(-1, 6)
    assert moments.texts == 7
    np.testing.assert_allclose(moments.position_mean, z.mean(0), rtol=1e-14)
    np.testing.assert_allclose(moments.covariance, np.cov(flat.T, bias=True), rtol=1e-12, atol=1e-13)


def test_position_means_hold_all_that_states_share_with_positions():
    """Mechanism D9: Z_c^T Y_c = C (Zpos - Z)^T (E - mean E), so the two ways agree."""
    table, z = states()
    moments = moments_of([z])
    short = canonical_correlations(moments.position_mean, moments.covariance, table, 7, variance=1.0)
    long = direct(z.reshape(-1, 6), np.tile(table, (7, 1)))
    np.testing.assert_allclose(short.correlation, long, atol=ROUNDING)
    assert short.attrs["tokens"] == 280


def test_the_null_level_at_the_papers_sizes():
    """Mechanism D8: 0.157 for p = 768, q = 511 and 200 texts of 512 tokens."""
    rng = np.random.default_rng(0)
    covariance = np.eye(768)
    found = canonical_correlations(
        0.01 * rng.normal(size=(512, 768)), covariance, rng.normal(size=(512, 768)), 200, variance=1.0
    )
    assert (found.attrs["state_rank"], found.attrs["table_rank"]) == (768, 511)
    assert round(float(found.null_correlation), 3) == 0.157


def test_the_null_level_is_where_independent_noise_ends():
    rng = np.random.default_rng(3)
    texts, length, width = 60, 32, 48
    moments = moments_of([rng.normal(size=(texts, length, width))])
    table = rng.normal(size=(length, 64))
    found = canonical_correlations(moments.position_mean, moments.covariance, table, texts, variance=1.0)
    # the largest of many lies at the edge, up to fluctuations of a few m^(-2/3)
    edge = float(found.null_correlation)
    assert float(found.correlation[0]) == pytest.approx(edge, abs=3 * (texts * length) ** (-2 / 3))
    assert int(found.strong_components) == 0


def test_positions_that_states_hold_are_counted():
    rng = np.random.default_rng(4)
    table = waves(64, (5, 11)) @ rng.normal(size=(4, 12))
    z = 2 * table @ rng.normal(size=(12, 10)) / 12 + 0.1 * rng.normal(size=(30, 64, 10))
    moments = moments_of([z])
    found = canonical_correlations(moments.position_mean, moments.covariance, table, 30)
    assert found.attrs["table_rank"] == 4
    assert int(found.strong_components) == 4
    assert float(found.correlation.min()) > 0.9


def test_a_covariance_summed_in_float32_is_not_taken_for_another():
    """A direction of the states that is smaller than the covariance's rounding has no correlation of its own."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(32, 6))
    states = (table * 10.0 ** -np.arange(6))[None] + np.zeros((4, 1, 1))
    covariance = np.cov(states.reshape(-1, 6).T, bias=True)
    noise = rng.normal(size=(6, 6))
    rounded = covariance + 1e-8 * np.linalg.eigvalsh(covariance)[-1] * (noise + noise.T)
    exact = canonical_correlations(states.mean(0), covariance, table, 4, variance=1.0)
    np.testing.assert_allclose(exact.correlation, 1, atol=1e-6)
    with pytest.raises(AttnscopeError, match="above 1"):
        canonical_correlations(states.mean(0), rounded, table, 4, variance=1.0)
    found = canonical_correlations(states.mean(0), rounded, table, 4, variance=1.0, rounding=1e-7)
    assert found.attrs["state_rank"] == 3  # variances of 1, 1e-2 and 1e-4 of the largest; 1e-6 is lost
    np.testing.assert_allclose(found.correlation, 1, atol=0.01)


def test_invertible_maps_change_nothing():
    """Mechanism D11."""
    table, z = states()
    rng = np.random.default_rng(2)
    there, here = rng.normal(size=(6, 6)), rng.normal(size=(4, 4))
    one, other = moments_of([z]), moments_of([z @ there + 3])
    found = [
        canonical_correlations(m.position_mean, m.covariance, rows, 7, variance=1.0).correlation
        for m, rows in ((one, table), (other, table @ here - 1))
    ]
    np.testing.assert_allclose(*found, atol=ROUNDING)
