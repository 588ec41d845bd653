"""Which of many heads is named: the largest effect, and whether it is significant."""

import numpy as np
import pytest
import xarray as xr

from attnscope.intervention.effects import heads_of
from attnscope.intervention.verdicts import verdicts
from attnscope.results.figures.intervene import captions, effect_intervals
from attnscope.results.reports import report_of
from tests.report.planted_intervention import planted_intervention
from tests.report.planted_patching import planted_patching


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


def _largest(sentences):
    (said,) = (sentence for sentence in sentences if "largest change" in sentence.lower())
    return said


def test_the_largest_of_many_is_not_held_up_where_none_is_told_from_0():
    tree = planted_intervention(effect=0.0)
    tree["heads"]["shown"] = xr.zeros_like(tree["heads"].shown)
    said = sentences("intervene", tree)
    assert _largest(said).endswith(" ablation). It is not significant (corrected for all heads and ablations).")
    assert " to " not in _largest(said)
    assert said[1].startswith("None of 6 heads significantly changes the loss")


def test_the_largest_is_named_and_whether_it_is_significant_and_then_the_largest_that_is():
    tree = planted_intervention(wild=0.8)
    first = verdicts(tree)[0]
    assert (first["layer"], first["head"], first["matters"]) == (1, 2, 0)
    said = sentences("intervene", tree)
    place = said.index(_largest(said))
    assert "nats, without head 1.2 (" in said[place]
    assert said[place].endswith("It is not significant (corrected for all heads and ablations).")
    assert said[place + 1].startswith("The largest significant change is +0.5")
    assert "without head 0.1 (" in said[place + 1]


def test_of_models_in_which_no_head_matters_one_in_twenty_shows_one_over_all_ablations():
    generator = np.random.default_rng(0)
    dims, times = ("window", "ablation", "layer", "head"), 200
    shown = 0
    for _ in range(times):
        noise = generator.normal(size=(8, 3, 1, 8))
        effects = xr.Dataset(
            {"loss_change": (dims, noise)},
            coords={"source": ("window", list("abcdefgh")), "ablation": ["zero", "mean", "resample"]},
        )
        shown += bool(heads_of(effects).shown.any())
    assert shown / times < 0.09  # by ablation: 0.13


@pytest.mark.parametrize(("guess", "worse"), [(1.9, True), (2.1, False)])
def test_a_model_worse_than_guessing_is_said_first(guess, worse):
    tree = planted_intervention()  # its loss is 2.0
    tree["effects"] = tree["effects"].to_dataset().assign(guess_loss=("window", np.full(12, guess)))
    assert sentences("intervene", tree)[0].startswith("This model predicts worse than a uniform guess") == worse


def test_heads_are_counted_in_whole_sentences():
    said = sentences("intervene", planted_intervention())[1]
    assert said.startswith(
        "Removing one head at a time significantly raises the loss for 1 of 6 heads and lowers it for 0, under each of "
        "zero, mean and resample ablation (p < 0.05"
    )
    assert said.endswith("). For 1 more it depends on the ablation. 4 have no significant effect.")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (3.5, "(87% to 88%), with block 0 at 2. It is significant (corrected for all positions)"),
        (0.0, "It is not significant (corrected for all positions)"),
    ],
)
def test_of_patched_places_too(change, says):
    tree = planted_patching(change)
    tree["patched"]["shown"] = tree["patched"].shown & (change > 0)
    assert says in _largest(sentences("patch", tree))
    assert ("% to " in _largest(sentences("patch", tree))) == (change > 0)


def test_the_largest_patched_place_is_named_before_a_smaller_one_that_is_significant():
    tree = planted_patching(3.5)
    places = tree["patched"]
    places["effect"][0, 1], places["recovered"][0, 1], places["shown"][0, 1] = 9.0, 1.11, False
    (said,) = (sentence for sentence in sentences("patch", tree) if "largest change" in sentence)
    assert "The largest change is 111% of the difference, with block 0 at 1. It is not significant" in said
    assert "The largest significant change is 88% of the difference (87% to 88%), with block 0 at 2." in said


def test_rings_are_drawn_for_what_is_not_told_from_0():
    report = report_of("intervene", planted_intervention())
    axes = effect_intervals(report).axes[0]
    filled = np.concatenate([marks.get_facecolor()[:, :3].min(1) < 1 for marks in axes.collections])
    shown = [row[f"{name}_shown"] for name in ("zero", "mean", "resample") for row in report.rows]
    assert filled.tolist() == shown
    assert 0 < sum(shown) < len(shown)
    assert "rings are not" in captions(report)["effect-intervals"][1]


def test_a_search_is_said_beside_what_each_head_does_alone():
    tree = planted_intervention(effect=0.0)
    tree["heads"]["shown"] = xr.zeros_like(tree["heads"].shown)
    searched = 0.1 * xr.ones_like(tree["heads"].effect.isel(ablation=0, drop=True))
    tree["search"] = xr.Dataset({"searched": searched}, attrs={"passes": 10, "removed": 2})
    (said,) = (sentence for sentence in sentences("intervene", tree) if sentence.startswith("Search"))
    assert said.endswith("without a test; none of these has a significant effect alone.")
