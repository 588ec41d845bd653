"""The files of a model, .gguf files among them: configs and weights, checked before they are opened."""

from __future__ import annotations

import hashlib
import json
import socket
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
import transformers
from huggingface_hub import constants
from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_gguf_available

from attnscope.bundled import MODELS
from attnscope.capture.borrow import quiet
from attnscope.capture.families import counts_layers, counts_something_listed
from attnscope.capture.placement import no_larger_than
from attnscope.store.files import MANIFEST, file_state
from attnscope.store.folder import OwnedFolder, damage, manifest_of
from attnscope.support.errors import AttnscopeError, explaining, reason_of

GGUF = ".gguf"


def converted(file: Path) -> Path:
    """The folder with the weights of a .gguf file as float32 in safetensors, its config and its tokenizer.

    Quantised weights become the numbers that they stand for. Each content of a file has a folder of its own.
    """
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise AttnscopeError(f"{file} is not a GGUF file: it does not start with GGUF. Download it again")
        opened.seek(0)
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    folder = Path(constants.HF_HOME) / "attnscope" / "gguf" / digest
    if not folder.is_dir():
        if not is_gguf_available():
            raise AttnscopeError(f"{file} is a GGUF file, which needs gguf: pip install 'attnscope[gguf]'")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            _convert(file, Path(temporary) / digest)
            try:
                (Path(temporary) / digest).rename(folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return folder


def _sizes(file: Path) -> list[int]:
    """Sizes of the tensors of a file that describes no more layers than it has tensors."""
    from gguf import GGUFReader

    stored = GGUFReader(file)
    for name, entry in stored.fields.items():
        if not name.endswith(".block_count"):
            continue
        layers = int(entry.contents())
        if not 0 < layers <= len(stored.tensors):
            raise AttnscopeError(f"{file.name} describes {layers:,} layers; it has {len(stored.tensors):,} tensors")
    return [int(tensor.n_elements) for tensor in stored.tensors]


def _convert(file: Path, folder: Path) -> None:
    source = str(file.parent)
    advice = "Is it complete, and of an architecture that transformers reads?"
    with quiet(), explaining(f"{file} cannot be converted", advice), no_larger_than(_sizes(file), file.name):
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=file.name,
            local_files_only=True,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        model, report = loaded
        if report["missing_keys"]:
            raise AttnscopeError(f"{file} lacks {min(report['missing_keys'])}. Is the file complete?")
        model.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=file.name, local_files_only=True)
        tokenizer.save_pretrained(folder)


_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The files of one model."""

    repository: Repository
    config: dict[str, Any]  # content of config.json
    generation: dict[str, Any] | None  # content of generation_config.json, if any
    weights: tuple[Path, ...]  # the files of weights, as `transformers` chooses and orders them

    @classmethod
    def of(cls, repository: Repository, *, shapes: bool = False) -> Checkpoint:
        """Find the files of a model; for its `shapes` alone, none of weights."""
        source, config = repository.source, repository.read("config.json")
        if config is None:
            raise AttnscopeError(f"{source} contains no config.json: {_instead(source)}")
        check_settings(config, source)
        if repository.find("adapter_config.json") is not None:
            raise AttnscopeError(
                f"{source} contains a model and an adapter (adapter_config.json). Merge the adapter into the weights, "
                "or remove it"
            )
        weights = () if shapes else _weights(repository, config)
        return cls(repository, config, repository.read("generation_config.json"), weights)

    @contextmanager
    def tensors(self) -> Generator[dict[str, Any]]:
        """Lazily loaded tensors by name."""
        slices: dict[str, Any] = {}
        with ExitStack() as opened:
            for path in self.weights:
                with explaining(f"{path} is corrupt", "Download the file again"):
                    # read, not memory-mapped, so that later writes to the file have no effect
                    file = opened.enter_context(safe_open(path, framework="pt", backend="pread"))
                    slices |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            yield slices

    @contextmanager
    def packed_by_torchao(self) -> Generator[None]:
        """Let transformers know how torchao packed the tensors: it would read that from the files."""
        packing = self.config.get("quantization_config")
        if not isinstance(packing, dict) or packing.get("quant_method") != "torchao":
            yield
            return
        quantizer: Any = import_module("transformers.quantizers.quantizer_torchao").TorchAoHfQuantizer
        metadata: dict[str, str] = {}
        for path in self.weights:
            with safe_open(path, framework="pt", backend="pread") as file:
                metadata |= file.metadata() or {}
        quantizer.metadata = metadata
        try:
            yield
        finally:
            del quantizer.metadata


def _instead(source: str) -> str:
    """A hint for a folder without a model."""
    manifest = manifest_of(Path(source))
    if manifest is None:
        files = sorted(Path(source).glob(f"*{GGUF}"))
        return (
            f"give the file in it, {files[0]}"
            if files
            else "expected a model folder, with config.json and model.safetensors"
        )
    if manifest.command == "train":
        return "its training has not finished. Repeat the command to resume it"
    return f"it is a run of attnscope {manifest.command}. Choose the model of this run"


def _weights(repository: Repository, config: dict[str, Any]) -> tuple[Path, ...]:
    """The files that `transformers` would load: the one named in the config, else a single file, else shards."""
    named = config.get("transformers_weights")
    if named is not None:
        return _named(repository, named, "config.json")
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME):
        if repository.find(name) is not None:
            return _named(repository, name, "the folder")
    pickled = [path.name for pattern in _PICKLES for path in sorted(repository.folder.glob(pattern))]
    if repository.commit is not None and repository.find("pytorch_model.bin") is not None:
        pickled.append("pytorch_model.bin")
    if pickled:
        raise AttnscopeError(
            f"{repository.source} has only pickled weights ({pickled[0]}), which can run code when they are opened. "
            "Convert them to model.safetensors first"
        )
    raise AttnscopeError(f"{repository.source} contains no weights; expected model.safetensors")


def _named(repository: Repository, name: Any, named_in: str) -> tuple[Path, ...]:
    """One file of weights, or all files of an index."""
    names = [name]
    if isinstance(name, str) and name.endswith(".safetensors.index.json"):
        repository.within(name, named_in)
        shards = (repository.read(name) or {}).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise AttnscopeError(f"{name} of {repository.source} has no weight_map. Download it again")
        names, named_in = sorted(set(map(str, shards.values()))), name
    for file in names:
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise AttnscopeError(
                f"{str(file)[:200]} of {repository.source} (named in {named_in}) is not a .safetensors file; other "
                "formats can run code when they are opened. Convert the weights first"
            )
    return tuple(repository.within(file, named_in) for file in names)


_MOST_COUNTED = 50_000  # layers or labels: a config builds a list of them before the model exists
_LARGEST = 2**63  # whole number that PyTorch takes


def check_settings(config: dict[str, Any], source: str) -> None:
    """Raise an error for a config with impossible numbers, without a model type, or with references to other files."""
    if "configuration_files" in config:
        raise AttnscopeError(
            f"config.json of {source} refers to other files (configuration_files). Put the content of the right one "
            "into config.json"
        )
    for name, value in every_setting(config):
        expected = _expected(name, value)
        if expected is not None:
            raise AttnscopeError(
                f"config.json of {source} has {name[:100]} {str(value)[:30]}; expected {expected}. "
                "Is it the right config.json?"
            )


def every_setting(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values at all levels."""
    parts: list[Any] = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield from ((str(name), value) for name, value in part.items())
            # a stack and not recursion: a config nested a thousand deep would exhaust Python's
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)


def _expected(name: str, value: Any) -> str | None:
    """The expected form of a wrong setting; None if the setting is valid."""
    if name == "model_type" and not isinstance(value, str):
        return "a name"
    if name in {"dtype", "torch_dtype"} and isinstance(value, str):
        return None if isinstance(getattr(torch, value, None), torch.dtype) else "a type such as float32"
    if name == "backbone" and "/" in str(value):
        return "no other repository"
    counted = counts_something_listed(name)
    if isinstance(value, int) or (counted and isinstance(value, float)):
        most = _MOST_COUNTED if counted else _LARGEST
        least = 0 if counts_layers(name) else -most
        return None if least <= value <= most else f"{least:,} to {most:,}"
    return None


def saved_config(source: object, revision: str | None = None) -> dict[str, Any]:
    """The config of a model in a folder or on the hub; empty for the bundled ones, which read text."""
    return {} if source in MODELS else Repository.of(str(source), revision).read("config.json") or {}


def main_inputs(config: Mapping[str, Any]) -> set[str]:
    """Names of the main inputs of the classes in a config."""
    named = (getattr(transformers, str(name), None) for name in config.get("architectures") or ())
    return {getattr(module, "main_input_name", "") for module in named} - {""}


@dataclass(frozen=True, eq=False)
class Repository:
    """A folder, or one commit of a repository on the hub in this machine's cache."""

    source: str  # name from the user
    folder: Path  # folder of its files
    commit: str | None = None  # commit of the hub; None for a folder
    # the files that were read, and their state before
    taken: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])

    @classmethod
    def of(cls, source: str, revision: str | None = None) -> Repository:
        """Find a repository; on the hub, at the current commit of the revision, also of a name such as gpt2@v1."""
        if source.endswith(GGUF) and Path(source).is_file():
            source = str(converted(Path(source)))
        if Path(source).is_dir():
            _reject_damaged(Path(source))
            return cls(source, Path(source))
        name, _, of_name = source.rpartition("@")
        if name and revision is not None:
            raise AttnscopeError(f"found {source} and revision (--revision) {revision}: give one of both revisions")
        if name:
            source, revision = name, of_name
        try:
            file = fetched(source, "config.json", revision) or fetched(source, "tokenizer_config.json", revision)
        except Exception as error:
            raise AttnscopeError(
                f"found no folder {source}, and no model of that name on the hub: {reason_of(error)}"
            ) from error
        if file is None:
            if out_of_reach():
                raise AttnscopeError(
                    f"the model {source} is not a folder here, is not in the cache, and the Hugging Face hub cannot be "
                    "reached: give a folder, or download the model first"
                )
            raise AttnscopeError(f"found no folder {source}, and no model of that name on the hub: no config.json")
        return cls(source, file.parent, file.parent.name)

    def find(self, name: str) -> Path | None:
        """The file of that name, downloaded from the hub if necessary; None if there is none."""
        if self.commit is None:
            file = self.folder / name
            return file if file.is_file() else None
        with explaining(f"{name} of {self.source} cannot be downloaded", "Try again"):
            return fetched(self.source, name, self.commit)

    def take(self, name: str) -> Path | None:
        """Find a file that determines the model: part of `sha256`, and not allowed to change from now on."""
        file = self.find(name)
        if file is not None:
            self.taken.setdefault(file, file_state(file))
        return file

    def read(self, name: str) -> dict[str, Any] | None:
        """Read the JSON object in the file of that name; None if there is no file."""
        path = self.take(name)
        if path is None:
            return None
        with explaining(f"{path} is not valid JSON", "Download it again"):
            settings = json.loads(path.read_bytes())
        if not isinstance(settings, dict):
            raise AttnscopeError(f"{path} contains a {type(settings).__name__}; expected a JSON object of settings")
        return settings

    def within(self, name: str, named_in: str = "the folder") -> Path:
        """Find a file that must exist, inside the folder after links are resolved."""
        plain = PurePosixPath(name.replace("\\", "/"))
        outside = plain.is_absolute() or ".." in plain.parts
        file = None if outside else self.take(name)
        what = f"{name[:200]} of {self.source} (named in {named_in})"
        if file is not None:
            real, home = file.resolve(), self.folder.resolve()
            repository = home.parent.parent  # snapshots of the hub may link to their blobs
            in_cache = home.parent.name == "snapshots" and repository.name.startswith("models--")
            outside = not real.is_relative_to(home) and not (in_cache and real.is_relative_to(repository / "blobs"))
        if outside:
            raise AttnscopeError(f"{what} is outside the folder. Put the file itself into {self.folder}")
        if file is None:
            raise AttnscopeError(f"{what} does not exist. Download it, or the whole model, again")
        return file

    def identity(self) -> dict[str, str]:
        """The commit on the hub, or the SHA-256 over the names and contents of all files that were read."""
        if self.commit is not None:
            return {"revision": self.commit}
        digest = hashlib.sha256()
        for name, path in sorted({path.relative_to(self.folder).as_posix(): path for path in self.taken}.items()):
            digest.update(f"{name} {_sha256_of(path, self.taken[path])}\n".encode())
        return {"sha256": digest.hexdigest()}

    def refuse_changed(self) -> None:
        """Raise an error if a file has changed since it was read."""
        for path, state in self.taken.items():
            if not path.is_file() or file_state(path) != state:
                raise AttnscopeError(
                    f"{path} changed while the model was loaded. Wait until it is written, and try again"
                )


@lru_cache(maxsize=4096)
def _sha256_of(path: Path, state: tuple[int, ...]) -> str:  # noqa: ARG001 in another state it is hashed again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def asking_trust(source: str) -> Generator[None]:
    """Explain what to do if transformers will not run the code of a model."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise AttnscopeError(
            f"{source} contains its own code, which would run on this machine. If you trust it, use --trust-remote-code"
        ) from error


def _reject_damaged(folder: Path) -> None:
    """Raise an error if a file of a model folder of `attnscope train` was changed."""
    manifest = manifest_of(folder)
    if manifest is None:
        return
    owned = OwnedFolder(folder, manifest.command).look()
    damaged = owned.damaged(
        name for name in owned.files if "/" not in name and name.endswith((".json", ".safetensors"))
    )
    if damaged:
        raise damage(
            folder / damaged[0],
            f". Repeat attnscope {manifest.command} to repair it; if you changed it on purpose, remove {MANIFEST} next "
            "to it",
        )


def fetched(source: str, name: str, revision: str | None = None) -> Path | None:
    """The file of that name of a repository, in the local cache; None if the repository has none."""
    file = cached_file(
        source, name, revision=revision, local_files_only=out_of_reach(), _raise_exceptions_for_missing_entries=False
    )
    return None if file is None else Path(file)


def out_of_reach() -> bool:
    """Whether the hub cannot be reached, so that only the cache is available."""
    return constants.HF_HUB_OFFLINE or not has_address(urlsplit(constants.ENDPOINT).hostname or "")


@cache
def has_address(host: str) -> bool:
    """Whether a host name resolves, or a proxy may resolve it; cached."""
    if getproxies().keys() & {"http", "https", "all"}:
        return True
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
