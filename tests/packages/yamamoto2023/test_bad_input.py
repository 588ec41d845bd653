"""Analyses reject what is no table of finite real numbers, and settings out of range, by name."""

import numpy as np
import pytest

from attnscope import AttnscopeError
from attnscope.explanation.study import study
from attnscope_yamamoto2023.arrays.components import canonical_correlations, principal_components
from attnscope_yamamoto2023.arrays.phase_map import phase_map, shift_controls
from attnscope_yamamoto2023.arrays.rotation import head_rotation
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum, maximum_spectrum, query_key_waves
from attnscope_yamamoto2023.positions import rotation, waves
from attnscope_yamamoto2023.positions.table import position_spectrum
from attnscope_yamamoto2023.positions.wave_removal import wave_removal

pytestmark = pytest.mark.usefixtures("no_types")
X = np.random.default_rng(0).normal(size=(16, 4))
W = np.random.default_rng(1).normal(size=(4, 2))
COVARIANCE = np.cov(X.T)
STUDY = study("bundled", limit=2)
TABLES = {
    "X": [lambda x: query_key_waves(x, W, W), lambda x: phase_map(x, W, W)],
    "W_K": [lambda x: shift_controls(X, W, x)],
    "other_key": [lambda x: shift_controls(X, W, W, other_key=x)],
    "the table": [amplitude_spectrum, principal_components, lambda x: canonical_correlations(X, np.eye(4), x, 3)],
    "the columns": [maximum_spectrum],
    "the covariance": [lambda x: canonical_correlations(X, x, X, 3)],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_wrong_table_is_rejected_by_its_name(name):
    for call in TABLES[name]:
        with pytest.raises(AttnscopeError, match=f"^{name} "):
            call(X * np.nan)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: query_key_waves(X, W, W, permutations=2.5), "permutations is 2.5 (float); expected a whole"),
        (lambda: query_key_waves(X, W, W, significance=0.0), "significance is 0.0"),
        (lambda: query_key_waves(X, W, W[:, 1:]), "2 columns in W_Q and 1 in W_K"),
        (lambda: query_key_waves(X, W, W[1:]), "4 columns in X and 3 in W_K"),
        (lambda: maximum_spectrum(np.ones((8, 0))), "no columns"),
        (lambda: phase_map(X, W, W, offsets=3), "offsets is 3 (int); expected two whole numbers or None"),
        (lambda: phase_map(X, W, W, band=(5, 4)), "choose two ascending"),
        (lambda: phase_map(X, W, W, bins=0), "bins is 0"),
        (lambda: shift_controls(X, W, W, draws=-1), "draws is -1; expected a whole number of 0 or more"),
        (lambda: head_rotation(W, W, completion="full"), "completion is 'full'; expected one of minimal, lapack, haar"),
        (lambda: head_rotation(W, W[1:]), "4 rows in W_Q and 3 in W_K"),
        (lambda: amplitude_spectrum(X, detrend="square"), "detrend is 'square' (str); expected 'none' or 'linear'"),
        (lambda: amplitude_spectrum(X[:3]), "3 positions; at least 4"),
        (lambda: amplitude_spectrum(X, neighbours=0), "neighbours is 0"),
        (lambda: amplitude_spectrum(X, factor=0.0), "factor 0.0"),
        (lambda: canonical_correlations(X, COVARIANCE, X[1:], 7), "16 positions in the position means and 15 in the"),
        (lambda: canonical_correlations(X, np.eye(5), X, 7), "4 columns in the position means and 5 in the covariance"),
        (lambda: canonical_correlations(X, COVARIANCE, X, 7, variance=1.5), "variance is 1.5"),
        (lambda: canonical_correlations(X, COVARIANCE, X, 0), "texts 0"),
        (lambda: canonical_correlations(X, COVARIANCE / 100, X, 7), "above 1: the covariance is not"),
        (lambda: canonical_correlations(X, COVARIANCE, 0 * X, 7), "the table is the same"),
        (lambda: canonical_correlations(X, 0 * COVARIANCE, X, 7), "covariance of the states is zero"),
        (lambda: rotation.shift_controls(STUDY, heads=[]), "heads is []; expected one or more pairs (layer, head)"),
        (lambda: rotation.shift_controls(STUDY, draws=-1), "draws is -1; expected a whole number from 0"),
        (lambda: rotation.shift_controls(STUDY, seed=-1), "seed (--seed) is -1; expected"),
        (lambda: rotation.completed("full"), "completion is 'full'; expected one of minimal, lapack, haar"),
        (lambda: wave_removal(STUDY, draws=0), "draws is 0; expected a whole number from 1"),
        (lambda: waves.query_key_waves(STUDY, permutations=-1), "permutations is -1; expected a whole"),
        (lambda: position_spectrum(factor=np.nan), "factor nan; expected"),
    ],
)
def test_settings_out_of_range_are_rejected(call, says):
    with pytest.raises(AttnscopeError) as error, np.errstate(divide="ignore", invalid="ignore"):
        call()
    assert says in str(error.value)
