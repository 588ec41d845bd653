"""Activations outside attention against hand-written hooks, on families of every kind, and the sums that they obey."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import attnscope
from attnscope.capture.load import load_model
from attnscope.intervention.edit import Anatomy
from attnscope.support.errors import AttnscopeError
from tests.tiny_models import tiny

IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
_LLAMA = {
    "1.resid_pre": ("in", "model.layers.1"),
    "1.resid_mid": ("mid", "model.layers.1", "self_attn"),
    "1.resid_post": ("out", "model.layers.1"),
    "1.ln1": ("out", "model.layers.1.input_layernorm"),
    "1.ln2": ("out", "model.layers.1.post_attention_layernorm"),
    "1.attn_out": ("out", "model.layers.1.self_attn"),
    "1.mlp_out": ("out", "model.layers.1.mlp"),
    "1.mlp_pre": ("out", "model.layers.1.mlp.gate_proj"),
    "1.neurons": ("in", "model.layers.1.mlp.down_proj"),
    "embed": ("out", "model.embed_tokens"),
    "ln_final": ("out", "model.norm"),
    "logits": ("out", "lm_head"),
}


def _renamed(sites, *pairs, without=()):
    """The same sites under other names of modules."""
    for old, new in pairs:
        sites = {name: (side, *(part.replace(old, new) for part in parts)) for name, (side, *parts) in sites.items()}
    return {name: parts for name, parts in sites.items() if name not in without}


_GPT2 = _renamed(
    _LLAMA,
    ("model.layers", "transformer.h"),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn", "attn"),
    ("mlp.gate_proj", "mlp.c_fc"),
    ("mlp.down_proj", "mlp.c_proj"),
    ("model.embed_tokens", "transformer.wte"),
    ("model.norm", "transformer.ln_f"),
) | {"pos_embed": ("out", "transformer.wpe")}
_NEOX = _renamed(
    _LLAMA,
    ("model.layers", "gpt_neox.layers"),
    ("self_attn", "attention"),
    ("mlp.gate_proj", "mlp.dense_h_to_4h"),
    ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ("model.embed_tokens", "gpt_neox.embed_in"),
    ("model.norm", "gpt_neox.final_layer_norm"),
    without=["1.resid_mid"],
)
_GPTJ = _renamed(_GPT2, ("c_fc", "fc_in"), ("c_proj", "fc_out"), without=["1.resid_mid", "1.ln2", "pos_embed"])
_BERT = "bert.encoder.layer.1"
_STEM, _BART = "decoder.block.1.layer", "model.decoder.layers.1"
#: What each family computes, by its source code: what a module gets or returns, or the sum after some modules.
SITES = {
    "llama": _LLAMA,
    "gpt2": _GPT2,
    "gemma2": _renamed(_LLAMA, ("self_attn", "post_attention_layernorm"))
    | {
        "1.mlp_out": ("out", "model.layers.1.post_feedforward_layernorm"),
        "1.ln2": ("out", "model.layers.1.pre_feedforward_layernorm"),
        "logits": ("head", "lm_head"),
    },
    "olmo2": _renamed(_LLAMA, ("self_attn", "post_attention_layernorm"), without=["1.ln1", "1.ln2"])
    | {"1.mlp_out": ("out", "model.layers.1.post_feedforward_layernorm")},
    "mixtral": _renamed(_LLAMA, without=["1.mlp_pre", "1.neurons"]),
    "bamba": _renamed(_LLAMA, ("mlp", "feed_forward"), ("post_attention_layernorm", "pre_ff_layernorm"), ("norm\0", ""))
    | {"0.resid_mid": ("mid", "model.layers.0", "mamba"), "0.mixer_out": ("out", "model.layers.0.mamba")}
    | {"ln_final": ("out", "model.final_layernorm")},
    "granitemoeshared": _renamed(_LLAMA, without=["1.mlp_pre", "1.neurons", "1.mlp_out"]),
    "gpt_neox": _NEOX,
    "gptj": _GPTJ,
    "bert": {
        "1.resid_pre": ("in", _BERT),
        "1.resid_mid": ("in", f"{_BERT}.attention.output.LayerNorm"),
        "1.resid_post": ("in", f"{_BERT}.output.LayerNorm"),
        "1.normalized_resid_post": ("out", _BERT),
        "1.ln1": ("out", f"{_BERT}.attention.output.LayerNorm"),
        "1.ln2": ("out", f"{_BERT}.output.LayerNorm"),
        "1.attn_out": ("out", f"{_BERT}.attention.output.dense"),
        "1.mlp_out": ("out", f"{_BERT}.output.dense"),
        "1.mlp_pre": ("out", f"{_BERT}.intermediate.dense"),
        "1.neurons": ("in", f"{_BERT}.output.dense"),
        "embed": ("out", "bert.embeddings.word_embeddings"),
        "pos_embed": ("out", "bert.embeddings.position_embeddings"),
        "logits": ("out", "cls"),
    },
    "t5": {
        "encoder.1.resid_mid": ("mid", "encoder.block.1", "layer.0.SelfAttention"),
        "encoder.1.mlp_out": ("out", "encoder.block.1.layer.1.DenseReluDense"),
        "encoder.embed": ("out", "encoder.embed_tokens"),
        "encoder.ln_final": ("out", "encoder.final_layer_norm"),
        "decoder.1.resid_pre": ("in", "decoder.block.1"),
        "decoder.1.resid_mid": ("mid", "decoder.block.1", "layer.0.SelfAttention"),
        "decoder.1.resid_mid_cross": ("mid", "decoder.block.1", "layer.0.SelfAttention", "layer.1.EncDecAttention"),
        "decoder.1.resid_post": ("out", "decoder.block.1"),
        "decoder.1.ln1": ("out", f"{_STEM}.0.layer_norm"),
        "decoder.1.ln2": ("out", f"{_STEM}.1.layer_norm"),
        "decoder.1.ln3": ("out", f"{_STEM}.2.layer_norm"),
        "decoder.1.attn_out": ("out", f"{_STEM}.0.SelfAttention"),
        "decoder.1.cross_attn_out": ("out", f"{_STEM}.1.EncDecAttention"),
        "decoder.1.mlp_out": ("out", f"{_STEM}.2.DenseReluDense"),
        "decoder.1.neurons": ("in", f"{_STEM}.2.DenseReluDense.wo"),
        "decoder.embed": ("out", "decoder.embed_tokens"),
        "decoder.ln_final": ("out", "decoder.final_layer_norm"),
        "logits": ("out", "lm_head"),
    },
    "bart": {
        "encoder.0.resid_post": ("in", "model.encoder.layers.0.final_layer_norm"),
        "decoder.1.resid_mid": ("in", f"{_BART}.self_attn_layer_norm"),
        "decoder.1.resid_mid_cross": ("in", f"{_BART}.encoder_attn_layer_norm"),
        "decoder.1.resid_post": ("in", f"{_BART}.final_layer_norm"),
        "decoder.1.normalized_resid_post": ("out", _BART),
        "decoder.1.cross_attn_out": ("out", f"{_BART}.encoder_attn"),
        "decoder.1.mlp_out": ("out", f"{_BART}.fc2"),
        "decoder.pos_embed": ("out", "model.decoder.embed_positions"),
    },
}


def inputs_of(model):
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :7]} if model.config.is_encoder_decoder else {})


def first(returned):
    return returned[0] if isinstance(returned, tuple) else returned


def halved(tensor):
    return 0.5 * tensor.roll(1, -1) + 0.1


def by_hooks(model, side, stem, *parts):
    """What a site has, and logits with `halved` applied to it, by hooks of one's own."""
    kept = {}

    def change(tensor):
        kept["seen"] = tensor.detach().clone()
        return halved(tensor)

    def enter(_, given, named):
        if given:
            return (change(given[0]), *given[1:]), named
        return given, named | {"hidden_states": change(named["hidden_states"])}

    def leave(_, __, returned):
        return (change(returned[0]), *returned[1:]) if isinstance(returned, tuple) else change(returned)

    def add(last, _, __, returned):
        kept["sum"] = kept["sum"] + first(returned)
        if not last:
            return None
        moved = first(returned) + change(kept["sum"]) - kept["sum"]
        return (moved, *returned[1:]) if isinstance(returned, tuple) else moved

    with ExitStack() as hooks, torch.no_grad():
        module = model.get_submodule(stem)
        if side == "in":
            hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
        elif side in {"out", "head"}:
            hooks.enter_context(module.register_forward_hook(leave))
        else:
            hooks.enter_context(module.register_forward_pre_hook(lambda _, given: kept.update(sum=given[0].clone())))
            for part in parts:
                inner = model.get_submodule(f"{stem}.{part}")
                last = part is parts[-1]
                hooks.enter_context(inner.register_forward_hook(lambda *given, last=last: add(last, *given)))
        return model(**inputs_of(model)).logits, kept["seen"]


def by_edit(model, name):
    kept = []

    def change(tensor):
        kept.append(tensor.clone())
        return halved(tensor)

    with torch.no_grad(), attnscope.edit(model, {name: change}) as edited:
        return edited(**inputs_of(model)).logits, *kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", SITES)
def test_activations_are_those_of_hooks_and_are_edited_as_by_hooks(family, dtype):
    model = tiny(family).to(dtype)
    limit = 1e-5 if dtype == torch.float32 else 4e-2  # of a sum, by hooks with one more rounding
    plain = model(**inputs_of(model)).logits
    for name, (side, *parts) in SITES[family].items():
        if side == "head":  # a cap follows
            continue
        expected, seen = by_hooks(model, side, *parts)
        logits, *own = by_edit(model, name)
        assert len(own) == 1, name
        near = {
            "rtol": limit,
            "atol": limit * float(seen.abs().max()),
            "msg": lambda text, name=name: f"{name}: {text}",
        }
        torch.testing.assert_close(own[0], seen.reshape(own[0].shape), **near)
        torch.testing.assert_close(logits, expected, **near | {"atol": limit * float(expected.abs().max())})
        assert not torch.equal(logits, plain), name
    assert torch.equal(model(**inputs_of(model)).logits, plain)


def arrays(model, *names, **options):
    tokenizer = load_model("bundled").tokenizer
    rows = [IDS[0].tolist(), IDS[1, :6].tolist()]
    found = [attnscope.head_outputs(model, rows, on=name, tokenizer=tokenizer, **options) for name in names]
    return [one.values for one in found]


@pytest.mark.parametrize(
    ("family", "total", "parts"),
    [
        ("gpt2", "1.resid_mid", ["1.resid_pre", "1.attn_out"]),
        ("gpt2", "1.resid_post", ["1.resid_mid", "1.mlp_out"]),
        ("gpt2", "0.resid_pre", ["embed", "pos_embed"]),
        ("gemma2", "1.resid_mid", ["1.resid_pre", "1.attn_out"]),
        ("gemma2", "1.resid_post", ["1.resid_mid", "1.mlp_out"]),
        ("gpt_neox", "1.resid_post", ["1.resid_pre", "1.attn_out", "1.mlp_out"]),
        ("falcon_h1", "1.resid_mid", ["1.resid_pre", "1.attn_out", "1.mixer_out"]),
        ("granitemoeshared", "1.resid_post", ["1.resid_mid", "1.mlp_out"]),
        ("bert", "1.resid_mid", ["1.resid_pre", "1.attn_out"]),
        ("bert", "1.resid_post", ["1.ln1", "1.mlp_out"]),
        ("bert", "1.resid_pre", ["0.normalized_resid_post"]),
        ("albert", "1.resid_mid", ["1.resid_pre", "1.attn_out"]),
        ("xlnet", "1.resid_post", ["1.ln1", "1.mlp_out"]),
        ("t5", "decoder.1.resid_mid_cross", ["decoder.1.resid_pre", "decoder.1.attn_out", "decoder.1.cross_attn_out"]),
        ("t5", "encoder.1.resid_post", ["encoder.1.resid_mid", "encoder.1.mlp_out"]),
    ],
)
def test_the_stream_is_the_sum_of_what_is_added(family, total, parts):
    whole, *each = arrays(tiny(family), total, *parts)
    np.testing.assert_allclose(whole, sum(each), atol=1e-5 * float(np.nanmax(abs(whole))))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "bamba"])
def test_logits_are_the_unembedding_of_the_final_norm(family):
    model = tiny(family)
    logits, final = arrays(model, "logits", "ln_final.hook_normalized")
    expected = final @ model.get_output_embeddings().weight.detach().numpy().T
    np.testing.assert_allclose(logits, expected, atol=1e-5 * float(np.nanmax(abs(expected))))


def test_a_block_that_runs_several_times_is_edited_in_one_run():
    model, kept = tiny("albert"), []
    module = model.albert.encoder.albert_layer_groups[0]
    with attnscope.edit(model, {"1.resid_pre": torch.zeros_like}) as edited, torch.no_grad(), ExitStack() as hooks:
        hooks.enter_context(module.register_forward_pre_hook(lambda _, given: kept.append(bool(given[0].any()))))
        edited(IDS)
        edited.albert(IDS)  # a pass may start at the body
    assert kept == [True, False] * 2


#: Our names of the hooks of TransformerLens.
LENS = {
    "hook_embed": "embed",
    "hook_pos_embed": "pos_embed",
    "blocks.1.hook_resid_pre": "1.resid_pre",
    "blocks.1.hook_resid_mid": "1.resid_mid",
    "blocks.1.hook_resid_post": "1.resid_post",
    "blocks.1.hook_attn_out": "1.attn_out",
    "blocks.1.hook_mlp_out": "1.mlp_out",
    "blocks.1.mlp.hook_pre": "1.mlp_pre",
    "blocks.1.mlp.hook_post": "1.neurons",
    "blocks.1.ln1.hook_normalized": "1.ln1",
    "blocks.1.ln2.hook_normalized": "1.ln2",
    "ln_final.hook_normalized": "ln_final",
}
LENS_OF_BERT = {"blocks.1.hook_normalized_resid_post": "1.normalized_resid_post"}
LENS_OF_T5 = {
    "encoder.0.hook_resid_mid": "encoder.0.resid_mid",
    "decoder.0.hook_resid_mid_cross": "decoder.0.resid_mid_cross",
    "decoder.0.hook_cross_attn_out": "decoder.0.cross_attn_out",
    "decoder.0.mlp.hook_post": "decoder.0.neurons",
    "encoder_final_ln.hook_normalized": "encoder.ln_final",
    "decoder_final_ln.hook_normalized": "decoder.ln_final",
}


@pytest.mark.parametrize(("family", "names"), [("gpt2", LENS), ("bert", LENS_OF_BERT), ("t5", LENS_OF_T5)])
def test_names_of_transformer_lens_are_those_of_the_same_activations(family, names):
    activations = Anatomy(tiny(family)).activations
    assert {name: activations.find(name).name for name in names} == names
    assert {activations.find(name).name for name in names.values()} == {*names.values()}


@pytest.mark.parametrize(
    ("family", "name", "reason"),
    [
        ("gpt_neox", "1.resid_mid", "no activation '1.resid_mid'; expected 1.resid_pre, .*1.mlp_out.*, ln_final"),
        ("gptj", "blocks.0.ln2.hook_normalized", "no activation 'blocks.0.ln2.hook_normalized'; expected 0.resid_pre"),
        ("mixtral", "0.neurons", "no activation '0.neurons'"),
        ("llama", "pos_embed", "no activation 'pos_embed'; expected .*embed, ln_final, logits"),
        ("t5", "0.resid_mid", r"no block 0 \('0.resid_mid'\): choose from encoder.0 to decoder.1"),
        ("t5", "embed", "expected encoder.0.resid_pre, .*encoder.embed, .*decoder.embed"),
        ("bamba", "blocks.0.attn.hook_z", "expected attn of a block that has it: 1$"),
        ("llama", "blocks.0.attn.hook_q", "rotates queries and keys; expected hook_rot_q"),
    ],
)
def test_an_activation_that_a_family_lacks_is_named_with_those_that_it_has(family, name, reason):
    with pytest.raises(AttnscopeError, match=reason), attnscope.edit(tiny(family), {name: torch.zeros_like}):
        pass


def test_heads_are_found_by_the_number_of_their_block():
    model, kept = tiny("bamba"), []
    with attnscope.edit(model, {"blocks.1.attn.hook_z": lambda z: kept.append(z) or z}) as edited:
        edited(IDS)
    assert kept[0].shape == (2, 9, 4, 8)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("llama", ["1.resid_mid", "0.neurons", "embed", "0.resid_post", "logits"]),
        ("t5", ["encoder.1.resid_mid", "decoder.0.resid_mid_cross", "decoder.1.mlp_out", "decoder.embed"]),
        ("gpt2", ["pos_embed", "1.ln2", "ln_final"]),
    ],
)
def test_edits_hold_at_each_new_token(family, names):
    model = tiny(family)
    plain = model.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    calls = []
    changes = {name: lambda tensor: calls.append(tensor.shape[1]) or halved(tensor) for name in names}
    with attnscope.edit(model, changes) as edited:
        cached = edited.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        assert len(calls) == 6 * len(names) - 5 * sum(name.startswith("encoder") for name in names)
        whole = edited.generate(IDS, max_new_tokens=6, min_new_tokens=6, do_sample=False, use_cache=False)
    assert torch.equal(cached, whole)
    assert not torch.equal(cached, plain)


@pytest.mark.parametrize("name", ["1.resid_mid", "1.resid_pre", "0.mlp_out", "0.neurons", "1.ln2", "embed"])
def test_gradients_flow_through_a_function_of_an_activation(name):
    model = tiny("llama")
    gate = torch.ones((), requires_grad=True)
    weights = [model.model.layers[0].mlp.up_proj.weight, model.lm_head.weight]
    with attnscope.edit(model, {name: lambda tensor: gate * tensor}) as edited:
        slope, *found = torch.autograd.grad(edited(IDS, labels=IDS).loss, [gate, *weights])
    losses = []
    for factor in (1.005, 0.995):
        with attnscope.edit(model, {name: lambda tensor, factor=factor: factor * tensor}) as edited, torch.no_grad():
            losses.append(float(edited(IDS, labels=IDS).loss))
    np.testing.assert_allclose(float(slope), (losses[0] - losses[1]) / 0.01, rtol=0.05, atol=2e-4)
    plain = torch.autograd.grad(model(IDS, labels=IDS).loss, weights)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_a_function_that_returns_another_type_of_number_is_rejected():
    model = tiny("gpt2")
    ids = torch.tensor([[3, 4, 5]])
    for name in ("0.resid_mid", (0, 1)):
        wide = pytest.raises(AttnscopeError, match=r"returned torch.float64; expected a tensor .* of torch.float32")
        with wide, attnscope.edit(model, {name: torch.Tensor.double}) as edited:
            edited(ids)


def test_a_loss_of_logits_before_their_change_is_rejected():
    model = tiny("gpt2")
    labels = pytest.raises(AttnscopeError, match="leave out labels")
    with attnscope.edit(model, {"logits": halved}) as edited, labels:
        edited(IDS, labels=IDS)


def test_arrays_of_activations_have_the_names_of_blocks_and_tokens():
    texts = ["The tide comes in.", "It rained."]
    found = attnscope.head_outputs("bundled", texts, on="resid_mid")
    assert found.dims == ("window", "block", "position", "width")
    assert found.block.values.tolist() == [0, 1, 2]
    one = attnscope.head_outputs("bundled", texts, on="hook_resid_mid", layer=1)
    assert np.array_equal(one.values, found.sel(block=1).values, equal_nan=True)
    assert one.isel(window=1, position=slice(8, None)).isnull().all()
    assert one.position_token.values[1].tolist()[:2] == ["<s>", " I"]
    logits = attnscope.head_outputs("bundled", texts, on="logits")
    assert logits.dims == ("window", "position", "width")
    with pytest.raises(AttnscopeError, match="leave out head"):
        attnscope.head_outputs("bundled", texts, on="embed", head=1)


def test_arrays_of_a_hybrid_and_of_an_encoder_decoder_are_of_the_blocks_that_have_them():
    tokenizer = load_model("bundled").tokenizer
    rows = {"texts": [IDS[0].tolist()], "tokenizer": tokenizer}
    assert attnscope.head_outputs(tiny("bamba"), on="mixer_out", **rows).block.values.tolist() == [0]
    model = tiny("t5")
    with pytest.raises(AttnscopeError, match=r"choose encoder.resid_pre or decoder.resid_pre"):
        attnscope.head_outputs(model, on="resid_pre", **rows)
    for kind, stack in (("self", "encoder"), ("cross", "decoder")):
        by_kind = attnscope.head_outputs(model, on="resid_pre", kind=kind, **rows)
        by_name = attnscope.head_outputs(model, on=f"{stack}.resid_pre", **rows)
        one = attnscope.head_outputs(model, on=f"{stack}.1.hook_resid_pre", **rows)
        assert by_kind.identical(by_name)
        assert np.array_equal(one.values, by_name.sel(block=1).values)
