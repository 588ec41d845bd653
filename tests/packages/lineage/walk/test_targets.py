"""What the decoder of an encoder-decoder reads in a walk: the target, or what the model itself says."""

import numpy as np
import pytest
import torch
import transformers as T
from numpy.testing import assert_allclose

import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope_lineage import walk
from tests.packages.lineage.models.small_lineage import small
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.packages.lineage.walk.walked_translators import SENTENCE, TARGET, translator, walk_translator

KINDS = ("t5", "bart", "marian", "sinusoidal-pre", "rope-pre")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_model_s_own_while_it_is_trained_on_that_target(kind):
    model, tokenizer = translator(kind), small_tokenizer()
    model.set_attn_implementation("eager")
    encoded = (tokenizer(SENTENCE, return_tensors="pt"), tokenizer(text_target=TARGET, return_tensors="pt"))
    with torch.no_grad():
        answer = model(input_ids=encoded[0]["input_ids"], labels=encoded[1]["input_ids"], output_attentions=True)
    for layer, expected in (
        (1, answer.encoder_attentions[1]),
        (2, answer.decoder_attentions[0]),
        (5, answer.cross_attentions[1]),
    ):
        found = walk_translator(kind, targets=TARGET, layer=layer, head=1)
        assert_allclose(found["weights"], expected[0, 1], atol=1e-5)


def test_the_decoder_s_tokens_are_the_target_s_and_keys_across_the_source_s():
    cross = walk_translator("marian", targets=TARGET, layer=3, query_token="b")
    assert "".join(cross.tokens[1:]).split() == TARGET.split()
    assert "".join(cross.keys[:-1]).split() == SENTENCE.split()
    assert (cross.tokens[0], cross.keys[-1]) == ("<s>", "</s>")
    assert cross.kind == "cross"
    assert cross.tokens[cross.token].strip() == "b"
    own = walk_translator("marian", targets=TARGET, layer=2)
    assert own.tokens == own.keys == cross.tokens
    assert walk_translator("marian", targets=TARGET, layer=1).tokens == cross.keys


@pytest.mark.parametrize("kind", ["marian", "sinusoidal-pre"])
def test_without_a_target_the_model_s_own_translation_is_read(kind):
    made = attnscope_lineage.translate(translator(kind), [SENTENCE], tokenizer=small_tokenizer(), beams=1)[0][0].text
    found, asked = walk_translator(kind, layer=5), walk_translator(kind, layer=5, targets=made)
    assert found.translated
    assert not asked.translated
    assert found.target == asked.target == made
    assert np.array_equal(found["weights"], asked["weights"])


class TestBadInput:
    def test_a_target_for_a_model_without_a_decoder(self):
        with pytest.raises(AttnscopeError, match=r"is not an encoder-decoder, so it cannot read targets.*--target"):
            walk(MODEL, SENTENCE, targets=TARGET, device="cpu")

    def test_a_model_that_cannot_translate(self):
        torch.manual_seed(0)
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        model = T.BartModel(T.BartConfig(**sizes, **heads, decoder_start_token_id=1)).eval()
        with pytest.raises(AttnscopeError, match=r"BartModel cannot translate .*--target"):
            walk(model, SENTENCE, tokenizer=small_tokenizer())
        found = walk(model, SENTENCE, tokenizer=small_tokenizer(), targets=TARGET, layer=2)
        assert found.tokens[0] == "<s>"

    def test_a_recurrent_model_has_one_layer(self):
        model = small("additive-gru", vocab_size=64)
        with pytest.raises(AttnscopeError, match="layer"):
            walk(model, SENTENCE, tokenizer=small_tokenizer(), targets=TARGET, layer=1)
