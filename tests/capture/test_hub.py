"""A model of the hub is loaded from one commit, and from its own repository's files alone. All offline."""

import hashlib
import json
import pickle
import shutil

import pytest
from huggingface_hub import constants, file_download
from safetensors.torch import load_file, save_file

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture import checkpoint as _hub
from attnscope.capture.load import load_model
from attnscope.model_names import step_of
from tests.capture.test_checkpoints import INDEX, Payload

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Cache:
    """What `huggingface_hub` would have fetched of one repository."""

    def __init__(self, home, name):
        self.at = home / f"models--{name.replace('/', '--')}"

    def add(self, revision, files):
        commit = COMMITS[revision]
        (self.at / "refs").mkdir(parents=True, exist_ok=True)
        (self.at / "refs" / revision).write_text(commit)
        for name, content in files.items():
            blob = self.at / "blobs" / hashlib.sha256(content).hexdigest()
            link = self.at / "snapshots" / commit / name
            blob.parent.mkdir(exist_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link.symlink_to(blob)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    yield Cache(tmp_path / "hub", "someone/model")
    assert not (tmp_path / "opened").exists()


def bundled(**others):
    files = {path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()}
    files |= {name.replace("__", "."): content for name, content in others.items()}
    return {name: content for name, content in files.items() if content is not None}


def moved(tmp_path):
    """Other weights."""
    tensors = load_file(MODEL / "model.safetensors")
    tensors["embedding.weight"] += 1
    save_file(tensors, tmp_path / "moved.safetensors", metadata={"format": "pt"})
    return (tmp_path / "moved.safetensors").read_bytes()


def test_the_commit_of_a_revision_is_loaded_and_is_the_identity(cache, tmp_path):
    cache.add("main", bundled())
    cache.add("v1", bundled(model__safetensors=moved(tmp_path)))
    found = {
        revision: load_model("someone/model", revision=revision, device="cpu") for revision in (None, "v1", "b" * 40)
    }
    assert found[None].name == "someone/model"
    assert found[None].identity == {"revision": COMMITS["main"]}
    assert found["v1"].identity == found["b" * 40].identity == {"revision": COMMITS["v1"]}
    Cache(tmp_path / "hub", "someone/words").add("main", bundled())  # a tokenizer has revisions of its own
    assert load_model("someone/model", revision="v1", tokenizer="someone/words", device="cpu").tokenizer.is_fast
    weights = [found[revision].model.get_input_embeddings().weight for revision in (None, "v1")]
    assert (weights[1] - weights[0]).allclose(weights[0].new_ones(()), atol=1e-5)


def test_revisions_are_several_models_whose_steps_are_in_their_names(cache):
    cache.add("main", bundled())
    cache.add("v1", bundled())
    how = {"limit": 2, "window": 32, "device": "cpu"}
    results = attnscope.scan("someone/model@main,someone/model@v1", **how)
    commits = {name: json.loads(one.attrs["signature"])["model"]["revision"] for name, one in results.items()}
    assert commits == {"model@main": COMMITS["main"], "model@v1": COMMITS["v1"]}
    assert load_model("someone/model@v1", device="cpu").identity == {"revision": COMMITS["v1"]}
    with pytest.raises(AttnscopeError, match=r"found someone/model@v1 and revision \(--revision\) main: give one of"):
        attnscope.scan("someone/model@v1", revision="main", **how)
    assert [step_of(f"pythia-70m@{step}") for step in ("step0", "step1000", "main")] == [0, 1000, None]


def test_a_snapshot_given_as_a_folder_may_link_to_its_blobs_and_no_further(cache, tmp_path):
    cache.add("main", bundled())
    snapshot = cache.at / "snapshots" / COMMITS["main"]
    assert load_model(snapshot, device="cpu").identity == load_model(MODEL, device="cpu").identity
    weights = snapshot / "model.safetensors"
    shutil.copy(weights, tmp_path / "elsewhere")
    weights.unlink()
    weights.symlink_to(tmp_path / "elsewhere")
    for source in (snapshot, "someone/model"):
        with pytest.raises(AttnscopeError, match="is outside the folder"):
            load_model(source, device="cpu")


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("all.safetensors", None),
        ("weights.bin", "is not a .safetensors file"),
        ("../../../elsewhere.safetensors", "is outside the folder"),
        ("missing.safetensors", "does not exist"),
        (None, "only pickled weights"),
    ],
)
def test_the_weights_of_a_repository_are_checked_before_they_are_fetched(cache, shard, message):
    """Pickles are not converted by the hub, but rejected."""
    weights = load_file(MODEL / "model.safetensors")
    whole = (MODEL / "model.safetensors").read_bytes()
    pickled = pickle.dumps(Payload())
    index = {INDEX: json.dumps({"weight_map": dict.fromkeys(weights, shard)}).encode()} if shard else {}
    others = {"all.safetensors": whole, "weights.bin": pickled} if shard else {"pytorch_model.bin": pickled}
    cache.add("main", bundled(model__safetensors=None, **index, **others))
    if message is None:
        found = load_model("someone/model", device="cpu").model.get_input_embeddings().weight
        assert found.equal(weights["embedding.weight"])
        return
    with pytest.raises(AttnscopeError, match=message):
        load_model("someone/model", device="cpu")


def test_without_a_way_to_the_hub_there_is_no_request(cache, monkeypatch):
    """A mistyped name, and a model that is in the cache: no request is made, so that nothing is waited for."""
    cache.add("main", bundled())
    with pytest.raises(AttnscopeError, match="someone/other is not a folder here, is not in the cache") as caught:
        load_model("someone/other", device="cpu")
    assert len(str(caught.value).splitlines()) == 1
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(_hub, "getproxies", dict)
    monkeypatch.setattr(file_download, "get_hf_file_metadata", lambda *_, **__: pytest.fail("the hub was asked"))
    assert COMMITS["main"] in load_model("someone/model").identity.values()
    with pytest.raises(AttnscopeError, match="nowhere is not a folder here, is not in the cache"):
        load_model("nowhere")
