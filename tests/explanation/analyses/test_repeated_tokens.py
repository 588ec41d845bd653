"""Duplicates and induction: heads that match words have them, heads that go by position do not."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from attnscope import AttnscopeError
from attnscope.explanation.analyses.repeated_tokens import repeated_tokens
from attnscope.explanation.study import Study
from tests.explanation.planted_models import mixed_bert, random_texts


def study_of(model, length=64):
    return Study(model.eval(), random_texts(4, length=length))


def test_a_head_that_matches_words_looks_at_their_first_occurrence():
    """Its scores are 6 for the same word and 0 for others: softmax shares the rest among all tokens."""
    study = study_of(mixed_bert(wave=0.0, word=6.0))
    found = repeated_tokens(study)
    count, length = found.attrs["tokens"], 2 * found.attrs["tokens"]
    weight = np.exp(6) / (2 * np.exp(6) + length - 2)
    once = 1 / (np.exp(6) + length - 1)
    assert count == 8
    np.testing.assert_allclose(found.duplicate, weight - once, atol=1e-3)
    np.testing.assert_allclose(found.induction, 1 / (2 * np.exp(6) + length - 2) - once, atol=1e-3)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_head_that_goes_by_position_has_neither(shift):
    """Though all of its weight lies on that very place: it would without any repetition."""
    study = study_of(mixed_bert(shifts=(-8 + shift,) * 4, wave=3.0, word=0.0), length=32)
    found = repeated_tokens(study)
    assert found.attrs["tokens"] == 8
    place = "induction" if shift else "duplicate"
    assert float(found[f"{place}_weight"].min()) > 0.9
    np.testing.assert_allclose(found[["duplicate", "induction"]].to_array(), 0, atol=1e-6)


def test_texts_of_one_word_are_rejected():
    study = Study(mixed_bert().eval(), [[5] * 16, [5] * 16])
    with pytest.raises(AttnscopeError, match="found 1 different tokens in windows of 16; expected 4 or more"):
        repeated_tokens(study)


def test_random_heads_have_no_induction_to_speak_of():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=64, num_attention_heads=8, num_hidden_layers=4)
    found = repeated_tokens(study_of(BertModel(config)))
    assert float(abs(found.induction).max()) < 0.01
    assert float(found.induction_weight.max()) < 0.1
