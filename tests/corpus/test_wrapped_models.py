"""Models inside other libraries' objects, and adapters: what is measured is the model itself."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, LlamaConfig, LlamaModel

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL

TEXT = "The tide comes in."


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2000, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    return LlamaModel(config).eval()


class Adapted(nn.Module):
    """As peft's ``PeftModel``."""

    def __init__(self, model, *, is_prompt_learning=False):
        super().__init__()
        self.base_model = nn.ModuleDict({"model": model})
        self.peft_config = {"default": SimpleNamespace(is_prompt_learning=is_prompt_learning)}

    def get_base_model(self):
        return self.base_model["model"]


class Sentences(nn.Sequential):
    """As ``SentenceTransformer``: the model is in its first module, and the tokenizer an attribute."""

    def __init__(self, model):
        first = nn.Module()
        first.auto_model = model
        super().__init__(first, nn.Identity())
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)


@pytest.mark.parametrize(("wrap", "tokenizer"), [(Adapted, MODEL), (Sentences, None)])
def test_a_wrapped_model_has_its_own_numbers(model, wrap, tokenizer):
    found = attnscope.scan(wrap(model), TEXT, tokenizer=tokenizer)
    own = attnscope.scan(model, TEXT, tokenizer=MODEL)
    for name in own.data_vars:
        np.testing.assert_array_equal(found[name], own[name])


def test_a_model_that_adds_tokens_is_rejected(model):
    with pytest.raises(AttnscopeError, match="adds its own tokens to every text"):
        attnscope.scan(Adapted(model, is_prompt_learning=True), TEXT, tokenizer=MODEL)


def test_lora_from_its_object_and_from_its_folder(models, tmp_path):
    peft = pytest.importorskip("peft")
    stories = models / "stories260K-llama"
    base = LlamaModel.from_pretrained(stories)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(stories)}))
    weights = attnscope.weights(adapted, TEXT)
    base.set_attn_implementation("eager")
    given = AutoTokenizer.from_pretrained(stories)(TEXT, return_tensors="pt")
    eager = torch.stack(adapted(**given, output_attentions=True).attentions)[:, 0]
    np.testing.assert_allclose(weights, eager.detach(), atol=1e-5)
    np.testing.assert_allclose(attnscope.weights(tmp_path, TEXT), weights, atol=1e-6)


def test_an_adapter_without_what_it_needs_is_rejected(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(AttnscopeError, match="has no base_model_name_or_path"):
        attnscope.scan(tmp_path, TEXT)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(MODEL)}))
    with pytest.raises(AttnscopeError, match=r"adapter_model\.safetensors .* does not exist"):
        attnscope.scan(tmp_path, TEXT)


def test_a_model_of_texts_and_images_says_which_part_to_give():
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": 2000, "bos_token_id": 1, "eos_token_id": 2}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**small, "image_size": 32, "patch_size": 16}))
    with pytest.raises(AttnscopeError, match=r"Use its \.text_model for texts, or its \.vision_model"):
        attnscope.scan(model, TEXT, tokenizer=MODEL)
    assert attnscope.scan(model.text_model, TEXT, tokenizer=MODEL).sizes["layer"] == 1
