"""What all analyses of bare arrays refuse: what is no table of finite real numbers, and counts that there are not."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.arrays.components import canonical_correlations, principal_components
from attnscope.explanation.arrays.correlation import cross_correlation, cross_spectrum
from attnscope.explanation.arrays.decomposition import append_one, reparametrize
from attnscope.explanation.arrays.phase_map import phase_map, shift_controls
from attnscope.explanation.arrays.spectrum import amplitude_spectrum, maximum_spectrum, query_key_waves
from attnscope.support.checks import finite, real, shaped

pytestmark = pytest.mark.usefixtures("no_types")
X = np.random.default_rng(0).normal(size=(16, 4))
W = np.random.default_rng(1).normal(size=(4, 2))
OF_HEADS = (cross_spectrum, query_key_waves, phase_map, shift_controls)
OF_TABLES = {
    "X": [lambda x, of_head=of_head: of_head(x, W, W) for of_head in OF_HEADS],
    "W_Q": [*(lambda x, of_head=of_head: of_head(X, x, W) for of_head in OF_HEADS), lambda x: reparametrize(x, W)],
    "W_K": [*(lambda x, of_head=of_head: of_head(X, W, x) for of_head in OF_HEADS), lambda x: reparametrize(W, x)],
    "other_key": [lambda x: shift_controls(X, W, W, other_key=x)],
    "the table": [amplitude_spectrum, principal_components, lambda x: canonical_correlations(X, np.eye(4), x, 3)],
    "the columns": [maximum_spectrum],
    "the inputs": [append_one],
    "Q": [lambda x: cross_correlation(x, X)],
    "K": [lambda x: cross_correlation(X, x)],
    "the position means": [lambda x: canonical_correlations(x, np.eye(4), X, 3)],
    "the covariance": [lambda x: canonical_correlations(X, x, X, 3)],
}
NO_TABLES = {
    "has complex numbers (complex128); expected real ones": X + 5j,
    "is of shape (4,); expected 2 dimensions, (": X[0],
    "is of shape (1, 16, 4); expected 2 dimensions, (": X[None],
    "is one number; expected 2 dimensions, (": 3.0,
    "is of type str; expected an array of real numbers": "x",
    "is of type bytes; expected an array of real numbers": b"x",
    "is of type NoneType; expected an array of real numbers": None,
    "is of type list with entries of dtype <U1; expected an array of real numbers": [["a"], ["b"]],
    "is of type ndarray with entries of dtype object; expected an array of real numbers": X.astype(object),
    "cannot be read as an array (setting an array element": [[1.0, 2.0], [3.0]],
    "cannot be read as an array (Can't call numpy() on Tensor": torch.ones(16, 4, requires_grad=True),
    "entries of 64 that are NaN or infinite": X * np.nan,
}


@pytest.mark.parametrize("said", NO_TABLES)
@pytest.mark.parametrize("name", OF_TABLES)
def test_what_is_no_table_is_refused_by_name(name, said):
    for call in OF_TABLES[name]:
        if name == "other_key" and NO_TABLES[said] is None:
            continue
        with pytest.raises(AttnscopeError) as error:
            call(NO_TABLES[said])
        assert str(error.value).startswith(f"{name} ")
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: query_key_waves(X, W, W, permutations=2.5), "permutations is 2.5 (float); expected a whole"),
        (lambda: phase_map(X, W, W, offsets=3), "offsets is 3 (int); expected two whole numbers or None"),
        (lambda: shift_controls(X, W, W, draws=-1), "draws is -1; expected a whole number of 0 or more"),
        (lambda: cross_spectrum(X, W, W, offsets=(5, 2)), "offsets are 5 to 2; expected the lowest"),
        (lambda: cross_correlation(X, X, offsets=(5, 2)), "offsets are 5 to 2; expected the lowest"),
        (lambda: cross_correlation(X, X, near=-1), "near is -1; expected a whole number of 0 or more"),
        (lambda: cross_correlation(X, X, X), "the singular values is of shape (16, 4); expected 1 dimension"),
        (lambda: reparametrize(W[:0], W), "W_Q has 0 rows and W_K 4; expected at least one in each"),
    ],
)
def test_what_is_out_of_range_is_named(call, said):
    with pytest.raises(AttnscopeError) as error:
        call()
    assert said in str(error.value)


def test_lists_and_tensors_are_as_good_as_arrays():
    for given in (X.tolist(), torch.tensor(X)):
        assert cross_spectrum(given, W.tolist(), W).equals(cross_spectrum(X, W, W))


def test_a_head_that_may_look_nowhere_on_the_circle_has_no_shift():
    assert np.isnan(cross_spectrum(X, W, W, offsets=(12, 15)).band_offset)


def test_real_numbers_of_every_kind_are_taken():
    for kind in (bool, np.int8, np.uint16, np.float16, np.float32):
        assert finite("x", np.ones(2, kind)).dtype == np.float64
    assert np.isnan(real("x", [np.nan])).all()
    assert shaped("x", 3.0 * np.ones(2), "column").shape == (2,)
