"""Position schemes: the identities B1 to B5, I6, I6b and I7, and positions taken out of real calls."""

import numpy as np
import pytest
import torch
import transformers as T

from attnscope.capture.watching import watching
from attnscope.explanation.analyses import position_scheme as _position_scheme
from attnscope.explanation.projections import projections
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from attnscope.kernels.positions import pair_columns, rotation, t5_buckets
from tests.explanation.analyses_of_windows import of_windows
from tests.tiny_models import tiny

bias_effect = of_windows(_position_scheme.bias_effect)
rotation_effect = of_windows(_position_scheme.rotation_effect)

LENGTH = 24
TEXTS = np.random.default_rng(0).integers(3, 60, (3, LENGTH)).tolist()


def rotary_profile(query, key, rates, offsets, layout="half"):
    """Score of one query and key at each offset under RoPE, unscaled: a sum of waves, and what does not turn."""
    first, second = pair_columns(layout, len(rates))
    product = (query[first] - 1j * query[second]) * (key[first] + 1j * key[second])
    waves = (product[:, None] * np.exp(1j * rates[:, None] * offsets)).real.sum(0)
    return waves + query[2 * len(rates) :] @ key[2 * len(rates) :]


@pytest.mark.parametrize("layout", ["half", "pairs"])
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_b3_b4_rope_scores_depend_on_the_offset(layout, partial):
    turn = rotation(40, 16, layout=layout, partial=partial)
    q, k = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    queries, keys = turn(q.expand(40, 16)), turn(k.expand(40, 16))
    torch.testing.assert_close(queries.norm(dim=-1), q.norm().expand(40))
    scores = queries @ keys.T
    offsets = np.arange(-39, 40)
    by_offset = rotary_profile(q.numpy(), k.numpy(), turn.rates.numpy(), offsets, layout)
    at = np.arange(40) - np.arange(40)[:, None] + 39
    np.testing.assert_allclose(scores, by_offset[at], atol=1e-12)


def test_i7_a_t5_without_content_shows_its_bias():
    model = tiny("t5")
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        attention.q.weight.zero_()
    found = bias_effect(model, TEXTS, band=6)
    table = attention.relative_attention_bias.weight.detach().numpy()  # bucket, head
    places = torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]
    weights = torch.from_numpy(table[t5_buckets(places)]).double().softmax(1)  # query, key, head
    expected = torch.stack([weights.diagonal(t).mean(-1) for t in range(-6, 7)], -1)
    first = found.sel(layer=0)
    np.testing.assert_allclose(first.profile.sel(variant="model"), expected, atol=1e-6)
    np.testing.assert_allclose(first.profile.sel(variant="without_bias"), 1 / LENGTH, atol=1e-6)
    np.testing.assert_allclose(first.effect.sel(variant="without_bias"), expected - 1 / LENGTH, atol=2e-6)
    cross = found.sel(layer=3, variant="without_bias")  # cross-attention has no bias
    assert abs(cross.effect).max() == 0


def test_b4_scores_of_a_repeated_word_in_a_llama():
    """The first layer sees one X everywhere: its scores are `rotary_profile` of that X's query and key."""
    model = tiny("llama")
    given = {"input_ids": torch.full((1, LENGTH), 7)}
    found = next(iter(projections(model, given).values()))
    with torch.no_grad():
        x = model.model.layers[0].input_layernorm(model.model.embed_tokens.weight[7]).double().numpy()
    offsets = np.arange(1 - LENGTH, LENGTH)
    seen = []

    def observe(site, call):
        seen.append(call)
        return measure(call, Need())[0]

    with torch.no_grad(), watching(model, observe):
        model(**given)
    for head in range(4):
        W_Q, b_Q, W_K, b_K = found.of_head(head)
        by_offset = found.scale * rotary_profile(x @ W_Q + b_Q, x @ W_K + b_K, found.rotation.rates.numpy(), offsets)
        scores = seen[0].scale * seen[0].query[0, head] @ seen[0].key[0, head // 2].T
        at = np.arange(LENGTH) - np.arange(LENGTH)[:, None] + LENGTH - 1
        np.testing.assert_allclose(scores, by_offset[at], atol=3e-6 * float(scores.abs().max()))
    assert isinstance(model, T.LlamaForCausalLM)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "modernbert", "gpt_oss", "qwen3"])
def test_turning_back_and_again_is_the_model(family):
    found = rotation_effect(tiny(family), TEXTS, {"all": (0.0, np.inf), "none": (0.0, 0.0)}, band=6)
    np.testing.assert_allclose(found.profile.sel(variant="all"), found.profile.sel(variant="model"), atol=2e-5)
    assert abs(found.effect.sel(variant="none")).max() > 1e-3
