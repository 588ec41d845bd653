"""Files that are either whole or not there."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old content or the new, also after a crash.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "note.txt", "whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def as_new_files(path: Path) -> None:
    """Let those read a file who may read a new one: safetensors leaves its files to their owner alone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     as_new_files(Path(file.name))
    """
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, readable and in a fixed order."""
    write_atomically(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextmanager
def explained(action: str, safe: str) -> Generator[None]:
    """Turn what the file system refuses into an error that says what is safe.

    Examples
    --------
    >>> import errno
    >>> with explained("write results", "nothing was lost"):
    ...     raise OSError(errno.ENOSPC, "No space left on device", "/disk/file")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: cannot write results: no space left on device (/disk/file). nothing was lost
    """
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors tells of a full disk by an exception of its own
        number, name = getattr(error, "errno", None), getattr(error, "filename", None)
        reason = os.strerror(number).lower() if number else str(error)
        where = f" ({name})" if name else ""
        raise AttnscopeError(f"cannot {action}: {reason}{where}. {safe}") from error
