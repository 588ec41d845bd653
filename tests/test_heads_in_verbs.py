"""The same heads are measured by every verb, and only these."""

import json

import numpy as np
import pytest
import torch
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

import attnscope
import attnscope_cards
import attnscope_circuits
from attnscope.capture.load import load_model
from attnscope.head_names import heads_of
from attnscope.intervention.stack import StackedPasses
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits.edge_scores import EdgeRuns
from attnscope_monitor import HeadMonitor
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope as command

HEADS = [(0, 3), (2, 1)]
FORMS = ["0.3,2.1", {"0.3", (2, 1)}, np.array(HEADS)]
SMALL = {"limit": 4, "window": 24}


def cells(values):
    """The heads that have a number."""
    return [(int(values.layer[layer]), int(head)) for layer, head in np.argwhere(np.isfinite(values.values))]


@pytest.mark.parametrize("heads", FORMS, ids=["text", "set", "array"])
def test_every_verb_measures_the_heads_that_are_named(heads):
    effects = attnscope.intervene(**SMALL, heads=heads, ablations=["zero"], steps=0, why=False)["heads"]
    assert cells(effects.effect.isel(ablation=0)) == HEADS
    assert cells(attnscope.patch(heads=heads)["patched"].effect) == HEADS
    found = attnscope.roles(only="previous_token,first_token", **SMALL, heads=heads, controls="none")
    assert cells(found.score.isel(role=0)) == HEADS
    card = attnscope_cards.card(**SMALL, heads=heads, controls="none", kept=[(4, 1)])
    assert cells(card.score.sel(role="previous_token")) == HEADS
    rows = attnscope.examples(heads=heads, k=1, **SMALL)
    assert sorted({*zip(rows.layer.values.tolist(), rows["head"].values.tolist(), strict=True)}) == HEADS
    monitor = HeadMonitor(["The tide comes in twice a day."], load_model("bundled").tokenizer, heads=heads)
    scalars = monitor(load_model("bundled", device="cpu").model, 0)
    assert cells(monitor.dataset.entropy.isel(step=0)) == HEADS
    assert scalars["heads/entropy_min"] == float(monitor.dataset.entropy.min())


def test_chosen_heads_have_the_numbers_of_all_heads():
    how = {"only": "previous_token,first_token", **SMALL, "controls": "none"}
    every, some = attnscope.roles(**how), attnscope.roles(**how, heads=HEADS)
    for name in ("score", "low", "high"):
        np.testing.assert_array_equal(some[name], every[name].where(some.score.notnull()))
    model = build("previous-decoder-2")
    reading = {"texts": model.ids[:4].tolist(), "tokenizer": model.tokenizer, "kept": [(2, 1)], "controls": "none"}
    every, some = (attnscope_cards.card(model.model, **reading, limits=True, **how) for how in ({}, {"heads": "1.2"}))
    assert cells(some.effect.isel(ablation=0)) == [(1, 2)]
    np.testing.assert_array_equal(some.effect, every.effect.where(some.effect.notnull()))


def test_work_falls_with_the_number_of_heads(monkeypatch):
    counted = []
    run = StackedPasses.run

    def counting(passes, edits, variants, *rest):
        counted.append(variants)
        return run(passes, edits, variants, *rest)

    monkeypatch.setattr(StackedPasses, "run", counting)
    variants = {}
    for heads in ("0.3", "0.3,2.1", None):
        before = len(counted)
        attnscope.intervene(limit=2, window=16, heads=heads, ablations=["zero"], steps=0, why=False)
        variants[heads] = sum(counted[before:])
    alone, both, every = variants.values()
    assert every - both == 10 * (both - alone) > 0  # of 12 heads
    passes = []
    monkeypatch.setattr(EdgeRuns, "circuit", lambda runs, edges: passes.append(edges) or runs.clean[1] / 2)
    scored = {}
    for heads in ("1.0", "1.0,1.1"):
        passes.clear()
        found = attnscope_circuits.edges(method="exact", heads=heads, sizes=[0.0, 1.0], draws=1)
        scored[heads] = int(found.score.notnull().sum()), len(passes)
        assert {str(name).partition("<")[0] for name in found.sender[found.score.notnull().any("receiver")].values} == {
            f"a1.h{name.partition('.')[2]}" for name in heads.split(",")
        }
    (few, passes_of_few), (more, passes_of_more) = scored.values()
    assert more == 2 * few
    assert passes_of_more > 1.5 * passes_of_few


def test_edges_of_chosen_heads_have_their_scores_and_end_at_the_clean_run():
    every, some = (attnscope_circuits.edges(heads=heads, sizes=[0.0, 1.0], draws=1) for heads in (None, "0.3"))
    chosen = some.score.notnull()
    np.testing.assert_array_equal(some.score.where(chosen), every.score.where(chosen))
    assert some.sender[chosen.any("receiver")].values.tolist() == ["a0.h3"]
    np.testing.assert_allclose(some.difference.sel(size=1.0, order="raising"), some.clean, atol=1e-4)
    np.testing.assert_allclose(some.difference.sel(size=0.0, order="raising"), some.without, atol=1e-4)
    assert abs(some.without - some.corrupted).max() > 0.1
    np.testing.assert_allclose(some.faithfulness.sel(order="raising"), [0, 1], atol=1e-4)
    report_of("edges", some)


def test_parts_of_chosen_heads_and_the_rest_add_up():
    model = build("previous-decoder-2")
    reading = {"texts": model.ids[:8].tolist(), "tokenizer": model.tokenizer, "window": 32}
    every, some = (attnscope_circuits.attribute(model.model, **reading, **how) for how in ({}, {"heads": "1.2,0.1"}))
    assert some["parts"].component.values.tolist() == ["1.2", "0.1", "rest"]
    names = ["1.2", "0.1"]
    np.testing.assert_allclose(
        some["predictions"].part.sel(component=names), every["predictions"].part.sel(component=names), atol=1e-6
    )
    np.testing.assert_allclose(some["predictions"].part.sum("component"), every["predictions"].total, atol=1e-4)
    assert some["parts"].tested.values.tolist() == [True, True, False]
    assert "these heads" in report_of("attribute", some).finding.sentences[0]


def test_heads_of_a_role_of_a_run_are_those_at_its_threshold(tmp_path):
    how = {"only": "previous_token,duplicate_token", "limit": 8, "controls": "none", "out": tmp_path / "run"}
    scores = attnscope.roles(**how).score.sel(role="previous_token")
    best = scores.to_series().nlargest(2).index.tolist()
    ranked = scores.to_series().sort_values(ascending=False)
    assert heads_of("heads", f"{tmp_path}/run:previous_token") == ranked[ranked >= 0.5].index.tolist()
    assert heads_of("heads", f"{tmp_path}/run:previous_token:2") == best
    for heads, reason in (
        (f"{tmp_path / 'run'}:previous_token:13", "12 heads have a score: name fewer"),
        (f"{tmp_path / 'nope'}:previous_token", "there is no folder .*nope"),
        (tmp_path / "run", "is the folder .*; expected one of its roles"),
        ("0.1+0.2", "has a set of heads .0.1 and others.; expected heads one by one"),
    ):
        with pytest.raises(AttnscopeError, match=reason):
            attnscope.patch(heads=heads)
    with pytest.raises(AttnscopeError, match=r"one of its roles: previous_token"):
        heads_of("heads", f"{tmp_path}/run:induction")
    asked = ["intervene", "--heads", f"{tmp_path}/run:previous_token:2", "--ablations", "zero", "--steps", "0"]
    asked += ["--no-why", "--limit", "2", "--window", "16", "--no-report", "--json"]
    found = json.loads(command(*asked, cwd=tmp_path).stdout)
    assert sorted((row["layer"], row["head"]) for row in found["tables"]["heads"]) == sorted(best)


def test_heads_that_do_not_exist_are_rejected_by_each_verb():
    for verb in (
        attnscope.roles,
        attnscope_cards.card,
        attnscope.examples,
        attnscope.intervene,
        attnscope_circuits.attribute,
    ):
        with pytest.raises(AttnscopeError, match=r"no head 9.9 \(.*heads"):
            verb(**SMALL, heads="9.9")
    for verb in (attnscope.patch, attnscope_circuits.edges):
        with pytest.raises(AttnscopeError, match=r"9\.9"):
            verb(heads="9.9")


def test_the_monitor_measures_a_metric_and_its_change_without_each_head():
    loaded = load_model("bundled", device="cpu")
    ids = loaded.tokenizer(["The tide comes in twice a day."], return_tensors="pt").input_ids

    @attnscope.metric(unit="logits")
    def first(logits, inputs):
        return logits[:, 1, inputs["input_ids"][0, 1]]

    monitor = HeadMonitor({"input_ids": ids}, heads="0.3", metric=first)
    scalars = monitor(loaded.model, 0)
    with torch.no_grad():
        before = float(first(loaded.model(ids).logits, {"input_ids": ids}))
        with attnscope.edit(loaded.model, {(0, 3): torch.zeros_like}, on="z"):
            after = float(first(loaded.model(ids).logits, {"input_ids": ids}))
    np.testing.assert_allclose(scalars["metric/first"], before, rtol=1e-5)
    np.testing.assert_allclose(monitor.dataset.metric_change.sel(layer=0, head=3), after - before, rtol=1e-4)
    with pytest.raises(AttnscopeError, match="needs a held batch"):
        HeadMonitor(metric=first)


def test_a_metric_of_the_monitor_reads_the_embedding_that_a_model_returns():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = CLIPVisionModelWithProjection(
        CLIPVisionConfig(**size, image_size=16, patch_size=8, projection_dim=6)
    ).eval()
    pixels = torch.randn(2, 3, 16, 16)
    monitor = HeadMonitor({"pixel_values": pixels}, metric=attnscope.metric(name="first")(lambda rows, _: rows[:, 0]))
    expected = model(pixels).image_embeds[:, 0].mean().item()
    np.testing.assert_allclose(monitor(model, 0)["metric/first"], expected, rtol=1e-5)
