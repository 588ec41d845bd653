"""Families whose layers, masks or positions are told otherwise than most."""

import numpy as np
import pytest
import torch
import transformers as T

from attnscope import AttnscopeError
from attnscope.capture.notes import numbering_note
from attnscope.capture.verify import position_table_length, verify
from attnscope.capture.watching import watching
from attnscope.explanation.tables import position_scheme, position_table, position_tables, replaced_positions
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from tests.every_family.given import inputs_of
from tests.every_family.making import tiny_model
from tests.families import _DECODER, _ENCODER, _SEQ2SEQ

IDS = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(0))


def made(model):
    """Weights large enough that every change is seen."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def eight_layers(**settings):
    return {**_DECODER, "num_hidden_layers": 8, **settings}


HYBRIDS = {
    "jamba": (
        lambda: T.JambaForCausalLM(
            T.JambaConfig(
                **{name: value for name, value in eight_layers().items() if name != "head_dim"},
                attn_layer_period=4,
                attn_layer_offset=3,
                num_experts=2,
            )
        ),
        [3, 7],
    ),
    "lfm2": (
        lambda: T.Lfm2ForCausalLM(
            T.Lfm2Config(
                **{**_DECODER, "num_hidden_layers": 4}, layer_types=["conv", "conv", "full_attention", "full_attention"]
            )
        ),
        [2, 3],
    ),
    "qwen3_next": (
        lambda: T.Qwen3NextForCausalLM(
            T.Qwen3NextConfig(
                **eight_layers(),
                linear_num_value_heads=4,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=16,
                shared_expert_intermediate_size=16,
            )
        ),
        [3, 7],
    ),
}


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_hybrid_says_which_of_its_layers_are_counted(family):
    make, own = HYBRIDS[family]
    sites = verify(made(make()), {"input_ids": IDS})
    assert [site.index for site in sites] == [0, 1]
    note = numbering_note([site.name for site in sites])
    expected = ", ".join(f"{number} is model.layers.{layer}" for number, layer in enumerate(own))
    assert note == f"Only layers with attention are numbered: {expected}."


@pytest.mark.parametrize("family", ["minimax", "kimi_linear", "olmo_hybrid"])
def test_linear_attention_has_no_weights_to_be_missed(family):
    """The other layer of two attends with weights, and is seen."""
    model = tiny_model(family)
    sites = verify(model, inputs_of(model))
    assert len(sites) == 1
    assert sites[0].kind == "causal"


def test_layers_that_are_all_counted_need_no_note():
    alike = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    two_stacks = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"]
    assert [numbering_note(names) for names in ([alike, alike], two_stacks, ["attn"], [])] == [""] * 4


def test_a_layer_that_attends_twice_with_the_same_weights_is_one_layer():
    model = made(T.DiffLlamaForCausalLM(T.DiffLlamaConfig(**_DECODER)))
    sites = verify(model, {"input_ids": IDS})
    assert [(site.index, site.name) for site in sites] == [
        (0, "model.layers.0.self_attn"),
        (1, "model.layers.1.self_attn"),
    ]


def test_a_text_model_whose_layers_do_not_say_that_they_look_both_ways():
    """Its weights are those of eager attention, in `verify` and after."""
    model = made(T.ClapTextModel(T.ClapTextConfig(**_ENCODER)))
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
    causal = made(T.GPT2LMHeadModel(T.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=60)))
    assert [site.kind for site in verify(causal, {"input_ids": IDS})] == ["causal"]


def test_a_model_that_reads_its_masks_elsewhere_is_refused_by_that():
    config = T.NllbMoeConfig(**_SEQ2SEQ, num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2)
    with pytest.raises(AttnscopeError, match=r"part of its attention or its masks"):
        verify(made(T.NllbMoeModel(config)), {"input_ids": IDS, "decoder_input_ids": IDS})


TABLES = {
    "openai-gpt": (
        lambda: T.OpenAIGPTModel(T.OpenAIGPTConfig(n_embd=32, n_head=4, n_layer=1, vocab_size=60, n_positions=40)),
        ("positions_embed", 0, 40),
    ),
    "ctrl": (
        lambda: T.CTRLModel(T.CTRLConfig(n_embd=32, n_head=4, n_layer=1, dff=48, vocab_size=60, n_positions=40)),
        ("pos_encoding", 0, 40),
    ),
    "canine": (
        lambda: T.CanineModel(
            T.CanineConfig(
                **{**_ENCODER, "max_position_embeddings": 64}, num_hash_buckets=64, local_transformer_stride=16
            )
        ),
        ("char_embeddings.char_position_embeddings", 0, 64),
    ),
    "yoso": (
        lambda: T.YosoModel(T.YosoConfig(**_ENCODER, use_expectation=True)),
        ("embeddings.position_embeddings", 2, 64),
    ),
    "nystromformer": (
        lambda: T.NystromformerModel(T.NystromformerConfig(**_ENCODER, segment_means_seq_len=64, num_landmarks=64)),
        ("embeddings.position_embeddings", 2, 64),
    ),
}


@pytest.mark.parametrize("family", TABLES)
def test_tables_are_found_with_the_rows_that_positions_read(family):
    make, (name, reserved, length) = TABLES[family]
    model = made(make())
    table = position_table(model)
    assert (table.name, table.reserved, len(table.rows)) == (name, reserved, length)
    assert position_table_length(model) == length
    assert table.scheme == ("sinusoidal" if family == "ctrl" else "learned")


@pytest.mark.parametrize("family", ["openai-gpt", "ctrl"])
def test_a_row_that_is_changed_moves_the_tokens_from_there_on(family):
    """Row 5 is what position 5 reads: a causal model says the same before it."""
    model = made(TABLES[family][0]())
    (table,) = position_tables(model)
    rows = table.rows[:8].copy()
    rows[5] += np.arange(32)
    with torch.no_grad():
        before = model(IDS).last_hidden_state
        with replaced_positions(model, {table.name: rows}):
            after = model(IDS).last_hidden_state
    moved = (after - before).abs().amax(-1)[0] > 1e-4
    assert moved.tolist() == [False] * 5 + [True] * 7


@pytest.mark.parametrize("family", ["yoso", "nystromformer", "canine"])
def test_an_embedding_adds_row_p_at_position_p(family):
    model = made(TABLES[family][0]())
    (table,) = position_tables(model)
    module = model.get_submodule(table.name)
    seen = []
    module.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        model(IDS)
    read = seen[0].reshape(-1, 32)[:12].double().numpy()
    np.testing.assert_allclose(read, table.rows[:12], rtol=1e-6)


def test_sinusoids_that_turn_queries_are_no_table():
    model = T.RoFormerModel(T.RoFormerConfig(**_ENCODER))
    assert position_tables(model) == []
    assert "RoPE" in position_scheme(model)
    with pytest.raises(AttnscopeError, match=r"no table of absolute positions: it rotates .*RoPE"):
        position_table(model)


def test_a_decoder_that_is_called_attention_does_not_hide_a_layer_that_nobody_saw():
    """Mask2Former's decoder has attention in its name: its cross-attention is seen, its self-attention is not."""
    model = made(tiny_model("mask2former"))
    with pytest.raises(AttnscopeError, match=r"not captured \(transformer_module\.decoder\.layers\.0"):
        verify(model, inputs_of(model))
