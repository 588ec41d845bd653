"""Edited heads against hand-written loops of hooks, on families of every kind."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.capture.load import load_model
from attnscope.support.errors import AttnscopeError
from tests.tiny_models import tiny

IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
#: By family: the value and output layers of the layer edited below, and its heads on key heads.
FAMILIES = {
    "bert": ("bert.encoder.layer.1.attention.self.value", "bert.encoder.layer.1.attention.output.dense", 1, 4, 4),
    "gpt2": (None, "transformer.h.1.attn.c_proj", 1, 4, 4),
    "llama": ("model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj", 1, 4, 2),
    "gemma2": ("model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.o_proj", 1, 4, 2),
    "opt": ("model.decoder.layers.1.self_attn.v_proj", "model.decoder.layers.1.self_attn.out_proj", 1, 4, 4),
    "t5": ("decoder.block.1.layer.1.EncDecAttention.v", "decoder.block.1.layer.1.EncDecAttention.o", 5, 4, 4),
    "bart": ("model.decoder.layers.0.self_attn.v_proj", "model.decoder.layers.0.self_attn.out_proj", 2, 4, 4),
}


def inputs_of(model):
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :7]} if model.config.is_encoder_decoder else {})


def by_hooks(model, names, change):
    """Logits of a model where a function gets, and changes, the input of each module by its name."""
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, given, name=name: (change(name, given[0]),))
        for name in names
    ]
    try:
        return model(**inputs_of(model)).logits
    finally:
        for hook in hooks:
            hook.remove()


def columns(heads, width, head):
    return slice(head * width // heads, (head + 1) * width // heads)


@pytest.mark.parametrize("family", FAMILIES)
def test_z_and_output_are_edited_as_by_hooks(family):
    _, reader, layer, heads, _ = FAMILIES[family]
    model = tiny(family)

    def change(_, given):
        part = columns(heads, given.shape[-1], 2)
        given = given.clone()
        given[..., part] = 3 * given[..., part].roll(1, -1)
        return given

    expected = by_hooks(model, [reader], change)
    with attnscope.edit(model, {(layer, 2): lambda z: 3 * z.roll(1, -1)}, on="z") as edited:
        torch.testing.assert_close(edited(**inputs_of(model)).logits, expected)

    module = model.get_submodule(reader)
    weight = module.weight if family == "gpt2" else module.weight.T
    direction = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(3))

    def add(_, given, returned):
        part = columns(heads, given[0].shape[-1], 2)
        own = given[0][..., part] @ weight[part]
        return returned + (own * direction - own)

    hook = module.register_forward_hook(add)
    expected = model(**inputs_of(model)).logits
    hook.remove()
    with attnscope.edit(model, {(layer, 2): lambda output: output * direction}) as edited:
        torch.testing.assert_close(edited(**inputs_of(model)).logits, expected)


@pytest.mark.parametrize("family", [family for family, names in FAMILIES.items() if names[0]])
def test_weights_and_scores_are_edited_as_by_hooks(family):
    value_layer, reader, layer, heads, kv_heads = FAMILIES[family]
    model = tiny(family)
    model.set_attn_implementation("eager")
    found = model(**inputs_of(model), output_attentions=True)
    every = getattr(found, "attentions", None)
    if every is None:  # of an encoder-decoder, in the order of the passes
        pairs = zip(found.decoder_attentions, found.cross_attentions, strict=True)
        every = [*found.encoder_attentions, *(each for pair in pairs for each in pair)]
    own = every[layer][:, 1]
    values = {}
    hook = model.get_submodule(value_layer).register_forward_hook(lambda _, __, made: values.update(made=made))
    model(**inputs_of(model))
    hook.remove()
    made = values["made"].reshape(len(IDS), -1, values["made"].shape[-1])
    value = made[..., columns(kv_heads, made.shape[-1], kv_heads // heads)]

    def with_weights(weights):
        def change(_, given):
            given = given.clone()
            given.view(*weights.shape[:2], -1)[..., columns(heads, given.shape[-1], 1)] = weights @ value
            return given

        return by_hooks(model, [reader], change)

    def sharper(weights):
        return weights**2 / (weights**2).sum(-1, keepdim=True)

    for on, function in (("weights", sharper), ("scores", lambda scores: 2 * scores)):
        with attnscope.edit(model, {(layer, 1): function}, on=on) as edited:
            torch.testing.assert_close(
                edited(**inputs_of(model)).logits, with_weights(sharper(own)), rtol=1e-4, atol=1e-5
            )
    assert (with_weights(sharper(own)) - model(**inputs_of(model)).logits).abs().max() > 1e-4


@pytest.mark.parametrize("on", ["query", "key", "value"])
def test_heads_that_share_a_key_are_edited_alone(on):
    model = tiny("llama")
    with attnscope.edit(model, {(0, 1): torch.zeros_like}, on=on) as edited, torch.no_grad():
        logits = edited(IDS).logits
    kept = {}

    def keep(which):
        def function(z):
            kept[which] = z
            return z

        return function

    for edits in ({}, {(0, 1): torch.zeros_like}):
        with attnscope.edit(model, {(0, head): keep(head) for head in range(4)}, on="z") as edited:
            edited(IDS)
        if not edits:
            before = dict(kept)
    torch.testing.assert_close(before[0], kept[0])
    assert not torch.equal(logits, model(IDS).logits)


def test_gradients_flow_through_a_function_and_to_the_parameters():
    model = tiny("gpt2")
    gate = torch.ones((), requires_grad=True)
    with attnscope.edit(model, {(1, 2): lambda output: gate * output}) as edited:
        loss = edited(IDS, labels=IDS).loss
        slope, weight = torch.autograd.grad(loss, [gate, model.transformer.h[1].attn.c_proj.weight])
    with attnscope.edit(model, {(1, 2): lambda output: 1.01 * output}) as more, torch.no_grad():
        above = more(IDS, labels=IDS).loss
    with attnscope.edit(model, {(1, 2): lambda output: 0.99 * output}) as less, torch.no_grad():
        below = less(IDS, labels=IDS).loss
    np.testing.assert_allclose(float(slope), float(above - below) / 0.02, rtol=0.02)
    (whole,) = torch.autograd.grad(model(IDS, labels=IDS).loss, [model.transformer.h[1].attn.c_proj.weight])
    torch.testing.assert_close(weight, whole)


def test_one_module_of_several_layers_is_edited_in_one():
    model = tiny("albert")
    kept = []
    with attnscope.edit(model, {(1, 0): lambda z: kept.append(z) or z}, on="z") as edited:
        edited(IDS)
    assert len(kept) == 1


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_edits_hold_in_generate(family):
    model = tiny(family)
    layer = 5 if family == "t5" else 1
    widths = []
    with attnscope.edit(model, {(layer, 0): lambda z: widths.append(z.shape[1]) or 5 * z}, on="z") as edited:
        cached = edited.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        count = len(widths)
        whole = edited.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False, use_cache=False)
    assert count == 6, widths
    assert torch.equal(cached, whole)


def test_layers_of_one_kind_are_counted_alone():
    model = tiny("t5")
    kept = []
    heads = {(1, 0): lambda weights: kept.append(weights) or weights}
    with attnscope.edit(model, heads, on="weights", kind="cross") as edited:
        edited(**inputs_of(model))
    assert kept[0].shape == (2, 7, 9)


@pytest.mark.parametrize(
    ("hook", "on"),
    [("hook_z", "z"), ("hook_result", "output"), ("hook_pattern", "weights"), ("hook_attn_scores", "scores")],
)
def test_names_of_transformer_lens_give_all_heads_in_its_layout(hook, on):
    model = tiny("gpt2")
    axis = 2 if on in {"z", "output"} else 1
    shapes = []

    def function(tensor):
        shapes.append(tensor.shape)
        parts = list(tensor.unbind(axis))
        parts[3] = parts[3] * 0.5
        return torch.stack(parts, axis)

    with attnscope.edit(model, {f"blocks.1.attn.{hook}": function}) as edited:
        found = edited(IDS).logits
    with attnscope.edit(model, {(1, 3): lambda tensor: 0.5 * tensor}, on=on) as edited:
        torch.testing.assert_close(found, edited(IDS).logits)
    assert shapes[0][axis] == 4


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "gemma2"])
def test_outputs_of_all_heads_sum_to_the_layer(family):
    model = tiny(family)
    _, reader, layer, _, _ = FAMILIES[family]
    made = []
    module = model.get_submodule(reader)
    hook = module.register_forward_hook(lambda _, __, returned: made.append(returned))
    rows = [IDS[0].tolist(), IDS[1, :6].tolist(), IDS[1].tolist()]
    found = attnscope.head_outputs(model, rows, tokenizer=load_model("bundled").tokenizer)
    made.clear()
    with torch.no_grad():
        short = torch.tensor([rows[1]])
        model(**dict.fromkeys(inputs_of(model), short))
    hook.remove()
    bias = 0 if module.bias is None else module.bias.detach().numpy()
    own = found.isel(window=1).sel(layer=layer)
    np.testing.assert_allclose(own.sum("head").values[:6] + bias, made[0][0].numpy(), atol=1e-5)
    assert own.isel(position=slice(6, None)).isnull().all()
    assert found.length.values.tolist() == [9, 6, 9]


def test_outputs_have_the_names_and_dimensions_that_are_asked_for():
    texts = ["The tide comes in twice a day.", "It rained."]
    whole = attnscope.head_outputs("bundled", texts, on="weights")
    one = attnscope.head_outputs("bundled", texts, on="blocks.1.attn.hook_pattern", head=2)
    np.testing.assert_allclose(one.values, whole.sel(layer=1, head=2).values, atol=1e-6)
    raw = attnscope.weights("bundled", texts[0], layer=1, head=2)
    np.testing.assert_allclose(one[0].values, raw.values, atol=1e-6)
    assert one.key_token.values[1, : int(one.length[1])].tolist()[:2] == ["<s>", " I"]


def test_an_encoder_decoder_gives_its_kinds():
    model = tiny("t5")
    tokenizer = load_model("bundled").tokenizer
    with pytest.raises(AttnscopeError, match="no layer 2 among the 2 layers of cross attention"):
        attnscope.head_outputs(model, [IDS[0].tolist()], on="z", layer=2, kind="cross", tokenizer=tokenizer)
    found = attnscope.head_outputs(model, [IDS[0].tolist()], on="z", kind="cross", tokenizer=tokenizer)
    assert found.layer.values.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("heads", "options", "reason"),
    [
        ({(9, 0): abs}, {}, "no layer 9 among the 2"),
        ({(0, 4): abs}, {}, "no head 4 in layer 0: choose from 0 to 3"),
        ({"blocks.0.hook_z": abs}, {}, "found the name 'blocks.0.hook_z'; expected an activation, such as 3.resid_mid"),
        ({"blocks.0.attn.hook_r": abs}, {}, "found the name"),
        ({"blocks.0.cross_attn.hook_z": abs}, {}, "expected cross_attn of a block that has it: none has"),
        ({"7.mlp_out": abs}, {}, r"no block 7 \('7.mlp_out'\): choose from 0 to 1"),
        ({"0.mlp_out": abs, "blocks.0.hook_mlp_out": abs}, {}, "two functions for 0.mlp_out"),
        ({"0.mlp_out": lambda out: out[:1]}, {}, r"0.mlp_out returned the shape \(1, 9, 32\)"),
        ({0: abs}, {}, "found the head 0"),
        ({(0, 0): 3}, {}, "found int"),
        ({}, {}, "found no heads"),
        ({(0, 0): lambda z: z[:1]}, {}, r"z of head 0.0 returned the shape \(1, 9, 8\)"),
        ({(0, 0): abs}, {"kind": "cross"}, "no layer 0 among the 0 layers of cross"),
    ],
)
def test_wrong_edits_are_named(heads, options, reason):
    with pytest.raises(AttnscopeError, match=reason), attnscope.edit(tiny("gpt2"), heads, on="z", **options) as edited:
        edited(IDS)


def test_a_model_of_images_is_edited_with_inputs():
    model = tiny("vit")
    inputs = {"pixel_values": torch.randn(1, 3, model.config.image_size, model.config.image_size)}
    with pytest.raises(AttnscopeError, match="reads pixel_values"), attnscope.edit(model, {(0, 0): abs}):
        pass
    before = model(**inputs).last_hidden_state
    with attnscope.edit(model, {(0, 0): torch.zeros_like}, inputs=inputs) as edited:
        assert not torch.equal(edited(**inputs).last_hidden_state, before)
    assert torch.equal(model(**inputs).last_hidden_state, before)
