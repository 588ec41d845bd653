"""Direct logit attribution: sums are the model's logits, parts are what ablation and dense products say; its null."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Prepend, Replace, Sequence
from tokenizers.pre_tokenizers import Split
from torch import nn
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attnscope import AttnscopeError, explain
from attnscope.bundled import MODEL
from attnscope.intervention.pairs import one_token
from attnscope.results.reports import report_of
from attnscope_circuits import attribute, circuits
from attnscope_zoo.catalogue import build
from tests.capture.every_family.models import tiny_model
from tests.cli.command import attnscope
from tests.tiny_models import tiny, tiny_reader

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
IDS = np.random.default_rng(0).integers(5, 60, (3, 12)).tolist()
TEXTS = ["The tide comes in twice a day.", "Nobody had told the old man.", "The cat left it there, as it was shy."]


def of(model, ids=IDS, **options):
    return attribute(model, ids, tokenizer=TOKENIZER, window=len(ids[0]), **options)


def logits_of(model, ids=IDS):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.double().numpy()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "llama", "mistral", "gemma2", "gpt_oss", "qwen3"])
def test_parts_of_every_prediction_add_up_to_the_logit_of_the_next_token(family):
    model = tiny(family)
    found = of(model, by_position=True)["predictions"]
    logits, after = logits_of(model)[:, :-1], np.array(IDS)[:, 1:]
    if family == "gemma2":  # its logits are bounded after the unembedding
        logits = np.arctanh(logits / 30) * 30
    wanted = np.take_along_axis(logits, after[..., None], 2)[..., 0]
    np.testing.assert_allclose(found.part_at.sum("component").values[:, :11], wanted, atol=2e-5)
    np.testing.assert_allclose(found.lens_logit.isel(depth=-1).values[:, :11], wanted, atol=2e-5)
    assert found.difference.max() < 1e-5
    np.testing.assert_allclose(found.total, wanted.mean(1), atol=1e-5)
    chances = torch.from_numpy(logits_of(model)[:, :-1]).softmax(-1).numpy()
    chances = np.take_along_axis(chances, after[..., None], 2)[..., 0]
    np.testing.assert_allclose(found.lens_probability.isel(depth=-1).values[:, :11], chances, atol=1e-6)
    np.testing.assert_array_equal(
        found.lens_rank.isel(depth=-1).values[:, :11], (logits > wanted[..., None]).sum(-1) + 1
    )


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_parts_add_up_with_post_norms_cross_attention_masks_and_padding(family):
    model, tokenizer = tiny_reader(family)
    found = attribute(model, TEXTS, targets=TEXTS[::-1], tokenizer=tokenizer)["predictions"]
    np.testing.assert_allclose(found.part.sum("component"), found.total, atol=1e-5)
    np.testing.assert_allclose(found.lens_logit.isel(depth=-1).mean("position"), found.total, atol=1e-5)
    assert abs(found.part).max() > 0.01
    assert set(found.layer.values) >= {2, 3, 4, 5}  # self- and cross-attention of two decoder layers


def test_a_part_in_front_of_a_post_norm_is_a_dense_product_at_its_denominator():
    model, tokenizer = tiny_reader("bart")
    model = model.double()
    last, kept = model.model.decoder.layers[1], {}

    def keep(_, given, __):
        if given[0].ndim == 3:  # the lens norms single rows
            kept["given"] = given[0]

    last.final_layer_norm.register_forward_hook(keep)
    last.fc2.register_forward_hook(lambda _, __, made: kept.update(mlp=made))
    direction = np.random.default_rng(0).normal(size=model.lm_head.in_features)
    how = {"targets": TEXTS[1:2], "tokenizer": tokenizer, "by_position": True, "direction": direction}
    found = attribute(model, TEXTS[:1], **how)["predictions"]
    norm, rows = last.final_layer_norm, found["query"].values[0].astype(int)
    deviation = (kept["given"].var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    centred = kept["mlp"] - kept["mlp"].mean(-1, keepdim=True)
    added = (norm.weight * centred / deviation)[0, rows].detach()
    expected = added.numpy() @ direction
    mlps = found.part_at.isel(window=0, component=found.kind.values == "mlp")
    np.testing.assert_allclose(mlps.values[:, -1], expected, atol=1e-9)
    assert abs(expected).max() > 0.01


def test_parts_add_up_behind_masks():
    text = "Nobody had told<mask> old man."
    masked = attribute(texts=[text], token=" the")["predictions"]
    assert masked["query"].values.tolist() == [[TOKENIZER(text)["input_ids"].index(TOKENIZER.mask_token_id)]]
    assert masked.difference.max() < 1e-4


def last_layer_alone():
    """A GPT-2 without final norm, whose last layer has heads only: their parts are effects of ablation."""
    model = tiny("gpt2")
    model.transformer.ln_f = nn.Identity()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight.zero_()
    return model


def test_a_part_is_the_effect_of_ablation_where_nothing_follows_the_head():
    model = last_layer_alone()
    found = of(model, by_position=True)["predictions"].part_at
    before, after = logits_of(model)[:, :-1], np.array(IDS)[:, 1:, None]
    for head in range(4):
        weight = model.transformer.h[1].attn.c_proj.weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight[8 * head : 8 * head + 8] = 0
        change = before - logits_of(model)[:, :-1]
        with torch.no_grad():
            weight.copy_(kept)
        own = found.sel(component=f"1.{head}").values[:, :11]
        np.testing.assert_allclose(own, np.take_along_axis(change, after, 2)[..., 0], atol=1e-5)


def test_embedding_and_position_are_dense_products_through_the_frozen_norm():
    model, ids, seen = tiny("gpt2"), torch.tensor(IDS), {}
    found, last = of(model, by_position=True)["predictions"].part_at, model.transformer.ln_f
    hook = last.register_forward_pre_hook(lambda _, given: seen.update(x=given[0]))
    with torch.no_grad():
        model(ids)
        hook.remove()
        deviation = (seen["x"].var(-1, unbiased=False) + last.eps).sqrt()
        row = model.lm_head.weight[ids[:, 1:]] * last.weight
        row = (row - row.mean(-1, keepdim=True)) / deviation[:, :-1, None]
        words = model.transformer.wte(ids)
        table = model.transformer.wpe.weight[:12].expand_as(words)
        for name, part in (("embedding", words), ("position", table)):
            wanted = (part[:, :-1] * row).sum(-1)
            np.testing.assert_allclose(found.sel(component=name).values[:, :11], wanted, atol=1e-5)


def test_differences_directions_pairs_and_the_mean_token_are_linear():
    model, tokenizer = tiny_reader("llama")
    same = {"tokenizer": tokenizer}
    chosen = {word: attribute(model, TEXTS, token=word, **same)["predictions"] for word in ("a", "the")}
    found = attribute(model, TEXTS, token="a", against="the", **same)["predictions"]
    np.testing.assert_allclose(found.part, chosen["a"].part - chosen["the"].part, atol=1e-6)
    assert "random" not in found
    np.testing.assert_array_equal(found.lens_rank, chosen["a"].lens_rank)
    pairs = [{"clean": text, "corrupted": f"{text}.", "answer": "a", "wrong": "the"} for text in TEXTS]
    of_pairs = attribute(model, pairs=pairs, **same)
    np.testing.assert_allclose(of_pairs["predictions"].part, found.part, atol=1e-6)
    report = report_of("attribute", of_pairs)
    assert report.read.endswith("; on the clean texts alone")
    assert report.finding.certainty.endswith("; on the clean texts alone")
    headings = [one.title for one in report.tables[-1].shown("table")]
    assert headings == ["attention layers", "logit difference", "probability of token", "rank of token"]
    of_token = report_of("attribute", attribute(model, TEXTS, token="a", **same))
    assert [one.title for one in of_token.tables[-1].shown("table")][1:] == ["logit", "probability", "rank"]
    assert "clean" not in of_token.read + of_token.finding.certainty
    windows = attribute(model, TEXTS, **same)["predictions"]
    ids = np.concatenate([tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS])
    row = model.lm_head.weight.detach().double().numpy()[ids].mean(0)
    mean = attribute(model, TEXTS, direction=row, **same)["predictions"]
    np.testing.assert_allclose(mean.part, windows.random, atol=1e-6)


def test_an_induction_head_alone_raises_the_token_that_followed():
    planted = build("induction-decoder-1")
    halves = [np.random.default_rng(seed).choice(np.arange(5, 19), 10, replace=False).tolist() for seed in range(8)]
    parts = of(planted.model, [half + half for half in halves])["parts"]
    assert parts.component[parts.shown].values.tolist() == ["1.3"]


def test_no_head_raises_random_tokens_more_often_than_it_should():
    model, any_shown, inside = tiny("gpt2"), [], []
    share = 1 / np.arange(1, 51)
    for seed in range(20):
        ids = 5 + np.random.default_rng(seed).choice(50, (12, 16), p=share / share.sum())
        parts = of(model, ids.tolist(), seed=seed)["parts"]
        any_shown.append(bool(parts.shown.any()))
        known = parts.excess.values != 0
        inside.append(((parts.excess_low <= 0) & (parts.excess_high >= 0)).values[known].mean())
    assert np.mean(any_shown) <= 0.15
    assert np.mean(inside) >= 0.9


def test_parts_by_key_add_up_to_the_part_of_the_head():
    for family in ("gpt2", "llama", "gemma2", "gpt_oss"):
        found = attribute(tiny(family), IDS, tokenizer=TOKENIZER, window=12, by_position=True)["predictions"]
        heads = (found.kind == "head").values
        np.testing.assert_allclose(found.by_key.sum("key")[:, heads], found.part[:, heads], atol=1e-6)
        assert found.by_key[:, ~heads].isnull().all()
        assert (found.by_key[:, heads, -1] == 0).all()  # after the last prediction
    model, tokenizer = tiny_reader("t5")
    found = attribute(model, TEXTS, targets=TEXTS[::-1], tokenizer=tokenizer, by_position=True)["predictions"]
    heads = (found.kind == "head").values
    np.testing.assert_allclose(found.by_key.sum("key")[:, heads], found.part[:, heads], atol=1e-6)


def test_the_planted_induction_head_raises_the_token_by_way_of_its_earlier_occurrence():
    """The text ends at the second occurrence of its second token, whose successor is a direction."""
    planted, words = build("induction-decoder-1"), np.arange(5, 13)
    last = planted.model.get_output_embeddings().weight[int(words[2])].detach().double().numpy()
    found = attribute(
        planted.model, [[*words, words[1]]], tokenizer=TOKENIZER, window=9, direction=last, by_position=True
    )["predictions"]
    by_key = found.by_key.sel(component="1.3").values[0]
    assert by_key.argmax() == 2
    assert found.key_token.values[0, 1] == found.key_token.values[0, 8]


def test_models_and_options_that_do_not_fit_are_rejected():
    with pytest.raises(AttnscopeError, match="through one norm"):
        of(tiny("bert"))
    with pytest.raises(AttnscopeError, match="expected one of token"):
        of(tiny("gpt2"), against="a")
    with pytest.raises(AttnscopeError, match="direction of shape"):
        of(tiny("gpt2"), direction=np.zeros(3))
    with pytest.raises(AttnscopeError, match="without <mask>"):
        attribute(texts=TEXTS, token=" the")


def test_the_command_has_tables_and_a_page(tmp_path):
    done = attnscope("attribute", "--limit", "8", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [*shown["tables"]] == ["heads", "others", "lens"]
    parts = [row["part_mean"] for name in ("heads", "others") for row in shown["tables"][name]]
    assert f"Mean logit: {sum(parts):+.2f} = heads" in shown["finding"]["text"]
    assert {path.stem for path in (tmp_path / "run/figures").iterdir()} == {"heads", "lens"}
    assert "Logit lens" in (tmp_path / "run/report.html").read_text(encoding="utf-8")


def test_a_word_needs_no_space_where_the_tokenizer_writes_it():
    words = Tokenizer(WordLevel({"▁": 0, "▁she": 1, "she": 2, "<unk>": 3}, unk_token="<unk>"))
    words.pre_tokenizer = Split("▁", "merged_with_next")
    words.normalizer = Sequence([Prepend("▁"), Replace(" ", "▁")])  # Llama's
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    assert one_token(tokenizer, " she", "the token") == one_token(tokenizer, "she", "the token") == 1
    words.normalizer = Replace(" ", "▁▁")  # a space is a token, and the bare word another one
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    with pytest.raises(AttnscopeError, match="has 2 tokens"):
        one_token(tokenizer, " she", "the token")


def test_a_model_that_attends_over_patches_of_bytes_is_rejected():
    model = tiny_model("blt")
    given = {"texts": IDS, "tokenizer": TOKENIZER, "window": 12}
    for verb, options in ((attribute, given), (circuits, {}), (explain, given)):
        with pytest.raises(AttnscopeError, match=r"attends over \d+ states of a text of \d+ tokens"):
            verb(model, **options)


@pytest.mark.parametrize("count", [2, 8])
def test_a_head_that_lowers_the_token_is_not_said_to_favour_it(count):
    """With two windows nothing is tested; with eight, an untrained model has no head with a significant part."""
    rng = np.random.default_rng(1)
    tokenizer = build("copying-decoder-1").tokenizer
    texts = [rng.integers(5, len(tokenizer), 12).tolist() for _ in range(count)]
    seen = set()
    for seed in range(3):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=16, n_embd=16, n_layer=2, n_head=2)
        tree = attribute(GPT2LMHeadModel(config).eval(), texts, tokenizer=tokenizer, window=12)
        part = tree["predictions"].part - tree["predictions"].random
        mean = part.mean("window")[part["kind"] == "head"]
        largest = float(mean[np.argmax(np.abs(mean.values))])
        headline = report_of("attribute", tree).finding.headline
        assert "avour" not in headline
        assert f"{largest:+.2f} logits" in headline
        assert ("None of 4 heads" in headline) is (count == 8)
        seen.add(largest > 0)
    assert seen == {True, False}
