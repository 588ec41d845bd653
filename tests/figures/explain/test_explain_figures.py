"""Figures of an explanation show its numbers, name what they show, and refuse what does not exist."""

import numpy as np
import pytest
import xarray as xr

from attnscope.explanation.analyses.verdict import best_heads, summary
from attnscope.explanation.report import rank_explanations
from attnscope.results.figures.explain import (
    explain_figures,
    offset_agreement,
    peak_agreement,
    position_content,
    shift_controls,
    verdict_grid,
)
from attnscope.results.figures.panels import interventions, scheme_effect
from attnscope.results.figures.positions import (
    position_components,
    position_correlations,
    position_spectrum,
    spectra_by_layer,
    wave_columns,
    wave_counts,
)
from attnscope.results.figures.selection import NothingToShowError
from attnscope.results.figures.shifts import cross_correlations, cross_spectrum_offsets, phase_maps
from attnscope.support.errors import AttnscopeError
from tests.report.planted_explanation import explanation, without

OF_HEADS = {
    "waves": wave_columns,
    "cross_spectrum": cross_spectrum_offsets,
    "phase_map": phase_maps,
    "cross_correlation": cross_correlations,
    "position_content": position_content,
    "rotation_effect": scheme_effect,
    "bias_effect": scheme_effect,
    "interventions": interventions,
}
WHOLE = {
    "verdict": verdict_grid,
    "position_spectrum": position_spectrum,
    "position_pca": position_components,
    "position_cca": position_correlations,
    "waves": wave_counts,
    "spectra": spectra_by_layer,
    "controls": shift_controls,
    "cross_correlation": peak_agreement,
}


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


def test_heads_that_agree_come_first_then_those_that_weigh_most(tree):
    rows = rank_explanations(tree)
    assert [row["agree"] for row in rows] == [True] * 6 + [None] * 6  # asked of positional heads alone
    assert [(row["layer"], row["head"]) for row in rows[:3]] == [(0, 0), (0, 2), (1, 0)]
    assert best_heads(rows) == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_a_head_of_no_offset_beyond_chance_has_none(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    for name in ("prefers", "positional", "comparable", "agree"):
        verdict[name][0, 0] = False
    verdict["offset_of_weights"][0, 0] = np.nan
    rows = rank_explanations(xr.DataTree.from_dict({"verdict": verdict}))
    (row,) = [row for row in rows if (row["layer"], row["head"]) == (0, 0)]
    assert row["offset_of_weights"] is row["agree"] is None
    assert "predict the offset of all 5 heads" in " ".join(summary(rows))


def test_the_sentences_count_positional_heads_and_what_accident_gives(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    verdict["offset_of_spectrum"][0, 0] = np.nan
    for name in ("comparable", "agree"):
        verdict[name][0, 0] = False
    said = summary(rank_explanations(xr.DataTree.from_dict({"verdict": verdict})))
    assert said[0] == "12 of 12 heads favour one offset (p < 0.01, corrected for all heads and offsets)."
    assert said[-1].startswith("Position explains most of the scores of 6 of these 12 heads; queries and keys alone ")
    # 5 of 6 agree, where each would with probability 1/2: (6 + 1) / 64
    assert said[-1].endswith("predict the offset of 5 of these 6 heads (3 by chance, p = 0.11: not significant).")


def test_a_missing_head_is_no_row(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    verdict["peak_weight"][2, 3] = np.nan
    less = without(tree, "position_content")
    less["verdict"] = xr.DataTree(verdict)
    assert len(rank_explanations(less)) == 11
    with pytest.raises(AttnscopeError, match="layer 2 has no head 3"):
        best_heads(rank_explanations(less), layer=2, head=3)


def test_layers_and_heads_that_do_not_exist(tree):
    with pytest.raises(AttnscopeError, match="layer 3 does not exist: choose from 0 to 2"):
        best_heads(rank_explanations(tree), layer=3)


def test_peaks_are_named_by_their_period(tree):
    table, words = position_spectrum(node(tree, "position_spectrum")).axes
    assert [text.get_text() for text in table.texts] == ["8"]  # 64 tokens / 8 cycles
    assert not words.texts
    line = next(line for line in table.lines if len(line.get_xdata()) == 32)
    assert line.get_xdata()[0] == 1  # the mean of a column is no wave
    np.testing.assert_allclose(line.get_ydata(), node(tree, "position_spectrum")["mean"].values[0, 1:])


def test_the_verdict_frames_the_heads_that_agree(tree):
    axes = verdict_grid(node(tree, "verdict")).axes[0]
    assert [text.get_text() for text in axes.texts] == ["−1", "+3"] * 6
    assert len(axes.patches) == 6
    np.testing.assert_allclose(axes.images[0].get_array(), node(tree, "verdict")["position_share"])


def test_a_head_without_an_offset_is_grey_in_the_verdict_and_hatched_where_there_is_none(tree):
    verdict = node(tree, "verdict").copy(deep=True)
    verdict["position_share"][0, 1] = np.nan
    axes = verdict_grid(verdict).axes[0]
    assert "grey: none" in axes.get_title(loc="left")
    assert [mark.get_hatch() for mark in axes.collections] == [None]
    verdict["peak_weight"][0, 1] = np.nan
    assert [mark.get_hatch() for mark in verdict_grid(verdict).axes[0].collections] == ["////"]
    verdict["position_share"][:] = np.nan
    with pytest.raises(NothingToShowError, match="a head with a value"):
        verdict_grid(verdict)


def test_weights_are_drawn_up_to_the_mask(tree):
    def masked(name, *profiles):
        result = node(tree, name).copy(deep=True)
        for profile in profiles:
            result[profile] = result[profile].where(result.offset <= 0, 0.0)
        return result

    before = masked("interventions", "profile_before", "profile_after")
    for figure in (
        position_content(masked("position_content", "profile"), [(0, 0)]),
        interventions(before, [(0, 0)]),
        scheme_effect(masked("rotation_effect", "profile"), [(0, 0)]),
    ):
        assert drawn(figure).axes[0].get_xlim()[1] == 0
    assert interventions(node(tree, "interventions"), [(0, 0)]).axes[0].get_xlim()[1] > 0


def test_two_readings_and_the_weights_are_drawn_against_each_other(tree):
    figure = drawn(offset_agreement(node(tree, "verdict")))
    agreeing = figure.axes[0].collections[2].get_offsets()
    np.testing.assert_allclose(agreeing, [[-1.0, -0.9]] * 6)


def test_controls_stand_below_the_head(tree):
    figure = shift_controls(node(tree, "controls"))
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == ["Layer 0, head 0", "Layer 0, head 2"]
    coherence, offset = figure.axes[:2]
    kept, lost = (np.stack(line.get_data(), 1).tolist() for line in coherence.lines[:2])
    assert kept == [[0.9, 0]]
    assert lost == [[0.1, 2], [0.0, 3], [0.05, 4]]
    completed = next(line for line in offset.lines if set(line.get_ydata()) == {1})
    assert completed.get_xdata().tolist() == [-1, -1, -1]
    with pytest.raises(AttnscopeError, match="at least one head with values"):
        shift_controls(node(tree, "controls").isel(head=[1]))


def test_the_lines_of_a_phase_map_are_where_a_shift_puts_the_angle(tree):
    axes = phase_maps(node(tree, "phase_map"), [(0, 0)]).axes[0]
    left = axes.lines[1]  # offset -1: keys are the queries one token on
    frequency, angle = left.get_xdata(), left.get_ydata()
    np.testing.assert_allclose(angle[:-2], 2 * np.pi * frequency[:-2] / 64, atol=1e-12)
    assert axes.get_title(loc="right") == "offset −1"


def test_the_models_asked_for_are_compared(tree):
    longer = xr.Dataset(
        {
            "mean": ("frequency", np.ones(65)),
            "lower_quartile": ("frequency", np.ones(65)),
            "upper_quartile": ("frequency", np.ones(65)),
            "null_mean": 1.0,
            "null_lower_quartile": 0.5,
            "null_upper_quartile": 1.5,
            "cumulative_share": ("component", np.linspace(0, 1, 32)),
        },
        coords={"frequency": np.arange(65)},
        attrs={"model": "longer", "positions": 128},
    )
    compared = without(tree)
    compared["also"] = xr.DataTree.from_dict({"0": longer, "1": longer})
    shown = dict(explain_figures(compared))
    assert [axes.get_title(loc="left") for axes in drawn(shown["position-models"]).axes] == [
        "planted <b>model</b>: Position table",
        "longer: Position table",
        "longer (2): Position table",
    ]
    for axes in shown["position-models"].axes:  # of 64 and of 128 positions
        assert axes.get_xlim() == (0, 0.5)
        assert axes.get_xlabel() == "Frequency (cycles per token)"
    assert len(drawn(shown["components-models"]).axes[0].get_legend().get_texts()) == 3


@pytest.mark.parametrize("heads", [1, 12])
def test_every_size_fits(heads):
    tree = explanation(heads, heads, positions=16, columns=6)
    for name, draw in WHOLE.items():
        assert max(drawn(draw(node(tree, name))).get_size_inches()) < 12


@pytest.mark.parametrize("name", [*OF_HEADS, "verdict"])
def test_a_head_without_values_is_drawn_empty(tree, name):
    result = node(tree, name).copy(deep=True)
    for variable in result.data_vars.values():
        if {"layer", "head"} <= set(variable.dims) and variable.dtype.kind == "f":
            variable.loc[{"layer": 0, "head": 0}] = np.nan
    drawn(OF_HEADS[name](result, [(0, 0), (0, 1)]) if name in OF_HEADS else verdict_grid(result))


def test_no_agreement_is_drawn_where_no_head_has_all_offsets(tree):
    verdict = node(tree, "verdict").assign(offset_of_spectrum=node(tree, "verdict").offset_of_spectrum * np.nan)
    names = [name for name, _ in explain_figures(xr.DataTree.from_dict({"verdict": verdict}))]
    assert names == ["verdict"]
    with pytest.raises(AttnscopeError, match="needs a head with all three offsets"):
        offset_agreement(verdict)


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


def test_an_offset_that_random_phases_give_as_often_is_not_named(tree):
    for name, draw, chance in (
        ("cross_spectrum", cross_spectrum_offsets, "band_offset_chance"),
        ("phase_map", phase_maps, "line_chance"),
    ):
        result = node(tree, name).copy(deep=True)
        assert draw(result, [(0, 0)]).axes[0].get_title(loc="right") == "offset −1"
        result[chance][0, 0] = 0.3
        assert draw(result, [(0, 0)]).axes[0].get_title(loc="right") == "no offset"


def test_heads_that_an_analysis_lacks_are_left_out(tree):
    first = node(tree, "waves").isel(layer=[0])
    shown = dict(explain_figures(xr.DataTree.from_dict({"waves": first}), [(0, 1), (2, 1)]))
    assert len(shown["wave-columns"].axes) == 1


@pytest.mark.parametrize("name", ["waves", "interventions"])
def test_refusals_say_what_exists(tree, name):
    with pytest.raises(AttnscopeError, match=r"layer 0 has no head 9.*heads from 0 to 3"):
        OF_HEADS[name](node(tree, name), [(0, 9)])
    with pytest.raises(AttnscopeError, match=r"needs .* but the result has"):
        OF_HEADS[name](node(tree, "position_pca"), [(0, 0)])
    with pytest.raises(AttnscopeError, match=r"needs .* but the result has"):
        verdict_grid(node(tree, "forms"))
