"""Opening what a path names: a file, a pipe, a terminal or standard input; nothing that would be read for ever."""

import io
import os
import select
import stat
import sys
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from attnscope.errors import AttnscopeError
from attnscope.remote import Url, refuse_path_of_url
from attnscope.remote import opened as opened_there

STANDARD_INPUT = Path("-")
PATIENCE = 5.0  # seconds for which a pipe may have no writer
_OF_STANDARD_INPUT = frozenset(["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
_HIDDEN = frozenset(["Cc", "Cs", "Zl", "Zp"])  # controls, stray bytes, line ends


def is_standard_input(path: Path) -> bool:
    """Whether a path stands for standard input.

    Examples
    --------
    >>> is_standard_input(Path("-")), is_standard_input(Path("/dev/stdin")), is_standard_input(Path("a.txt"))
    (True, True, False)
    """
    return str(path) in _OF_STANDARD_INPUT


def shown(path: Path | Url | str) -> str:
    r"""Write a path so that it can be printed and hashed, whatever bytes and controls its name holds.

    Examples
    --------
    >>> print(shown(Path("caf\udce9\n.txt")))
    caf\xe9\n.txt
    """
    return "".join(
        _escaped(letter) if unicodedata.category(letter) in _HIDDEN else letter for letter in str(path)
    )


def file_mode(path: Path) -> int:
    """Mode of a file or folder, checked to exist and to be readable.

    Raises
    ------
    AttnscopeError
        Nothing there, no permission to read it, or a device that holds no text.

    Examples
    --------
    >>> stat.S_ISDIR(file_mode(Path.cwd()))
    True
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        refuse_path_of_url(path)
        what = "a link to nothing" if path.is_symlink() else "no such file or folder"
        raise AttnscopeError(
            f"{shown(path)}: {what}; expected a file, or a folder of them: check the path"
        ) from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise unreadable(path, "no permission")
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        with opened(path):  # which refuses most of what else there is
            pass
    return mode


@contextmanager
def opened(path: Path | Url) -> Generator[BinaryIO]:
    """Open a file, a pipe, a terminal, standard input or what a URL names to read bytes.

    Raises
    ------
    AttnscopeError
        It cannot be read, is a device that holds no text, or a pipe to which nobody writes.

    Examples
    --------
    >>> with opened(Path(__file__)) as file:
    ...     len(file.read(3))
    3
    """
    if isinstance(path, Url):
        with opened_there(path) as file:
            yield file
        return
    if is_standard_input(path):
        _check_standard_input()
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 Path.open takes no opener
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        with file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                _refuse_device(file.fileno(), shown(path))
                os.set_blocking(file.fileno(), True)
            yield io.BytesIO(_from_pipe(file, path)) if stat.S_ISFIFO(mode) else file
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception | str) -> AttnscopeError:
    """The error for a file that is not there or cannot be read.

    Examples
    --------
    >>> str(unreadable(Path("a.txt"), "no permission"))
    'a.txt: cannot be read (no permission); expected a readable file or folder: check its permissions'
    """
    if isinstance(error, FileNotFoundError):
        return AttnscopeError(f"{shown(path)}: no such file or folder: check the path")
    if isinstance(error, IsADirectoryError):
        return AttnscopeError(f"{shown(path)}: found a folder; expected a file: name one inside it")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return AttnscopeError(
        f"{shown(path)}: cannot be read ({reason}); expected a readable file or folder: check its permissions"
    )


def _escaped(character: str) -> str:
    code = ord(character)
    stray = 0xDC80 <= code <= 0xDCFF  # noqa: PLR2004 how Python keeps a byte that is no UTF-8
    return f"\\x{code - 0xDC00:02x}" if stray else character.encode("unicode_escape").decode()


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting: opening a pipe to which nobody writes would never end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _from_pipe(file: io.BufferedReader, path: Path) -> bytes:
    """All that is written to a pipe, however long its writer takes."""
    descriptor, first = file.fileno(), b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(1000 * PATIENCE):  # nothing to read, and no writer who has left
        with suppress(BlockingIOError):  # there is a writer, who has written nothing yet
            first = os.read(descriptor, 1)
            if not first:
                raise AttnscopeError(
                    f"{shown(path)}: a pipe to which nobody writes (for {PATIENCE:g} seconds); expected a text: start "
                    "what writes it, or name a file"
                )
    os.set_blocking(descriptor, True)
    return first + file.read()


def _check_standard_input() -> None:
    if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
        raise AttnscopeError("standard input is closed; expected a text on it: pipe one in, or name a file")
    with suppress(OSError, AttributeError):  # what stands in for it may have no descriptor
        _refuse_device(sys.stdin.fileno(), "standard input")


def _refuse_device(descriptor: int, name: str) -> None:
    """Of all devices only a terminal has text, and an end."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        raise AttnscopeError(
            f"{name}: a device, which holds no text; expected a file, a pipe or a terminal: name another"
        )
