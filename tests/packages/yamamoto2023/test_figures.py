"""Figures of position tables, waves and rotations show their numbers, and refuse what does not exist."""

import numpy as np
import pytest

from attnscope.results.figures.style import COLUMN, PAGE
from attnscope.support.errors import AttnscopeError
from attnscope_yamamoto2023 import figures
from tests.results.figures.explain.test_explain_figures import drawn, node
from tests.results.page.planted_explanation import explanation

WHOLE = {
    "position_spectrum": figures.position_spectrum,
    "position_pca": figures.position_components,
    "position_cca": figures.position_correlations,
    "waves": figures.wave_counts,
    "spectra": figures.spectra_by_layer,
    "controls": figures.shift_controls,
}


@pytest.fixture(scope="module")
def tree():
    return explanation()


def test_peaks_are_named_by_their_period(tree):
    table, words = figures.position_spectrum(node(tree, "position_spectrum")).axes
    assert [text.get_text() for text in table.texts] == ["8"]  # 64 tokens / 8 cycles
    assert not words.texts
    line = next(line for line in table.lines if len(line.get_xdata()) == 32)
    assert line.get_xdata()[0] == 1  # the mean of a column is no wave
    np.testing.assert_allclose(line.get_ydata(), node(tree, "position_spectrum")["mean"].values[0, 1:])


def test_the_lines_of_a_phase_map_are_where_a_shift_puts_the_angle(tree):
    axes = figures.phase_maps(node(tree, "phase_map"), [(0, 0)]).axes[0]
    left = axes.lines[1]  # offset -1: keys are the queries one token on
    frequency, angle = left.get_xdata(), left.get_ydata()
    np.testing.assert_allclose(angle[:-2], 2 * np.pi * frequency[:-2] / 64, atol=1e-12)
    assert axes.get_title(loc="right") == "offset −1"


@pytest.mark.parametrize("heads", [1, 12])
def test_every_size_fits(heads):
    tree = explanation(heads, heads, positions=16, columns=6)
    for name, draw in WHOLE.items():
        width, height = drawn(draw(node(tree, name))).get_size_inches()
        assert width in {COLUMN, PAGE}
        assert height < 9


@pytest.mark.parametrize(("name", "draw"), [("waves", figures.wave_columns), ("phase_map", figures.phase_maps)])
def test_errors_say_what_exists(tree, name, draw):
    with pytest.raises(AttnscopeError, match=r"layer 0 has no head 9.*heads from 0 to 3"):
        draw(node(tree, name), [(0, 9)])
    with pytest.raises(AttnscopeError, match=r"needs .* but the result has"):
        draw(node(tree, "position_pca"), [(0, 0)])
