"""Layers that call PyTorch's attention functions themselves, against those functions and against eager attention."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import SamVisionConfig, SamVisionModel

from attnscope import AttnscopeError
from attnscope.capture import families as _heuristics
from attnscope.capture.forward import forward
from attnscope.capture.functional import (
    arguments_of_multi_head,
    call_of_multi_head,
    call_of_product,
    products,
    sees_ahead,
)
from attnscope.capture.notes import capture_notes
from attnscope.capture.verify import verify
from attnscope.capture.watch import Watch, way_of
from attnscope.capture.watching import capture_of, watching
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attend_in_full
from tests.capture.every_family.inputs import inputs_of
from tests.capture.every_family.judge import EAGER, FAST, judge, larger
from tests.capture.every_family.models import tiny_model

HIDDEN = torch.tensor([[False, False, False, True, True], [False, False, False, False, True]])
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": HIDDEN},
    "mask": {"attn_mask": torch.ones(4, 5, dtype=torch.bool).triu(2)},
    "numbers of each head": {"attn_mask": torch.linspace(-2, 2, 4 * 4 * 5).view(4, 4, 5)},
    "both": {"attn_mask": torch.ones(4, 5, dtype=torch.bool).triu(2), "key_padding_mask": HIDDEN},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 10}])
def test_weights_of_multihead_attention_are_those_that_it_returns(masks, widths):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, **widths).eval()
    query = torch.randn(4, 2, 8)
    key, value = torch.randn(5, 2, widths.get("kdim", 8)), torch.randn(5, 2, widths.get("vdim", 8))
    output, wanted = layer(query, key, value, **MASKS[masks], average_attn_weights=False)
    projections = {f"{one}_proj_weight": getattr(layer, f"{one}_proj_weight") for one in "qkv"} if widths else {}
    call, is_cross = call_of_multi_head(
        arguments_of_multi_head(
            *(query, key, value, 8, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0),
            *(layer.out_proj.weight, layer.out_proj.bias),
            training=False,
            use_separate_proj_weight=bool(widths),
            **projections,
            **MASKS[masks],
        )
    )
    mixed, weights = attend_in_full(call)
    assert is_cross
    torch.testing.assert_close(weights, wanted)
    torch.testing.assert_close(layer.out_proj(mixed.permute(2, 0, 1, 3).flatten(2)), output)


def test_more_queries_than_keys_see_the_future_where_they_may():
    query, key = torch.zeros(1, 1, 6, 2), torch.zeros(1, 1, 3, 2)
    past = torch.ones(6, 3, dtype=torch.bool).tril()
    assert sees_ahead(call_of_product(query, key, key))
    assert not sees_ahead(call_of_product(query, key, key, past))
    assert not sees_ahead(call_of_product(query, key, key, torch.zeros(6, 3).masked_fill(~past, -torch.inf)))


def test_sam_attends_to_the_same_weights_by_pytorchs_function_and_eagerly():
    """Its relative positions are a bias of the product; eagerly it returns weights with heads in the batch."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 16}
    settings = sizes | {"output_channels": 8, "image_size": 32, "patch_size": 8, "window_size": 2}
    config = SamVisionConfig(**settings, global_attn_indexes=[1])
    given = {"pixel_values": torch.randn(1, 3, 32, 32)}
    found = {}
    for way in ("sdpa", "eager"):
        config._attn_implementation = way
        model = SamVisionModel(config).eval()
        if way == "sdpa":
            state = {name: torch.randn_like(one) / 4 for name, one in model.state_dict().items()}
        model.load_state_dict(state)
        verify(model, given, weights_suffice=True)
        weights = found[capture_of(model)] = []

        def observe(site, call, weights=weights):
            weights.append(attend_in_full(call)[1])
            return output_of(call)

        with torch.no_grad(), watching(model, observe, weights_suffice=True):
            model(**given)
    assert [one.shape for one in found["registry"]] == [(4, 2, 4, 4), (1, 2, 16, 16)]
    for one, other in zip(found["registry"], found["eager weights"], strict=True):
        torch.testing.assert_close(one, other)


def test_the_layer_uses_what_the_observer_returns():
    model = larger(tiny_model("falcon"))
    given = inputs_of(model)
    verify(model, given, weights_suffice=True)

    def without_first_head(site, call):
        output = output_of(call).clone()
        output[:, 0] = 0
        return output

    with torch.no_grad():
        with watching(model, without_first_head):
            found = model(**given).logits
        for layer in model.transformer.h:
            attention = layer.self_attention
            attention.dense.weight[:, : attention.head_dim] = 0
        torch.testing.assert_close(found, model(**given).logits)


@pytest.mark.parametrize(("family", "status"), [("siglip", FAST), ("bridgetower", FAST), ("pp_formulanet", EAGER)])
def test_families_whose_layers_attend_in_their_own_way_are_captured(family, status):
    row = judge(family)
    assert row.status == status
    assert not row.difference or row.difference < 2e-5


def test_points_of_deformable_attention_are_not_taken_for_heads(monkeypatch):
    model = larger(tiny_model("rt_detr_v2"))
    given = inputs_of(model)
    sites = verify(model, given, weights_suffice=True)
    assert [site.kind for site in sites] == ["self"] * 4
    assert "RTDetrV2MultiscaleDeformableAttention" in capture_notes(model)["points"]
    monkeypatch.setattr(_heuristics, "_POINTS", "a class that is not there")
    monkeypatch.setattr(_heuristics, "_is_attention", _heuristics._is_attention.__wrapped__)  # without its memory
    with pytest.raises(AttnscopeError, match="has weights of 16 heads, but 4 heads in its settings"):
        verify(deepcopy(model), given, weights_suffice=True)  # one that is not known yet


def test_a_model_that_masks_at_random_masks_the_same_in_each_pass():
    model = larger(tiny_model("vit_mae"))
    given = inputs_of(model)
    verify(model, given, weights_suffice=True)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with watching(model, lambda site, call: output_of(call)):
        first, second = (forward(model, given, ["image"].__getitem__) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(1), expected)
    assert "masks or samples" in capture_notes(model)["random"]
    assert "random" not in capture_notes(larger(tiny_model("vit")))


class ToyAttention(nn.Module):
    def forward(self, states, others=None):
        keys = states if others is None else others
        return functional.scaled_dot_product_attention(states, keys, keys)


class ToyPoolingHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, states):
        return self.attention(states[:, :1], states, states, need_weights=False)[0]


def test_a_head_that_pools_stands_aside_and_more_keys_than_queries_are_of_other_states():
    model = nn.ModuleDict({"layer": ToyAttention(), "head": ToyPoolingHead()}).eval()
    seen = []

    def observe(site, call):
        seen.append((site.name, site.kind))
        return output_of(call)

    watch = Watch({id(module): name for name, module in model.named_modules()}, observe)
    states = torch.randn(1, 2, 3, 4)
    way_of(model).products = True
    with torch.no_grad(), products(model, watch):
        model["head"](model["layer"](states)[:, 0])
        model["layer"](states, torch.randn(1, 2, 5, 4))
        functional.scaled_dot_product_attention(states, states, states)  # outside of any module
    assert seen == [("layer", "self"), ("layer", "cross")]
