"""What a model is loaded from is what is hashed, lies in its folder, and can run nothing."""

import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.checkpoint import Repository
from attnscope.capture.load import load_model
from tests.tiny_models import inputs, tiny

INDEX = "model.safetensors.index.json"


class Payload:
    """What runs when a pickle that holds it is opened."""

    def __reduce__(self):
        return os.mkdir, ("opened",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the bundled model that a test may break; what a payload makes would lie beside it."""
    monkeypatch.chdir(tmp_path)
    yield shutil.copytree(MODEL, tmp_path / "model")
    assert not (tmp_path / "opened").exists()


@pytest.fixture
def sharded(folder):
    """The same in two files of weights and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[:20], "b.safetensors": names[20:]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard, metadata={"format": "pt"})
    write_index(folder, {name: shard for shard, held in shards.items() for name in held})
    return folder


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read_index(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


def rename(folder, new, name="a.safetensors"):
    """Let the index call a shard by another name."""
    write_index(folder, {key: new if shard == name else shard for key, shard in read_index(folder).items()})


def change(folder, name, **settings):
    file = folder / name
    kept = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(kept | settings))


def refused(source, match, **options):
    with pytest.raises(AttnscopeError, match=match) as caught:
        load_model(source, device="cpu", **options)
    assert len(str(caught.value).splitlines()) <= 2


def identity(folder):
    return load_model(folder, device="cpu").identity["sha256"]


def test_shards_give_the_model_that_one_file_gives(sharded):
    whole, parts = (load_model(one, device="cpu").model.state_dict() for one in (MODEL, sharded))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("name", ["weights.bin", "a.safetensors.bin"])
def test_an_index_that_names_a_pickle_or_nothing_is_rejected_and_the_pickle_not_opened(sharded, name):
    (sharded / name).write_bytes(pickle.dumps(Payload()))
    rename(sharded, name)
    refused(sharded, rf"{name} of .* \(named in {INDEX}\) is not a .safetensors file")
    for index in ({}, {"weight_map": ["a.safetensors"]}):
        (sharded / INDEX).write_text(json.dumps(index))
        refused(sharded, "has no weight_map")


@pytest.mark.parametrize("name", ["../a.safetensors", "sub/../../a.safetensors", "{}/a.safetensors"])
def test_an_index_that_names_a_file_elsewhere_is_rejected(sharded, name):
    shutil.move(sharded / "a.safetensors", sharded.parent)
    rename(sharded, name.format(sharded.parent))
    refused(sharded, "is outside the folder")


@pytest.mark.parametrize("shard", ["a.safetensors", "model.safetensors"])
def test_a_link_that_leads_out_of_the_folder_is_rejected(sharded, shard):
    if shard == "model.safetensors":
        shutil.copy(MODEL / shard, sharded / shard)
    shutil.move(sharded / shard, sharded.parent / "elsewhere.safetensors")
    (sharded / shard).symlink_to(sharded.parent / "elsewhere.safetensors")
    refused(sharded, f"{shard} .* is outside the folder")


def test_a_file_is_hashed_again_only_where_it_changed(folder, monkeypatch):
    read, digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: read.append(file.name) or digest(file, name))
    first = load_model(folder, device="cpu").identity
    read.clear()
    assert load_model(folder, device="cpu").identity == first
    assert not read
    with (folder / "config.json").open("a") as config:
        config.write("\n")
    assert load_model(folder, device="cpu").identity != first
    assert read == [str(folder / "config.json")]


def test_a_shard_in_a_subfolder_is_loaded_and_hashed(sharded):
    (sharded / "sub").mkdir()
    shutil.move(sharded / "a.safetensors", sharded / "sub")
    rename(sharded, "sub/a.safetensors")
    before = identity(sharded)
    add_a_little(sharded / "sub" / "a.safetensors")
    assert identity(sharded) != before


def add_a_little(path):
    tensors = load_file(path)
    first = min(tensors)
    tensors[first] = tensors[first] + 1e-3
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["a.safetensors", "b.safetensors", INDEX, "config.json", "generation_config.json"])
def test_the_identity_follows_every_file_that_is_loaded(sharded, name):
    change(sharded, "generation_config.json", max_length=30)
    before = identity(sharded)
    if name.endswith(".safetensors"):
        add_a_little(sharded / name)
    elif name == INDEX:
        (sharded / INDEX).write_text((sharded / INDEX).read_text() + "\n")
    else:
        change(sharded, name, **({"max_length": 31} if "generation" in name else {"pad_token_id": 1}))
    assert identity(sharded) != before


def test_the_identity_does_not_follow_files_that_are_not_loaded(sharded):
    before = identity(sharded)
    shutil.copy(MODEL / "model.safetensors", sharded / "optimizer.safetensors")
    (sharded / ".attnscope").mkdir()
    (sharded / ".attnscope" / "note.json").write_text("{")
    (sharded / "README.md").write_text("more")
    (sharded / "weights.bin").write_bytes(pickle.dumps(Payload()))
    assert identity(sharded) == before


def test_the_file_that_the_config_names_wins_over_the_whole_file_and_that_over_an_index(folder):
    before = identity(folder)
    write_index(folder, {"embedding.weight": "weights.bin"})
    assert identity(folder) == before
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    add_a_little(folder / "other.safetensors")
    expected = load_file(folder / "other.safetensors")
    change(folder, "config.json", transformers_weights="other.safetensors")
    found = load_model(folder, device="cpu").model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    for name in ("weights.bin", "../other.safetensors", "../x.safetensors.index.json", 3, ["a"]):
        change(folder, "config.json", transformers_weights=name)
        refused(folder, r"is not a .safetensors file|is outside the folder")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_changes_between_hashing_and_loading_is_noticed(folder, name, monkeypatch):
    hashed = Repository.identity

    def hash_and_write(self):
        found = hashed(self)
        content = (folder / name).read_bytes()
        os.utime(folder / name)
        (folder / name).write_bytes(content)
        return found

    monkeypatch.setattr(Repository, "identity", hash_and_write)
    refused(folder, f"{name} changed while the model was loaded")


def test_who_writes_into_the_file_later_changes_no_weight(folder):
    model = load_model(folder, device="cpu").model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = (folder / "model.safetensors").stat().st_size
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * size)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_does_not_choose_the_code_that_computes(tmp_path, key):
    tiny("gpt_oss").save_pretrained(tmp_path)
    change(tmp_path, "config.json", **{key: "someone/kernel"})
    found = load_model(tmp_path, device="cpu", need_tokenizer=False).model
    assert "/" not in found.config._attn_implementation
    assert "/" not in found.config._experts_implementation


OWN = """
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


def test_trusted_code_is_run_and_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    tiny("bert").save_pretrained(tmp_path)
    (tmp_path / "own_model.py").write_text(OWN)
    code = {"AutoConfig": "own_model.OwnConfig", "AutoModel": "own_model.OwnModel"}
    change(tmp_path, "config.json", model_type="own", architectures=["OwnModel"], auto_map=code)
    options = {"device": "cpu", "need_tokenizer": False}
    refused(tmp_path, "--trust-remote-code", need_tokenizer=False)
    before = load_model(tmp_path, trust_remote_code=True, **options)
    assert type(before.model).__name__ == "OwnModel"
    (tmp_path / "own_model.py").write_text(OWN + "# more")
    assert load_model(tmp_path, trust_remote_code=True, **options).identity != before.identity


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("name", ["AutoModelForCausalLM", 3])
def test_what_is_no_tokenizer_is_not_loaded_as_one(folder, file, name):
    torch.save({"weight": Payload()}, folder / "pytorch_model.bin")
    change(folder, file, tokenizer_class=name)
    refused(folder, f"{file} of .* has tokenizer_class .* is not a tokenizer")


_DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
DOUBLING = {"type": "Sequence", "normalizers": [_DOUBLED] * 33}  # one letter would fill all memory


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("adapter_config.json", {"base_model_name_or_path": "a/b"}, r"a model and an adapter \(adapter_config.json\)"),
        ("config.json", {"configuration_files": ["config.4.0.0.json"]}, "refers to other files"),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["../tokenizer.4.0.0.json"]}, "refers to other files"),
        ("tokenizer_config.json", {"gguf_file": "../model.gguf"}, "refers to other files"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length"),
        ("tokenizer_config.json", {"model_max_length": 0}, "model_max_length"),
        ("tokenizer_config.json", {"model_max_length": float("nan")}, "model_max_length"),
        ("tokenizer.json", {"normalizer": DOUBLING}, "until a text is 9e.09 times as long; expected at most 1000"),
    ],
)
def test_settings_that_send_elsewhere_or_have_no_length_are_rejected(folder, file, settings, message):
    shutil.copy(folder / "tokenizer.json", folder.parent / "tokenizer.4.0.0.json")
    change(folder, file, **settings)
    refused(folder, message)


def test_a_tokenizers_own_code_needs_a_flag(folder):
    change(folder, "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": [None, "own.Own"]})
    (folder / "own.py").write_text("import os; os.mkdir('opened')")
    (folder / "config.json").write_text(json.dumps({"model_type": "own"}))
    refused(MODEL, "--trust-remote-code", tokenizer=folder)


def test_layers_beyond_those_of_the_config_are_not_left_out(tmp_path):
    for family, key in (("bert", "num_hidden_layers"), ("gpt2", "n_layer"), ("bart", "decoder_layers")):
        tiny(family).save_pretrained(tmp_path / family)
        for count in (0, 1):
            change(tmp_path / family, "config.json", **{key: count})
            refused(tmp_path / family, "describes a smaller", need_tokenizer=False)


LOADED = (
    "albert",
    "bart",
    "gpt2",
    "gpt_oss",
    "llama",
    "roberta",
    "t5",
    "vit",
    "whisper",
)  # tied, shared, of experts ...


@pytest.mark.parametrize("family", LOADED)
def test_every_kind_of_family_is_loaded_as_transformers_loads_it(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    expected = type(model).from_pretrained(tmp_path)
    found = load_model(tmp_path, device="cpu", need_tokenizer=False).model
    assert type(found) is type(expected)
    assert found.config.to_dict() == expected.config.to_dict()
    assert not found.training
    if found.can_generate():
        assert found.generation_config.to_dict() == expected.generation_config.to_dict()
    given, _ = inputs(family, padded=False)
    with torch.no_grad():
        ours, theirs = found(**given), expected(**given)
    assert torch.equal(ours[0], theirs[0])


Q = "model.layers.1.self_attn.q_proj"


def with_tensors(folder, family, others):
    """The folder of a tiny model, some of whose tensors are others; a function makes one from those that it has."""
    tiny(family).save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    others = {name: one(tensors) if callable(one) else one for name, one in others.items()}
    save_file(tensors | others, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({f"{Q}.bias": torch.ones(32)}, rf"contains {Q}\.bias, which LlamaForCausalLM does not read"),
        ({"model.layers.1.self_attn.q_norm.weight": torch.ones(8)}, r"contains model\.layers\.1\.self_attn\.q_norm"),
        ({"model.layers.1.self_attn.sinks": torch.ones(4)}, r"contains model\.layers\.1\.self_attn\.sinks"),
        ({f"{Q}.weight": lambda of: of[f"{Q}.weight"].mul(100).round().to(torch.int8)}, r"whole numbers \(I8\), and"),
        (
            {
                f"{Q}.weight": lambda of: of[f"{Q}.weight"].to(torch.float8_e4m3fn),
                f"{Q}.weight_scale_inv": torch.ones(1, 1),
            },
            rf"contains {Q}\.weight_scale_inv",
        ),
    ],
)
def test_weights_that_the_config_does_not_use_are_rejected(tmp_path, others, says):
    with pytest.raises(AttnscopeError, match=says):
        load_model(with_tensors(tmp_path, "llama", others), device="cpu", need_tokenizer=False)


@pytest.mark.parametrize(
    ("family", "others"),
    [
        ("llama", {f"{Q}.bias": torch.zeros(32)}),
        ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
        ("llama", {"score.weight": torch.ones(2, 32)}),  # the head of another task
        ("gpt2", {"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64, dtype=torch.uint8)}),
        ("gpt2", {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}),
        ("gpt2", {"lm_head.weight": lambda of: of["transformer.wte.weight"].clone()}),  # tied
        ("bert", {"bert.embeddings.position_ids": torch.arange(64)[None]}),
        ("bert", {"bert.pooler.dense.weight": torch.ones(32, 32), "cls.seq_relationship.weight": torch.ones(2, 32)}),
    ],
)
def test_tensors_that_are_no_weights_of_the_model_do_not_matter(tmp_path, family, others):
    found = load_model(with_tensors(tmp_path, family, others), device="cpu", need_tokenizer=False).model
    assert all(torch.equal(own, tiny(family).state_dict()[name]) for name, own in found.state_dict().items())


def test_a_config_of_older_ways_says_how_to_generate(tmp_path):
    tiny("bart").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change(tmp_path, "config.json", num_beams=3, max_length=17)
    found = load_model(tmp_path, device="cpu", need_tokenizer=False).model.generation_config
    assert (found.num_beams, found.max_length) == (3, 17)
