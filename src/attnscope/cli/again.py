"""A command given again: the finished run that answers it, found before PyTorch and the model are loaded.

A finished run notes which questions it answers: a digest of all arguments, of the versions that the signature holds,
and of the content of every file that may be read. From the same question the same signature is made, so that the run is
the one that would be found by loading everything.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.bundled import MODEL
from attnscope.cli.options import BUNDLED
from attnscope.corpus.texts import Corpus
from attnscope.errors import AttnscopeError
from attnscope.store import OwnedFolder, RunFolder, file_state, manifest_of, package_versions

if TYPE_CHECKING:
    from attnscope.cli.place import Place

_GPU = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")  # in /dev, where PyTorch may find one
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a model and texts that lie in files here.

    Attributes
    ----------
    arguments
        All that results depend on, but the files.
    folders
        Of the model, and of the tokenizer where it has its own.
    corpus
        The texts.
    files
        All files of the folders, and their state at the first look.
    prefix
        Beginning of the name of the command's folders, where nothing else is asked for.
    """

    arguments: dict[str, Any]
    folders: tuple[Path, ...]
    corpus: Corpus
    files: dict[Path, tuple[int, ...]]
    prefix: str = ""

    @classmethod
    def of(
        cls,
        model: str,
        texts: Sequence[object] | None,
        *,
        tokenizer: str | None,
        device: str | None,
        field: str | None,
        by_line: bool,
        prefix: str = "",
        **arguments: Any,
    ) -> Question | None:
        """Take a command's arguments; None where only loading tells what they stand for.

        So do names on the hub, links, weights in a folder within, texts that can be read once or lie
        elsewhere, and a GPU.
        """
        if not all(isinstance(one, Path) for one in texts or ()):
            return None
        folders = (
            MODEL if model == BUNDLED else Path(model),
            *([] if tokenizer is None else [Path(tokenizer)]),
        )
        arguments |= {"name": folders[0].name, "folders": [str(one.absolute()) for one in folders]}
        arguments |= {"field": field, "by_line": by_line}
        with suppress(AttnscopeError, OSError, ValueError, TypeError, AttributeError):
            if model and _is_processor(device) and all(map(_is_plain, folders)):
                corpus = Corpus.from_sources(texts, field=field, by_line=by_line)
                return None if corpus.streams else cls(arguments, folders, corpus, _states(folders), prefix)
        return None

    def key(self) -> str:
        """What tells most questions apart at once: arguments, versions, names and sizes of files."""
        sizes = [[str(path.absolute()), path.stat().st_size] for path in self.files]
        return _digest([self.arguments, package_versions(), sizes])

    def digest(self) -> str:
        """What tells all questions apart: the content of everything too."""
        return _digest([self.key(), list(map(_sha256, self.files)), self.corpus.sha256()])

    def is_answered_by(self, state: dict[str, Any]) -> bool:
        """Whether a run of that state is finished, and was an answer to this."""
        asked = state.get("asked", {}).get(self.key()) if state.get("complete") else None
        return asked is not None and asked == self.digest()

    def found(self, place: Place) -> RunFolder | None:
        """The run that answers this, where the command would find it.

        Raises
        ------
        AttnscopeError, OSError
            If something cannot be read.
        """
        usual = Path("attnscope-runs").glob(f"{self.prefix}{escape(self.arguments['name'])}-*")
        for folder in usual if place.asked is None else [place.asked]:
            manifest = manifest_of(folder)
            if manifest is not None and self.is_answered_by(manifest["state"]):
                signature = manifest["state"]["signature"]
                if place(signature) == folder:
                    return RunFolder(folder, signature)
        return None

    def note(self, folder: Path, signature: dict[str, Any]) -> None:
        """Let the finished run of that folder know what it answers, unless something changed since it was asked."""
        with suppress(AttnscopeError, OSError):  # it is only that the next answer takes longer
            known = signature["settings"]["device"], signature["corpus"]["sha256"]
            if known != ("cpu", self.corpus.sha256()):
                return
            asked = {self.key(): self.digest()}
            if _states(self.folders) != self.files:
                return
            with OwnedFolder(folder, signature["command"]) as run:
                before = run.state.get("asked", {})
                if run.state.get("complete") and before | asked != before:
                    run.write({}, asked=before | asked)


def _is_processor(device: str | None) -> bool:
    """Whether a model is put on the processor, as far as can be told without PyTorch."""
    if device is not None:
        return device == "cpu"
    places = Path("/dev")
    return sys.platform in ("linux", "darwin") and not any(any(places.glob(pattern)) for pattern in _GPU)


def _is_plain(folder: Path) -> bool:
    """Whether all that is read of a model lies in that folder itself."""
    named: dict[str, Any] = {}
    for name in ("config.json", _INDEX):
        if (folder / name).is_file():
            named |= json.loads((folder / name).read_bytes())
    shards = named.get("weight_map", {}).values()
    elsewhere = "transformers_weights" in named or any("/" in str(one) or "\\" in str(one) for one in shards)
    return folder.is_dir() and not elsewhere and not any(path.is_symlink() for path in folder.iterdir())


def _states(folders: tuple[Path, ...]) -> dict[Path, tuple[int, ...]]:
    return {path: file_state(path) for folder in folders for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
