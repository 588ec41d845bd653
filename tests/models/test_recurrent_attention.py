"""The recurrent models on transformers' registry: one call of one head, with the scores and weights of the steps."""

import pytest
import torch
from torch.testing import assert_close

from attnscope import AttnscopeError
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from attnscope.kernels.reference import attend
from tests.models.lineage import LABELS, MASK, SOURCE, small

SCORES = ["dot", "scaled_dot", "bilinear", "additive"]
READ = torch.tensor([[1, 10, 11, 2], [1, 12, 13, 14], [1, 15, 2, 0]])


def watched(model, **given):
    """What the model returns, and its calls with their weights, written out."""
    seen = []

    def observe(site, call):
        output, weights = attend(call.query, call.key, call.value, call.mask, call.scale, bias=call.bias)
        seen.append((site, call, weights))
        return output

    with torch.no_grad(), watching(model, observe):
        return model(**given), seen


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("attention", SCORES)
@torch.no_grad()
def test_the_captured_weights_are_those_of_the_steps(attention, cell):
    model = small(f"{attention}-{cell}").double()
    given = {"input_ids": SOURCE, "attention_mask": MASK, "labels": LABELS}
    own = model(**given)
    found, [(site, call, weights)] = watched(model, **given)
    assert (site.index, site.name, site.kind) == (0, "decoder.attention", "cross")
    assert call.mask is not None
    assert not call.causal
    assert_close(weights, own.cross_attentions[0], atol=1e-10, rtol=0)
    assert_close(found.logits, own.logits, atol=1e-10, rtol=0)
    assert torch.equal(model(**given).logits, own.logits)  # afterwards it is as it was


@pytest.mark.parametrize("attention", SCORES)
@torch.no_grad()
def test_queries_keys_and_scale_are_the_score_functions_own(attention):
    model = small(f"{attention}-gru").double()
    _, [(_, call, _)] = watched(model, input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=READ)
    annotations = model.encoder(SOURCE, MASK).last_hidden_state
    products = call.scale * call.query[:, 0] @ call.key[:, 0].mT
    assert torch.equal(call.value[:, 0], annotations)
    if attention == "additive":  # which no product of queries and keys gives
        assert not products.any()
        assert call.bias.shape == (3, 1, 4, 5)
        return
    assert call.bias is None
    states = call.query[:, 0]
    expected = {
        "dot": lambda: states @ annotations.mT,
        "scaled_dot": lambda: states @ annotations.mT / 12**0.5,
        "bilinear": lambda: states @ model.decoder.score.weight.weight @ annotations.mT,
    }[attention]()
    assert_close(products, expected, atol=1e-12, rtol=1e-12)


@torch.no_grad()
def test_a_watched_output_is_what_the_output_layer_reads():
    model = small("bilinear-gru")
    given = {"input_ids": SOURCE, "attention_mask": MASK, "labels": LABELS}
    with watching(model, lambda _, call: torch.zeros_like(measure(call, Need())[0])):
        changed = model(**given)
    own = model(**given)
    assert not torch.allclose(changed.logits, own.logits)
    assert torch.equal(changed.cross_attentions[0], own.cross_attentions[0])  # the states are the same


def test_a_fixed_vector_is_no_attention():
    given = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": READ}
    with pytest.raises(AttnscopeError, match=r"has no attention .* nothing to measure: give a model that attends"):
        verify(small("none-gru"), given)


def test_other_attentions_are_refused_by_transformers():
    with pytest.raises(ValueError, match="does not support"):
        small("dot-gru").set_attn_implementation("sdpa")
