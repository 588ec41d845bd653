"""Analyses of bare arrays reject what is no table of finite real numbers, and settings out of range, by name."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.arrays.components import canonical_correlations, principal_components
from attnscope.explanation.arrays.correlation import cross_correlation, cross_spectrum
from attnscope.explanation.arrays.decomposition import append_one, head_rotation, reparametrize
from attnscope.explanation.arrays.phase_map import phase_map, shift_controls
from attnscope.explanation.arrays.spectrum import amplitude_spectrum, maximum_spectrum, query_key_waves

pytestmark = pytest.mark.usefixtures("no_types")
X = np.random.default_rng(0).normal(size=(16, 4))
W = np.random.default_rng(1).normal(size=(4, 2))
COVARIANCE = np.cov(X.T)
WRONG = {
    "has complex numbers (complex128); expected real ones": X + 5j,
    "is of shape (4,); expected 2 dimensions, (": X[0],
    "is one number; expected 2 dimensions, (": 3.0,
    "is of type str; expected an array of real numbers": "x",
    "is of type NoneType; expected an array of real numbers": None,
    "is of type list with entries of dtype <U1; expected an array of real numbers": [["a"], ["b"]],
    "cannot be read as an array (setting an array element": [[1.0, 2.0], [3.0]],
    "cannot be read as an array (Can't call numpy() on Tensor": torch.ones(16, 4, requires_grad=True),
    "entries of 64 that are NaN or infinite": X * np.nan,
}
TABLES = {
    "X": [lambda x, of_head=of_head: of_head(x, W, W) for of_head in (cross_spectrum, query_key_waves, phase_map)],
    "W_Q": [lambda x: cross_spectrum(X, x, W), lambda x: reparametrize(x, W)],
    "W_K": [lambda x: shift_controls(X, W, x), lambda x: reparametrize(W, x)],
    "other_key": [lambda x: shift_controls(X, W, W, other_key=x)],
    "the table": [amplitude_spectrum, principal_components, lambda x: canonical_correlations(X, np.eye(4), x, 3)],
    "the columns": [maximum_spectrum],
    "the inputs": [append_one],
    "Q": [lambda x: cross_correlation(x, X)],
    "the covariance": [lambda x: canonical_correlations(X, x, X, 3)],
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_table_is_rejected_with_what_it_is(says):
    with pytest.raises(AttnscopeError) as error:
        cross_correlation(WRONG[says], X)
    assert str(error.value).startswith("Q ")
    assert says in str(error.value)


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
        (lambda: cross_spectrum(X, W, W, offsets=(5, 2)), "offsets are 5 to 2; expected the lowest"),
        (lambda: cross_spectrum(X, W[1:], W), "4 columns in X and 3 in W_Q"),
        (lambda: cross_spectrum(X, W, W, band=(9, 12)), "the band 9 to 12 contains no frequency of a text of 16"),
        (lambda: cross_correlation(X, X[1:]), "16 positions in Q and 15 in K"),
        (lambda: cross_correlation(X, X, X), "the singular values is of shape (16, 4); expected 1 dimension"),
        (lambda: cross_correlation(X, X, np.ones(3)), "4 columns in Q and 3 in the singular values"),
        (lambda: cross_correlation(X[:3], X[:3]), "3 positions"),
        (lambda: cross_correlation(X, X, mode="both"), "mode is 'both' (str); expected 'paper' or 'centre_k' or"),
        (lambda: head_rotation(W, W, completion="full"), "completion is 'full'; expected one of minimal, lapack, haar"),
        (lambda: head_rotation(W, W[1:]), "4 rows in W_Q and 3 in W_K"),
        (lambda: reparametrize(W[:0], W), "W_Q has 0 rows and W_K 4; expected at least one in each"),
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
    ],
)
def test_settings_out_of_range_are_rejected(call, says):
    with pytest.raises(AttnscopeError) as error, np.errstate(divide="ignore", invalid="ignore"):
        call()
    assert says in str(error.value)


def test_lists_and_tensors_are_as_good_as_arrays():
    for given in (X.tolist(), torch.tensor(X)):
        assert cross_spectrum(given, W.tolist(), W).equals(cross_spectrum(X, W, W))
