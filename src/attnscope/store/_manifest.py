"""The manifest of a folder: size and SHA-256 of each file that is ours, and of the manifest itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.errors import AttnscopeError
from attnscope.store._files import json_bytes
from attnscope.store._mirror import mirror_of
from attnscope.store._names import MANIFEST


class Checksum(NamedTuple):
    """Size and SHA-256 of a file, or of the beginning of one that grows."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Checksum:
        """Read a file, or its first bytes."""
        digest, done = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(1 << 20 if size is None else min(1 << 20, size - done)):
                digest.update(block)
                done += len(block)
        return cls(done, digest.hexdigest())


def manifest_of(folder: Path) -> dict[str, Any] | None:
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
    mirror = mirror_of(folder)
    if mirror is not None:
        mirror.look()
    path = folder / MANIFEST
    return read_manifest(path) if path.is_file() else None


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest, checked; None where it is another program's."""
    try:
        content: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    except OSError as error:
        raise AttnscopeError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    if isinstance(content, dict) and content.pop("sha256", None) == digest_of(content):
        return content
    if b'"attnscope"' in path.read_bytes():
        raise AttnscopeError(
            f"{path} is damaged, so that nothing in {path.parent} can be trusted: bring it back from a copy, or start "
            "anew in another folder"
        )
    return None


def digest_of(content: Any) -> str:
    return hashlib.sha256(json_bytes(content)).hexdigest()
