"""Sets of heads at once: one head is its own effect, backups lose more together, and the page says so."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope
from attnscope import AttnscopeError
from attnscope.intervention.ablation import effects, joint_ablation
from attnscope.results.reports import report_of, write_page
from attnscope_zoo.catalogue import build
from tests.intervention.small_models import TEXTS
from tests.tiny_models import tiny_reader

PLAIN = {"texts": TEXTS, "ablations": ["zero", "mean"], "steps": 0, "why": False}


def test_a_set_of_one_is_that_head_and_a_pair_is_more_than_either(tmp_path):
    tree = attnscope.intervene(**PLAIN, together=[[(0, 1)], [(0, 1), (0, 3)]])
    found = tree["together"].to_dataset()
    single = tree["effects"].loss_change
    np.testing.assert_allclose(
        found.loss_change.isel(set=0).transpose(*single.dims[:2]), single.sel(layer=0, head=1), atol=1e-5
    )
    np.testing.assert_allclose(found.between.isel(set=0), 0, atol=1e-5)
    assert found["set"].values.tolist() == ["0.1", "0.1 0.3"]
    assert (found.effect.isel(set=1) > single.sel(layer=0, head=[1, 3]).mean("window").max()).all()
    alone = single.sel(layer=0, head=[1, 3]).sum("head").mean("window")
    np.testing.assert_allclose(found.alone.isel(set=1), alone, atol=1e-9)
    page = write_page(report_of("intervene", tree), tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="together"' in page
    assert "<bdi>0.1 0.3</bdi>" in page


@pytest.mark.parametrize("name", ["redundant-decoder-1", "spare-encoder-2"])
def test_backup_heads_lose_far_more_together_than_their_sum(name):
    animal = build(name)
    (pair,) = animal.redundant
    asked = benchmark("zoo")._Asked(animal)
    single = effects(asked, asked.slices()[0], ["zero"], steps=0)
    found = joint_ablation(asked, [pair], ["zero"], single).isel(ablation=0)
    assert float(found.between.isel(set=0)) > float(found.alone.isel(set=0))
    assert bool(found.between_shown.isel(set=0))


def benchmark(name):
    spec = spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("sets", "says"), [([[(3, 0)]], "no head 3.0"), ([[(0, 9)]], "no head 0.9"), ([[]], "found no heads")]
)
def test_heads_that_do_not_exist_are_rejected(sets, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope.intervene(**PLAIN, together=sets)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in ("gpt2", "llama", "bart", "t5", "bamba", "deberta")),
        *((family, torch.bfloat16) for family in ("llama", "t5")),
    ],
)
def test_chosen_heads_and_sets_are_those_of_all_in_every_family(family, dtype):
    """Causal, rotary, relative bias, two stacks, hybrid; a text of three tokens beside longer and repeated ones."""
    model, tokenizer = tiny_reader(family)
    model = model.to(dtype)
    two = {"targets": ["It rains.", *TEXTS[:2], TEXTS[1]]} if family in {"bart", "t5"} else {}
    texts = ["It.", *TEXTS[:2], TEXTS[1]]
    common = {"model": model, "tokenizer": tokenizer, "texts": texts, "ablations": ["mean"], "why": False, **two}
    every = attnscope.intervene(**common, steps=0, together=[[(0, 1), (0, 2)]])
    last = every["effects"].sizes["layer"] - 1
    chosen = attnscope.intervene(**common, heads=[(last, 3)])
    rounding = 1e-5 if dtype == torch.float32 else 0.02
    np.testing.assert_allclose(
        chosen["effects"].loss_change.sel(layer=last, head=3), every["effects"].loss_change.sel(layer=last, head=3),
        atol=rounding,
    )  # fmt: skip
    assert len(report_of("intervene", chosen).rows) == 1
    sets = attnscope.intervene(**common, heads=[(0, 1), (0, 2)], random=3)["together"]
    np.testing.assert_allclose(sets.loss_change, every["together"].loss_change, atol=rounding)
    assert sets.p.item() in {0.25, 0.5, 0.75, 1.0}


def test_only_the_chosen_heads_are_shuffled_and_explained():
    tree = attnscope.intervene(texts=TEXTS, heads=[(0, 1), (2, 3)])  # with the defaults: estimates are of all heads
    assert "agreement" not in tree.children
    assert int(np.isfinite(tree["shuffled"].shuffled_loss).sum()) == 2
    every = attnscope.intervene(texts=TEXTS, steps=0)["shuffled"].shuffled_loss
    np.testing.assert_allclose(
        tree["shuffled"].shuffled_loss.sel(layer=2, head=3), every.sel(layer=2, head=3), atol=1e-5
    )


def test_a_set_on_which_nothing_depends_is_not_special():
    """Heads whose outputs are not read: every set changes the loss by 0, and p is 1."""
    model, tokenizer = tiny_reader("gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_proj.weight.zero_()
    settings = {"tokenizer": tokenizer, "ablations": ["zero"], "heads": [(0, 1), (1, 2)], "random": 9}
    found = attnscope.intervene(model, TEXTS, **settings)
    assert found["together"].p.item() == 1
    assert abs(found["together"].effect.item()) < 1e-6


def test_only_the_chosen_heads_are_ablated():
    every = attnscope.intervene(**PLAIN)["effects"].loss_change
    tree = attnscope.intervene(**PLAIN, heads=[(0, 1), (2, 3)])
    found = tree["effects"].loss_change
    np.testing.assert_allclose(found.sel(layer=0, head=1), every.sel(layer=0, head=1), atol=1e-6)
    np.testing.assert_allclose(found.sel(layer=2, head=3), every.sel(layer=2, head=3), atol=1e-6)
    assert int(np.isfinite(found.isel(window=0, ablation=0)).sum()) == 2
    assert {(row["layer"], row["head"]) for row in report_of("intervene", tree).rows} == {(0, 1), (2, 3)}


def test_sets_alone_run_no_single_head_and_count_against_all_others(tmp_path):
    """Of all sets with a head in each of two layers: each has every other one as its random set."""
    sets = [[(0, first), (1, second)] for first in range(4) for second in range(4)]
    tree = attnscope.intervene(texts=TEXTS[:2], ablations=["mean"], heads=sets, random=20, steps=0)
    assert set(tree.children) == {"effects", "together"}
    found = tree["together"].to_dataset().isel(ablation=0)
    effects = found.effect.values
    assert found.random_effect.shape == (16, 15)
    for number, effect in enumerate(effects):
        others = np.sort(np.delete(effects, number))
        np.testing.assert_allclose(np.sort(found.random_effect[number]), others, atol=1e-5)
        assert found.p[number] == pytest.approx((1 + (others >= effect - 1e-7).sum()) / 16, abs=1 / 15)
    # whichever set is chosen, in at most one case of n is p at most 1/n
    assert all((found.p <= level / 16 + 1e-9).sum() <= level for level in range(1, 17))
    np.testing.assert_allclose(found.beyond, found.effect - found.random_effect.mean("draw"), atol=1e-6)
    assert np.isnan(found.alone).all()
    report = report_of("intervene", tree)
    assert "without each of the 15 other sets of as many heads in each layer" in report.finding.sentences[-1]
    assert "<img" in tree.attnscope._repr_html_()
    assert "<img" not in attnscope.intervene(texts=TEXTS[:2], ablations=["mean"], heads=sets).attnscope._repr_html_()
    page = write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sets-against-random" in page


@pytest.mark.parametrize("better", ["higher", "lower", None])
def test_sets_are_compared_by_a_metric_where_it_is_worse(better, tmp_path):
    """A metric that is the loss, with its sign, has the loss's numbers; without a direction both ways count."""
    sign = -1.0 if better == "higher" else 1.0

    @attnscope.metric(name="surprise", unit="nats", better=better)
    def surprise(logits, inputs):
        ids, chances = inputs["input_ids"], logits[:, :-1].log_softmax(-1)
        each = -chances.gather(-1, ids[:, 1:, None])[..., 0] * inputs["attention_mask"][:, 1:]
        return sign * each.sum(1) / inputs["attention_mask"][:, 1:].sum(1)

    model, tokenizer = tiny_reader("gpt2")
    sets = [[(0, first), (1, second)] for first in (0, 1) for second in (0, 1)]
    given = {"tokenizer": tokenizer, "texts": TEXTS[:4], "ablations": ["mean"], "heads": sets, "random": 20}
    tree = attnscope.intervene(model, **given, metric=surprise)
    found, by_loss = tree["together"].to_dataset(), attnscope.intervene(model, **given)["together"].to_dataset()
    np.testing.assert_allclose(found.metric_change, sign * by_loss.loss_change, atol=1e-5)
    np.testing.assert_allclose(found.effect, sign * by_loss.effect, atol=1e-5)
    if better is None:
        others = abs(found.random_effect.values)
        expected = (1 + (others >= abs(found.effect.values)[..., None]).sum(-1)) / (1 + others.shape[-1])
        np.testing.assert_allclose(found.p, expected)
    else:
        np.testing.assert_allclose(found.p, by_loss.p)
    report = report_of("intervene", tree)
    assert "surprise changes by" in report.finding.headline
    assert "loss" not in " ".join(report.finding.sentences)
    page = write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "sets-against-random" in page
    assert ("Right of 0" in page, "Left of 0" in page) == (better == "lower", better == "higher")


def test_sets_are_compared_by_the_answer_of_a_mask():
    answers = {"texts": [f"It was part<mask> the {word}." for word in ("game", "war")], "metric": [(" of", " to")]}
    tree = attnscope.intervene(**answers, ablations=["mean"], heads=[[(0, 1), (0, 3)]], random=3)
    alone = attnscope.intervene(**answers, ablations=["mean"], heads=[(0, 1)], together=[[(0, 1)]], why=False)
    np.testing.assert_allclose(
        alone["together"].metric_change[:, 0, 0], alone["effects"].metric_change.sel(layer=0, head=1)[:, 0], atol=1e-5
    )
    assert tree["together"].attrs["better"] == "higher"
    assert tree["together"].effect.attrs["units"] == "logits"


@attnscope.metric(unit="logits")
def first_logit(logits, inputs):
    return logits[:, 0, 0]


@pytest.mark.parametrize("node", ["effects", "forbidden", "shuffled", "search"])
def test_a_metric_of_all_positions_leaves_the_loss_of_masked_words(node):
    """Passes then return logits at all positions, of which the loss needs those of the masks."""
    more = {"forbidden": {"forbid_first": True}, "shuffled": {"why": True}, "search": {"search": True}}.get(node, {})
    given = {"texts": TEXTS[:4], "ablations": ["mean"], "steps": 0, "why": False, **more}
    own, plain = (attnscope.intervene(**given, metric=metric)[node].to_dataset() for metric in (first_logit, None))
    for name in plain.data_vars:
        if plain[name].dtype.kind == "f":
            np.testing.assert_allclose(own[name], plain[name], atol=1e-5, err_msg=str(name))


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_patched_sets_count_against_all_others_in_the_direction_of_the_other_run(direction, tmp_path):
    sets = [f"0.{first},1.{second}" for first in range(4) for second in range(4)]
    tree = attnscope.patch(together=sets, random=20, steps=0, direction=direction)
    found = tree["together"].to_dataset()
    towards = 1 if direction == "denoising" else -1
    for number in range(16):
        others = np.sort(np.delete(found.effect.values, number))
        np.testing.assert_allclose(np.sort(found.random_effect[number]), others, atol=1e-4)
        reach = (towards * found.random_effect[number] >= towards * found.effect[number]).sum()
        assert found.p[number] == pytest.approx((1 + reach) / 16)
    assert found.p.values.argmin() == (towards * found.effect.values).argmax()
    np.testing.assert_allclose(found.beyond, found.effect - found.random_effect.mean("draw"), atol=1e-6)
    report = report_of("patch", tree)
    others = "patching each of the 15 other sets of as many heads in each layer, by"
    assert any(others in one for one in report.finding.sentences)
    assert "Beyond them" in write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"random": 5}, "add together"),
        ({"random": 5, "together": ["0.1,m0"]}, "are not heads alone"),
        ({"random": 5, "together": ["0.1.q,1.1.v"]}, "are not heads alone"),
        ({"random": 5, "together": ["0.0,0.1,0.2,0.3"]}, "found no other set like"),
    ],
)
def test_patched_sets_without_random_ones_are_rejected(given, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.patch(steps=0, **given)


def test_random_sets_are_patched_in_pairs_of_every_length_and_query_by_query():
    model, tokenizer = tiny_reader("llama")
    pairs = [
        {"clean": "The keys by the lamp", "corrupted": "The dogs by the lamp", "answer": " are", "wrong": " is"},
        {
            "clean": "The old red keys by the lamp",
            "corrupted": "The old red dogs by the lamp",
            "answer": " is",
            "wrong": " a",
        },
    ]
    given = {"tokenizer": tokenizer, "steps": 0, "random": 4, "matched": "size"}
    tree = attnscope.patch(model, pairs, together=["0.1.q,1.2.q"], **given)
    assert tree["pairs"].random.shape == (2, 1, 4)
    assert bool(np.isfinite(tree["pairs"].random).all())


def test_heads_with_random_sets_are_one_set():
    one = attnscope.intervene(texts=TEXTS[:2], ablations=["mean"], heads=[(0, 1), (1, 2)], random=5)["together"]
    other = attnscope.intervene(texts=TEXTS[:2], ablations=["mean"], heads=[[(0, 1), (1, 2)]], random=5)["together"]
    assert one.to_dataset().identical(other.to_dataset())
    assert one.sizes["set"] == 1
    size = attnscope.intervene(
        texts=TEXTS[:2], ablations=["mean"], heads=[(0, 1), (0, 2)], random=5, matched="size"
    )["together"]  # fmt: skip
    assert size.random_effect.shape == (1, 1, 5)


def test_random_sets_of_similar_effect_draw_among_neighbours_by_the_estimate(tokenizer):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=8, n_positions=64))
    common = {"model": model, "tokenizer": tokenizer, "texts": TEXTS, "ablations": ["mean"], "why": False}
    estimate = attnscope.intervene(**common, steps=1)["effects"].estimate.sel(estimator="attribution", ablation="mean")
    ranks = estimate.mean("window").values.argsort(1).argsort(1)
    low, high = (int(np.flatnonzero(ranks[1] == rank)[0]) for rank in (0, 7))
    tree = attnscope.intervene(**common, heads=[(1, low), (1, high)], random=40, matched="effect")
    assert tree["together"].sizes["draw"] == 15  # all but itself: one of the lower four heads, one of the upper four
    pairs = [[(1, a), (1, b)] for a in np.flatnonzero(ranks[1] < 4) for b in np.flatnonzero(ranks[1] >= 4)]
    each = attnscope.intervene(**common, heads=[[(layer, int(head)) for layer, head in pair] for pair in pairs])
    of_others = np.delete(each["together"].effect.values, pairs.index([(1, low), (1, high)]), axis=1)
    np.testing.assert_allclose(np.sort(tree["together"].random_effect[0, 0]), np.sort(of_others[0]), atol=1e-6)
    assert "with similar estimated effects" in report_of("intervene", tree).finding.sentences[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"random": 5}, "random .--random. draws sets of heads for a set: add heads"),
        ({"heads": [(0, 1)], "search": True}, "are over all heads: leave out heads"),
        ({"heads": [(0, 1, 2)]}, "heads is .*; expected"),
        ({"heads": []}, "found no heads .--heads.; expected at least one, or a set"),
        ({"heads": [[(0, 1)]], "forbid_first": True}, "nothing is forbidden to sets of heads"),
        ({"heads": [[(0, head) for head in range(4)]], "random": 5}, "found no other set like 0.0, 0.1, 0.2, 0.3"),
    ],
)
def test_sets_that_cannot_be_drawn_are_rejected(given, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.intervene(texts=TEXTS[:2], ablations=["mean"], why=False, steps=0, **given)
