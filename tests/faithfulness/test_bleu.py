"""BLEU without a head is that of the model whose output projection has no columns of the head."""

import copy

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.intervention.edits import bleu_without_heads
from attnscope.intervention.predictions import prediction_session
from attnscope.lineage.translate import translate_lines
from attnscope.read.encoded import texts_of
from tests.translation.small_translators import small_model, small_tokenizer

TEXTS = ["the tide is out", "a dog ran along the wall", "read the book", "it rained all day"]


def session_of(model, tokenizer):
    loaded = load_model(model, tokenizer=tokenizer, device="cpu")
    return prediction_session(loaded, texts_of(TEXTS), texts_of(TEXTS), window=32, limit=4)


def test_without_a_head_translations_are_those_of_the_model_without_its_columns():
    model, tokenizer = small_model("bart"), small_tokenizer()
    without = copy.deepcopy(model)
    session = session_of(model, tokenizer)
    session.check()
    number, site = next((i, site) for i, site in enumerate(session.sites) if site.kind == "cross")
    projection = without.get_submodule(site.name).out_proj
    with torch.no_grad():
        projection.weight[:, projection.in_features // 2 :] = 0
    meant = translate_lines(without, tokenizer, TEXTS, beams=1).texts
    plain = translate_lines(model, tokenizer, TEXTS, beams=1).texts
    assert meant != plain
    scores = bleu_without_heads(session, TEXTS, meant, heads=[(number, 1)], ablation="zero")
    bleu = scores.score.sel(metric="BLEU")
    assert float(bleu.sel(system=f"{number}.1")) == pytest.approx(100)
    assert float(bleu.sel(system="all heads")) < 100
    np.testing.assert_array_equal(scores["head"], [-1, 1])


def test_a_model_that_does_not_translate_is_rejected():
    session = prediction_session(load_model("bundled", device="cpu"), texts_of(["The tide."]), window=16, limit=1)
    with pytest.raises(AttnscopeError, match="small-mlm does not translate"):
        bleu_without_heads(session, ["The tide."], ["Es ist Ebbe."])
