"""Raw weights are transformers' own; what is too large or not there is refused."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.load import load_model
from attnscope.measure import raw as _raw
from tests.families import tiny

IDS = [5, 9, 11, 7, 30, 8]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_they_are_what_eager_attention_says(family, tmp_path):
    loaded = load_model("bundled", device="cpu")
    model = tiny(family)
    model.eval()
    found = attnscope.weights(model, [IDS], tokenizer=loaded.tokenizer)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(torch.tensor([IDS]), output_attentions=True).attentions
    np.testing.assert_allclose(found, np.stack([one[0] for one in eager]), atol=1e-6)


def test_one_head_is_its_part_of_all():
    text = "The tide comes in twice a day, and twice a day it goes out again."
    whole = attnscope.weights(texts=text)
    assert whole.dims == ("layer", "head", "query", "key")
    np.testing.assert_allclose(attnscope.weights(texts=text, layer=1, head=2), whole.sel(layer=1, head=2), atol=2e-6)
    np.testing.assert_allclose(attnscope.weights(texts=text, head=2), whole.sel(head=2), atol=2e-6)
    np.testing.assert_allclose(whole.sum("key"), 1, atol=1e-5)


@pytest.mark.parametrize("verb", [attnscope.weights, attnscope.received])
@pytest.mark.parametrize(
    ("texts", "found"), [(["The tide is out.", "It rained."], "several texts"), ([IDS, IDS], "2 rows of token ids")]
)
def test_several_texts_are_refused(verb, texts, found):
    with pytest.raises(AttnscopeError, match=f"found {found}; expected one: choose one"):
        verb("bundled", texts)


def test_what_is_not_there_or_too_large_is_refused(monkeypatch):
    with pytest.raises(AttnscopeError, match="no attention layer 3"):
        attnscope.weights(texts="The tide is out.", layer=3)
    with pytest.raises(AttnscopeError, match="no head 4 in layer 0"):
        attnscope.weights(texts="The tide is out.", head=4)
    with pytest.raises(AttnscopeError, match="layer"):
        attnscope.weights(texts="The tide is out.", layer=-1)
    monkeypatch.setattr(_raw, "LIMIT", 100)
    with pytest.raises(AttnscopeError, match="choose a layer and a head"):
        attnscope.weights(texts="The tide is out.")
