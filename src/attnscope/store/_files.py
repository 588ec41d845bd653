"""Files that are either whole or not there, after a crash and after a power cut."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator

_LACKING = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_DENIED = (errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)  # of a folder: no such thing as syncing it
_noted: list[Path] = []  # it is said once
_log = logging.getLogger("attnscope")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sync(Path(folder))
    """
    if os.name != "posix" and path.is_dir():  # Windows opens no folder
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        pass_over(error, path)
        return
    try:
        os.fsync(handle)
    except OSError as error:
        pass_over(error, path)
    finally:
        os.close(handle)


def pass_over(error: OSError, path: Path, *also: int) -> None:
    """Go on where a file system cannot do this at all, as exFAT and SMB."""
    if error.errno not in (*_LACKING, *also) and not (error.errno in _DENIED and path.is_dir()):
        raise error
    _note_once(path, error)


def _note_once(path: Path, error: OSError) -> None:
    if not _noted:
        _noted.append(path)
        _log.warning(
            "the file system of %s lacks a part of what keeps results safe in a power cut (%s): attnscope continues",
            path,
            (error.strerror or str(error)).lower(),
        )


def set_mode(path: Path, mode: int) -> None:
    """Give a file its permissions, where its file system has any.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     set_mode(Path(folder), 0o700)
    """
    try:
        path.chmod(mode)
    except PermissionError as error:  # SMB and exFAT: a new file of ours has other permissions than asked for
        _note_once(path, error)
    except OSError as error:
        pass_over(error, path)


def new_file(folder: Path, content: bytes = b"") -> Path:
    """A new file in that folder, under a name that nothing else has, on the disk when this returns.

    It has the permissions of any new file of this user.
    """
    handle, name = tempfile.mkstemp(prefix=".attnscope-", dir=folder)
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        set_mode(path, 0o666 & ~_UMASK)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()  # read once, as reading sets it for a moment


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, also after a power cut.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "note.txt", "whole")
    ...     (Path(folder) / "note.txt").read_text()
    'whole'
    """
    new = new_file(path.parent, _bytes(content))
    try:
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named.

    A regular file is replaced whole and keeps its permissions; a link stays a link, and what it leads to is written.
    What is no regular file (a device, a pipe) is written to as it is.

    Parameters
    ----------
    path
        File, link, device or pipe.
    content
        All that is written; text as UTF-8.

    Raises
    ------
    OSError
        If the file system refuses: see `explained`. A regular file then is as it was.

    Examples
    --------
    >>> write_output(Path("/dev/null"), "nothing is replaced")
    >>> stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    True
    """
    real = Path(os.path.realpath(path))
    try:
        known = real.stat()
    except FileNotFoundError:
        write_atomically(real, content)
        return
    if not stat.S_ISREG(known.st_mode) or known.st_nlink > 1:
        with real.open("wb") as file:
            file.write(_bytes(content))
        return
    new = new_file(real.parent, _bytes(content))
    try:
        with suppress(PermissionError):  # only root may give a file away
            os.chown(new, known.st_uid, known.st_gid)
        set_mode(new, stat.S_IMODE(known.st_mode))
        new.replace(real)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(real.parent)


def file_state(path: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("one")
    ...     before = file_state(path)
    ...     _ = path.write_text("two, longer")
    ...     file_state(path) == before
    False
    """
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def json_bytes(content: Any) -> bytes:
    """JSON, readable and in a fixed order, UTF-8.

    Examples
    --------
    >>> print(json_bytes({"texts": 2, "by": "é"}).decode())
    {
      "by": "é",
      "texts": 2
    }
    <BLANKLINE>
    """
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _bytes(content: str | bytes) -> bytes:
    """UTF-8; a character that it cannot hold (half of a surrogate pair) is written as its escape."""
    return content if isinstance(content, bytes) else content.encode(errors="backslashreplace")


@contextmanager
def explained(action: str, safe: str) -> Generator[None]:
    """Turn what the file system refuses into an error that says what is safe.

    Parameters
    ----------
    action
        Words for what is done, such as ``"write results"``.
    safe
        Sentence that says what is safe all the same, without its full stop.

    Raises
    ------
    AttnscopeError
        In place of an `OSError` or of what safetensors raises: the action, the reason and what is safe.

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


@contextmanager
def read_as(where: Path | str) -> Generator[None]:
    """Say in one line that a folder holds what this version cannot read, however that shows.

    Parameters
    ----------
    where
        The file or folder.

    Raises
    ------
    AttnscopeError
        In place of any exception but those of the file system.

    Examples
    --------
    >>> with read_as("run/scores.npz"):
    ...     {}["scores"]
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: run/scores.npz is not as this version of attnscope writes it ...
    """
    try:
        yield
    except (AttnscopeError, OSError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:120]
        raise AttnscopeError(
            f"{where} is not as this version of attnscope writes it ({type(error).__name__}: {said}): open it with the "
            "version that did, or give its command again with another folder (--out)"
        ) from error
