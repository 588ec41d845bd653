"""Which of many heads is named: the largest effect, and whether it is significant."""

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope.intervention.effects import heads_of
from attnscope.intervention.verdicts import verdicts
from attnscope.results.reports import report_of
from tests.results.page.planted_intervention import planted_intervention


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


def _largest(sentences):
    (said,) = (sentence for sentence in sentences if "largest change" in sentence.lower())
    return said


def test_the_largest_of_many_is_reported_as_not_significant_where_none_is():
    tree = planted_intervention(effect=0.0)
    tree["heads"]["shown"] = xr.zeros_like(tree["heads"].shown)
    said = sentences("intervene", tree)
    assert _largest(said).endswith(" ablation). It is not significant (corrected for all heads and ablations).")
    assert " to " not in _largest(said)
    assert said[0].startswith("None of 6 heads significantly changes the loss")


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


def test_few_heads_are_named_in_the_headline_with_the_largest_effect_and_its_interval():
    tree = planted_intervention()
    row = next(row for row in verdicts(tree) if row["resample_shown"])
    low, high = (f"{row[f'resample_{end}']:+.2g}" for end in ("low", "high"))
    said = report_of("intervene", tree).finding.headline
    assert "for 1 of 6 heads (0.1), under all 3 ablations; most without head 0.1: +0.5" in said
    assert said.endswith(f" nats ({low} to {high})")


def test_the_headline_of_too_few_windows_has_the_largest_change_and_says_that_nothing_is_tested():
    tree = attnscope.intervene(limit=3, window=32, ablations=["mean"], steps=0, why=False)
    largest = tree["heads"].effect.sel(ablation="mean").max().item()
    said = report_of("intervene", tree).finding.headline
    assert said.startswith("Of 12 heads, the loss changes most without head 0.")
    assert said.endswith(f" (mean ablation): {largest:+.2g} nats; no test possible: intervals need 6 or more windows")


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
def test_a_model_worse_than_guessing_is_reported_first(guess, worse):
    tree = planted_intervention()  # its loss is 2.0
    tree["effects"] = tree["effects"].to_dataset().assign(guess_loss=("window", np.full(12, guess)))
    assert sentences("intervene", tree)[0].startswith("This model predicts worse than a uniform guess") == worse
