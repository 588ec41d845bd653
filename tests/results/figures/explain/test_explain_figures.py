"""Figures of an explanation show its numbers, name what they show, and refuse what does not exist."""

import numpy as np
import pytest
import xarray as xr

from attnscope.explanation.analyses.verdict import best_heads, summary
from attnscope.explanation.report import rank_explanations
from attnscope.results.figures.explain import peak_agreement, position_content, verdict_grid
from attnscope.results.figures.panels import interventions, scheme_effect
from attnscope.results.figures.shifts import cross_correlations, cross_spectrum_offsets
from attnscope.results.figures.style import COLUMN, PAGE
from attnscope.support.errors import AttnscopeError
from tests.results.page.planted_explanation import explanation

OF_HEADS = {
    "cross_spectrum": cross_spectrum_offsets,
    "cross_correlation": cross_correlations,
    "position_content": position_content,
    "rotation_effect": scheme_effect,
    "bias_effect": scheme_effect,
    "interventions": interventions,
}
WHOLE = {"verdict": verdict_grid, "cross_correlation": peak_agreement}


@pytest.fixture(scope="module")
def tree():
    return explanation()


def node(tree, name):
    return tree[name].to_dataset()


def drawn(figure):
    figure.draw_without_rendering()  # which places all text
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.03
    assert box.y0 >= -0.03
    assert box.x1 <= width + 0.03
    assert box.y1 <= height + 0.03
    return figure


def test_the_sentences_count_positional_heads_and_what_accident_gives(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    verdict["offset_of_spectrum"][0, 0] = np.nan
    for name in ("comparable", "agree"):
        verdict[name][0, 0] = False
    said = summary(rank_explanations(xr.DataTree.from_dict({"verdict": verdict})))
    assert said[0].startswith("12 of 12 heads have more weight at one offset than by chance (p < 0.01, corrected")
    assert said[-1].startswith("Position explains most of the scores of 6 of these 12 heads; queries and keys alone ")
    # 5 of 6 agree, where each would with probability 1/2: (6 + 1) / 64
    assert said[-1].endswith("predict the offset of 5 of these 6 heads (3 by chance, p = 0.11: not significant).")


def test_the_verdict_frames_the_heads_that_agree(tree):
    axes = verdict_grid(node(tree, "verdict")).axes[0]
    assert [text.get_text() for text in axes.texts] == ["−1", "+3"] * 6
    assert len(axes.patches) == 6
    np.testing.assert_allclose(axes.images[0].get_array(), node(tree, "verdict")["position_share"])


@pytest.mark.parametrize("heads", [1, 12])
def test_every_size_fits(heads):
    tree = explanation(heads, heads, positions=16, columns=6)
    for name, draw in WHOLE.items():
        width, height = drawn(draw(node(tree, name))).get_size_inches()
        assert width in {COLUMN, PAGE}
        assert height < 9


def test_what_the_mask_forbids_is_grey_and_has_no_peak(tree):
    """Scores are drawn before the mask, over all offsets."""
    causal = node(tree, "cross_correlation").assign_coords(
        lowest_offset=("layer", [-63] * 3), highest_offset=("layer", [0] * 3)
    )
    causal["trace_peak_offset"][:] = np.nan
    columns, total = drawn(cross_correlations(causal, [(0, 0)])).axes
    assert [text.get_text() for text in total.texts] == ["masked"]
    assert [patch.get_x() for patch in total.patches] == [0.5]
    assert total.get_ylabel() == "Sum before mask"
    assert columns.patches


@pytest.mark.parametrize("name", ["cross_spectrum", "interventions"])
def test_errors_say_what_exists(tree, name):
    with pytest.raises(AttnscopeError, match=r"layer 0 has no head 9.*heads from 0 to 3"):
        OF_HEADS[name](node(tree, name), [(0, 9)])
    with pytest.raises(AttnscopeError, match=r"needs .* but the result has"):
        OF_HEADS[name](node(tree, "position_pca"), [(0, 0)])
    with pytest.raises(AttnscopeError, match=r"needs .* but the result has"):
        verdict_grid(node(tree, "forms"))


def test_heads_that_are_not_there_are_no_rows_and_rejected(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    verdict["peak_weight"][2, 3] = np.nan
    rows = rank_explanations(xr.DataTree.from_dict({"verdict": verdict}))
    assert len(rows) == 11
    for place, says in (({"layer": 2, "head": 3}, "layer 2 has no head 3"), ({"layer": 3}, "choose from 0 to 2")):
        with pytest.raises(AttnscopeError, match=says):
            best_heads(rows, **place)
