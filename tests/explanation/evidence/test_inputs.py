"""X and its moments: what the attention modules are called with, and nothing kept of any text."""

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.inputs import token_ids
from attnscope.explanation.study import Study
from tests.explanation.captured_inputs import capture_inputs
from tests.tiny_models import inputs, tiny

TEXTS = np.random.default_rng(0).integers(3, 60, (5, 12)).tolist()


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert", "bart"])
def test_moments_are_those_of_the_states_themselves(family, monkeypatch):
    monkeypatch.setattr("attnscope.explanation.inputs.TOKENS_AT_ONCE", 24)  # two texts at a time
    model = tiny(family)
    states = [capture_inputs(model, text) for text in TEXTS]
    for layer in Study(model, TEXTS, band=4).evidence.layers:
        site, moments = layer.site, layer.moments
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


def test_what_cannot_be_averaged_is_rejected():
    with pytest.raises(AttnscopeError, match="found 1 window; expected 2 or more"):
        token_ids(TEXTS[:1], least=2)
    with pytest.raises(AttnscopeError, match="found windows of 11 to 12 tokens; expected equal lengths"):
        token_ids([TEXTS[0], TEXTS[1][:11]])
