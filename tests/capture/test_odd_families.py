"""Families whose layers, masks or positions are told otherwise than most."""

import numpy as np
import pytest
import torch
import transformers as T

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.notes import numbering_note
from attnscope.capture.verify import position_table_length, verify
from attnscope.capture.watching import watching
from attnscope.explanation.tables import position_table, position_tables, replaced_positions
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from tests.capture.every_family.inputs import inputs_of
from tests.capture.every_family.judge import larger
from tests.capture.every_family.models import tiny_model
from tests.tiny_models import _ENCODER, _SEQ2SEQ

IDS = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["jamba", "lfm2_moe", "qwen3_next", "minimax", "kimi_linear", "olmo_hybrid"])
def test_a_hybrid_says_which_of_its_layers_are_counted(family):
    """The first of two layers has no weights to be missed; the other is captured."""
    model = tiny_model(family)
    sites = verify(model, inputs_of(model))
    assert [(site.index, site.kind) for site in sites] == [(0, "causal")]
    is_first = ".layers.0." in sites[0].name
    note = "" if is_first else "Only layers with attention are numbered: 0 is model.layers.1."
    assert numbering_note([sites[0].name]) == note


def test_layers_that_are_all_counted_need_no_note():
    alike = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    two_stacks = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"]
    twice = larger(tiny_model("diffllama"))  # its layers attend twice with the same weights
    names = [site.name for site in verify(twice, {"input_ids": IDS})]
    assert names == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [numbering_note(each) for each in ([alike, alike], two_stacks, names, ["attn"], [])] == [""] * 5
    hybrid = [f"model.layers.{layer}.self_attn" for layer in (3, 7)]
    assert numbering_note(hybrid).endswith(": 0 is model.layers.3, 1 is model.layers.7.")


def test_a_text_model_whose_layers_do_not_declare_that_they_are_bidirectional():
    """Its weights are those of eager attention, in `verify` and after."""
    model = larger(T.ClapTextModel(T.ClapTextConfig(**_ENCODER)).eval())
    sites = verify(model, {"input_ids": IDS})
    assert [site.kind for site in sites] == ["self", "self"]
    ahead = []

    def observe(site, call):
        output, rows = measure(call, Need(band=2))
        ahead.append(float(rows.band[..., 3:].sum()))
        return output

    with torch.no_grad(), watching(model, observe):
        captured = model(IDS).last_hidden_state
    assert min(ahead) > 0
    model.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(captured, model(IDS).last_hidden_state, atol=1e-5, rtol=1e-4)
    causal = larger(T.GPT2LMHeadModel(T.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=60)).eval())
    assert [site.kind for site in verify(causal, {"input_ids": IDS})] == ["causal"]


def test_a_model_that_reads_its_masks_elsewhere_is_rejected_by_that():
    config = T.NllbMoeConfig(**_SEQ2SEQ, num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2)
    with pytest.raises(AttnscopeError, match=r"part of its attention or its masks"):
        verify(larger(T.NllbMoeModel(config).eval()), {"input_ids": IDS, "decoder_input_ids": IDS})


TABLES = {
    "openai-gpt": ("transformer.positions_embed", 0, 128),
    "ctrl": ("transformer.pos_encoding", 0, 128),
    "canine": ("char_embeddings.char_position_embeddings", 0, 16384),
    "yoso": ("yoso.embeddings.position_embeddings", 2, 128),
    "nystromformer": ("nystromformer.embeddings.position_embeddings", 2, 128),
}


@pytest.mark.parametrize("family", TABLES)
def test_tables_are_found_with_the_rows_that_positions_read(family):
    model = larger(tiny_model(family))
    table = position_table(model)
    assert (table.name, table.reserved, len(table.rows)) == TABLES[family]
    assert position_table_length(model) == len(table.rows)
    assert table.scheme == ("sinusoidal" if family == "ctrl" else "learned")
    if family in {"openai-gpt", "ctrl"}:  # row 5 is what position 5 reads: a causal model says the same before it
        rows = table.rows[:8].copy()
        rows[5] += np.arange(rows.shape[1])
        with torch.no_grad():
            before = model(IDS)[0]
            with replaced_positions(model, {table.name: rows}):
                after = model(IDS)[0]
        moved = (after - before).abs().amax(-1)[0] > 1e-4
        assert moved.tolist() == [False] * 5 + [True] * 7
    else:
        read = []
        model.get_submodule(table.name).register_forward_hook(lambda *call: read.append(call[2]))
        with torch.no_grad():
            model(IDS)
        np.testing.assert_allclose(read[0].flatten(0, -2)[:12], table.rows[:12], rtol=1e-6)
    rotating = tiny_model("roformer")  # sinusoids that turn queries are no table
    assert position_tables(rotating) == []
    with pytest.raises(AttnscopeError, match=r"no table of absolute positions: it rotates .*RoPE"):
        position_table(rotating)


def test_a_decoder_that_is_called_attention_does_not_hide_an_uncaptured_layer():
    """Mask2Former's decoder has attention in its name: its cross-attention is seen, its self-attention is not."""
    model = larger(tiny_model("mask2former"))
    with pytest.raises(AttnscopeError, match=r"not captured \(transformer_module\.decoder\.layers\.0"):
        verify(model, inputs_of(model))


class ByHand(torch.nn.Module):
    """Attention that a model computes itself, under another name."""

    def __init__(self, last):
        super().__init__()
        self.last, self.mix = last, torch.nn.Linear(16, 16)

    def forward(self, states, *_, **__):
        query = self.mix(states).unflatten(-1, (2, 8))
        if self.last:
            weights = torch.einsum("bqhd,bkhd->bhqk", query, query).softmax(-1)
            return states + torch.einsum("bhqk,bkhd->bqhd", weights, query).flatten(2)
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bqkh", query, query), dim=2)
        return states + torch.einsum("bqkh,bkhd->bqhd", weights, query).flatten(2)


class Routed(torch.nn.Module):
    """A router with as many experts as the text has tokens."""

    def __init__(self):
        super().__init__()
        self.route = torch.nn.Linear(16, IDS.shape[1])

    def forward(self, states, *_, **__):
        return states * (1 + self.route(states).softmax(-1).amax(-1, keepdim=True))


@pytest.mark.parametrize("layer", [ByHand(last=True), ByHand(last=False), Routed()], ids=["last", "middle", "router"])
def test_a_layer_that_attends_by_hand_is_named_and_a_router_is_not(layer):
    config = T.LlamaConfig(
        vocab_size=64, hidden_size=16, num_attention_heads=2, num_hidden_layers=3, intermediate_size=16
    )
    model = T.LlamaModel(config).eval()
    model.layers[1] = layer
    if isinstance(layer, Routed):
        assert [site.name for site in verify(model, {"input_ids": IDS})] == ["layers.0.self_attn", "layers.2.self_attn"]
        return
    with pytest.raises(AttnscopeError, match=r"softmax over all keys in layers\.1 \(of class ByHand\), which is not"):
        verify(model, {"input_ids": IDS})
    with pytest.raises(AttnscopeError, match=r"layers\.1 \(of class ByHand\)"):
        attnscope.scan(model, {"input_ids": IDS})
