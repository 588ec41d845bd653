"""A forward pass that is looked at: which text, which layer."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel

from attnscope import AttnscopeError
from attnscope.capture.families import without_cache
from attnscope.capture.forward import forward
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from tests.planted_models import overflowing_bert
from tests.tiny_models import tiny

STRANGE = 7
IDS = torch.tensor([[5, 6, 8], [5, 6, STRANGE]])
NAMES = ["essay.txt", "notes.txt"]


def run(model, inputs, valid=lambda _: None):
    with torch.no_grad(), watching(model, lambda _, call: measure(call, Need())[0]):
        return forward(model, inputs, NAMES.__getitem__, valid)


def test_the_text_of_the_batch_is_named_and_the_layer():
    with pytest.raises(AttnscopeError, match=r"^notes\.txt: layer 0 \(encoder\.layer\.0\.attention\.self\) gives"):
        run(overflowing_bert(STRANGE), {"input_ids": IDS})


def test_padding_is_not_checked():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    inputs = {"input_ids": IDS, "attention_mask": mask}
    model = overflowing_bert(STRANGE)
    output = run(model, inputs, lambda _: mask.bool())
    alone = run(model, {"input_ids": IDS[1:, :2]})
    assert bool(output[1, 2].isnan().all())
    torch.testing.assert_close(output[1:, :2], alone)
    with pytest.raises(AttnscopeError, match=r"^notes\.txt: layer 0"):
        run(model, inputs)


def test_without_the_head_only_the_body_runs():
    model = overflowing_bert(STRANGE)
    torch.nn.init.constant_(model.pooler.dense.bias, torch.nan)  # nobody reads it
    assert run(model, {"input_ids": IDS[:1]}).shape == (1, 3, 16)


def test_each_side_has_a_vocabulary_of_its_own():
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "d_model": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0, "eos_token_id": 1}
    config = MarianConfig(
        vocab_size=9,
        decoder_vocab_size=20,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        **sizes,
        **heads,
    )
    model = MarianMTModel(config).eval()
    inputs = {"input_ids": IDS, "decoder_input_ids": torch.tensor([[0, 19], [0, 3]])}
    assert run(model, inputs).shape == (2, 2, 20)
    with pytest.raises(AttnscopeError, match=r"^essay\.txt contains token id 20, but MarianMTModel has 20 tokens"):
        run(model, {**inputs, "decoder_input_ids": torch.tensor([[0, 20], [0, 3]])})
    with pytest.raises(AttnscopeError, match=r"^notes\.txt contains token id 9, but MarianMTModel has 9 tokens"):
        run(model, {**inputs, "input_ids": IDS + torch.tensor([[0], [2]])})


def test_a_model_that_overflows_by_its_own_attention_alone_is_rejected(monkeypatch):
    model = overflowing_bert(STRANGE)
    forward_of = type(model).forward

    def own(self, *arguments, **options):
        output = forward_of(self, *arguments, **options)
        if self.config._attn_implementation != "attnscope":
            output.last_hidden_state[0, 1, 0] = torch.inf
        return output

    monkeypatch.setattr(type(model), "forward", own)
    with pytest.raises(AttnscopeError, match=r"^window 1: BertModel with its own attention gives NaN or infinity"):
        verify(model, {"input_ids": IDS[:1]}, text="window 1")


@pytest.mark.parametrize("family", ["llama", "granitemoehybrid", "granitemoeshared", "bart"])
def test_no_pass_keeps_keys(family):
    """Granite passes the argument on without naming it; edges would attend to keys of an earlier pass."""
    model, ids = tiny(family), torch.randint(3, 60, (1, 6))
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    assert getattr(model(ids, **more, **without_cache(model)), "past_key_values", None) is None
    assert model(ids, **more).past_key_values is not None


def test_a_head_that_disables_the_cache_itself_is_not_given_the_argument():
    """As JevForDecision does."""

    class Head(LlamaForCausalLM):
        def forward(self, input_ids, **kwargs):
            return self.model(input_ids, use_cache=False, **kwargs)

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = Head(LlamaConfig(vocab_size=9, **sizes)).eval()
    assert without_cache(model) == {}
    assert model(IDS).past_key_values is None
    assert verify(model, {"input_ids": IDS})
