"""The model inside other tools' wrappers is found, by attributes alone, and borrowed as any other is."""

import numpy as np
import pytest
from torch import nn
from transformers import AutoTokenizer

import attnscope
from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.borrow import inner_model
from attnscope.capture.load import load_model
from attnscope.explanation.analyses.position_table import position_spectrum
from attnscope.explanation.analyses.shift import cross_spectrum
from attnscope.explanation.study import study
from attnscope.intervention.weight_tests import uniform_test
from attnscope.support.errors import AttnscopeError
from tests.statistics.generation.writers import writer
from tests.translation.small_translators import small_model, small_tokenizer

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
FEW = {"window": 32, "limit": 2}
CALLS = {  # by the name of a fixture: who reads
    "masked": {
        "scan": lambda model, **own: attnscope.scan(model, TEXTS, **own),
        "weights": lambda model, **own: attnscope.weights(model, TEXTS, layer=0, **own),
        "received": lambda model, **own: attnscope.received(model, TEXTS, **own),
        "roles": lambda model, **own: attnscope.roles(model, only="next_token", controls="none", **FEW, **own),
        "explain": lambda model, **own: attnscope.explain(model, **FEW, **own)["verdict"],
        "intervene": lambda model, **own: attnscope.intervene(model, why=False, **FEW, **own)["effects"],
        "patch": lambda model, **own: attnscope.patch(model, PAIRS, steps=0, **own)["pairs"],
        "walk": lambda model, **own: attnscope.walk(model, TEXTS[0], **own)["weights"],
        "an analysis": lambda model, **own: cross_spectrum(model, **FEW, **own),
        "a position table": lambda model, **_: position_spectrum(model),
        "a test of weights": lambda model, **own: uniform_test(study(model, **FEW, **own)),
    },
    "writing": {"generate": lambda model, **own: attnscope.generate(model, TEXTS, new_tokens=2, **own)},
    "translating": {
        "align": lambda model, **own: attnscope.align(model, LINES, LINES, **own).links,
        "translate": lambda model, **own: attnscope.translate(model, LINES, beams=1, **own).texts,
    },
}


@pytest.mark.parametrize(("reader", "verb"), [(reader, verb) for reader, verbs in CALLS.items() for verb in verbs])
def test_a_model_in_any_form_gives_the_same(reader, verb, request):
    loaded, call = request.getfixturevalue(reader), CALLS[reader][verb]
    expected = call(loaded.model, tokenizer=loaded.tokenizer)
    wrappers = (TransformerBridge, LanguageModel)
    wrap = wrappers[[*CALLS[reader]].index(verb) % 2]  # a scan, which comes first, is tried with either above
    wrapped = wrap(loaded.model, loaded.tokenizer)
    for given in (wrapped,) if verb in {"explain", "intervene"} else (loaded, wrapped):
        found = call(given)
        assert found.equals(expected) if hasattr(found, "equals") else np.array_equal(found, expected)


def test_a_model_without_weights_is_refused():
    model = load_model(MODEL, device="cpu").model.to("meta")
    with pytest.raises(AttnscopeError, match="whose weights are not loaded yet"):
        attnscope.scan(LanguageModel(model, None), TEXTS)


def test_what_wraps_no_model_of_transformers_is_named():
    with pytest.raises(AttnscopeError, match="TransformerBridge is not a model of transformers"):
        load_model(TransformerBridge(nn.Linear(2, 2), None))
