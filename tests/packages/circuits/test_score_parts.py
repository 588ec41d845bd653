"""Scores by the sources of queries and keys: sums are eager scores, planted and trained circuits come out; the null."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Olmo2Config, Olmo2ForCausalLM

from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope.results.reports import report_of
from attnscope_circuits import attribute, score_parts
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope
from tests.packages.circuits.test_circuits import trained_induction
from tests.tiny_models import tiny, tiny_reader

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
IDS = np.random.default_rng(0).integers(5, 60, (8, 12)).tolist()
TEXTS = ["The tide comes in twice a day.", "Nobody had told the old man.", "The cat left it there, as it was shy."]


def of(model, head, ids=IDS, **options):
    return attribute(model, ids, tokenizer=TOKENIZER, window=len(ids[0]), head=head, **options)


def olmo2():
    """Norms of queries and keys over all heads together, and behind each part of a layer."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return Olmo2ForCausalLM(Olmo2Config(**sizes, intermediate_size=48, vocab_size=60, pad_token_id=0, eos_token_id=2))


def alibi():
    return EncoderForMaskedLM(EncoderConfig(vocab_size=60, width=32, heads=4, layers=2, positions="alibi"))


def model_of(family):
    torch.manual_seed(0)
    own = {"olmo2": olmo2, "alibi": alibi}.get(family)
    return tiny(family) if own is None else own().eval()


FAMILIES = (
    "bert", "distilbert", "albert", "modernbert", "gpt2", "gpt_neox", "opt", "llama", "gemma2", "gpt_oss", "qwen3",
    "deberta_v2", "olmo2", "alibi",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_add_up_to_the_excess_of_eager_scores(family):
    """The strongest key's score less the mean of the row follows from eager weights: differences of logs."""
    model, head = model_of(family), (1, 2)
    found = of(model, head)["scores"]
    assert found.difference.max() < 1e-5
    np.testing.assert_allclose(found.part.sum("source"), found.excess.expand_dims(side=2, axis=2), atol=1e-10)
    both = found.pair.sum(("query_source", "key_source")) + found.part.sel(source="position bias", side="key")
    np.testing.assert_allclose(both, found.excess, atol=1e-4)
    if family not in {"gemma2", "alibi"}:  # scores before the cap; ours returns no weights
        model.set_attn_implementation("eager")
        with torch.no_grad():
            weights = model(torch.tensor(IDS), output_attentions=True).attentions[head[0]][:, head[1]].double()
        there = weights > 0
        logs = torch.where(there, weights.clamp(min=1e-300).log(), 0)
        excess = weights.amax(-1).log() - logs.sum(-1) / there.sum(-1)
        excess = torch.where(there.sum(-1) > 1, excess, 0).sum(1)
        np.testing.assert_allclose(found.excess.sel(relation="strongest key"), excess, rtol=1e-4)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoders_and_padded_texts(family):
    model, tokenizer = tiny_reader(family)
    for layer in range(6):  # two of the encoder, then self- and cross-attention of the decoder
        found = attribute(model, TEXTS, targets=TEXTS[::-1], tokenizer=tokenizer, head=(layer, 1))["scores"]
        assert found.difference.max() < 2e-5
        np.testing.assert_allclose(found.part.sum("source"), found.excess.expand_dims(side=2, axis=2), atol=1e-9)
        assert (found.part.sel(source="position bias") != 0).any() == (family == "t5" and layer not in {3, 5})
        if layer in {3, 5}:  # through keys of cross-attention nothing of the decoder
            other = found.part.sel(side="key").where(found.layer >= 2, 0)
            assert (other == 0).all()


def test_sources_are_dense_products_with_frozen_norms():
    """Through BERT's three norms, by autograd: the Jacobian of a linear path is the path."""
    model, ids, seen = tiny("bert"), torch.tensor(IDS[:1]), {}
    layer = model.bert.encoder.layer[0]
    norms = {"attention": layer.attention.output.LayerNorm, "output": layer.output.LayerNorm}
    for name, norm in norms.items():
        norm.register_forward_hook(lambda _, given, made, name=name: seen.update({name: (given[0], made)}))
    layer.output.dense.register_forward_hook(lambda *run: seen.update(mlp=run[2]))
    with torch.no_grad():
        model(ids)
        received, norm = seen["output"][0].double(), norms["output"]
        deviation = (received.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        states = seen["mlp"].double()
        states = (states - states.mean(-1, keepdim=True)) / deviation * norm.weight.double()
        own = model.bert.encoder.layer[1].attention.self
        key = states @ own.key.weight.double()[16:24].T
        query = (seen["output"][1].double() @ own.query.weight.double()[16:24].T) + own.query.bias.double()[16:24]
        whole = (seen["output"][1].double() @ own.key.weight.double()[16:24].T) + own.key.bias.double()[16:24]
        scores, part = (query[0] @ side[0].T / 8**0.5 for side in (whole, key))
        strongest = scores.argmax(1, keepdim=True)
        wanted = (part.gather(1, strongest)[:, 0] - part.mean(1)).sum()
    found = of(tiny("bert"), (1, 2), IDS[:1])["scores"].part
    assert found.sel(relation="strongest key", side="key", source="mlp 0") == pytest.approx(float(wanted), rel=1e-4)


def _first(tree):
    return report_of("attribute", tree).finding.sentences[0]


def test_the_previous_token_head_comes_out_of_a_planted_induction_circuit():
    planted = build("induction-decoder-1")
    halves = [np.random.default_rng(seed).choice(np.arange(5, 19), 10, replace=False).tolist() for seed in range(8)]
    tree = of(planted.model, (1, 3), [half + half for half in halves])
    parts = tree["parts"]
    assert not parts.tested.sel(relation="strongest key").any()  # the scores choose it
    assert parts.tested.sel(relation="token after the same token").any()
    assert "attends to the token after the same token; the largest source in the keys is head 0.3" in _first(tree)
    tree["parts"] = parts.to_dataset().assign(excess=parts.excess * 1e-3)
    assert "has no clear preference" in _first(tree)
    found = parts.sel(relation="token after the same token")
    assert found.chosen > 0.9 * found.rows
    assert found.chance < 0.1 * found.rows
    assert found.share.sel(side="key").idxmax("source") == "0.3"
    assert found.share.sel(side="query").idxmax("source") == "embedding"
    assert found.share_low.sel(side="key", source="0.3") > 0.95
    assert found.shown.sel(side="key", source="0.3")
    assert [str(end.values[0]) for end in (found.query_source, found.key_source)] == ["embedding", "0.3"]


def test_the_previous_token_head_comes_out_of_trained_induction_heads():
    model, rng = trained_induction(), np.random.default_rng(0)
    ids = [np.tile(rng.integers(0, 128, 20), 3).tolist() for _ in range(12)]
    for head in (1, 2, 3):
        found = of(model, (1, head), ids)["parts"].sel(relation="token after the same token", side="key")
        assert found.share.idxmax("source") == "0.2"
        assert found.share_low.sel(source="0.2") > 0.8
        assert found.share.drop_sel(source="0.2").max() < 0.1


def test_sources_that_know_nothing_of_the_token_are_rarely_significant():
    """Random texts in an untrained model without positions: only what carries the token prefers the same one."""
    model, any_shown = tiny("gpt2"), []
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        for layer in model.transformer.h:
            layer.attn.c_attn.weight[:, 64:] = 0  # no values, so heads write nothing
            layer.mlp.c_proj.weight.zero_()
    for seed in range(20):
        ids = np.random.default_rng(seed).integers(5, 15, (12, 16)).tolist()
        parts = of(model, (1, 1), ids, seed=seed)["parts"].sel(relation="token after the same token")
        any_shown.append(bool(parts.shown.any()))
    assert np.mean(any_shown) <= 0.15


def test_pairs_of_many_sources_are_of_layers(monkeypatch):
    monkeypatch.setattr(score_parts, "_FEW", 5)
    found = of(tiny("gpt2"), (1, 2))["scores"]
    assert found.query_source.values.tolist() == ["embedding", "position", "bias", "heads of 0", "mlp 0"]
    both = found.pair.sum(("query_source", "key_source"))
    np.testing.assert_allclose(both, found.excess, atol=1e-4)


def test_models_and_options_that_do_not_fit_are_rejected():
    with pytest.raises(AttnscopeError, match=r"no head 2\.0"):
        of(tiny("gpt2"), (2, 0))
    with pytest.raises(AttnscopeError, match="no known parts"):
        of(tiny("deberta"), (1, 0))
    with pytest.raises(AttnscopeError, match="leave out token"):
        of(tiny("gpt2"), (1, 0), token="a")


def test_a_head_without_a_choice_is_rejected():
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[:, :64] = 0
        model.transformer.h[1].attn.c_attn.bias[:64] = 0
    with pytest.raises(AttnscopeError, match="nothing to split"):
        of(model, (1, 0))


def test_a_random_head_is_said_to_prefer_nothing():
    assert "has no clear preference for a kind of key" in _first(of(tiny("gpt2"), (1, 2)))


def test_a_source_that_was_tested_and_is_not_significant_is_not_called_untested():
    planted = build("induction-decoder-1")
    halves = [np.random.default_rng(seed).choice(np.arange(5, 19), 10, replace=False).tolist() for seed in range(8)]
    tree = of(planted.model, (1, 3), [half + half for half in halves])
    assert report_of("attribute", tree).finding.certainty == "significant at 5%, corrected for all components"
    parts = tree["parts"].to_dataset()
    tree["parts"] = parts.assign(shown=parts.shown & False)
    finding = report_of("attribute", tree).finding
    assert finding.certainty.startswith("the largest source in the keys is not significant")
    assert not finding.leading
    tree["parts"] = parts.assign(shown=parts.shown & False, tested=parts.tested & False)
    assert report_of("attribute", tree).finding.certainty == "not tested"


def test_the_command_names_the_source(tmp_path):
    asked = ["attribute", "--limit", "6", "--window", "32", "--head"]
    printed = json.loads(attnscope(*asked, "2.1", "--out", "run", "--json", cwd=tmp_path).stdout)
    assert "the largest source in the keys" in printed["finding"]["text"]
    assert {"heads", "others", "keys", "pairs"} <= {*printed["tables"]}
    assert "attends where it does" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    first = attnscope(*asked, "0.1", "--out", "first", cwd=tmp_path).stdout  # no head before it
    assert "the next token; the largest source in the keys is the position embedding" in " ".join(first.split())
