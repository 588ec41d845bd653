"""Models inside other tools' objects, and adapters: the model itself is measured, and borrowed as any other is."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, LlamaModel

import attnscope
import attnscope_lineage
from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.borrow import inner_model
from attnscope.capture.load import load_model
from attnscope.explanation.analyses.shift import cross_spectrum
from attnscope.explanation.study import study
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.alignment import links_of
from attnscope_lineage.weights.tests import uniform_test
from attnscope_yamamoto2023.positions.table import position_spectrum
from tests.measure.generation.causal_models import writer
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again."]


class TransformerBridge(nn.Module):
    """As TransformerLens' bridge: a module beside the model."""

    def __init__(self, model, tokenizer):
        super().__init__()
        self.__dict__["original_model"] = model
        self.tokenizer = tokenizer


class LanguageModel:
    """As nnsight's: no module, and it passes on what it does not know."""

    def __init__(self, model, tokenizer):
        self._module, self.tokenizer = model, tokenizer

    def __getattr__(self, name):
        return getattr(self.__dict__["_module"], name)


class Adapted(nn.Module):
    """As peft's ``PeftModel``."""

    def __init__(self, model, _, *, is_prompt_learning=False):
        super().__init__()
        self.base_model = nn.ModuleDict({"model": model})
        self.peft_config = {"default": SimpleNamespace(is_prompt_learning=is_prompt_learning)}

    def get_base_model(self):
        return self.base_model["model"]


class Sentences(nn.Sequential):
    """As ``SentenceTransformer``: the model is in its first module."""

    def __init__(self, model, tokenizer):
        first = nn.Module()
        first.auto_model = model
        super().__init__(first, nn.Identity())
        self.tokenizer = tokenizer


@pytest.mark.parametrize("wrapper", [TransformerBridge, LanguageModel, Adapted, Sentences])
def test_a_scan_of_the_wrapper_is_one_of_the_model(wrapper):
    model = load_model(MODEL, device="cpu").model.train()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    wrapped = wrapper(model, tokenizer)
    assert inner_model(wrapped) is model
    found = attnscope.scan(wrapped, TEXTS, tokenizer=tokenizer if wrapper is Adapted else None)
    assert all(module.training for module in model.modules())  # given back as it was
    expected = attnscope.scan(model, TEXTS, tokenizer=tokenizer)
    assert found.drop_attrs().equals(expected.drop_attrs())
    assert found.signature == expected.signature


@pytest.fixture(scope="module")
def masked():
    return load_model(MODEL, device="cpu")


@pytest.fixture(scope="module")
def writing():
    model, tokenizer = writer()
    return load_model(model, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def translating():
    return load_model(small_model("bart"), tokenizer=small_tokenizer())


LINES = ["a b c", "b a"]
FEW = {"window": 16, "limit": 2}
CALLS = {  # by the name of a fixture: who reads
    "masked": {
        "scan": lambda model: attnscope.scan(model, TEXTS),
        "weights": lambda model: attnscope.weights(model, TEXTS, layer=0),
        "received": lambda model: attnscope.received(model, TEXTS),
        "roles": lambda model: attnscope.roles(model, only="next_token", controls="none", **FEW),
        "intervene": lambda model: attnscope.intervene(model, why=False, **FEW)["effects"],
        "patch": lambda model: attnscope.patch(model, PAIRS, steps=0)["pairs"],
        "walk": lambda model: attnscope_lineage.walk(model, TEXTS[0])["weights"],
        "an analysis": lambda model: cross_spectrum(model, **FEW),
        "a position table": position_spectrum,
        "a test of weights": lambda model: uniform_test(study(model, **FEW)),
    },
    "writing": {"generate": lambda model: attnscope.generate(model, TEXTS, new_tokens=2)},
    "translating": {
        "align": lambda model: links_of(attnscope_lineage.align(model, LINES, LINES)),
        "translate": lambda model: attnscope_lineage.translate(model, LINES, beams=1).texts,
    },
}


@pytest.mark.parametrize(("reader", "verb"), [(reader, verb) for reader, verbs in CALLS.items() for verb in verbs])
def test_a_model_in_any_form_gives_the_same(reader, verb, request):
    loaded, call = request.getfixturevalue(reader), CALLS[reader][verb]
    wrap = (TransformerBridge, LanguageModel)[[*CALLS[reader]].index(verb) % 2]  # a scan is tried with either above
    expected, found = call(loaded), call(wrap(loaded.model, loaded.tokenizer))
    assert found.equals(expected) if hasattr(found, "equals") else np.array_equal(found, expected)


def clip():
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": 2000, "bos_token_id": 1, "eos_token_id": 2}
    return CLIPModel(CLIPConfig(text_config=text, vision_config={**small, "image_size": 32, "patch_size": 16}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: LanguageModel(model.to("meta"), None), "whose weights are not loaded yet"),
        (lambda _: TransformerBridge(nn.Linear(2, 2), None), "TransformerBridge is not a model of transformers"),
        (lambda model: Adapted(model, None, is_prompt_learning=True), "adds its own tokens to every text"),
        (lambda _: clip(), r"Use its \.text_model for texts, or its \.vision_model"),
    ],
)
def test_objects_without_one_model_of_texts_are_rejected(make, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(make(load_model(MODEL, device="cpu").model), TEXTS, tokenizer=MODEL)


def test_the_text_model_of_a_model_of_texts_and_images_is_measured():
    assert attnscope.scan(clip().text_model, TEXTS, tokenizer=MODEL).sizes["layer"] == 1


def test_lora_from_its_object_and_from_its_folder(models, tmp_path):
    peft = pytest.importorskip("peft")
    stories = models / "stories260K-llama"
    base = LlamaModel.from_pretrained(stories)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(stories)}))
    weights = attnscope.weights(adapted, TEXTS)
    base.set_attn_implementation("eager")
    given = AutoTokenizer.from_pretrained(stories)(TEXTS, return_tensors="pt")
    eager = torch.stack(adapted(**given, output_attentions=True).attentions)[:, 0]
    np.testing.assert_allclose(weights, eager.detach(), atol=1e-5)
    np.testing.assert_allclose(attnscope.weights(tmp_path, TEXTS), weights, atol=1e-6)


def test_an_adapter_without_its_model_or_weights_is_rejected(tmp_path):
    for settings, message in (
        ({"peft_type": "LORA"}, "has no base_model_name_or_path"),
        ({"base_model_name_or_path": str(MODEL)}, r"adapter_model\.safetensors .* does not exist"),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
        with pytest.raises(AttnscopeError, match=message):
            attnscope.scan(tmp_path, TEXTS)
