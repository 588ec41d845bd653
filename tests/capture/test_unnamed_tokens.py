"""Token ids of a model object without a tokenizer: tokens are named by their numbers."""

import numpy as np
import pytest
import torch

from attnscope import examples, head_outputs, intervene, scan, weights
from attnscope.support.errors import AttnscopeError
from tests.tiny_models import tiny

IDS = torch.randint(3, 60, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    model = tiny("llama")
    model.config.name_or_path = ""
    return model


def test_statistics_of_ids_are_those_of_eager_attention(model):
    found = scan(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    model.set_attn_implementation("eager")
    with torch.no_grad():
        matrices = torch.stack(model(IDS, output_attentions=True).attentions, 1).double()
    model.set_attn_implementation("sdpa")
    entropy = -(matrices * matrices.clamp_min(1e-300).log()).sum(-1).mean(-1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-5)


def test_verbs_name_tokens_by_their_numbers(model):
    ids = IDS.tolist()
    assert weights(model, ids[:1], layer=0).query_token.values.tolist() == [str(one) for one in ids[0]]
    outputs = head_outputs(model, ids, on="z", layer=0)
    assert outputs.position_token.values[1].tolist() == [str(one) for one in ids[1]]
    assert examples(model, ids, heads=(1, 2)).sizes["example"]
    assert intervene(model, ids, ablations=["zero"], steps=0, why=False)["effects"].sizes["head"] == 4


def test_texts_need_a_tokenizer(model):
    with pytest.raises(AttnscopeError, match="found texts for a model object without its tokenizer"):
        scan(model, ["The tide comes in."])


def test_an_eager_model_in_double_precision_is_measured(model):
    double = tiny("llama").double()
    double.set_attn_implementation("eager")
    found = scan(double, IDS.tolist()).entropy
    np.testing.assert_allclose(found, scan(model, IDS.tolist()).entropy, atol=1e-5)
