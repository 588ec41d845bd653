"""`intervene` from end to end, on the bundled model and on models whose heads are known."""

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import BertConfig, BertModel

import attnscope
from attnscope.capture.load import load_model
from attnscope.capture.watching import watching
from attnscope.intervention.ablation import search_heads
from attnscope.intervention.edits import Forbidden, knock_out
from attnscope.intervention.intervene import intervene
from attnscope.intervention.predictions import prediction_session
from attnscope.intervention.verdicts import verdicts
from attnscope.kernels.engines import attend_in_full
from attnscope.read.encoded import texts_of
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.translation.small_translators import small_model, small_tokenizer

TEXTS = [
    "The tide comes in twice a day, and twice a day it goes out again.",
    "A lighthouse keeper writes down the weather every morning.",
    "The clockmaker opened the case and looked at the wheels.",
    "Bread needs flour, water, salt and time.",
    "She wrote a letter to her brother, who lived in the harbour town.",
    "It rained all day, and the streets were empty.",
]


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return intervene(texts=TEXTS, out=tmp_path_factory.mktemp("runs") / "run", search=True, curves=True)


def test_effects_are_those_of_whole_passes_with_a_head_set_to_zero(tree):
    loaded = load_model("bundled", device="cpu")
    asked = prediction_session(loaded, texts_of(TEXTS), window=128, limit=10)
    questions = asked.batch(slice(0, len(TEXTS)))

    def loss(wanted):
        seen = []

        def observe(site, call):
            output = attend_in_full(call)[0].clone()
            if wanted is not None and len(seen) == wanted[0]:
                output[:, wanted[1]] = 0
            seen.append(site)
            return output

        loaded.model.eval()
        with torch.no_grad(), watching(loaded.model, observe):
            logits = loaded.model(**questions.batch.inputs(loaded.model)).logits
        answers = torch.log_softmax(logits, -1).gather(
            1, questions.positions[..., None].expand(-1, -1, logits.shape[-1])
        )
        right = answers.gather(-1, questions.labels.clamp(min=0)[..., None])[..., 0]
        real = questions.labels >= 0
        return (-right * real).sum(1) / real.sum(1)

    found = tree["effects"].sel(ablation="zero").loss_change
    for cell in ((0, 3), (1, 0), (2, 2)):
        expected = (loss(cell) - loss(None)).numpy()
        np.testing.assert_allclose(found.sel(layer=cell[0], head=cell[1]), expected, atol=2e-5)
    assert float(found.sel(layer=0, head=3).mean()) > 0.1


def test_heads_that_look_at_neighbours_are_needed_and_the_verdict_says_why(tree):
    rows = verdicts(tree)
    assert {(row["layer"], row["head"]) for row in rows[:2]} == {(0, 1), (0, 3)}
    assert {row["label"] for row in rows[:2]} == {"previous", "next"}
    assert len(rows) == 12


def test_an_order_of_heads_is_said_with_its_chance_and_without_interval(tree):
    """No usual interval over texts is right for a rank correlation over heads: see `agreement_of`."""
    agreement = tree["agreement"].to_dataset()
    assert set(agreement.data_vars) == {"rank_correlation", "chance"}
    (said,) = (sentence for sentence in sentences("intervene", tree) if sentence.startswith("Rank correlation"))
    at = agreement.sel(estimator="attribution", ablation="mean")
    assert f"(12 heads over 6 windows): attribution patching {float(at.rank_correlation):.2f}" in said
    assert " to " not in said
    unsure = tree.copy()
    unsure["agreement"] = agreement.assign(chance=agreement.chance * 0 + 0.16)
    (said,) = (sentence for sentence in sentences("intervene", unsure) if sentence.startswith("Rank correlation"))
    assert said.count(" (p = 0.16)") == 3


def test_a_search_finds_the_same_heads(tree):
    searched = tree["search"].searched
    best = {tuple(place) for place in np.argwhere(searched.values >= np.sort(searched.values.ravel())[-2])}
    assert best == {(0, 1), (0, 3)}
    assert tree["search"].attrs["passes"] == 3


def test_curves_end_where_all_heads_are_out_and_the_effect_leads(tree):
    curves = tree["curves"].loss_change.mean("window")
    np.testing.assert_allclose(curves.isel(removed=-1), float(curves.sel(order="random", removed=12)), rtol=1e-5)
    assert float(curves.sel(order="effect", removed=2)) > 2 * float(curves.sel(order="random", removed=2))


def test_the_folder_gives_the_same_again_and_nothing_is_measured_twice(tree, monkeypatch):
    monkeypatch.setattr("attnscope.intervention.ablation._of_batch", None)
    again = intervene(texts=TEXTS, out=tree.attrs["run"], search=True, curves=True)
    assert again.identical(tree)
    assert attnscope.open_run(tree.attrs["run"]).identical(tree)


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    settings = {"texts": TEXTS, "batch_size": 2, "ablations": ["zero"], "steps": 0, "why": False}
    whole = intervene(**settings, out=tmp_path / "whole")
    from attnscope.intervention import ablation as _effects

    own, calls = _effects._of_batch, []

    def stops(*given):
        calls.append(given[1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return own(*given)

    monkeypatch.setattr(_effects, "_of_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        intervene(**settings, out=tmp_path / "run")
    found = intervene(**settings, out=tmp_path / "run")
    assert [place.start for place in calls] == [0, 2, 2, 4]
    xr.testing.assert_equal(found["effects"].to_dataset(), whole["effects"].to_dataset())


def test_batches_do_not_change_effects():
    settings = {"texts": TEXTS, "ablations": ["zero", "mean"], "steps": 2, "why": False}
    one, other = intervene(**settings), intervene(**settings, batch_size=2, variants=3)
    for name in ("loss_change", "kl", "estimate", "importance"):
        np.testing.assert_allclose(one["effects"][name], other["effects"][name], atol=2e-5)


@pytest.mark.parametrize("renormalise", [True, False])
def test_a_rule_is_measured_beside_the_ablations(tmp_path, renormalise):
    settings = {"texts": TEXTS, "ablations": ["zero"], "steps": 0, "why": False, "renormalise": renormalise}
    found = intervene(**settings, out=tmp_path / "run", forbid_offsets=[-1], forbid_tokens=["."])
    loaded = load_model("bundled", device="cpu")
    asked = prediction_session(loaded, texts_of(TEXTS), window=128, limit=100)
    asked.check()
    stop = loaded.tokenizer.convert_tokens_to_ids(".")
    alone = knock_out(asked, Forbidden(offsets=(-1,), tokens=(stop,)), renormalise=renormalise)
    node = found["forbidden"]
    np.testing.assert_allclose(node.loss_change, alone.loss_change, atol=1e-6)
    np.testing.assert_allclose(node.effect, alone.loss_change.mean("window"), atol=1e-6)
    np.testing.assert_allclose(node.forbidden_weight, alone.weight.mean("window"), atol=1e-6)
    assert attnscope.open_run(tmp_path / "run").identical(found)
    best = max(verdicts(found), key=lambda row: row["forbidden_mean"])
    assert (best["layer"], best["head"]) == (0, 3)
    assert best["forbidden_weight"] > 0.8
    assert any("may not attend to offset −1 and token '.'" in sentence for sentence in sentences("intervene", found))


def test_cross_attention_has_no_offsets_that_could_be_forbidden():
    tokenizer = small_tokenizer()
    model = small_model("bart", len(tokenizer))
    texts = {"texts": ["a b", "th a b"], "targets": ["b a", "ab b"], "tokenizer": tokenizer}
    found = intervene(model, **texts, ablations=["zero"], steps=0, why=False, forbid_offsets=[-1])
    kinds = found["forbidden"].layer_kind.values
    unknown = np.isnan(found["forbidden"].effect.values).all(1)
    assert unknown.tolist() == (kinds == "cross").tolist()
    assert unknown.any()
    assert {row["forbidden_mean"] is None for row in verdicts(found) if row["attention"] == "cross"} == {True}


def test_weights_that_may_not_look_before_cost_the_head_that_does():
    asked = prediction_session(load_model("bundled", device="cpu"), texts_of(TEXTS), window=128, limit=10)
    asked.check()
    found = knock_out(asked, Forbidden(offsets=(-1,))).mean("window")
    assert found.weight.argmax(...)["head"] == 3
    assert found.loss_change.argmax(...)["head"] == 3
    without = intervene(texts=TEXTS, ablations=["zero"], steps=0, why=False)["heads"].effect.sel(layer=0, head=3)
    everything = Forbidden(offsets=tuple(range(-128, 129)))
    np.testing.assert_allclose(  # a head that may look nowhere gives nothing
        knock_out(asked, everything).mean("window").loss_change.sel(layer=0, head=3), without.squeeze(), atol=2e-5
    )


def test_a_search_on_random_weights_finds_little(tmp_path):
    loaded = load_model("bundled", device="cpu")
    torch.manual_seed(0)
    for parameter in loaded.model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    asked = prediction_session(loaded, texts_of(TEXTS), window=64, limit=6)
    assert float(abs(search_heads(asked, passes=6).searched).max()) < 0.05


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ablations": ["half"]}, "ablations .* 'half'"),
        ({"ablations": []}, "expected one or more"),
        ({"steps": -1}, "steps"),
        ({"texts": TEXTS[:1], "why": False}, "resample"),
        ({"texts": [[1, 2]], "ablations": ["zero"]}, "only special tokens"),
    ],
)
def test_bad_input_is_told_in_a_line(given, says):
    with pytest.raises(AttnscopeError, match=says):
        intervene(**{"texts": TEXTS, **given})


def test_a_model_without_logits_is_refused():
    config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    tokenizer = load_model("bundled", device="cpu").tokenizer
    with pytest.raises(AttnscopeError, match="no logits of tokens"):
        intervene(BertModel(config), TEXTS, tokenizer=tokenizer)
