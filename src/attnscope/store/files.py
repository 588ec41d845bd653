"""Files that are either complete or absent after a crash or a power cut."""

import errno
import json
import logging
import os
import re
import stat
import tempfile
import traceback
import zlib
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

from safetensors import SafetensorError

from attnscope.read.urls import Url, is_url, reject_path_of_url
from attnscope.support.errors import AttnscopeError

_LACKING = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_DENIED = (errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR)  # folders cannot be synced there
_noted: list[Path] = []  # reported once
_log = logging.getLogger("attnscope")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():  # Windows opens no folder
        return
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        pass_over(error, path)


def pass_over(error: OSError, path: Path, *also: int) -> None:
    """Continue where the file system does not support this at all, as exFAT and SMB."""
    if error.errno not in (*_LACKING, *also) and not (error.errno in _DENIED and path.is_dir()):
        raise error
    _note_once(path, error)


def _note_once(path: Path, error: OSError) -> None:
    if not _noted:
        _noted.append(path)
        _log.warning(
            "the file system of %s cannot fully protect results from a power cut (%s): attnscope continues",
            path,
            (error.strerror or str(error)).lower(),
        )


def set_mode(path: Path, mode: int) -> None:
    """Set a file's permissions, where its file system has any."""
    try:
        path.chmod(mode)
    except PermissionError as error:  # SMB and exFAT: a new file has other permissions than requested
        _note_once(path, error)
    except OSError as error:
        pass_over(error, path)


def new_file(folder: Path, content: bytes = b"") -> Path:
    """Create a file in that folder under an unused name; it is on the disk when this returns."""
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


_UMASK = os.umask(0)  # read once, because reading changes it for a moment
os.umask(_UMASK)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named."""
    real = Path(os.path.realpath(path))
    try:
        before = real.stat()
    except FileNotFoundError:
        before = None
    if before is None or (stat.S_ISREG(before.st_mode) and before.st_nlink == 1):
        new = new_file(real.parent, _bytes(content))
        try:
            if before is not None:
                with suppress(PermissionError):  # only root may give a file away
                    os.chown(new, before.st_uid, before.st_gid)
                set_mode(new, stat.S_IMODE(before.st_mode))
            new.replace(real)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync(real.parent)
    else:
        real.write_bytes(_bytes(content))


def file_state(path: Path) -> tuple[int, ...]:
    """A mark that changes when a file is written or replaced."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def json_bytes(content: Any) -> bytes:
    """JSON, readable and in a fixed order, UTF-8."""
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _bytes(content: str | bytes) -> bytes:
    """UTF-8; half of a surrogate pair, which it cannot encode, is written as its escape."""
    return content if isinstance(content, bytes) else content.encode(errors="backslashreplace")


@contextmanager
def explained(action: str, safe: str) -> Generator[None]:
    """Turn an error of the file system into one that also names the results that are safe."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by an exception of its own
        number, name = getattr(error, "errno", None), getattr(error, "filename", None)
        reason = os.strerror(number).lower() if number else str(error)
        where = f" ({name})" if name else ""
        raise AttnscopeError(f"cannot {action}: {reason}{where}. {safe}") from error


#: Errors from reading files that another version wrote or that were forged.
_UNREADABLE = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RecursionError,
    BadZipFile,
    zlib.error,
)


@contextmanager
def read_as(where: Path | str) -> Generator[None]:
    """Turn any failure to read a folder of another version into one clear error."""
    try:
        yield
    except _UNREADABLE as error:
        said = " ".join(str(error).split())[:120]
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise AttnscopeError(
            f"{where} is not as this version of attnscope writes it ({type(error).__name__}: {said}; "
            f"{Path(last.filename).name}, line {last.lineno}): open it with the version that did, or give its command "
            "again with another folder (--out)"
        ) from error


try:
    import fcntl
except ImportError:  # Windows: two commands in one folder are not detected there
    fcntl = None


class InUseError(AttnscopeError):
    """Another process is writing to a folder."""


def _flock(handle: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pass_over(error, path, errno.ENOLCK)


def locked(path: Path) -> IO[bytes] | None:
    """The file at that path, locked; None if its previous owner has just removed it."""
    with ExitStack() as stack:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        file = stack.enter_context(os.fdopen(handle, "r+b"))
        try:
            _flock(handle, path)
        except BlockingIOError as error:
            raise InUseError(
                f"another command is writing to {path.parent.parent}: wait for it, or choose another folder with --out"
            ) from error
        if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
            stack.pop_all()
            return file
    return None


SUFFIX = ".npz"
RUN = "run.json"
MANIFEST = "manifest.json"
WORKPLACE = ".attnscope"  # lock and unfinished files
PAGE = "report.html"
VIEWS = (PAGE, "figures/")
PIECES = "pieces/"
TASKS = ".tasks"  # end of the name of the folder in which tasks keep their parts, beside the run


def piece_name(texts: range) -> str:
    """The file of the results of some texts."""
    return f"{PIECES}{texts.start:09d}-{texts.stop - 1:09d}{SUFFIX}"


def are_in(pieces: Iterable[range], texts: range) -> bool:
    """Whether all of some texts are in one of the pieces."""
    return any(piece.start <= texts.start and texts.stop <= piece.stop for piece in pieces)


def texts_of(name: str) -> range:
    """The texts of a piece, from its file's name."""
    numbers = re.fullmatch(rf"{PIECES}([0-9]{{9,12}})-([0-9]{{9,12}}){re.escape(SUFFIX)}", name)
    if numbers is None or int(numbers[1]) > int(numbers[2]):
        raise AttnscopeError(
            f"found results in {name}; expected a name such as {piece_name(range(16))}: another version of attnscope "
            "wrote them, so repeat the command with a new folder"
        )
    return range(int(numbers[1]), int(numbers[2]) + 1)


def local_folder(given: str | Path) -> Path:
    """The folder of a run, as a user named it."""
    if is_url(given):
        raise AttnscopeError(
            f"{Url(str(given))} is a URL; expected a local folder: runs are stored on local disks only"
        )
    if not str(given) or "\0" in str(given):
        raise AttnscopeError(f"the folder of a run is {str(given)[:80]!r}; expected the name of a folder")
    reject_path_of_url(Path(given))
    return Path(given)
