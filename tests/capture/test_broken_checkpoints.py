"""A checkpoint that is broken in any way is loaded or refused at once, in one clear line or two."""

import json
import random
import shutil
import struct
import time

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from attnscope import AttnscopeError, scan
from attnscope.capture.load import load_model

SECONDS = 5.0  # that a refusal may take on a busy machine; each takes a few hundredths
WORDS = ["[UNK]", "[PAD]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 8,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny BERT and a tiny Llama with a tokenizer of letters."""
    torch.manual_seed(0)
    letters = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    )
    made = {
        "bert": BertForMaskedLM(BertConfig(**SIZES)),
        "llama": LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=1, eos_token_id=2)),
    }
    home = tmp_path_factory.mktemp("whole")
    for name, model in made.items():
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
    return home


@pytest.fixture
def copy(whole, tmp_path):
    def of(name="bert"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return shutil.copytree(whole / name, tmp_path / name)

    return of


def change(folder, file="config.json", **settings):
    kept = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(kept | settings))


def told(folder, run=load_model):
    """What was said of a folder; nothing if it was loaded."""
    before = time.monotonic()
    try:
        run(folder, device="cpu")
        message = ""
    except AttnscopeError as error:
        message = str(error)
    assert time.monotonic() - before < SECONDS
    assert len(message.splitlines()) <= 2
    assert len(message) < 700 + len(str(folder))
    assert message.isprintable()
    return message


WRONG = [
    ({"architectures": "BertForMaskedLM"}, "expected a list of names"),
    ({"num_attention_heads": 3}, "not a multiple of the number of attention heads"),
    ({"num_hidden_layers": 3}, "lacks bert.encoder.layer.2"),
    ({"num_hidden_layers": 10**6}, "has num_hidden_layers 1000000; expected 0 to 50,000"),
    ({"num_hidden_layers": 50_000}, "describes a model of more than"),
    ({"hidden_size": "wide"}, "Field 'hidden_size' expected int, got str"),
    ({"hidden_size": float("nan")}, "Field 'hidden_size' expected int, got float"),
    ({"vocab_size": 10**12, "hidden_size": 2**40}, "cannot be loaded"),
    ({"vocab_size": 10**30}, "has vocab_size 1000000000000"),
    ({"model_type": "nothing"}, "does not recognize this architecture"),
    ({"model_type": ["bert"]}, "expected a name"),
    ({"model_type": "gpt2"}, "lacks h.0.attn"),
    ({"quantization_config": {"quant_method": "nothing"}}, ""),
    ({"dtype": "load"}, "dtype"),
    ({"id2label": [1]}, "cannot be loaded"),
    ({"to_dict": 3}, "cannot be loaded"),
]


@pytest.mark.parametrize(("settings", "says"), WRONG, ids=[str(settings)[:40] for settings, _ in WRONG])
def test_a_config_of_wrong_values_is_rejected(copy, settings, says):
    folder = copy()
    change(folder, **settings)
    assert says in told(folder)


RAW = {
    "a list": "[]",
    "nothing": "",
    "deep": "[" * 3000 + "]" * 3000,
    "many digits": '{"vocab_size": ' + "1" * 1_000_000 + "}",
    "no UTF-8": "\xff\xfe",
    "cut off": '{"model_type": "be',
}


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_what_is_no_object_of_settings_is_rejected(copy, raw, file):
    folder = copy()
    (folder / file).write_text(RAW[raw], encoding="latin-1")
    assert file in told(folder)


def header_of(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 2**62), struct.pack("<Q", 10**8) + b"{}"])
def test_a_header_longer_than_the_file_is_rejected(copy, content):
    folder = copy()
    (folder / "model.safetensors").write_bytes(content)
    assert "is corrupt" in told(folder)


def test_numbers_of_another_type_than_declared_are_rejected(copy):
    folder = copy()
    whole_numbers = {"bert.embeddings.word_embeddings.weight": torch.ones(3, dtype=torch.int64)}
    save_file(whole_numbers, folder / "model.safetensors")
    assert told(folder)


def test_an_error_within_the_model_names_the_first_window(copy):
    folder = copy()
    change(folder, num_attention_heads=-1)
    message = told(folder, run=lambda *given, **options: scan(*given, ["abcdefgh"], **options))
    assert message.startswith("BertForMaskedLM fails on the first window: ")


VALUES = [
    *(None, True, -1, 0, 1, 7, 10**7, 10**12, 2**63, 10**40, 1.5, -1e300, float("nan"), float("inf")),
    *("", "x", "12", "\x1b[31m\n\n", "../../etc/passwd", "é" * 400, [], [[]], [None], ["x"], [1, 2], {}),
    *({"a": {"b": 1}}, {"content": 3}, {"0": {"content": "x"}}, {"type": "x"}),
]


def places(node, path=()):
    """Every place of a JSON document."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def mutated(document, draw):
    """The same document, spoilt in one place or two."""
    for _ in range(draw.choice([1, 1, 2])):
        *path, last = draw.choice([place for place in places(document) if place])
        node = document
        for key in path:
            node = node[key]
        if draw.random() < 0.2:
            del node[last]
        else:
            node[last] = draw.choice(VALUES)
    return document


def spoil_json(path, draw):
    text = path.read_text()
    if draw.random() < 0.15:
        start = draw.randrange(len(text))
        path.write_text(text[:start] + draw.choice(["", "}", "NaN", "\x00", text[start + 1 :]]))
    else:
        path.write_text(json.dumps(mutated(json.loads(text), draw)))


def spoil_weights(path, draw):
    header, data = header_of(path)
    if draw.random() < 0.3:
        content = bytearray(path.read_bytes())
        for _ in range(draw.choice([1, 8])):
            content[draw.randrange(min(400, len(content)))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice([len(content), len(content) // 2, 9])])
    else:
        write(path, mutated(header, draw), data)


@pytest.mark.parametrize("model", ["bert", "llama"])
@pytest.mark.parametrize(
    ("file", "spoil_it", "count"),
    [
        ("config.json", spoil_json, 12),
        ("tokenizer_config.json", spoil_json, 6),
        ("tokenizer.json", spoil_json, 6),
        ("model.safetensors", spoil_weights, 10),
    ],
)
@pytest.mark.filterwarnings("ignore")  # a library may warn of nonsense before it fails
def test_whatever_is_spoilt_the_model_is_loaded_or_rejected(copy, model, file, spoil_it, count):
    messages = []
    for seed in range(count):
        folder = copy(model)
        spoil_it(folder / file, random.Random(f"{file} {seed}"))
        messages.append(told(folder))
    assert any(messages)
