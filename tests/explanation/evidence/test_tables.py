"""Position and word tables: the rows that the model reads, no others."""

import numpy as np
import pytest
import torch
import transformers as T

from attnscope import AttnscopeError
from attnscope.explanation.tables import (
    is_sinusoidal,
    position_scheme,
    position_table,
    position_tables,
    replaced_positions,
)
from attnscope.kernels.positions import sinusoidal_table
from tests.tiny_models import MAKERS, inputs, tiny

ONE = {  # name, reserved rows, rows
    "bert": ("bert.embeddings.position_embeddings", 0, 64),
    "roberta": ("roberta.embeddings.position_embeddings", 2, 64),
    "albert": ("albert.embeddings.position_embeddings", 0, 64),
    "distilbert": ("distilbert.embeddings.position_embeddings", 0, 64),
    "electra": ("electra.embeddings.position_embeddings", 0, 64),
    "gpt2": ("transformer.wpe", 0, 64),
    "opt": ("model.decoder.embed_positions", 2, 64),
    "vit": ("embeddings.position_embeddings", 0, 17),
}
TWO = {"bart": (2, 64, 64), "marian": (0, 64, 64), "whisper": (0, 20, 30)}
INSTEAD = {"t5": "T5", "deberta": "DeBERTa", "deberta_v2": "DeBERTa"} | dict.fromkeys(
    ("modernbert", "gpt_neox", "llama", "mistral", "gemma2", "gpt_oss", "qwen3"), "RoPE"
)


def test_the_families_are_all_here():
    assert {*ONE, *TWO, *INSTEAD} == set(MAKERS)


@pytest.mark.parametrize("family", ONE)
def test_one_table(family):
    table = position_table(tiny(family))
    name, reserved, rows = ONE[family]
    assert (table.name, table.reserved, len(table.rows)) == (name, reserved, rows)
    assert table.rows.shape[1] == (16 if family in {"albert", "electra"} else 32)
    assert table.scheme == "learned"


@pytest.mark.parametrize("family", TWO)
def test_encoder_and_decoder_have_one_table_each(family):
    model = tiny(family)
    reserved, first, second = TWO[family]
    assert [(one.reserved, len(one.rows)) for one in position_tables(model)] == [(reserved, first), (reserved, second)]
    assert "encoder" in position_table(model).name
    assert "decoder" in position_table(model, "decoder").name
    with pytest.raises(AttnscopeError, match="has no position table 'wpe': choose from"):
        position_table(model, "wpe")


@pytest.mark.parametrize("family", [*ONE, *TWO])
def test_row_p_is_what_position_p_reads(family):
    """Changing row p moves what the table's module returns, or the model adds, at position p and nowhere else."""
    model, given = tiny(family), inputs(family, padded=False)[0]
    for table in position_tables(model):
        rows = table.rows[:5].copy()
        rows[3] += 1
        seen = []
        parent = model.get_submodule(table.name.rpartition(".")[0])
        module = parent if family == "vit" else model.get_submodule(table.name)
        hook = module.register_forward_hook(lambda *args, seen=seen: seen.append(first_tensor(args[2])))
        with torch.no_grad():
            model(**given)
            with replaced_positions(model, {table.name: rows}):
                model(**given)
        hook.remove()
        change = (seen[1] - seen[0]).abs().sum(-1)
        assert torch.nonzero(change.reshape(-1, change.shape[-1])[0]).flatten().tolist() == [3]
        np.testing.assert_allclose(position_table(model, table.name).rows, table.rows, rtol=0)


def first_tensor(output):
    return output if isinstance(output, torch.Tensor) else output[0]


@pytest.mark.parametrize("family", INSTEAD)
def test_a_model_without_a_table_says_what_it_has(family):
    model = tiny(family)
    assert position_tables(model) == []
    with pytest.raises(AttnscopeError, match=rf"no table of absolute positions: .*{INSTEAD[family]}"):
        position_table(model)
    assert INSTEAD[family] in position_scheme(model)


def test_alibi_is_known_by_its_config():
    config = T.FalconConfig(
        hidden_size=8,
        num_attention_heads=1,
        num_hidden_layers=1,
        vocab_size=9,
        alibi=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    assert "ALiBi" in position_scheme(T.FalconModel(config))


def test_tabulated_sinusoids_are_known_as_such():
    torch.manual_seed(0)
    marian = MAKERS["marian"]()
    assert [one.scheme for one in position_tables(marian)] == ["sinusoidal"] * 2
    whisper = MAKERS["whisper"]()
    assert [one.scheme for one in position_tables(whisper)] == ["sinusoidal", "learned"]
    config = T.M2M100Config(
        d_model=32, encoder_layers=1, decoder_layers=1, vocab_size=60, max_position_embeddings=64, pad_token_id=1
    )
    table = position_table(T.M2M100Model(config))
    assert (table.scheme, table.reserved) == ("sinusoidal", 2)
    assert is_sinusoidal(sinusoidal_table(40, 8).numpy()).all()
    assert not is_sinusoidal(np.random.default_rng(0).normal(size=(40, 8))).any()
    assert not is_sinusoidal(np.zeros((2, 3))).any()


def test_everything_is_put_back_even_after_an_error():
    model = tiny("roberta")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    name = position_table(model).name
    with pytest.raises(RuntimeError), replaced_positions(model, {name: np.zeros((5, 32))}):
        raise RuntimeError
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    for rows in (np.zeros((65, 32)), np.zeros((5, 31))):
        with (
            pytest.raises(AttnscopeError, match="expected at most 64 of width 32"),
            replaced_positions(model, {name: rows}),
        ):
            pass
    with pytest.raises(AttnscopeError, match="no position table 'wpe'"), replaced_positions(model, {"wpe": rows}):
        pass
