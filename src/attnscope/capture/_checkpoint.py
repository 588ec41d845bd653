"""What a model is loaded from: its settings and its files of weights, checked before any is opened."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from attnscope.capture._repository import Repository
from attnscope.capture._settings import check_settings
from attnscope.errors import AttnscopeError, explaining
from attnscope.store import manifest_of

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The files of one model: all that is read of it.

    Attributes
    ----------
    repository
        Where they lie.
    config, generation
        What config.json and generation_config.json hold; None where there is none of the latter.
    weights
        The files of weights, as `transformers` chooses and orders them.
    """

    repository: Repository
    config: dict[str, Any]
    generation: dict[str, Any] | None
    weights: tuple[Path, ...]

    @classmethod
    def of(cls, repository: Repository) -> Checkpoint:
        """Find the files of a model.

        Raises
        ------
        AttnscopeError
            If one is missing or not what it should be, weights are pickled or lie elsewhere, or the model is made of
            more than is read here.

        Examples
        --------
        >>> from attnscope.bundled import MODEL
        >>> [path.name for path in Checkpoint.of(Repository.of(str(MODEL))).weights]
        ['model.safetensors']
        """
        source, config = repository.source, repository.read("config.json")
        if config is None:
            raise AttnscopeError(f"{source} holds no config.json: {_instead(source)}")
        check_settings(config, source)
        if repository.find("adapter_config.json") is not None:
            raise AttnscopeError(
                f"{source} holds an adapter beside the model (adapter_config.json): merge it into the weights, or take "
                "it away"
            )
        return cls(
            repository, config, repository.read("generation_config.json"), _weights(repository, config)
        )

    @contextmanager
    def tensors(self) -> Generator[dict[str, Any]]:
        """Every tensor by its name, not yet read.

        Raises
        ------
        AttnscopeError
            If a file is corrupt.
        """
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
