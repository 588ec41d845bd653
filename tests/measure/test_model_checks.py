"""What `scan` finds out about a model before it measures: padding, the future, masks in numbers."""

import json

import numpy as np
import torch
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    LayoutLMConfig,
    LayoutLMForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MobileBertConfig,
    MobileBertForMaskedLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

import attnscope
from attnscope.measure import texts as _texts

TEXTS = ["The tide comes in.", "Bread rises because yeast breathes out.", "A lamp."]
SIZES = {
    "vocab_size": 640,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def mobile_bert():
    """Its input is made of each token with the one before and the one after, padding or not."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 1}
    model = MobileBertForMaskedLM(MobileBertConfig(**SIZES, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_a_model_that_reads_padding_is_measured_one_text_at_a_time(tokenizer, monkeypatch):
    model = mobile_bert()
    given = {"tokenizer": tokenizer, "window": 32, "device": "cpu"}
    together = attnscope.scan(model, TEXTS, batch_size=3, **given)
    alone = attnscope.scan(model, TEXTS, batch_size=1, **given)
    np.testing.assert_array_equal(together.band_sum.values, alone.band_sum.values)
    assert "measured one at a time" in together.padding
    assert "padding" not in alone.attrs
    assert together.signature == alone.signature
    monkeypatch.setattr(_texts, "padding_difference", lambda *_, **__: 0.0)
    unchecked = attnscope.scan(mobile_bert(), TEXTS, batch_size=3, **given)  # a model that is not known yet
    assert float(np.abs(unchecked.band_sum - alone.band_sum).max()) > 0.05


def test_padding_matters_in_a_mask_of_keys_alone(tokenizer):
    """LayoutLM adds numbers of the shape (text, 1, 1, key) to its scores."""
    torch.manual_seed(0)
    model = LayoutLMForMaskedLM(LayoutLMConfig(**SIZES)).eval()
    given = {"tokenizer": tokenizer, "window": 32, "device": "cpu"}
    together = attnscope.scan(model, TEXTS, batch_size=3, **given)
    alone = attnscope.scan(model, TEXTS, batch_size=1, **given)
    for name in ("band_sum", "bin_sum", "entropy", "equal_bin_sum", "equal_entropy"):
        np.testing.assert_allclose(together[name].values, alone[name].values, rtol=1e-4, atol=1e-5)


def test_a_causal_model_is_causal_whatever_its_modules_say(tokenizer):
    torch.manual_seed(0)
    found = attnscope.scan(DogeForCausalLM(DogeConfig(**SIZES)).eval(), TEXTS, tokenizer=tokenizer, window=32)
    assert set(found.layer_kind.values) == {"causal"}
    assert float(found.bin_sum.sel(offset_bin=slice(1, None)).max()) == 0
    assert "causality" not in found.attrs
    unlimited = XLNetLMHeadModel(XLNetConfig(vocab_size=640, d_model=32, n_layer=1, n_head=2, d_inner=32)).eval()
    found = attnscope.scan(unlimited, TEXTS, tokenizer=tokenizer)  # its longest text is -1
    assert json.loads(found.attrs["signature"])["settings"]["window"] > 32


def test_a_causal_model_that_sees_the_future_is_reported(tokenizer):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    given = {"tokenizer": tokenizer, "window": 32}
    assert "causality" not in attnscope.scan(model, TEXTS, **given).attrs
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    found = attnscope.scan(model, TEXTS, **given)
    assert set(found.layer_kind.values) == {"self"}
    assert "sees later tokens: it is measured as bidirectional" in found.causality
