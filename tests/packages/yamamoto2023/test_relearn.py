"""Only the position table is learned anew, from a seed, on spaced texts."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaForMaskedLM

from attnscope import AttnscopeError, explain
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.explanation import explain as _explain
from attnscope.explanation.catalogue import known_analyses
from attnscope.explanation.tables import position_table
from attnscope_yamamoto2023.relearn import relearn_positions, space_out
from attnscope_yamamoto2023.relearn import relearned as relearned_analysis
from tests.tiny_models import tiny

FEW = {"steps": 12, "batch_size": 8, "limit": 24, "learning_rate": 1e-2}
TABLE = "encoder.add_positions.position_embeddings.weight"


@pytest.fixture(scope="module")
def relearned():
    return relearn_positions(**FEW)


def test_only_the_table_changed(relearned):
    before, after = load_model(MODEL, need_tokenizer=False).model.state_dict(), relearned[0].state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == [TABLE]
    assert all(parameter.requires_grad for parameter in relearned[0].parameters())
    assert not relearned[0].training


def test_the_loss_fell(relearned):
    loss = relearned[1].loss
    assert loss.step.values.tolist() == list(range(1, 13))
    assert loss[-4:].mean() < loss[:4].mean()


def test_the_dataset_holds_both_tables(relearned):
    model, found = relearned
    assert found.rows.dims == ("table", "position", "column")
    torch.testing.assert_close(torch.tensor(found.rows.sel(table="after").values), model.state_dict()[TABLE].double())
    assert {"mean", "power", "local_ratio", "null_mean"} <= set(found.data_vars)


def test_explain_keeps_the_model_and_what_was_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(_explain, "ANALYSES", [known_analyses()["forms"]])
    tree = explain(limit=2, window=32, analyses=[relearned_analysis(2)], out=tmp_path / "run")
    kept = load_model(tmp_path / "run" / "relearned")
    table = position_table(kept.model).rows
    found = tree["relearned"].to_dataset()
    np.testing.assert_allclose(found.rows.sel(table="after"), table, atol=1e-7)
    assert found.attrs["steps"] == 2
    assert json.loads(tree.attrs["signature"])["settings"]["relearn"] == 2
    assert kept.tokenizer.mask_token_id is not None


def test_explain_rejects_before_it_reads_the_texts(tmp_path):
    with pytest.raises(AttnscopeError, match=r"relearn .* is 0"):
        relearned_analysis(0)
    model = load_model(MODEL, device="cpu")
    model.tokenizer.mask_token = None
    with pytest.raises(AttnscopeError, match="mask"):
        explain(model.model, tokenizer=model.tokenizer, limit=2, analyses=[relearned_analysis(2)], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_seed_repeats_it():
    few = FEW | {"steps": 2}
    first, again, other = (relearn_positions(**few, seed=seed)[0].state_dict()[TABLE] for seed in (0, 0, 1))
    assert torch.equal(again, first)
    assert not torch.equal(again, other)


def roberta():
    torch.manual_seed(0)
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=640,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=66,
        )
    )


def test_reserved_rows_and_rows_beyond_the_window_are_not_trained():
    model = roberta()
    found = relearn_positions(model, tokenizer=MODEL, window=32, **FEW | {"steps": 4})[0]
    name = "roberta.embeddings.position_embeddings.weight"
    before, after = model.state_dict()[name], found.state_dict()[name]
    drawn = relearn_positions(model, tokenizer=MODEL, window=32, **FEW | {"steps": 1})[0].state_dict()[name]
    assert torch.equal(after[:2], before[:2])
    assert torch.equal(after[34:], drawn[34:])
    assert not torch.equal(after[2:34], drawn[2:34])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spacers": -1}, "spacers is -1"),
        ({"steps": 0}, "steps 0"),
        ({"masked": 0.0}, r"masked 0.0.*share in \(0, 1\]"),
        ({"spacers": 60}, "60 spacers leave 2 of 128 positions"),
        ({"texts": ["Too short."]}, "no text holds a full window of 32 tokens"),
        ({"model": BertModel(BertConfig(hidden_size=12, num_hidden_layers=1))}, "is a BertModel; relearning"),
        ({"model": tiny("llama")}, "is a Llama.*masked language model"),
    ],
)
def test_what_cannot_be_learned_is_rejected(changes, message):
    options = {"tokenizer": MODEL} if "model" in changes else {}
    with pytest.raises(AttnscopeError, match=message):
        relearn_positions(**options | changes)


def test_a_tokenizer_without_mask_is_rejected():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.mask_token = None
    with pytest.raises(AttnscopeError, match="has no mask token"):
        relearn_positions(load_model(MODEL).model, tokenizer=tokenizer)


def test_the_loss_is_that_of_real_tokens_only(monkeypatch):
    seen = []
    forward = RobertaForMaskedLM.forward

    def watch(self, input_ids=None, labels=None, **kwargs):
        if labels is not None:  # not the comparison afterwards
            seen.append((input_ids, labels))
        return forward(self, input_ids=input_ids, labels=labels, **kwargs)

    monkeypatch.setattr(RobertaForMaskedLM, "forward", watch)
    relearn_positions(roberta(), tokenizer=MODEL, **FEW | {"steps": 2})
    unknown = AutoTokenizer.from_pretrained(MODEL).unk_token_id
    for ids, labels in seen:
        assert (ids.view(len(ids), -1, 4)[..., 1:] == unknown).all()
        asked = (labels != -100).view(len(ids), -1, 4)
        assert asked[..., 0].any()
        assert not asked[..., 1:].any()
        assert not asked[:, [0, -1]].any()  # the special tokens at the ends


def test_spacers():
    assert space_out([[5, 6], [7, 8]], 3, 1) == [[5, 1, 1, 1, 6, 1, 1, 1], [7, 1, 1, 1, 8, 1, 1, 1]]
    assert space_out([[5, 6]], 0, 1) == [[5, 6]]
