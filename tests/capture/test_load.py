"""A model is loaded whole or refused, on one or two lines."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.load import load_model, usable_device
from attnscope.capture.verify import position_table_length
from attnscope.store.folder import OwnedFolder
from tests.tiny_models import tiny

SMALL = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 8}


@pytest.fixture
def folder(tmp_path):
    """A copy of the bundled model that a test may break."""
    return shutil.copytree(MODEL, tmp_path / "model")


def rejected(source, match, **options):
    with pytest.raises(AttnscopeError, match=match) as caught:
        load_model(source, device="cpu", **options)
    assert len(str(caught.value).splitlines()) <= 2


def change(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_missing_head_or_pooler_is_no_fault(tmp_path):
    config = BertConfig(**SMALL)
    BertForMaskedLM(config).save_pretrained(tmp_path / "headless")

    def behead(tensors):
        assert [tensors.pop(name) for name in list(tensors) if name.startswith("cls.")]

    change(tmp_path / "headless", behead)
    load_model(tmp_path / "headless", device="cpu", need_tokenizer=False)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "bare")
    load_model(tmp_path / "bare", device="cpu", need_tokenizer=False)


def pickle_weights(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def remove_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def shorten(tensors):
    name = "encoder.add_positions.position_embeddings.weight"
    tensors[name] = tensors[name][:100].clone()


def poison(tensors):
    tensors["embedding.weight"][3, 3] = float("nan")


TENSOR = "encoder.layers.1.self_attention.q_proj.weight"
BROKEN = {
    "a tensor is missing": (lambda folder: change(folder, lambda own: own.pop(TENSOR)), f"lacks {re.escape(TENSOR)}"),
    "another shape": (lambda folder: change(folder, shorten), "another shape|position_embeddings"),
    "pickled": (pickle_weights, "pickled"),
    "NaN": (lambda folder: change(folder, poison), "NaN or infinity in embedding.weight"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    "no tokenizer": (remove_tokenizer, "has no tokenizer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_rejected(folder, name):
    edit, message = BROKEN[name]
    edit(folder)
    rejected(folder, message)


def test_names_of_nothing_are_rejected(folder, tmp_path):
    rejected(tmp_path / "nothing", "nothing does not exist: expected a model folder")
    rejected("no/such/model/at-all", "at-all does not exist: expected a model folder")
    rejected(folder, "dtype 'int9'", dtype="int9")
    with torch.device("meta"):
        model = BertModel(BertConfig(**SMALL))
    rejected(model, "is on the meta device", tokenizer=MODEL)


@pytest.mark.parametrize("name", ["", "meta", "cuda:99", "gpu0"])
def test_a_device_that_cannot_be_used_is_named_in_a_line(name):
    for use in (usable_device, lambda name: load_model(MODEL, device=name)):
        with pytest.raises(AttnscopeError, match=f"device '{name}' cannot be used: ") as caught:
            use(name)
        assert len(str(caught.value).splitlines()) == 1


def test_objects_of_other_settings_or_weights_have_other_identities():
    def identity(**settings):
        torch.manual_seed(0)
        model = BertModel(BertConfig(**SMALL | settings))
        return load_model(model, need_tokenizer=False).identity

    assert identity() == identity()
    assert identity(num_attention_heads=2) != identity()
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SMALL))
    model.register_buffer("scale", torch.tensor(2.0))
    assert load_model(model, need_tokenizer=False).identity != identity()


def test_a_model_object_finds_its_tokenizer_where_it_was_loaded_or_takes_one(folder, tmp_path):
    model = load_model(folder, device="cpu").model
    assert model.config.name_or_path == str(folder)
    found = load_model(model).tokenizer
    assert found("The tide").input_ids == load_model(folder, device="cpu").tokenizer("The tide").input_ids
    model.config.name_or_path = str(tmp_path / "gone")
    rejected(model, "without its tokenizer")
    (tmp_path / "gone").mkdir()
    rejected(model, "no tokenizer")
    assert load_model(model, tokenizer=MODEL, device="cpu").tokenizer.is_fast


@pytest.mark.parametrize(
    ("family", "rows"), [("bert", 64), ("opt", 64), ("bart", 64), ("roberta", 64), ("llama", None)]
)
def test_reserved_rows_of_the_position_table_are_known(family, rows):
    """RoBERTa's table of 66 rows reaches 64 positions."""
    assert position_table_length(tiny(family)) == rows


@pytest.mark.parametrize("family", ["vit", "whisper"])
def test_a_model_that_reads_no_text_is_rejected_where_text_is_given(family):
    model = tiny(family)
    rejected(model, f"{type(model).__name__} reads {model.main_input_name}, not text")
    assert load_model(model, device="cpu", need_tokenizer=False).tokenizer is None


def test_a_model_object_is_not_converted_silently():
    model = load_model("bundled", device="cpu").model
    tokenizer = load_model("bundled", device="cpu").tokenizer
    assert load_model(model, tokenizer=tokenizer, device="cpu", dtype="float32").model is model
    for kind in ("bfloat16", "int8"):
        with pytest.raises(AttnscopeError, match=f"found dtype {kind}, and a float32 model"):
            load_model(model, tokenizer=tokenizer, dtype=kind)


@pytest.mark.parametrize(
    ("command", "says"), [("train", "its training has not finished"), ("scan", "it is a run of attnscope scan")]
)
def test_a_folder_of_ours_without_a_model_is_reported_as_such(tmp_path, command, says):
    with OwnedFolder(tmp_path / "run", command) as folder:
        folder.write({"log.jsonl": b"{}"})
    with pytest.raises(AttnscopeError, match=says):
        load_model(tmp_path / "run")
