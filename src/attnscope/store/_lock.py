"""The lock of a folder: one process writes at a time, and a process that is killed holds nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

from attnscope.errors import AttnscopeError
from attnscope.store._files import pass_over

try:
    import fcntl
except ImportError:  # Windows: two commands in one folder are not told apart there
    fcntl = None


class InUseError(AttnscopeError):
    """Another process is writing to a folder.

    Examples
    --------
    >>> import tempfile
    >>> from attnscope.store import OwnedFolder
    >>> with tempfile.TemporaryDirectory() as place, OwnedFolder(Path(place) / "run", "scan"):
    ...     with OwnedFolder(Path(place) / "run", "scan"):
    ...         pass
    Traceback (most recent call last):
    ...
    attnscope.store._lock.InUseError: another command is writing to ...
    """


def _flock(handle: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pass_over(error, path, errno.ENOLCK)


def locked(path: Path) -> IO[bytes] | None:
    """The file at that path, locked; None where the one who had it before has just removed it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    file = os.fdopen(handle, "r+b")
    try:
        _flock(handle, path)
        if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
            return file
    except BlockingIOError as error:
        file.close()
        raise InUseError(
            f"another command is writing to {path.parent.parent}: wait for it, or choose another folder with --out"
        ) from error
    except BaseException:
        file.close()
        raise
    file.close()
    return None
