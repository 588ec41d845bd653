"""X and its moments: what the attention modules are called with, and nothing kept of any text."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.inputs import capture_inputs, changing_input, input_moments
from tests.families import inputs, tiny

TEXTS = np.random.default_rng(0).integers(3, 60, (5, 12)).tolist()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert", "bart"])
def test_moments_are_those_of_the_states_themselves(family, monkeypatch):
    monkeypatch.setattr("attnscope.explanation.tokens.TOKENS_AT_ONCE", 24)  # two texts at a time
    model = tiny(family)
    states = [capture_inputs(model, text) for text in TEXTS]
    for site in states[0]:
        moments = input_moments(model, TEXTS, site.index)
        x = np.stack([one[site] for one in states])
        assert moments.texts == len(TEXTS)
        np.testing.assert_allclose(moments.position_mean, x.mean(0), atol=2e-5)
        flat = x.reshape(-1, x.shape[-1])
        np.testing.assert_allclose(moments.covariance, np.cov(flat.T, bias=True), atol=1e-4)


def test_x_is_what_the_hidden_states_say():
    model, (given, _) = tiny("bert"), inputs("bert", padded=False)
    given = {name: tensor[:1] for name, tensor in given.items()}
    with torch.no_grad():
        states = model(**given, output_hidden_states=True).hidden_states
    for x, state in zip(capture_inputs(model, given).values(), states, strict=False):
        np.testing.assert_allclose(x, state[0], atol=1e-5)


def test_cross_attention_has_two_sides():
    model = tiny("bart")
    own, other = (capture_inputs(model, TEXTS[0], key_side=side) for side in (False, True))
    for site, x in own.items():
        assert np.array_equal(x, other[site]) == (site.kind != "cross")


def test_what_cannot_be_averaged_is_refused():
    model = tiny("bert")
    with pytest.raises(AttnscopeError, match="found 1 window; expected 2 or more"):
        input_moments(model, TEXTS[:1], 0)
    with pytest.raises(AttnscopeError, match="found windows of 11 to 12 tokens; expected all equally long"):
        input_moments(model, [TEXTS[0], TEXTS[1][:11]], 0)
    with pytest.raises(AttnscopeError, match="there is no attention layer 7"):
        input_moments(model, TEXTS, 7)


@pytest.mark.parametrize(("family", "layer"), [("bert", 1), ("albert", 1), ("llama", 0), ("t5", 3), ("vit", 1)])
def test_one_layers_input_alone_is_changed(family, layer):
    """Also where one module serves two layers (ALBERT), and where X comes by keyword (Llama)."""
    model, (given, _) = tiny(family), inputs(family, padded=False)
    given = {name: tensor[:1] for name, tensor in given.items()}
    before = capture_inputs(model, given)
    with changing_input(model, list(before), layer, lambda x: 2 * x):
        after, again = capture_inputs(model, given), capture_inputs(model, given)
    for site, x in before.items():
        if site.index == layer:
            np.testing.assert_allclose(after[site], 2 * x)
        elif site.index < layer:
            np.testing.assert_array_equal(after[site], x)
        np.testing.assert_array_equal(after[site], again[site])
    restored = capture_inputs(model, given)
    assert all(np.array_equal(x, restored[site]) for site, x in before.items())
    assert not any(module._forward_pre_hooks for module in model.modules())
