"""Analyses of bare arrays reject what is no table of finite real numbers, and settings out of range, by name."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.arrays.correlation import cross_correlation, cross_spectrum
from attnscope.explanation.arrays.decomposition import append_one, reparametrize

pytestmark = pytest.mark.usefixtures("no_types")
X = np.random.default_rng(0).normal(size=(16, 4))
W = np.random.default_rng(1).normal(size=(4, 2))
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
    "X": [lambda x: cross_spectrum(x, W, W)],
    "W_Q": [lambda x: cross_spectrum(X, x, W), lambda x: reparametrize(x, W)],
    "W_K": [lambda x: reparametrize(W, x)],
    "the inputs": [append_one],
    "Q": [lambda x: cross_correlation(x, X)],
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
        (lambda: cross_spectrum(X, W, W, offsets=(5, 2)), "offsets are 5 to 2; expected the lowest"),
        (lambda: cross_spectrum(X, W[1:], W), "4 columns in X and 3 in W_Q"),
        (lambda: cross_spectrum(X, W, W, band=(9, 12)), "the band 9 to 12 contains no frequency of a text of 16"),
        (lambda: cross_correlation(X, X[1:]), "16 positions in Q and 15 in K"),
        (lambda: cross_correlation(X, X, X), "the singular values is of shape (16, 4); expected 1 dimension"),
        (lambda: cross_correlation(X, X, np.ones(3)), "4 columns in Q and 3 in the singular values"),
        (lambda: cross_correlation(X[:3], X[:3]), "3 positions"),
        (lambda: cross_correlation(X, X, mode="both"), "mode is 'both' (str); expected 'paper' or 'centre_k' or"),
        (lambda: reparametrize(W[:0], W), "W_Q has 0 rows and W_K 4; expected at least one in each"),
    ],
)
def test_settings_out_of_range_are_rejected(call, says):
    with pytest.raises(AttnscopeError) as error, np.errstate(divide="ignore", invalid="ignore"):
        call()
    assert says in str(error.value)


def test_lists_and_tensors_are_as_good_as_arrays():
    for given in (X.tolist(), torch.tensor(X)):
        assert cross_spectrum(given, W.tolist(), W).equals(cross_spectrum(X, W, W))
