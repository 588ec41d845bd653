"""Figures of translation systems and their alignments show the numbers, words and links of their results."""

import io

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from attnscope.support.errors import AttnscopeError
from attnscope_lineage.figures.alignment import alignment_maps, error_rate_grid
from attnscope_lineage.figures.comparison import alignments_side_by_side, learning_curve_figure, score_by_length
from tests.packages.lineage.pages.planted_comparison import NAMES, planted

# --- the figures of a comparison show the numbers they were given ---


@pytest.fixture(scope="module")
def tree():
    return planted()


def test_every_system_has_a_line_over_the_lengths(tree):
    scores = tree["scores"].to_dataset()
    axes = score_by_length(scores).axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(drawn)[::2] == ["fixed vector", "Transformer"]
    for values, row in zip(drawn.values(), scores["score_by_length"].sel(metric="BLEU").values, strict=True):
        np.testing.assert_array_equal(values, row)
    assert len({line.get_color() for line in axes.lines}) == len({line.get_marker() for line in axes.lines}) == 3
    assert axes.get_xticklabels()[0].get_text() == "1–10\nn = 85"
    assert len(axes.collections) == 3  # bands


def test_long_names_stay_on_the_figure(tree):
    scores = tree["scores"].to_dataset()
    named = scores.assign_coords(system=[f"{name} with 8,000 subwords" for name in scores["system"].values])
    for made in (scores, named):
        figure = score_by_length(made)
        FigureCanvasAgg(figure).draw()
        legend = figure.legends[0].get_window_extent()
        assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1


def test_curves_run_over_tokens_updates_and_seconds(tree):
    curves = tree["curves"].to_dataset()
    for axes, along in zip(learning_curve_figure(curves).axes, ("tokens", "updates", "seconds"), strict=True):
        for line, row in zip(axes.lines, range(3), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), curves[along][row])
            np.testing.assert_array_equal(line.get_ydata(), curves["bleu"][row])


def test_only_systems_with_attention_are_aligned(tree):
    figure = alignments_side_by_side(tree["alignment"].to_dataset())
    titles = [axes.get_title() for axes in figure.axes[:2]]
    assert titles[1] == "Transformer: layer 1, head 3"
    assert NAMES[0] not in " ".join(titles)
    assert figure.legends[0].get_texts()[0].get_text() == "Known link"
    with pytest.raises(AttnscopeError, match="no system has attention"):
        alignments_side_by_side(planted(attention=False)["alignment"].to_dataset())


# --- alignment figures show the weights, the words and the links they were given ---


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
