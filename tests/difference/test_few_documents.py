"""`diff` over few documents: windows of one document are alike, and say nothing of other documents."""

import numpy as np
import pytest
from scipy import stats

from attnscope.comparison.diff import _chances


def test_documents_of_unlike_numbers_of_windows_give_no_more_false_changes_than_is_promised():
    """Ten documents of 1 to 10 windows, nothing changed: with as many degrees of freedom as documents it is 0.13."""
    sizes = np.arange(1, 11)
    documents = np.repeat(np.arange(10), sizes)
    generator = np.random.default_rng(0)
    values = generator.normal(size=(10, 20000))[documents] + generator.normal(size=(55, 20000))
    p = _chances(values, documents.tolist())
    assert 0.03 < np.mean(p < 0.05) < 0.055
    assert np.mean(p < 0.05 / 40) * 40 < 0.06


def test_degrees_of_freedom_are_those_of_the_quadratic_form():
    """Bell and McCaffrey (2002), by the whole matrix."""
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 30])
    weight, count = sizes / sizes.sum(), len(sizes)
    centred = np.eye(count) - np.ones((count, 1)) * weight
    form = centred.T @ np.diag(weight**2 / (1 - 2 * weight + weight @ weight)) @ centred
    means = np.random.default_rng(0).normal(size=(count, 1))
    t = (weight @ means)[0] / np.sqrt(means[:, 0] @ form @ means[:, 0])
    documents = np.repeat(np.arange(count), sizes)
    expected = 2 * stats.t.sf(abs(t), np.trace(form) ** 2 / (form**2).sum())
    assert _chances(means[documents], documents.tolist())[0] == pytest.approx(expected)
