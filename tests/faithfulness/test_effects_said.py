"""What is named of many heads: those that are told from 0, with all of them looked at together."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from attnscope.faithfulness import headline, patch_headline, verdicts
from attnscope.faithfulness._verdict import _search_said
from attnscope.figures.intervene import effect_intervals, intervention_readings
from tests.report.planted_intervention import planted_intervention
from tests.report.planted_patching import planted_patching


def _largest(sentences):
    (said,) = (sentence for sentence in sentences if "largest change" in sentence.lower())
    return said


def test_the_largest_of_many_is_not_held_up_where_none_is_told_from_0():
    tree = planted_intervention(effect=0.0)
    tree["heads"]["shown"] = xr.zeros_like(tree["heads"].shown)
    said = headline(tree)
    assert _largest(said).endswith(" ablation), is not told from 0 with all heads looked at together.")
    assert "(" not in _largest(said).replace("(zero", "").replace("(mean", "").replace("(resample", "")
    assert "Of 6 heads, none is shown to change the loss" in said[1]


def test_a_head_is_named_that_is_told_from_0_though_another_changes_more():
    tree = planted_intervention(wild=0.8)
    first = verdicts(tree)[0]
    assert (first.layer, first.head) == (1, 2)
    assert not any(effect.shown for effect in first.effects.values())
    assert "of those told from 0 is +0.5" in _largest(headline(tree))
    assert "without head 0.1 (" in _largest(headline(tree))


def test_heads_are_counted_in_whole_sentences():
    said = headline(planted_intervention())[1]
    assert said.startswith(
        "Of 6 heads taken out one at a time, 1 raises the loss and 0 lower it under each of zero, mean and resample "
        "ablation; for 1 more it depends on the ablation; 4 are not shown to change it ("
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (3.5, "of those told from 0 comes with block 0 at 2: 8"),
        (0.0, "is not told from 0 with all places looked"),
    ],
)
def test_of_patched_places_too(change, says):
    tree = planted_patching(change)
    tree["patched"]["shown"] = tree["patched"].shown & (change > 0)
    assert says in _largest(patch_headline(tree))
    assert ("(" in _largest(patch_headline(tree))) == (change > 0)


def test_rings_are_drawn_for_what_is_not_told_from_0():
    tree = planted_intervention()
    axes = effect_intervals(tree).axes[0]
    filled = np.concatenate([marks.get_facecolor()[:, :3].min(1) < 1 for marks in axes.collections])
    shown = [row.effects[name].shown for name in ("zero", "mean", "resample") for row in verdicts(tree)]
    assert filled.tolist() == shown
    assert 0 < sum(shown) < len(shown)
    assert "rings have not" in intervention_readings(tree)["effect-intervals"][1]


def test_a_search_is_said_beside_what_each_head_does_alone():
    tree = planted_intervention(effect=0.0)
    tree["heads"]["shown"] = xr.zeros_like(tree["heads"].shown)
    rows = [replace(row, searched=0.1 * row.head) for row in verdicts(tree)]
    tree["search"] = xr.Dataset(attrs={"passes": 10, "removed": 2})
    (said,) = _search_said(tree, rows)
    assert said.endswith(
        "It is an estimate without a test; none of these is told from 0 when taken out alone."
    )
