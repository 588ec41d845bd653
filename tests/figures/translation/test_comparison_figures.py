"""The figures of a comparison show the numbers they were given."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnscope.results.figures.comparison import alignments_side_by_side, learning_curve_figure, score_by_length
from attnscope.support.errors import AttnscopeError
from tests.report.planted_comparison import NAMES, planted


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
