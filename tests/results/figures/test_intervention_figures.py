"""Figures of interventions, patching and differences, against the numbers that they draw."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import attnscope
from attnscope.results.figures.diff import before_after
from attnscope.results.figures.intervene import estimates_of_effects
from attnscope.results.figures.patch import recovered_intervals, recovered_map
from attnscope.results.reports import report_of
from tests.results.page.planted_intervention import planted_intervention
from tests.results.page.planted_patching import planted_patching

# --- the figures of patching, held against the numbers that they draw ---


def test_the_map_holds_every_place_and_names_tokens():
    tree = planted_patching()
    figure = recovered_map(tree)
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), tree["patched"].recovered)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["␣She/␣He", "␣is", "␣sad", "."]
    dots = axes.lines[0].get_xydata()
    assert dots.tolist() == [[2.0, 0.0]]
    hollow = {(box.get_y() + box.get_height() / 2, box.get_x() + box.get_width() / 2) for box in axes.patches}
    tested = tree["patched"].tested.values & np.isfinite(tree["patched"].recovered.values)
    assert hollow == {*map(tuple, np.argwhere(tested & ~tree["patched"].shown.values).tolist())}


def test_the_largest_places_stand_first_with_their_intervals():
    axes = recovered_intervals(report_of("patch", planted_patching())).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "block 0 at 2  ␣sad"
    assert len(axes.get_yticks()) == 8


# --- the figure of estimates beside effects says how well each ranks them, and how often a random order would ---


def test_each_panel_has_its_rank_correlation_and_its_chance():
    tree = planted_intervention()
    agreement = tree["agreement"].to_dataset()
    tree["agreement"] = agreement.assign(
        rank_correlation=agreement.rank_correlation * 0 - 0.25, chance=agreement.chance * 0 + 0.16
    )
    titles = [axes.get_title().replace("\n", " ") for axes in estimates_of_effects(tree).axes]
    assert len(titles) == 4
    assert all(title.endswith(" rank correlation −0.25 as high in 16% of random orders") for title in titles)
    assert np.isfinite(agreement.chance).any()


# --- figures of a difference: their ticks say their numbers in full, and do not run into each other ---


#: Means of heads, and what they differ by: of untrained heads, of shares, of offsets, of one head alone.
RANGES = [
    (0.957538, 4e-6),
    (3.8779, 7e-5),
    (0.0425, 2e-4),
    (0.4, 0.2),
    (-31.75, 0.05),
    (12.0, 90.0),
    (1e-7, 1e-8),
    (0.5, 0.0),
]


@pytest.fixture(scope="module")
def figure():
    run = attnscope.scan(limit=8, window=32, statistics=["entropy", "profile"])
    draws, runs = np.random.default_rng(0), []
    for _ in range(2):
        values = {
            f"statistic_{number}": run.entropy.copy(data=mean + spread * draws.normal(size=run.entropy.shape))
            for number, (mean, spread) in enumerate(RANGES)
        }
        runs.append(run.drop_vars("entropy").assign(values))
    drawn = before_after(attnscope.diff(*runs))
    FigureCanvasAgg(drawn).draw()
    return drawn


def boxes(labels):
    return [label.get_window_extent() for label in labels if label.get_text()]


def test_ticks_do_not_run_into_each_other(figure):
    for axes in figure.axes:
        across, up = boxes(axes.get_xticklabels()), boxes(axes.get_yticklabels())
        assert all(left.x1 + 2 < right.x0 for left, right in pairwise(across))
        assert all(low.y1 < high.y0 for low, high in pairwise(up))


def test_ticks_say_their_numbers_in_full(figure):
    for axes in figure.axes:
        assert axes.xaxis.get_offset_text().get_text() == axes.yaxis.get_offset_text().get_text() == ""
        said = [float(label.get_text().replace("−", "-")) for label in axes.get_xticklabels()]
        assert len(said) >= 2
        low, high = axes.get_xlim()
        np.testing.assert_allclose(said, axes.get_xticks(), atol=0.01 * (high - low))
