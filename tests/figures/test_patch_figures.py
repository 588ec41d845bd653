"""The figures of patching, held against the numbers that they draw."""

import numpy as np

from attnscope.results.figures.patch import recovered_intervals, recovered_map
from attnscope.results.reports import report_of
from tests.report.planted_patching import planted_patching


def test_the_map_holds_every_place_and_names_tokens():
    tree = planted_patching()
    figure = recovered_map(tree)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), tree["patched"].recovered)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["␣She/␣He", "␣is", "␣sad", "."]
    dots = axes.lines[0].get_xydata()
    assert dots.tolist() == [[2.0, 0.0]]


def test_the_largest_places_stand_first_with_their_intervals():
    axes = recovered_intervals(report_of("patch", planted_patching())).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "block 0 at 2  ␣sad"
    assert len(axes.get_yticks()) == 8
