"""Models whose layers wait on the disk."""

import gc
import json
import shutil
import sys
import tempfile

import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file

import attnscope
import attnscope_circuits
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, PAIRS
from attnscope.capture.load import load_model
from attnscope.capture.placement import Placement
from attnscope.measure.passes import _marks
from attnscope.options import memory_of
from attnscope.read.encoded import texts_of, windows_of
from attnscope.read.windows import collate
from tests.tiny_models import tiny

TEXT = "The tide comes in twice a day."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of which half has room."""
    torch.manual_seed(0)
    model, place = tiny("gpt2"), tmp_path_factory.mktemp("model")
    tokenizer = load_model(MODEL, device="cpu").tokenizer
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def room(folder):
    return {"cpu": (folder / "model.safetensors").stat().st_size * 8 // 10}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_layers_on_the_disk_give_the_same_numbers(folder, room, temporary):
    placed = attnscope.scan(folder, TEXT, device_map="auto", max_memory=room)
    whole = attnscope.scan(folder, TEXT, device="cpu")
    assert placed.identical(whole)


VERBS = {
    "attribute": lambda model, where: attnscope_circuits.attribute(model, TEXT, **where),
    "circuits": lambda model, where: attnscope_circuits.circuits(model, **where),
    "edges": lambda model, where: attnscope_circuits.edges(
        model, PAIR, method="eap", sizes=[0.0, 1.0], draws=1, **where
    ),
    "explain": lambda model, where: attnscope.explain(model, [TEXT * 3] * 2, window=16, **where)["position_content"],
    "generate": lambda model, where: attnscope.generate(model, TEXT, new_tokens=2, **where),
    "intervene": lambda model, where: attnscope.intervene(model, TEXT, ablations=["zero"], why=False, **where),
    "patch": lambda model, where: attnscope.patch(model, PAIR, **where),
    "session": lambda model, where: attnscope.Session(model, TEXT, **where).scan(),
}
PAIR = [json.loads(line) for line in PAIRS.read_text().splitlines()[:1]]


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_measures_layers_on_the_disk(folder, room, temporary, verb):
    placed = VERBS[verb](folder, {"device_map": "auto", "max_memory": room})
    whole = VERBS[verb](folder, {"device": "cpu"})
    if isinstance(whole, xr.Dataset):
        placed, whole = (xr.DataTree(result) for result in (placed, whole))
    xr.testing.assert_allclose(placed, whole, atol=1e-5)


def test_a_model_that_is_on_the_disk_as_a_whole(folder, temporary):
    """Its input goes where it runs, not to where its first weights wait."""
    model = tiny("llama")
    tokenizer = load_model(MODEL, device="cpu").tokenizer
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(temporary / "model")
    tokenizer.save_pretrained(temporary / "model")
    texts = [TEXT, "A lamp."]
    placed = attnscope.scan(temporary / "model", texts, device_map="auto", max_memory={"cpu": "20KB"})
    assert placed.identical(attnscope.scan(temporary / "model", texts, device="cpu"))


def test_without_a_bound_or_by_a_map_there_is_one_device(folder, temporary):
    assert attnscope.scan("bundled", TEXT, device_map="auto").identical(attnscope.scan("bundled", TEXT, device="cpu"))
    loaded = load_model(folder, placement=Placement({"": "cpu"}))
    assert not any(one.is_meta for one in loaded.model.parameters())


def test_offloaded_layers_stay_on_the_disk_as_long_as_the_model(folder, room, temporary):
    loaded = load_model(folder, placement=Placement("auto", room))
    assert "disk" in loaded.model.hf_device_map.values()
    assert any(parameter.is_meta for parameter in loaded.model.parameters())
    assert list(temporary.glob("attnscope-*/*"))
    del loaded
    gc.collect()
    assert not list(temporary.glob("attnscope-*"))


def test_broken_numbers_on_the_disk_are_found(folder, room, temporary):
    shutil.copytree(folder, temporary / "model")
    tensors = load_file(folder / "model.safetensors")
    [last] = [name for name in tensors if name.endswith("h.1.mlp.c_proj.weight")]
    tensors[last].view(-1)[0] = torch.nan
    save_file(tensors, temporary / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(AttnscopeError, match=f"NaN or infinity in {last}"):
        load_model(temporary / "model", placement=Placement("auto", room))
    gc.collect()
    assert not list(temporary.glob("attnscope-*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device_map": "everywhere"}, "'everywhere'; expected one of auto"),
        ({"max_memory": {"cpu": "1GB"}}, r"max_memory \(--max-memory\) needs device_map \(--device-map\)"),
        ({"device_map": "auto", "device": "cpu"}, "cannot be used with device"),
        ({"device_map": "auto", "max_memory": {"cpu": 99}}, "cannot be placed by device_map and max_memory"),
        (
            {"device_map": "auto", "max_memory": {"cpu": "lots"}},
            "cannot be placed by device_map and max_memory .`size` lots",
        ),
    ],
)
def test_placements_that_do_not_work_are_rejected(folder, given, message, temporary):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(folder, TEXT, **given)
    gc.collect()
    assert not list(temporary.glob("attnscope-*"))


def test_a_model_object_stays_where_it_is():
    with pytest.raises(AttnscopeError, match=r"found device_map .* and a model object, which stays where it is"):
        attnscope_circuits.circuits(load_model(MODEL, device="cpu").model, device_map="auto")


def test_without_accelerate_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(AttnscopeError, match=r"needs accelerate, .* pip install 'attnscope\[devices\]'"):
        Placement("auto")


def test_memory_as_it_is_typed():
    assert memory_of("--max-memory", "0=10GiB, cpu=30GiB") == {0: "10GiB", "cpu": "30GiB"}
    for wrong in ("10GiB", "gpu=1GB", "0=", "0=1GB,"):
        with pytest.raises(AttnscopeError, match="expected devices and sizes"):
            memory_of("--max-memory", wrong)


def test_what_is_known_of_tokens_follows_the_layer_to_its_device():
    tokenizer = load_model("bundled", device="cpu").tokenizer
    batch = collate(list(windows_of(texts_of(TEXT), tokenizer, length=32)), 0)
    elsewhere = torch.empty(1, 4, batch.valid.shape[1], 8, device="meta")
    assert {mark.device.type for mark in _marks(batch, elsewhere)} == {"meta"}
