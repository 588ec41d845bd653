"""A command given again: the finished run that answers it, found before PyTorch and the model are loaded.

A finished run notes which questions it answers: a digest of all arguments, of the versions that the signature holds,
and of the content of every file that may be read. From the same question the same signature is made, so that the run is
the one that would be found by loading everything.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.bundled import MODEL
from attnscope.cli.given_files import GivenFiles
from attnscope.cli.options import BUNDLED
from attnscope.cli.output import working
from attnscope.errors import AttnscopeError
from attnscope.store import OwnedFolder, RunFolder, file_state, manifest_of, package_versions, read_as

if TYPE_CHECKING:
    from attnscope.cli.place import OutputFolder

Answer = TypeVar("Answer")

_GPU = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")  # in /dev, where PyTorch may find one
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class AskedAgain:
    """What is asked of a model and texts, images or sounds that lie in files here.

    Attributes
    ----------
    arguments
        All that results depend on, but the files.
    folders
        Folders of the model, of the tokenizer where it has its own, and of other models that are asked for beside it.
    given
        What is read.
    files
        All files of the folders, and their state at the first look.
    """

    arguments: dict[str, Any]
    folders: tuple[Path, ...]
    given: GivenFiles
    files: dict[Path, tuple[int, ...]]

    @classmethod
    def of(
        cls,
        model: str,
        texts: Sequence[object] | None,
        *,
        command: str,
        tokenizer: str | None,
        device: str | None,
        field: str | None,
        by_line: bool,
        also: Sequence[str] = (),
        **arguments: Any,
    ) -> AskedAgain | None:
        """Take a command's arguments; None where only loading tells what they stand for.

        So do names on the hub, links, weights in a folder within, texts that can be read once or lie
        elsewhere, templates that write the date, and a GPU.
        """
        places = [place for place in texts or () if isinstance(place, Path)]
        if len(places) != len(texts or ()):
            return None
        named = [model, *([] if tokenizer is None else [tokenizer]), *also]
        folders = tuple(MODEL if name == BUNDLED else Path(name) for name in named)
        arguments |= {"name": folders[0].name, "folders": [str(place.absolute()) for place in folders]}
        arguments |= {"field": field, "by_line": by_line, "has_tokenizer": tokenizer is not None}
        arguments |= {"command": command}
        with suppress(AttnscopeError, OSError, ValueError, TypeError, AttributeError):
            if model and _is_processor(device) and all(map(_is_plain, folders)):
                given = GivenFiles.of(places or None, named=field, by_line=by_line)
                if given is None or (given.has_template and any(map(_writes_the_date, folders))):
                    return None
                return cls(arguments, folders, given, _states(folders))
        return None

    def key(self) -> str:
        """What tells most questions apart at once: arguments, versions, names and sizes of files."""
        sizes = [[str(path.absolute()), path.stat().st_size] for path in self.files]
        return _digest([self.arguments, package_versions(*self.given.packages), sizes])

    def digest(self) -> str:
        """What tells all questions apart: the content of everything too."""
        return _digest([self.key(), list(map(_sha256, self.files)), self.given.digests()])

    def is_answered_by(self, state: dict[str, Any]) -> bool:
        """Whether a run of that state is finished, and was an answer to this."""
        asked = state.get("asked", {}).get(self.key()) if state.get("complete") else None
        return asked is not None and asked == _digest([self.digest(), *_made(state)])

    def found(self, place: OutputFolder) -> RunFolder | None:
        """The run that answers this, where the command would find it.

        Raises
        ------
        AttnscopeError, OSError
            If something cannot be read.
        """
        command, name = self.arguments["command"], self.arguments["name"]
        usual = Path("attnscope-runs").glob(f"{f'{command}-' * (command != 'scan')}{escape(name)}-*")
        for folder in usual if place.asked is None else [place.asked]:
            manifest = manifest_of(folder)
            if manifest is not None and self.is_answered_by(manifest.state):
                signature = manifest.state.get("signature", {})
                if place(signature) == folder:
                    return RunFolder(folder, signature)
        return None

    def answer(self, place: OutputFolder, read: Callable[[RunFolder], Answer | None]) -> Answer | None:
        """What is read from the run that answers this; None where the model is needed, if only to say what is wrong."""
        with suppress(AttnscopeError, OSError):
            run = self.found(place)
            if run is None:
                return None
            with run, read_as(run.path):
                made = read(run) if run.complete else None
            if made is not None:
                working()
            return made
        return None

    def note(self, folder: Path, signature: dict[str, Any]) -> None:
        """Let the finished run of that folder know what it answers, unless something changed since it was asked."""
        with suppress(AttnscopeError, OSError):  # it is only that the next answer takes longer
            if signature["settings"]["device"] != "cpu":
                return
            key, digest = self.key(), self.digest()
            if not self.given.were_read_by(signature) or _states(self.folders) != self.files:
                return
            with OwnedFolder(folder, signature["command"]) as run:
                before = run.state.get("asked", {})
                asked = {key: _digest([digest, *_made(run.state)])}
                if run.state.get("complete") and before | asked != before:
                    run.write({}, asked=before | asked)


def _made(state: dict[str, Any]) -> list[Any]:
    """What a later command may have made otherwise in the same run: the analyses of an explanation."""
    return [state[name] for name in ("analyses", "also") if name in state]


def _writes_the_date(folder: Path) -> bool:
    """Whether a chat template there says something else each day."""
    files = [*folder.glob("*.json"), *folder.glob("*.jinja")]
    return any(b"strftime_now" in file.read_bytes() for file in files)


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
    elsewhere = "transformers_weights" in named or any(
        "/" in str(shard) or "\\" in str(shard) for shard in shards
    )
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
