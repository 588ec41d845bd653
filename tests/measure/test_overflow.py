"""`scan` refuses, by text and layer, what it cannot measure; what it measured before is kept."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.store.runs import RunFolder
from tests.planted_models import overflowing_bert
from tests.tiny_models import tiny

TEXTS = ["The tide comes in."] * 10 + ["Bread rises."] + ["The tide goes out again."] * 9
ELEVENTH = r"^window 11 \(text 11 from character 0\): "
REFUSED = ELEVENTH + r"layer 0 \(encoder\.layer\.0\.attention\.self\) gives NaN or infinity\. "


@pytest.fixture(scope="module")
def model(tokenizer):
    """It overflows on "Bread", the eleventh of the texts."""
    (own,) = (one for one in tokenizer("Bread").input_ids[1:2] if one not in tokenizer(TEXTS[0]).input_ids)
    return overflowing_bert(own)


def test_the_text_is_named_with_what_to_change_and_earlier_batches_stay(model, tokenizer, tmp_path):
    kept, options = 8, {"tokenizer": tokenizer, "batch_size": 4}
    for _ in range(2):  # the second time it resumes there
        with pytest.raises(AttnscopeError, match=REFUSED + "Check the weights of the model and the tokens"):
            attnscope.scan(model, TEXTS, out=tmp_path / "run", **options)
    half = overflowing_bert(tokenizer("Bread").input_ids[1]).bfloat16()
    with pytest.raises(AttnscopeError, match=REFUSED + "The model runs in bfloat16: try --dtype float32"):
        attnscope.scan(half, TEXTS, tokenizer=tokenizer)
    signature = json.loads((tmp_path / "run" / "run.json").read_text())
    with RunFolder(tmp_path / "run", signature) as run:
        assert not run.complete
        found = run.results()
    assert found.sizes["window"] == kept
    expected = attnscope.scan(model, TEXTS[:kept], **options)
    np.testing.assert_array_equal(found.entropy.values, expected.entropy.values)


def test_what_arises_after_the_last_attention_layer_is_rejected_too(tokenizer):
    """The mean of numbers near the largest of float32 overflows, in the last LayerNorm of one text."""
    model = overflowing_bert(639)
    token = tokenizer("Bread").input_ids[1]
    last = model.encoder.layer[1].output
    forward = last.forward

    def overflow(states, residual):
        return forward(states, residual) * (torch.inf if bool((seen[-1] == token).any()) else 1.0)

    seen = []
    last.forward = overflow
    model.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"]), with_kwargs=True)
    with pytest.raises(AttnscopeError, match=ELEVENTH + "the model's output gives NaN or infinity"):
        attnscope.scan(model, TEXTS, tokenizer=tokenizer, batch_size=1)


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_padding_on_which_the_model_overflows_spoils_no_text(family, tokenizer):
    """As each text alone, where there is no padding."""
    model = tiny(family)
    model.resize_token_embeddings(640)
    untied = torch.nn.Linear(32, 640)
    model.set_output_embeddings(untied)
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.pad_token_id] = 3e38
    texts = ["The tide comes in twice a day.", "A lamp."]
    together = attnscope.scan(model, texts, tokenizer=tokenizer, window=32, batch_size=2)
    alone = attnscope.scan(model, texts, tokenizer=tokenizer, window=32, batch_size=1)
    for name in ("band_sum", "entropy", "mean_offset", "max_weight"):
        np.testing.assert_allclose(together[name], alone[name], rtol=2e-4, atol=2e-5)


def test_token_ids_beyond_the_vocabulary_are_rejected_in_any_window(tokenizer, tmp_path):
    wider = AutoTokenizer.from_pretrained(MODEL)
    wider.add_tokens(["zyx"])
    known = (
        r"^window 3 \(text 3 from character 0\) contains token id 640, but BertModel has 640 tokens \(ids 0 to 639\)\. "
        "Use the tokenizer of this model"
    )
    texts = ["The tide.", "A lamp.", "A zyx.", "Bread."]
    with pytest.raises(AttnscopeError, match=known):
        attnscope.scan(overflowing_bert(639), texts, tokenizer=wider, batch_size=2, out=tmp_path / "run")
