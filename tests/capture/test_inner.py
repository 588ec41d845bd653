"""The model inside other tools' wrappers is found, by attributes alone, and borrowed as any other is."""

import pytest
from torch import nn
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODEL
from attnscope.capture import inner_model, load_model
from attnscope.errors import AttnscopeError

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


@pytest.mark.parametrize("wrapper", [TransformerBridge, LanguageModel])
def test_a_scan_of_the_wrapper_is_one_of_the_model(wrapper):
    model = load_model(MODEL, device="cpu").model.train()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    wrapped = wrapper(model, tokenizer)
    assert inner_model(wrapped) is model
    found = attnscope.scan(wrapped, TEXTS)
    assert model.training  # given back as it was
    expected = attnscope.scan(model, TEXTS, tokenizer=tokenizer)
    assert found.drop_attrs().equals(expected.drop_attrs())
    assert found.signature == expected.signature


def test_a_model_without_weights_is_refused():
    model = load_model(MODEL, device="cpu").model.to("meta")
    with pytest.raises(AttnscopeError, match="whose weights are not loaded yet"):
        attnscope.scan(LanguageModel(model, None), TEXTS)


def test_what_wraps_no_model_of_transformers_is_named():
    with pytest.raises(AttnscopeError, match="TransformerBridge is not a model of transformers"):
        load_model(TransformerBridge(nn.Linear(2, 2), None))
