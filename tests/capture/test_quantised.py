"""Weights rounded to whole numbers: what is measured is the model with those weights, and says so."""

import json
import sys

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
