"""Alignment figures show the weights, the words and the links they were given."""

import io

import numpy as np
import pytest
import xarray as xr
from matplotlib.patches import Rectangle

from attnscope.results.figures.alignment import alignment_maps, error_rate_grid
from attnscope.support.errors import AttnscopeError

SOURCE, TARGET = ["猫", "$x$", "sat"], ["the", "<b>cat</b>"]
WEIGHTS = np.array([[0.2, 0.5, 0.3], [0.9, 0.1, 0.0]])


def alignment_map(weights, source, target, links=None, title="", **gold):
    return alignment_maps({title: weights}, source, target, links={title: links or ()}, **gold)


def words(axes):
    return [label.get_text() for label in axes.get_xticklabels()], [
        label.get_text() for label in axes.get_yticklabels()
    ]


def squares(axes):
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {
        (round(patch.get_x() + patch.get_width() / 2), round(patch.get_y() + patch.get_height() / 2)): patch
        for patch in found
    }


def test_source_runs_along_x_and_target_along_y():
    figure = alignment_map(WEIGHTS, SOURCE, TARGET, title="A $pair$")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), WEIGHTS)
    assert words(axes) == (SOURCE, TARGET)
    assert axes.get_title() == "A $pair$"
    figure.savefig(io.BytesIO(), format="png")  # nothing is read as a formula


def test_links_stand_where_they_belong():
    gold = {"sure": {(0, 1), (9, 9)}, "possible": {(0, 1), (2, 0)}}
    figure = alignment_map(WEIGHTS, SOURCE, TARGET, links={(1, 0), (0, 1)}, **gold)
    axes = figure.axes[0]
    found = squares(axes)
    assert set(found) == {(0, 1), (2, 0)}
    assert found[0, 1].get_linestyle() in {"-", "solid"}
    assert found[2, 0].get_linestyle() not in {"-", "solid"}
    assert sorted(map(tuple, axes.collections[0].get_offsets().astype(int).tolist())) == [(0, 1), (1, 0)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "Gold link",
        "Possible gold link",
        "Extracted link",
    ]


def test_heads_carry_their_error_rate():
    rates = np.array([[0.5, np.nan], [0.123, 1.0]])
    figure = error_rate_grid(xr.Dataset({"error_rate": (("layer", "head"), rates)}), (1, 0))
    axes = figure.axes[0]
    said = {text.get_position(): text.get_text() for text in axes.texts}
    assert said == {(0, 0): "50.0", (1, 0): "–", (0, 1): "12.3", (1, 1): "100.0"}
    assert set(squares(axes)) == {(0, 1)}


def test_shapes_that_do_not_fit_are_rejected():
    with pytest.raises(AttnscopeError, match=r"of one have shape \(2, 3\), and there are 3 target and 2 source"):
        alignment_maps({"one": WEIGHTS}, TARGET, SOURCE)
    with pytest.raises(AttnscopeError, match="expected at least one of each"):
        alignment_map(np.zeros((0, 3)), SOURCE, [])
