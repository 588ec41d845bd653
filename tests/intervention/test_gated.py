"""Attention whose output a gate multiplies before the output matrix (Qwen3-Next, Qwen3.5, AFMoE)."""

import numpy as np
import pytest
import torch
import transformers as T

from attnscope import edit, head_outputs, patch
from attnscope.intervention.calls import unread_sites
from attnscope.support.errors import AttnscopeError
from attnscope_circuits import attribute, edges
from tests.tiny_models import tiny_reader

TEXT, PAIR = "It was part", {"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"}
LAYER, HEAD, WIDTH = 0, 2, 8
COLUMNS = slice(HEAD * WIDTH, (HEAD + 1) * WIDTH)


@pytest.fixture(scope="module")
def gated():
    model, tokenizer = tiny_reader("qwen3_5")
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    return model, tokenizer


def own_pass(model, ids, change=lambda given: given):
    """Logits, and what the output matrix and the final norm read, with a change of the former."""
    kept, reader = {}, model.model.layers[LAYER].self_attn.o_proj
    hooks = [
        reader.register_forward_pre_hook(
            lambda _, given: kept.update(heads=given[0].clone()) or (change(given[0].clone()),)
        ),
        model.model.norm.register_forward_pre_hook(lambda _, given: kept.update(stream=given[0].clone())),
    ]
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits, kept["heads"], kept["stream"], reader.weight.detach()


def without_head(given):
    given[..., COLUMNS] = 0
    return given


def test_a_head_without_output_is_one_whose_gated_columns_are_zero(gated):
    model, tokenizer = gated
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    expected, heads, _, weight = own_pass(model, ids, without_head)
    for on in ("z", "output"):
        with torch.no_grad(), edit(model, {(LAYER, HEAD): torch.zeros_like}, on=on) as edited:
            np.testing.assert_allclose(edited(ids, use_cache=False).logits, expected, atol=1e-4)
    found = head_outputs(model, [TEXT], tokenizer=tokenizer, layer=LAYER, head=HEAD)
    np.testing.assert_allclose(found[0], heads[0, :, COLUMNS] @ weight[:, COLUMNS].T, atol=1e-5)


def test_the_part_of_a_gated_head_is_that_of_its_columns(gated):
    model, tokenizer = gated
    found = attribute(model, [TEXT], tokenizer=tokenizer, token=" of")["predictions"].part
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    ids = ids[:, :-1] if ids[0, -1] == tokenizer.eos_token_id else ids
    _, heads, stream, weight = own_pass(model, ids)
    added = heads[0, -1, COLUMNS] @ weight[:, COLUMNS].T
    gain = 1 + model.model.norm.weight.detach()  # as Qwen3.5 stores it
    (token,) = tokenizer(" of", add_special_tokens=False).input_ids
    row = model.get_output_embeddings().weight[token].detach()
    size = stream[0, -1].square().mean().sqrt()
    np.testing.assert_allclose(
        found.sel(component=f"{LAYER}.{HEAD}").item(), float(added * gain @ row / size), rtol=1e-3
    )
    with pytest.raises(AttnscopeError, match="leave out by_position"):
        attribute(model, [TEXT], tokenizer=tokenizer, token=" of", by_position=True)


def test_heads_behind_a_gate_are_patched_and_have_no_edges(gated):
    model, tokenizer = gated
    effects = patch(model, [PAIR], tokenizer=tokenizer, steps=0)["patched"].effect
    assert abs(effects).max() > 0
    with pytest.raises(AttnscopeError, match="a gate, which reads too"):
        edges(model, [PAIR], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0])


def test_heads_that_a_norm_mixes_are_not_read_apart():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    model = T.BitNetForCausalLM(T.BitNetConfig(**sizes, intermediate_size=48, vocab_size=60, pad_token_id=0)).eval()
    assert [site.index for site in unread_sites(model, {"input_ids": torch.randint(3, 60, (1, 9))})] == [0]
