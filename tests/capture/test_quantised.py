"""Weights rounded to whole numbers: what is measured is the model with those weights, and says so."""

import json
import sys

import numpy as np
import pytest
import torch
import transformers

import attnscope
from attnscope.capture.load import load_model
from attnscope.capture.placement import plain, quantised
from attnscope.support.errors import AttnscopeError
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny, tiny_reader

pytest.importorskip("torchao", reason="pip install 'attnscope[int]' to run these tests")

TEXTS = ["The tide comes in twice a day, and twice a day it goes out again."] * 2


@pytest.mark.parametrize(("kind", "steps"), [("int8", 127), ("int4", 7)])
def test_the_model_is_that_of_the_rounded_weights(models, kind, steps):
    folder = models / "stories260K-llama"
    full = load_model(folder, device="cpu")
    rounded = load_model(folder, device="cpu", dtype=kind)
    linear = [name for name, one in full.model.named_modules() if isinstance(one, torch.nn.Linear)]
    for name in linear:
        weight, near = (plain(one.model.get_submodule(name).weight).detach() for one in (full, rounded))
        assert 0 < float((weight - near).abs().max()) <= 0.51 * float(weight.abs().max()) / steps
    measured = attnscope.scan(rounded.model, TEXTS, tokenizer=full.tokenizer)
    assert not measured.profile.equals(attnscope.scan(full.model, TEXTS, tokenizer=full.tokenizer).profile)
    for name in linear:
        full.model.get_submodule(name).weight = torch.nn.Parameter(plain(rounded.model.get_submodule(name).weight))
    expected = attnscope.scan(full.model, TEXTS, tokenizer=full.tokenizer)
    assert float(abs(measured.profile - expected.profile).max()) < 1e-6


def test_the_command_records_how_weights_were_rounded(models, tmp_path):
    words = ("scan", models / "stories260K-llama", "--limit", "2", "--no-report", "--json", "--dtype", "int8")
    found = command(*map(str, words), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert json.loads(found.stdout)["signature"]["model"]["weights"].startswith("int8, torchao ")


def test_what_cannot_be_rounded_is_rejected(models, monkeypatch):
    with pytest.raises(AttnscopeError, match="Conv1D, which torchao does not quantise"):
        quantised(tiny("gpt2"), "int8")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(AttnscopeError, match=r"pip install 'attnscope\[int\]'"):
        load_model(models / "stories260K-llama", device="cpu", dtype="int4")


def test_a_checkpoint_that_torchao_packed_is_the_model_that_was_saved(tmp_path):
    from torchao.quantization import Int8WeightOnlyConfig

    model, tokenizer = tiny_reader("llama")
    for place, saves in (("plain", model), ("packed", None)):
        packing = transformers.TorchAoConfig(Int8WeightOnlyConfig(version=2))
        made = saves or transformers.LlamaForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=packing)
        made.save_pretrained(tmp_path / place)
        tokenizer.save_pretrained(tmp_path / place)
    found = attnscope.scan(tmp_path / "packed", TEXTS, device="cpu")
    assert found.profile.equals(attnscope.scan(made, TEXTS, tokenizer=tokenizer).profile)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose widths suit bitsandbytes' products on processors."""
    torch.manual_seed(0)
    tokenizer, sizes = tiny_reader("llama")[1], {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=len(tokenizer), num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2
    )
    place = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_model_that_is_placed_is_quantised_as_one_that_is_not(folder, kind):
    if kind == "nf4":
        pytest.importorskip("bitsandbytes", reason="pip install 'attnscope[nf4]' to run this test")
    how = {"dtype": kind, "limit": 2, "window": 32}
    alone = attnscope.scan(folder, TEXTS, device="cpu", **how)
    placed = attnscope.scan(folder, TEXTS, device_map="auto", **how)
    assert alone.identical(placed)
    assert json.loads(placed.attrs["signature"])["model"]["weights"].startswith(f"{kind}, ")
    full = attnscope.scan(folder, TEXTS, device="cpu", limit=2, window=32)
    assert 0 < float(abs(full.profile - placed.profile).max()) < 0.1


@pytest.mark.parametrize("name", ["stories260K-llama", "rxnmapper-albert"])
def test_nf4_is_the_trained_model_with_the_dequantised_weights(models, name):
    """In single precision, of layers of any width."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="pip install 'attnscope[nf4]' to run this test")
    full, packed = (load_model(models / name, device="cpu", dtype=kind) for kind in (None, "nf4"))
    layers = {key: one for key, one in packed.model.named_modules() if type(one).__name__ == "Linear4bit"}
    assert layers
    for key, one in layers.items():
        weight = functional.dequantize_4bit(one.weight.data, one.weight.quant_state)
        full.model.get_submodule(key).weight = torch.nn.Parameter(weight.to(torch.float32))
    measured, expected = (attnscope.scan(one.model, TEXTS, tokenizer=full.tokenizer) for one in (packed, full))
    np.testing.assert_allclose(measured.profile, expected.profile, atol=1e-5)


def test_weights_of_nf4_are_those_of_eager_attention(folder):
    pytest.importorskip("bitsandbytes", reason="pip install 'attnscope[nf4]' to run this test")
    loaded = load_model(folder, device="cpu", dtype="nf4")
    layers = [one for one in loaded.model.modules() if type(one).__name__ == "Linear4bit"]
    assert len(layers) == 14  # all but the output
    found = attnscope.weights(loaded.model, TEXTS[0], tokenizer=loaded.tokenizer)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = loaded.tokenizer(TEXTS[0], return_tensors="pt").input_ids
        expected = torch.cat(loaded.model(ids, output_attentions=True).attentions)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_is_offloaded_is_not_quantised(models):
    with pytest.raises(AttnscopeError, match=r"needs all layers on devices; .* is offloaded"):
        attnscope.scan(
            models / "stories260K-llama", TEXTS, device_map="auto", max_memory={"cpu": "900KB"}, dtype="int8"
        )


def test_layers_that_do_not_suit_the_device_are_explained(folder, monkeypatch):
    """bitsandbytes' products on some processors need widths that are multiples of 32."""
    layers = pytest.importorskip("bitsandbytes.nn", reason="pip install 'attnscope[nf4]' to run this test")

    def rejects(*_):
        raise RuntimeError("N must be divisible by block_n")

    monkeypatch.setattr(layers.Linear4bit, "forward", rejects)
    with pytest.raises(
        AttnscopeError, match=r"divisible by block_n\. Its quantised layers may not suit this device"
    ) as error:
        attnscope.scan(folder, TEXTS, device="cpu", dtype="nf4", window=32)
    assert len(str(error.value).splitlines()) <= 2
