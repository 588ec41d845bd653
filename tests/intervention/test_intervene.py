"""`intervene` from end to end, on the bundled model and on models whose heads are known."""

import numpy as np
import pytest

import attnscope
from attnscope import intervene
from attnscope.capture.load import load_model
from attnscope.intervention.edits import Forbidden, knock_out
from attnscope.intervention.open_predictions import prediction_session
from attnscope.intervention.verdicts import verdicts
from attnscope.read.encoded import texts_of
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.intervention.parts_of_blocks import loss_by_text
from tests.intervention.small_models import TEXTS
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer


def sentences(verb, result):
    return report_of(verb, result).finding.sentences


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return intervene(texts=TEXTS, out=tmp_path_factory.mktemp("runs") / "run", search=True, curves=True)


def test_effects_are_those_of_whole_passes_with_a_head_set_to_zero(tree):
    loaded = load_model("bundled", device="cpu")
    asked = prediction_session(loaded, texts_of(TEXTS), window=128, limit=10)
    questions = asked.batch(slice(0, len(TEXTS)))

    loaded.model.eval()

    found = tree["effects"].sel(ablation="zero").loss_change
    plain = loss_by_text(loaded.model, questions)
    for layer, head in ((0, 3), (1, 0), (2, 2)):
        silenced = loss_by_text(
            loaded.model, questions, lambda _, output, __, head=head: output[:, head].zero_(), layer
        )
        np.testing.assert_allclose(found.sel(layer=layer, head=head), (silenced - plain).numpy(), atol=2e-5)
    assert float(found.sel(layer=0, head=3).mean()) > 0.1


def test_heads_that_look_at_neighbours_are_needed_and_the_verdict_says_why(tree):
    rows = verdicts(tree)
    assert {(row["layer"], row["head"]) for row in rows[:2]} == {(0, 1), (0, 3)}
    assert {row["label"] for row in rows[:2]} == {"previous", "next"}
    assert len(rows) == 12
    searched = tree["search"].searched
    assert {*zip(*np.nonzero(searched.values >= np.sort(searched, None)[-2]), strict=True)} == {(0, 1), (0, 3)}


def test_curves_end_where_all_heads_are_out_and_the_effect_leads(tree):
    curves = tree["curves"].loss_change.mean("window")
    np.testing.assert_allclose(curves.isel(removed=-1), float(curves.sel(order="random", removed=12)), rtol=1e-5)
    assert float(curves.sel(order="effect", removed=2)) > 2 * float(curves.sel(order="random", removed=2))


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
    everything = knock_out(asked, Forbidden(offsets=tuple(range(-128, 129)))).mean("window").loss_change
    np.testing.assert_allclose(everything, found["heads"].effect.sel(ablation="zero"), atol=2e-5)  # it gives nothing
    assert attnscope.open_run(tmp_path / "run").identical(found)
    best = max(verdicts(found), key=lambda row: row["forbidden_mean"])
    assert (best["layer"], best["head"]) == (0, 3)
    assert best["forbidden_weight"] > 0.8
    assert any("may not attend to offset −1 and token '.'" in sentence for sentence in sentences("intervene", found))


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
def test_bad_input_is_reported_in_a_line(given, says):
    with pytest.raises(AttnscopeError, match=says):
        intervene(**{"texts": TEXTS, **given})


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
