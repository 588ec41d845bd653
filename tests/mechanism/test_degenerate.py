"""Weights of which an analysis cannot be: it is skipped and named, and the others are there."""

import json

import pytest
import torch
import transformers as T
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODEL


def constant_table(model):
    model.bert.embeddings.position_embeddings.weight[:] = 0.5


def no_queries(model):
    model.bert.encoder.layer[1].attention.self.query.weight.zero_()


def nothing_at_all(model):
    for weight in model.parameters():
        weight.zero_()


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        (constant_table, {"position_pca": "the table is the same at every position"}),
        (no_queries, {"spectra": "every query of layer 1 is equal"}),
        (nothing_at_all, {"wave_removal": "the cross-spectra are 0"}),
    ],
)
def test_an_analysis_is_skipped_and_the_rest_stands(change, skipped):
    torch.manual_seed(0)
    config = T.BertConfig(
        vocab_size=640,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    model = T.BertForMaskedLM(config).eval()
    with torch.no_grad():
        change(model)
    found = attnscope.explain(model, tokenizer=AutoTokenizer.from_pretrained(MODEL), limit=2, window=32)
    reasons = json.loads(found.attrs["skipped"])
    for analysis, reason in skipped.items():
        assert reasons[analysis].startswith(reason)
    assert {"cross_spectrum", "phase_map", "position_content"} <= set(found.children)
