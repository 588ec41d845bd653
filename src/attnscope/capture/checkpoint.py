"""What a model is loaded from: its settings and its files of weights, checked before any is opened."""

from __future__ import annotations

import hashlib
import json
import math
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
import transformers
from huggingface_hub import constants
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from attnscope.capture.families import counts_layers, counts_something_listed
from attnscope.store.files import MANIFEST, file_state
from attnscope.store.folder import OwnedFolder, damage, manifest_of
from attnscope.support.errors import AttnscopeError, explaining, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The files of one model: all that is read of it."""

    repository: Repository  # where they lie
    config: dict[str, Any]  # what config.json and generation_config.json hold; None where there is none of the latter
    # what config.json and generation_config.json hold; None where there is none of the latter
    generation: dict[str, Any] | None
    weights: tuple[Path, ...]  # the files of weights, as `transformers` chooses and orders them

    @classmethod
    def of(cls, repository: Repository) -> Checkpoint:
        """Find the files of a model."""
        source, config = repository.source, repository.read("config.json")
        if config is None:
            raise AttnscopeError(f"{source} holds no config.json: {_instead(source)}")
        check_settings(config, source)
        if repository.find("adapter_config.json") is not None:
            raise AttnscopeError(
                f"{source} holds an adapter beside the model (adapter_config.json): merge it into the weights, or take "
                "it away"
            )
        return cls(repository, config, repository.read("generation_config.json"), _weights(repository, config))

    @contextmanager
    def tensors(self) -> Generator[dict[str, Any]]:
        """Every tensor by its name, not yet read."""
        slices: dict[str, Any] = {}
        with ExitStack() as opened:
            for path in self.weights:
                with explaining(f"{path} is corrupt", "Fetch the file again"):
                    # read, not mapped: who writes into the file later changes no number of ours
                    file = opened.enter_context(safe_open(path, framework="pt", backend="pread"))
                    slices |= {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            yield slices


def _instead(source: str) -> str:
    """What a folder without a model may be."""
    made = manifest_of(Path(source))
    if made is None:
        return "is it a model folder?"
    if made.command == "train":
        return "its training has not finished; give the same command again, which goes on there"
    return f"it is a run of attnscope {made.command}; give the model that was read"


def _weights(repository: Repository, config: dict[str, Any]) -> tuple[Path, ...]:
    """The files that `transformers` would take: the one that the config names, else the whole, else the shards."""
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
            f"{repository.source} has pickled weights only ({pickled[0]}), which can run code when they are opened. "
            "Convert them to model.safetensors first"
        )
    raise AttnscopeError(f"{repository.source} holds no weights: expected model.safetensors")


def _named(repository: Repository, name: Any, named_in: str) -> tuple[Path, ...]:
    """One file of weights, or all that an index names."""
    if isinstance(name, str) and name.endswith(".safetensors.index.json"):
        repository.within(name, named_in)
        shards = (repository.read(name) or {}).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise AttnscopeError(
                f"{name} of {repository.source} has no weight_map, by which tensors are found: fetch it again"
            )
        return tuple(_one(repository, shard, name) for shard in sorted(set(map(str, shards.values()))))
    return (_one(repository, name, named_in),)


def _one(repository: Repository, name: Any, named_in: str) -> Path:
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        raise AttnscopeError(
            f"{str(name)[:200]} of {repository.source} (named in {named_in}) is no .safetensors file, and others can "
            "run code when they are opened: convert the weights first"
        )
    return repository.within(name, named_in)


_MOST_COUNTED = 50_000  # layers or labels: of each a config makes a list before the model is built
_LARGEST = 2**63  # whole number that PyTorch takes


def check_settings(config: dict[str, Any], source: str) -> None:
    """Refuse a config with numbers that no model has, without a kind, or that takes part of itself from elsewhere."""
    if "configuration_files" in config:
        raise AttnscopeError(
            f"config.json of {source} names other files to be read in its place (configuration_files): "
            "put the content of the right one into config.json"
        )
    for name, value in every_setting(config):
        expected = _expected(name, value)
        if expected is not None:
            raise AttnscopeError(
                f"config.json of {source} says {name[:100]} {str(value)[:30]}: expected {expected}. "
                "Is it the right config.json?"
            )


def every_setting(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values, however deep."""
    parts: list[Any] = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield from ((str(name), value) for name, value in part.items())
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)


def _expected(name: str, value: Any) -> str | None:
    """What a setting should have been; None where it may be what it is."""
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
    """The config of a model that lies in a folder or on the hub; nothing of the bundled one, which reads text."""
    return {} if source == "bundled" else Repository.of(str(source), revision).read("config.json") or {}


def main_inputs(config: Mapping[str, Any]) -> set[str]:
    """What the classes that a config names read: the names of their first arguments."""
    named = (getattr(transformers, str(name), None) for name in config.get("architectures") or ())
    return {getattr(module, "main_input_name", "") for module in named} - {""}


_TIMES = 4  # what is tied, shared or missing stands once in the files, and more often in the model
_PACKED = 32  # numbers that quantised weights hold in one
_TENSORS, _NUMBERS = 2_000, 1 << 26  # and what a head, a mask or a table of waves may add


@contextmanager
def no_larger_than(tensors: dict[str, Any], config: dict[str, Any]) -> Generator[None]:
    """Stop the building of a model, on the meta device, as soon as it is far larger than its weights."""
    held = sum(math.prod(tensor.get_shape()) for tensor in tensors.values())
    packed = any(name == "quantization_config" and value for name, value in every_setting(config))
    most = _TENSORS + _TIMES * len(tensors), _NUMBERS + _TIMES * (_PACKED if packed else 1) * held
    seen = [0, 0]
    here = threading.get_ident()

    def count(_: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is None or not tensor.is_meta or threading.get_ident() != here:
            return
        seen[0] += 1
        seen[1] += tensor.numel()
        if seen[0] > most[0] or seen[1] > most[1]:
            raise AttnscopeError(
                f"config.json asks for a model of more than {seen[0]:,} tensors and {seen[1]:,} numbers (at {name}); "
                f"the weights hold {len(tensors):,} and {held:,}. Is it the right config.json?"
            )

    with register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count):
        yield


@dataclass(frozen=True, eq=False)
class Repository:
    """A folder, or one commit of a repository on the hub in this machine's cache."""

    source: str  # what the user called it
    folder: Path  # where its files lie
    commit: str | None = None  # commit of the hub; None for a folder
    # the files that were taken from it, and their state just before
    taken: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])

    @classmethod
    def of(cls, source: str, revision: str | None = None) -> Repository:
        """Find a repository; of the hub's, whichever commit the revision is now."""
        if Path(source).is_dir():
            _reject_damaged(Path(source))
            return cls(source, Path(source))
        try:
            file = fetched(source, "config.json", revision) or fetched(source, "tokenizer_config.json", revision)
        except Exception as error:
            raise AttnscopeError(
                f"there is no folder {source}, and the hub gave no model of that name: {reason_of(error)}"
            ) from error
        if file is None:
            why = (
                "it cannot be reached, and nothing of that name was fetched before"
                if out_of_reach()
                else "no config.json"
            )
            raise AttnscopeError(f"there is no folder {source}, and the hub gave no model of that name: {why}")
        return cls(source, file.parent, file.parent.name)

    def find(self, name: str) -> Path | None:
        """The file of that name, fetched from the hub if need be; None where there is none."""
        if self.commit is None:
            file = self.folder / name
            return file if file.is_file() else None
        with explaining(f"{name} of {self.source} cannot be fetched", "Try again"):
            return fetched(self.source, name, self.commit)

    def take(self, name: str) -> Path | None:
        """Find a file whose content decides about the model: part of `sha256`, and not to change from now on."""
        file = self.find(name)
        if file is not None:
            self.taken.setdefault(file, file_state(file))
        return file

    def read(self, name: str) -> dict[str, Any] | None:
        """Take the JSON object in the file of that name; None where there is none."""
        path = self.take(name)
        if path is None:
            return None
        with explaining(f"{path} is not JSON that can be read", "Fetch it again"):
            settings = json.loads(path.read_bytes())
        if not isinstance(settings, dict):
            raise AttnscopeError(f"{path} holds a {type(settings).__name__}: expected a JSON object of settings")
        return settings

    def within(self, name: str, named_in: str = "the folder") -> Path:
        """Take a file that must be there, and lie in the folder in truth."""
        plain = PurePosixPath(name.replace("\\", "/"))
        outside = plain.is_absolute() or ".." in plain.parts
        file = None if outside else self.take(name)
        what = f"{name[:200]} of {self.source} (named in {named_in})"
        if outside or (file is not None and not self._holds(file)):
            raise AttnscopeError(f"{what} lies outside the folder: put the file itself into {self.folder}")
        if file is None:
            raise AttnscopeError(f"{what} is not there: fetch it, or the whole model, again")
        return file

    def _holds(self, path: Path) -> bool:
        """Whether a file lies in the folder in truth; links of a hub's snapshot may lead to its repository's blobs."""
        real, home = path.resolve(), self.folder.resolve()
        repository = home.parent.parent
        in_cache = home.parent.name == "snapshots" and repository.name.startswith("models--")
        return real.is_relative_to(home) or (in_cache and real.is_relative_to(repository / "blobs"))

    def identity(self) -> dict[str, str]:
        """What was taken: the commit on the hub, or the SHA-256 over the names and contents of all files taken."""
        if self.commit is not None:
            return {"revision": self.commit}
        digest = hashlib.sha256()
        named = {path.relative_to(self.folder).as_posix(): path for path in self.taken}
        for name, path in sorted(named.items()):
            with path.open("rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return {"sha256": digest.hexdigest()}

    def refuse_changed(self) -> None:
        """Refuse files that are no longer what was taken."""
        for path, state in self.taken.items():
            if not path.is_file() or file_state(path) != state:
                raise AttnscopeError(
                    f"{path} changed while the model was loaded: wait until it is written, and try again"
                )


@contextmanager
def asking_trust(source: str) -> Generator[None]:
    """Say what to do where transformers refuses to run code that came with a model."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise AttnscopeError(
            f"{source} brings code of its own, which would run on this machine. "
            "If you trust it, say --trust-remote-code"
        ) from error


def _reject_damaged(folder: Path) -> None:
    """Refuse a folder that `attnscope train` made if a file that decides about the model is no longer what it wrote."""
    made = manifest_of(folder)
    if made is None:
        return
    owned = OwnedFolder(folder, made.command).look()
    damaged = owned.damaged(
        name for name in owned.files if "/" not in name and name.endswith((".json", ".safetensors"))
    )
    if damaged:
        raise damage(
            folder / damaged[0],
            f". Give the same attnscope {made.command} again to mend it; if it was changed on purpose, remove "
            f"{MANIFEST} beside it",
        )


def fetched(source: str, name: str, revision: str | None = None) -> Path | None:
    """The file of that name of a repository, in this machine's cache; None where the repository has none."""
    file = cached_file(
        source, name, revision=revision, local_files_only=out_of_reach(), _raise_exceptions_for_missing_entries=False
    )
    return None if file is None else Path(file)


def out_of_reach() -> bool:
    """Whether there is no way to the hub, so that only what the cache has can be read."""
    return constants.HF_HUB_OFFLINE or not has_address(urlsplit(constants.ENDPOINT).hostname or "")


@cache
def has_address(host: str) -> bool:
    """Whether a host's name is known here, or a proxy may know it; asked once."""
    if getproxies().keys() & {"http", "https", "all"}:
        return True
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
