"""Patched activations of blocks against hooks of one's own, and against what is patched under another name."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from attnscope import patch
from attnscope.bundled import MODEL
from attnscope.intervention.patch import ACTIVATIONS
from attnscope.intervention.patch_findings import report
from attnscope.results.figures.patch import captions
from attnscope.support.errors import AttnscopeError
from tests.tiny_models import tiny_reader

PAIR = {"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"}
#: Module, and whether the activation is what it gets; of ``resid_mid``, what the attention adds to the stream.
BY_HAND = {
    "resid_pre": ("model.layers.1", True),
    "resid_mid": ("model.layers.1.self_attn", False),
    "resid_post": ("model.layers.1", False),
    "attn_out": ("model.layers.1.self_attn", False),
    "mlp_out": ("model.layers.1.mlp", False),
    "neurons": ("model.layers.1.mlp.down_proj", True),
    "ln1": ("model.layers.1.input_layernorm", False),
    "ln2": ("model.layers.1.post_attention_layernorm", False),
}


def first(value):
    return value[0] if isinstance(value, tuple) else value


def run(model, ids, module, *, is_input, put=None, at=0, stream=None):
    """Logits after the text, and what a module gets or returns, with row `at` of it from another run."""
    kept = {}

    def change(states):
        kept["seen"] = states.clone()
        if put is not None:
            states = states.clone()
            states[:, at] = put[:, at] if stream is None else put[:, at] + stream[0][:, at] - stream[1][:, at]
        return states

    def leave(_, __, returned):
        changed = change(first(returned))
        return (changed, *returned[1:]) if isinstance(returned, tuple) else changed

    module = model.get_submodule(module)
    hook = (
        module.register_forward_pre_hook(lambda _, given: (change(given[0]), *given[1:]))
        if is_input
        else module.register_forward_hook(leave)
    )
    with torch.no_grad(), ExitStack() as hooks:
        hooks.enter_context(hook)
        return model(ids).logits[0, -1], kept["seen"]


@pytest.mark.parametrize("what", BY_HAND)
def test_an_activation_is_patched_as_by_hand(what):
    model, tokenizer = tiny_reader("llama")
    found = patch(model, [PAIR], tokenizer=tokenizer, what=what)["pairs"].to_dataset()
    clean, corrupted = (tokenizer(PAIR[side], return_tensors="pt").input_ids for side in ("clean", "corrupted"))
    clean, corrupted = (ids[:, : found.sizes["position"]] for ids in (clean, corrupted))
    of, to = (tokenizer(PAIR[side], add_special_tokens=False).input_ids[0] for side in ("answer", "wrong"))
    module, is_input = BY_HAND[what]
    streams = None
    if what == "resid_mid":  # the sum of both: moved by what is added
        streams = [run(model, ids, "model.layers.1", is_input=True)[1] for ids in (clean, corrupted)]
    _, donor = run(model, clean, module, is_input=is_input)
    for at in range(corrupted.shape[1]):
        logits, _ = run(model, corrupted, module, is_input=is_input, put=donor, at=at, stream=streams)
        expected = float(logits[of] - logits[to])
        np.testing.assert_allclose(found.difference.sel(block=1)[0, at], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "what", "same"),
    [
        ("llama", "resid_post", "residual"),
        ("gemma2", "mlp_out", "mlp"),
        ("mixtral", "mlp_out", "mlp"),
        ("granitemoeshared", "mlp_out", "mlp"),
        ("gpt_neox", "resid_post", "residual"),
    ],
)
def test_an_activation_is_the_one_of_another_name(family, what, same):
    model, tokenizer = tiny_reader(family)
    one, other = (patch(model, [PAIR], tokenizer=tokenizer, what=name)["pairs"] for name in (what, same))
    np.testing.assert_allclose(one.difference, other.difference, rtol=1e-4, atol=1e-4)


def test_blocks_that_have_an_activation_are_patched():
    model, tokenizer = tiny_reader("bamba")
    assert patch(model, [PAIR], tokenizer=tokenizer, what="mixer_out")["pairs"].block.values.tolist() == [0]
    assert patch(model, [PAIR], tokenizer=tokenizer, what="resid_mid")["pairs"].block.values.tolist() == [0, 1]
    model, tokenizer = tiny_reader("gpt_neox")
    with pytest.raises(AttnscopeError, match="no activation 'resid_mid'"):
        patch(model, [PAIR], tokenizer=tokenizer, what="resid_mid")


@pytest.mark.parametrize("what", ["resid_mid", "neurons"])
def test_the_report_says_what_is_patched(what):
    tree = patch(str(MODEL), what=what)
    shown = report(tree)
    sentences = " ".join(shown.finding.sentences)
    assert {"resid_mid": "between attention and MLP of one block", "neurons": "all neurons of the MLP"}[
        what
    ] in sentences
    assert all(captions(shown))


def test_every_activation_has_its_words():
    from attnscope.intervention.patch_findings import _PATCHED

    assert set(ACTIVATIONS) <= set(_PATCHED)
