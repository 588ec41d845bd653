"""Ablations of a caller's own: the bits of the built-in ones, effects by `edit`, and the errors of their functions."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.detection.role import ROLES
from attnscope.intervention.replacements import ABLATIONS
from attnscope.measure.quantities import STATISTICS
from attnscope.report import registry
from attnscope.results.reports import report_of
from tests.tiny_models import tiny_reader

TEXTS = ["The tide comes in twice a day.", "It goes out again, and no one sees it go at all.", "The boats lie dry."] * 2
PLAIN = {"steps": 0, "why": False}


def nothing(output):
    """Nothing is left."""
    return torch.zeros_like(output)


def own_mean(output):
    """The mean over this text is left."""
    return output.mean(1, keepdim=True).expand_as(output)


@pytest.fixture(scope="module", autouse=True)
def own_ablations():
    attnscope.ablation()(nothing)
    attnscope.ablation()(own_mean)
    attnscope.ablation(name="same")(lambda output: output)


@pytest.fixture(scope="module")
def model():
    return tiny_reader("gpt2")


@pytest.fixture(scope="module")
def tree(model):
    ablations = ["same", "own_mean", "zero", "nothing"]
    found = attnscope.intervene(model[0], TEXTS, tokenizer=model[1], ablations=ablations, steps=2, why=False,
                                together=[[(0, 1), (1, 2)]])  # fmt: skip
    assert found["effects"].ablation.values.tolist() == ["zero", "nothing", "own_mean", "same"]
    return found


@pytest.mark.parametrize("node", ["effects", "heads", "together", "agreement"])
def test_an_ablation_like_one_of_ours_has_its_bits(node, tree):
    part = tree[node].to_dataset()
    for name, values in part.data_vars.items():
        if "ablation" in values.dims:
            own, other = (values.sel(ablation=which).values for which in ("nothing", "zero"))
            np.testing.assert_array_equal(own, other, err_msg=name)


def test_what_changes_nothing_has_no_effect(tree):
    assert abs(tree["effects"].loss_change.sel(ablation="same")).max() < 1e-6
    assert abs(tree["effects"].estimate.sel(ablation="same", estimator="attribution")).max() < 1e-6


def test_edit_takes_the_same_function(model, tree):
    reader, tokenizer = model
    for number in (0, 1):  # one text at a time has no padding
        ids = tokenizer(TEXTS[number], return_tensors="pt").input_ids
        with torch.no_grad(), attnscope.edit(reader, {(1, 2): own_mean}, on="z") as edited:
            logits = edited(ids).logits[0, :-1].log_softmax(-1)
        loss = -logits.gather(-1, ids[0, 1:, None]).mean()
        effects = tree["effects"].isel(window=number)
        found = effects.loss + effects.loss_change.sel(ablation="own_mean", layer=1, head=2)
        torch.testing.assert_close(torch.tensor(float(found)), loss, rtol=1e-5, atol=1e-5)


def test_random_sets_and_encoder_decoders_take_it():
    reader, tokenizer = tiny_reader("bart")
    both = ["zero", "nothing"]
    how = {"tokenizer": tokenizer, "ablations": both, "heads": [(0, 0), (3, 1)], "random": 3, **PLAIN}
    found = attnscope.intervene(reader, TEXTS, targets=TEXTS, **how)
    sets = found["together"].to_dataset()
    for name in ("loss_change", "random_effect", "p", "effect"):
        np.testing.assert_array_equal(*(sets[name].sel(ablation=one).values for one in both), err_msg=name)


def test_tables_and_figures_have_it(tree):
    report = report_of("intervene", tree)
    (quantity,) = [one for one in report.tables[0].quantities if one.heading == "own_mean" and "metric" not in one.name]
    assert quantity.meaning == "change of the loss under the ablation own_mean: The mean over this text is left."
    assert all(row["own_mean_mean"] is not None for row in report.tables[0].rows)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda output: output[:, 1:], r"the ablation bad returns shape \(1, \d+, 8\); expected a tensor of shape"),
        (lambda output: 3, "the ablation bad returns a int; expected a tensor"),
        (lambda output: output * torch.nan, "returns NaN or an infinite number: expected finite ones"),
        (lambda output: output + torch.rand(1), "returns other numbers for the same output: remove random numbers"),
        (lambda output: output.absent, "the ablation bad failed: .* Correct its function"),
    ],
)
def test_a_bad_function_is_an_error_and_leaves_no_folder(function, says, model, tmp_path):
    attnscope.ablation(name="bad")(function)
    with pytest.raises(AttnscopeError, match=says) as error:
        attnscope.intervene(model[0], TEXTS, tokenizer=model[1], ablations=["bad"], out=tmp_path / "run", **PLAIN)
    assert len(str(error.value).splitlines()) <= 2
    assert not (tmp_path / "run").exists()


def test_names_that_cannot_be_are_errors(model):
    with pytest.raises(AttnscopeError, match="the ablation 'zero' is one of attnscope"):
        attnscope.ablation(name="zero")(nothing)
    with pytest.raises(AttnscopeError, match=r"'absent'; expected one or more of .* once its module is imported"):
        attnscope.intervene(model[0], TEXTS, tokenizer=model[1], ablations=["absent"])


def test_another_function_is_another_run(model, tmp_path):
    run = {"tokenizer": model[1], "ablations": ["mine"], "out": tmp_path / "run", **PLAIN}

    def scaled(factor):
        return lambda output: output * factor

    attnscope.ablation(name="mine")(torch.zeros_like)  # as edit takes it
    registry.forget([("ablation", "mine")])
    attnscope.ablation(name="mine")(scaled(2))
    first = attnscope.intervene(model[0], TEXTS, **run)
    attnscope.ablation(name="mine")(scaled(3))
    with pytest.raises(AttnscopeError, match=r"holds another run: its settings\.code\.ablation mine\.sha256 is"):
        attnscope.intervene(model[0], TEXTS, **run)
    attnscope.ablation(name="mine")(scaled(2))
    assert attnscope.intervene(model[0], TEXTS, **run)["effects"].to_dataset().equals(first["effects"].to_dataset())
    registry.forget([("ablation", "mine")])
    opened = attnscope.open_run(tmp_path / "run")
    assert report_of("intervene", opened).tables[0].rows == report_of("intervene", first).tables[0].rows
    with pytest.raises(AttnscopeError, match="the ablation 'mine' is known from a run alone: first import"):
        attnscope.intervene(model[0], TEXTS, **run)
    registry.forget([("ablation", "mine")])
    settings = json.loads(first.attrs["signature"])["settings"]
    with pytest.raises(AttnscopeError, match="was written with the ablation 'mine', which is not registered here"):
        registry.check_registered(settings, {}, "a run of an earlier version")


def test_it_does_not_depend_on_padding(model):
    """The function gets a text without padding: its mean is that of the text alone."""
    reader, tokenizer = model
    how = {"tokenizer": tokenizer, "ablations": ["own_mean"], **PLAIN}
    both = attnscope.intervene(reader, TEXTS[:2], **how)["effects"].loss_change
    alone = attnscope.intervene(reader, TEXTS[1:2], **how)["effects"].loss_change
    np.testing.assert_allclose(both.isel(window=1), alone.isel(window=0), atol=1e-5)


WORDS = {
    "ablation": {"meaning": "change of the loss"},
    "statistic": {"long_name": "Sharp", "units": "", "reading": "", "signed": False, "has_equal": True},
    "role": {"definition": "Weight.", "source": "a paper", "threshold": 0.5, "layers": ["causal"], "more": 0.0,
             "has_texts": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ("ablation zero", {}),
        ("statistic entropy", {}),
        ("role previous_token", {}),
        ("ablation stored_x", {"meaning": 3}),
        ("ablation stored_x", {"more": "words"}),
        ("statistic stored_x", {"has_equal": "yes"}),
        ("statistic stored_x", {"long_name": None}),
        ("role stored_x", {"threshold": 7.0}),
        ("role stored_x", {"layers": ["causal", "everywhere"]}),
        ("ablation Stored x", {}),
        ("reader stored_x", {}),
    ],
)
def test_what_a_run_stores_of_a_record_is_checked_and_replaces_none_of_ours(record, change):
    kind, _, name = record.partition(" ")
    tables = {"ablation": ABLATIONS, "statistic": STATISTICS, "role": ROLES}
    before = {of: dict(table) for of, table in tables.items()}
    settings = {"code": {record: {"module": "mine", "sha256": "0"}}}
    with pytest.raises(AttnscopeError, match=f"a run stores a {kind} '{name}' that no run has") as error:
        registry.check_registered(settings, {record: WORDS.get(kind, {}) | change}, "a run")
    assert len(str(error.value).splitlines()) <= 2
    assert {of: dict(table) for of, table in tables.items()} == before


@pytest.mark.parametrize("kind", WORDS)
def test_what_a_run_stores_of_a_record_suffices_for_its_words(kind):
    settings = {"code": {f"{kind} stored_x": {"module": "mine", "sha256": "0"}}}
    registry.check_registered(settings, {f"{kind} stored_x": WORDS[kind]}, "a run")
    assert registry.words_of(settings) == {f"{kind} stored_x": WORDS[kind]}
    registry.forget([(kind, "stored_x")])
