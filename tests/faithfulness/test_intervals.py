"""Intervals that draw whole documents."""

import numpy as np
import xarray as xr

from attnscope.intervention.weight_tests import with_intervals
from attnscope.measure.documents import resampled


def test_texts_of_one_document_are_drawn_together():
    draws = resampled(["a", "b", "a", "c"], 200)
    np.testing.assert_array_equal(draws[:, 0], draws[:, 2])
    np.testing.assert_allclose(draws.sum(1), 1)


def test_the_interval_of_documents_is_wider_than_that_of_texts():
    """Ten documents of twenty texts that are all alike: 200 texts hold no more than 10 do."""
    values = np.repeat(np.random.default_rng(0).normal(size=10), 20)
    data = xr.Dataset({"x": (("window", "head"), np.stack([values, values], 1), {"units": "1"})})
    names = np.repeat([f"document {i}" for i in range(10)], 20).tolist()
    of_documents = with_intervals(data, ["x"], names)
    of_texts = with_intervals(data, ["x"], [f"text {i}" for i in range(200)])
    widths = [float((one.x_high - one.x_low)[0]) for one in (of_documents, of_texts)]
    assert 3.5 < widths[0] / widths[1] < 5.5  # the root of 20 is 4.5
    expected = 2 * 2.262 * values[::20].std(ddof=1) / np.sqrt(10)  # Student's t of 9 degrees of freedom
    assert abs(widths[0] / expected - 1) < 0.1


def test_a_document_without_any_value_is_not_counted_as_one():
    values = np.arange(8.0)
    values[:3] = np.nan
    found = with_intervals(xr.Dataset({"x": (("window",), values)}), ["x"], list("abcdefgh"))
    assert np.isnan(found.x_low)
