"""What a block adds to the residual stream: attention, mixers, MLPs and embeddings."""

import numpy as np
import pytest
import torch

from attnscope import examples, generate, intervene, patch, roles, scan
from attnscope.explanation.sublayers import sublayers
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits import attribute, circuits, edges
from tests.tiny_models import MIXED, tiny, tiny_reader

PAIR = {"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"}
# what the source code of each family adds to the stream beside attention: by block, kinds and modules
BLOCKS = {
    "bamba": [{"mixer": ["mamba"], "mlp": ["feed_forward"]}, {"mlp": ["feed_forward"]}],
    "falcon_h1": [{"mixer": ["mamba"], "mlp": ["feed_forward"]}] * 2,
    "granitemoehybrid": [
        {"mlp": ["block_sparse_moe", "shared_mlp"]},
        {"mixer": ["mamba"], "mlp": ["block_sparse_moe", "shared_mlp"]},
    ],
    "granitemoeshared": [{"mlp": ["block_sparse_moe", "shared_mlp"]}] * 2,
    "gemma4": [{"mlp": ["mlp"], "layer embedding": ["per_layer_projection"]}] * 2,
    "qwen3_5": [{"mlp": ["mlp"]}, {"mixer": ["linear_attn"], "mlp": ["mlp"]}],
    "jamba": [{"mixer": ["mamba"], "mlp": ["feed_forward"]}, {"mlp": ["feed_forward"]}],
    "lfm2": [{"mixer": ["conv"], "mlp": ["feed_forward"]}, {"mlp": ["feed_forward"]}],
    "qwen3_next": [{"mixer": ["linear_attn"], "mlp": ["mlp"]}, {"mlp": ["mlp"]}],
    "falcon": [{"mlp": ["mlp"]}] * 2,
    "falcon_sequential": [{"mlp": ["mlp"]}] * 2,
    "bert": [{"mlp": ["output.dense"]}] * 2,
    "gpt2": [{"mlp": ["mlp"]}] * 2,
    "opt": [{"mlp": ["fc2"]}] * 2,
}


def reader(family):
    """A random model whose words differ as much as those of a trained one."""
    model, tokenizer = tiny_reader(family)
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    return model, tokenizer


def first(returned):
    return returned[0] if isinstance(returned, tuple) else returned


@pytest.mark.parametrize("family", BLOCKS)
def test_the_modules_that_a_block_adds_are_those_of_its_source_code(family):
    model, ids = tiny(family), torch.randint(3, 60, (1, 9))
    attending = [
        name for name, _ in model.named_modules() if name.endswith(("self_attn", ".self", ".attn", "attention"))
    ]
    runs = sublayers(model, {"input_ids": ids}, attending)
    assert not any(run.unknown for run in runs)
    found = [
        {kind: own for kind in ("mixer", "mlp", "layer embedding") if (own := [one.name for one in run.of(kind)])}
        for run in runs
    ]
    assert found == [
        {kind: [f"{run.name}.{name}" for name in names] for kind, names in block.items()}
        for run, block in zip(runs, BLOCKS[family], strict=True)
    ]


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "granitemoehybrid", "granitemoeshared", "falcon"])
def test_what_a_block_adds_is_the_sum_of_its_sublayers(family):
    model, ids, kept = tiny(family), torch.randint(3, 60, (1, 9)), {}
    attending = [name for name, _ in model.named_modules() if name.endswith(("self_attn", "self_attention"))]
    runs = sublayers(model, {"input_ids": ids}, attending)
    names = [name for run in runs for name in (run.name, *(one.name for one in run.sublayers))]
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda _, given, returned, name=name: kept.__setitem__(name, (given, first(returned).clone()))
        )
    with torch.no_grad():
        model(ids, use_cache=False)
    for run in runs:
        given, made = kept[run.name]
        added = sum(kept[one.name][1] for one in run.sublayers)
        np.testing.assert_allclose(made - given[0], added, atol=1e-5 * float(made.abs().max()))


def own_differences(model, tokenizer, modules, position=None):
    """Answer minus wrong answer of the corrupted text with the clean output of some modules, at one position or all."""
    ids = [tokenizer(PAIR[side], return_tensors="pt").input_ids[:, :-1] for side in ("clean", "corrupted")]
    right, wrong = (tokenizer(PAIR[one], add_special_tokens=False).input_ids[0] for one in ("answer", "wrong"))
    kept, at = {}, slice(None) if position is None else slice(position, position + 1)

    def put_in(module, _, returned):
        states = first(returned).clone()
        rows = states.view(1, -1, states.shape[-1])
        rows[:, at] = kept[module].view(1, -1, states.shape[-1])[:, at]
        return (states, *returned[1:]) if isinstance(returned, tuple) else states

    with torch.no_grad():
        keep = [
            one.register_forward_hook(lambda own, _, made: kept.__setitem__(own, first(made).clone()))
            for one in modules
        ]
        model(ids[0])
        hooks = [one.register_forward_hook(put_in) for one in modules]
        for hook in keep:
            hook.remove()
        logits = model(ids[1]).logits[0, -1]
        for hook in hooks:
            hook.remove()
    return float(logits[right] - logits[wrong])


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "granitemoehybrid", "gemma4"])
def test_an_mlp_is_patched_as_by_hooks_on_its_modules(family):
    model, tokenizer = reader(family)
    tree = patch(model, [PAIR], tokenizer=tokenizer, what="mlp", together=["m0,m1"])
    found, last = tree["pairs"].isel(pair=0), tree["pairs"].sizes["position"] - 1
    own = [[f"model.layers.{at}.{name}" for name in block["mlp"]] for at, block in enumerate(BLOCKS[family])]
    own = [[model.get_submodule(name) for name in names] for names in own]
    for block, modules in enumerate(own):
        expected = own_differences(model, tokenizer, modules, last)
        np.testing.assert_allclose(found.difference.sel(block=block, position=last), expected, rtol=1e-4, atol=1e-4)
    expected = own_differences(model, tokenizer, [*own[0], *own[1]])
    np.testing.assert_allclose(found.together.item(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("family", "name"), [("llama", "model.layers.1.self_attn"), ("gpt2", "transformer.h.1.attn")])
def test_what_attention_adds_is_patched_as_by_hooks_on_its_module(family, name):
    model, tokenizer = reader(family)
    found = patch(model, [PAIR], tokenizer=tokenizer, what="attention")["pairs"].difference.isel(pair=0).sel(block=1)
    for position in (1, found.sizes["position"] - 1):
        expected = own_differences(model, tokenizer, [model.get_submodule(name)], position)
        np.testing.assert_allclose(found.sel(position=position), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bamba", "granitemoehybrid", "jamba", "lfm2", "falcon", "falcon_sequential"])
def test_edges_of_other_blocks_lead_from_the_corrupted_to_the_clean_run(family):
    model, tokenizer = reader(family)
    found = edges(model, [PAIR], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0], draws=1)
    both = found.difference.sel(order="raising").values[0]
    np.testing.assert_allclose(both, [found.corrupted.item(), found.clean.item()], rtol=1e-4, atol=1e-4)
    mixers = sum("mixer" in block for block in BLOCKS[family])
    assert sum(str(name).startswith("mixer") for name in found.sender.values) == mixers


@pytest.mark.parametrize("family", ["falcon_h1", "gemma4"])
def test_edges_reject_blocks_whose_parts_share_a_norm_or_have_none(family):
    model, tokenizer = reader(family)
    with pytest.raises(AttnscopeError, match="two parts read it through one norm, or one has none"):
        edges(model, [PAIR], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0])


@pytest.mark.parametrize("family", ["falcon_h1", "granitemoeshared", "gemma4", "falcon"])
def test_parts_of_a_logit_are_those_of_the_modules_that_a_block_adds(family):
    model, tokenizer = reader(family)
    found = attribute(model, ["It was part"], tokenizer=tokenizer, token=" of")["predictions"]
    ids = tokenizer("It was part", return_tensors="pt").input_ids
    ids, kept = ids[:, :-1] if ids[0, -1] == tokenizer.eos_token_id else ids, {}
    lists = next(one for name, one in model.named_modules() if name in {"model.layers", "transformer.h"})
    norm = next(
        one
        for name, one in model.named_modules()
        if name in {"model.norm", "model.final_layernorm", "transformer.ln_f"}
    )
    modules = {
        (kind, at): [lists[at].get_submodule(WRITERS.get((family, name), name)) for name in names]
        for at, block in enumerate(BLOCKS[family])
        for kind, names in block.items()
    }
    for one in (norm, *(one for own in modules.values() for one in own)):
        one.register_forward_hook(
            lambda own, given, made: kept.__setitem__(own, ([one.clone() for one in given[:1]], first(made).clone()))
        )
    with torch.no_grad():
        model(ids, use_cache=False)
    (token,) = tokenizer(" of", add_special_tokens=False).input_ids
    row, stream = model.get_output_embeddings().weight[token].detach(), kept[norm][0][0][0, -1]
    centred = isinstance(norm, torch.nn.LayerNorm)
    size = (stream - stream.mean() if centred else stream).square().mean().sqrt()
    for (kind, at), own in modules.items():
        added = sum(kept[one][1].view(1, -1, len(row))[0, -1] for one in own)
        added = (added - added.mean() if centred else added) / size * norm.weight.detach()
        part = found.part.sel(component=f"{kind} {at}").item()
        np.testing.assert_allclose(part, float(added @ row), rtol=1e-3, atol=1e-4)


NORMS = {"norm", "final_layernorm", "embedding_norm"}
# the norm behind a module, whose output is added in its place
WRITERS = {
    ("gemma4", "mlp"): "post_feedforward_layernorm",
    ("gemma4", "per_layer_projection"): "post_per_layer_input_norm",
}


@pytest.mark.parametrize("family", ["bamba", "jamba", "lfm2", "qwen3_next"])
def test_parts_ahead_of_the_first_attention_are_those_of_the_modules_there(family):
    """The first blocks have mixers alone: by kind, what their modules add; all parts are the logit."""
    model, tokenizer = reader(family)
    found = attribute(model, ["It was part"], tokenizer=tokenizer, token=" of")["predictions"]
    ids = tokenizer("It was part", return_tensors="pt").input_ids
    ids, kept = ids[:, :-1] if ids[0, -1] == tokenizer.eos_token_id else ids, {}
    block, ahead = BLOCKS[family][0], model.model.layers[0]
    modules = {kind: [ahead.get_submodule(name) for name in names] for kind, names in block.items()}
    norm = next(one for name, one in model.model.named_children() if name in NORMS)
    for one in (norm, *(one for own in modules.values() for one in own)):
        one.register_forward_hook(
            lambda own, given, made: kept.__setitem__(own, ([one.clone() for one in given[:1]], first(made).clone()))
        )
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, -1]
    (token,) = tokenizer(" of", add_special_tokens=False).input_ids
    row, stream = model.get_output_embeddings().weight[token].detach(), kept[norm][0][0][0, -1]
    for kind, own in modules.items():
        added = sum(kept[one][1].view(1, -1, len(row))[0, -1] for one in own)
        part = found.part.sel(component=f"{kind} ahead").item()
        gain = kept[norm][1][0, -1] / stream  # with the denominator
        expected = added * gain @ row
        np.testing.assert_allclose(part, float(expected), rtol=1e-3, atol=1e-4)
    (other,) = tokenizer(" to", add_special_tokens=False).input_ids
    both = attribute(model, ["It was part"], tokenizer=tokenizer, token=" of", against=" to")["predictions"]
    np.testing.assert_allclose(both.part.sum().item(), float(logits[token] - logits[other]), rtol=1e-3, atol=1e-3)


def test_parts_of_a_score_have_what_is_ahead_of_the_first_attention():
    model, tokenizer = reader("bamba")
    found = attribute(model, ["It was part of it."], tokenizer=tokenizer, head=(0, 1))["scores"]
    assert {"mixer ahead", "mlp ahead"} <= {*found.query_source.values.tolist()}
    assert float(found.difference.max()) < 1e-4  # of the scores and the sum of their parts
    assert float(abs(found.pair.sel(query_source="mixer ahead")).max()) > 0


def test_a_block_that_scales_what_it_adds_by_another_output_has_no_known_mlp():
    model, tokenizer = reader("llama")
    layer = model.model.layers[1]

    def gated(states, **named):
        made = type(layer).forward(layer, states, **named)
        return states + (made - states) * states.sigmoid()

    layer.forward = gated
    with pytest.raises(AttnscopeError, match=r"the MLP of block 1 of .* \(model.layers.1\) is not known: Mul changes"):
        patch(model, [PAIR], tokenizer=tokenizer, what="mlp")
    assert patch(model, [PAIR], tokenizer=tokenizer, together=["m0"], steps=0)["together"].sizes["set"] == 1


def test_families_with_mixed_blocks_are_all_tested():
    assert set(MIXED) <= set(BLOCKS)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("bamba", "1 layer of BambaMixer"),
        ("falcon_h1", "2 layers of FalconH1Mixer"),
        ("granitemoehybrid", "1 layer of GraniteMoeHybridMambaLayer"),
        ("jamba", "1 layer of JambaMambaMixer"),
        ("lfm2", "1 layer of Lfm2ShortConv"),
        ("qwen3_5", "1 layer of Qwen3_5GatedDeltaNet"),
        ("qwen3_next", "1 layer of Qwen3NextGatedDeltaNet"),
        ("llama", ""),
    ],
)
def test_layers_that_are_not_measured_are_named(family, layers):
    model, tokenizer = reader(family)
    found = scan(model, ["It was part of it, and it is not due to it."], tokenizer=tokenizer)
    note = f"Not measured: {layers}, which mix tokens without attention."
    assert (note in report_of("scan", found).notes) == bool(layers)


def test_every_other_verb_names_them_too():
    model, tokenizer = reader("bamba")
    texts, how = ["It was part of it, and it is not due to it."], {"tokenizer": tokenizer}
    results = {
        "roles": roles(model, texts, **how, controls="none", only="previous_token"),
        "circuits": circuits(model, **how),
        "examples": examples(model, texts, heads="0.0", **how),
        "intervene": intervene(model, texts, heads="0.0", ablations=["mean"], steps=0, why=False, **how),
        "patch": patch(model, [PAIR], **how),
        "generate": generate(model, ["It was part"], new_tokens=2, **how),
    }
    note = "Not measured: 1 layer of BambaMixer, which mix tokens without attention."
    for command, result in results.items():
        assert note in report_of(command, result).notes
