"""The manifest of a folder: size and SHA-256 of each file that is ours, and of the manifest itself."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from attnscope.errors import AttnscopeError
from attnscope.store._files import json_bytes
from attnscope.store._names import MANIFEST, PIECES, WORKPLACE, texts_of
from attnscope.store._signature import Signature

_ABOUT = "files of this folder that attnscope wrote: size and SHA-256"
_MOST_BYTES = 1 << 28  # of a manifest; a million pieces take about half of it
_LONGEST, _DEEPEST = 1024, 48  # bytes of a name, levels of what the state nests
_LARGEST = 1 << 60  # bytes of a file
_TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # characters that turn the direction of text


class Checksum(NamedTuple):
    """Size and SHA-256 of a file, or of the beginning of one that grows."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Checksum:
        """Read a file, or its first bytes."""
        digest, done = hashlib.sha256(), 0
        with open_regular(path) as file:
            while block := file.read(1 << 20 if size is None else min(1 << 20, size - done)):
                digest.update(block)
                done += len(block)
        return cls(done, digest.hexdigest())


def open_regular(path: Path) -> Any:
    """Open a file to read; a link, a pipe or a device raises `OSError`."""
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")


@dataclass(frozen=True)
class Manifest:
    """What a folder says of itself; nothing else is taken from a ``manifest.json``.

    Attributes
    ----------
    command
        Whose files they are.
    files
        Size and SHA-256 of each, by its path in the folder.
    growing, undefined
        Files that may be longer by now, and files of ours whose content nobody knows.
    state
        What the command noted.

    Raises
    ------
    ValueError
        From `of`, with the reason: it is none that attnscope writes.
    """

    command: str
    files: dict[str, Checksum] = field(default_factory=dict[str, Checksum])
    growing: set[str] = field(default_factory=set[str])
    undefined: set[str] = field(default_factory=set[str])
    state: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Manifest:
        """The record that a file holds, every part of it checked."""
        command, files, state = content.get("command"), content.get("files"), content.get("state")
        if not isinstance(command, str) or re.fullmatch("[a-z][a-z_-]{0,39}", command) is None:
            raise ValueError("command")
        if not isinstance(files, dict) or not isinstance(state, dict) or _is_deep(state):
            raise ValueError("files or state")
        manifest = cls(
            command,
            {check_name(name): _checksum(entry) for name, entry in files.items()},
            _names(content.get("growing")),
            _names(content.get("undefined")),
            state,
        )
        for key, is_right in _STATE.items():
            if key in state and not is_right(state[key]):
                raise ValueError(f"state: {key}")
        if "signature" in state:
            Signature.of(state["signature"])
        for name in files:
            if name.startswith(PIECES):
                texts_of(name)
        return manifest

    def to_bytes(self) -> bytes:
        """As it is written."""
        content = {
            "attnscope": _ABOUT,
            "command": self.command,
            "files": {name: list(checksum) for name, checksum in self.files.items()},
            "growing": sorted(self.growing),
            "undefined": sorted(self.undefined),
            "state": self.state,
        }
        return json_bytes(content | {"sha256": digest_of(content)})


def check_name(name: Any) -> str:
    """A file's path in a folder of ours, as it is: relative, within, and of plain characters.

    Raises
    ------
    ValueError
        It is none.

    Examples
    --------
    >>> check_name("pieces/000000000-000000015.npz")
    'pieces/000000000-000000015.npz'
    >>> check_name("../thesis.tex")
    Traceback (most recent call last):
    ...
    ValueError: the name '../thesis.tex'
    """
    right = (
        isinstance(name, str)
        and 0 < len(name) <= _LONGEST
        and all(part not in {"", ".", "..", WORKPLACE} for part in name.split("/"))
        and name != MANIFEST
        and "\\" not in name
        and not (os.name == "nt" and PureWindowsPath(name).drive)
        and not any(unicodedata.category(c) in {"Cc", "Cs"} or ord(c) in _TURNING for c in name)
    )
    if not right:
        raise ValueError(f"the name {name!r:.60}")
    return name


def manifest_of(folder: Path) -> Manifest | None:
    """Read what a folder of ours says of itself; None where there is no such folder.

    Raises
    ------
    AttnscopeError
        If the manifest is damaged.

    Examples
    --------
    >>> manifest_of(Path("/no/such/folder")) is None
    True
    """
    path = folder / MANIFEST
    return read_manifest(path) if path.is_file() else None


def read_manifest(path: Path) -> Manifest | None:
    """The manifest, checked; None where it is another program's."""
    if path.is_symlink():
        raise AttnscopeError(
            f"{path} is a link, and nothing in a folder of results may be one: put the file itself there, or choose "
            "another folder with --out"
        )
    try:
        with open_regular(path) as file:
            raw: bytes = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise AttnscopeError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    content: Any = None
    whole = False
    try:
        content = json.loads(raw) if len(raw) <= _MOST_BYTES else None
        whole = isinstance(content, dict) and content.pop("sha256", None) == digest_of(content)
    except (ValueError, RecursionError):
        pass
    if not whole:
        if b'"attnscope"' not in raw:
            return None
        raise AttnscopeError(
            f"{path} is damaged, so that nothing in {path.parent} can be trusted: bring it back from a copy, or start "
            "anew in another folder"
        )
    try:
        return Manifest.of(content)
    except (ValueError, AttnscopeError) as error:
        raise AttnscopeError(
            f"{path} is not as this version of attnscope writes it ({str(error)[:160]}): open it with the version that "
            "did, or start anew in another folder"
        ) from error


def digest_of(content: Any) -> str:
    return hashlib.sha256(json_bytes(content)).hexdigest()


def _checksum(entry: Any) -> Checksum:
    size, sha256 = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)  # noqa: PLR2004
    if type(size) is not int or not 0 <= size <= _LARGEST:
        raise ValueError("the size of a file")
    if not isinstance(sha256, str) or re.fullmatch("[0-9a-f]{64}", sha256) is None:
        raise ValueError("the checksum of a file")
    return Checksum(size, sha256)


def _names(given: Any) -> set[str]:
    if not isinstance(given, list):
        raise ValueError("a list of names")  # noqa: TRY004 as all else that is wrong in it
    return {check_name(name) for name in given}


def _is_deep(value: Any) -> bool:
    """Whether lists and mappings are nested deeper than whatever reads them can follow."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_of_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _are_analyses(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _are_strings(value.get("asked"))
        and _are_strings(value.get("names"))
        and isinstance(value.get("skipped"), list)
        and all(_are_strings(pair) and len(pair) == 2 for pair in value["skipped"])  # noqa: PLR2004
    )


def _are_starts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value)) and value == sorted(value)


_STATE: dict[str, Callable[[Any], bool]] = {
    "complete": lambda value: isinstance(value, bool),
    "signature": lambda value: isinstance(value, dict),
    "attributes": lambda value: isinstance(value, dict),
    "texts": _is_count,
    "units": _are_starts,
    "views": lambda value: isinstance(value, str),
    "asked": lambda value: isinstance(value, dict),
    "analyses": _are_analyses,
    "also": lambda value: (
        isinstance(value, list)
        and all(_is_of_strings(one) and {"file", "model", "identity"} <= one.keys() for one in value)
    ),
    "parts": _are_strings,
    "config": lambda value: isinstance(value, dict),
    "metrics": lambda value: (
        isinstance(value, dict) and all(type(one) in (int, float) for one in value.values())
    ),
}
