"""Shared parts of all readers of text files: bytes to characters, JSON lines, and their errors."""

import bz2
import codecs
import gzip
import hashlib
import io
import json
import lzma
import os
import select
import stat
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from attnscope.read.urls import Url, fetched, reject_path_of_url
from attnscope.support.errors import AttnscopeError, nearest

BLOCK = 1 << 20  # bytes of a block
SPANS = "spans"  # field of the named spans of a text
FORM_OF_SPANS = 'expected names with first character and one past the last, such as {"subject": [4, 7]}'


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, a pipe or (``-``) standard input."""
    with opened(path) as file:
        return file.read()


def read_blocks(path: Path | Url) -> Iterator[bytes]:
    """All bytes of a file, in blocks of about a megabyte."""
    with opened(path) as file:
        while block := file.read(BLOCK):
            yield block


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and its subfolders, sorted; hidden ones and links to folders are left out."""

    def stop(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    files: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files.extend(Path(parent, name) for name in names if not name.startswith("."))
    return sorted(files)


def skipped_note(folders: Iterable[Path], taken: Iterable[Path]) -> dict[str, str]:
    """A note on the files of folders that were not taken, by their endings; empty if all were."""
    chosen = {*taken}
    others = [file for folder in folders for file in files_below(folder) if file not in chosen]
    endings = Counter(file.suffix.lower() or "no ending" for file in others)
    listed = ", ".join(f"{ending} {count}" for ending, count in endings.most_common(5))
    return {"skipped_files": f"Files of other types in the folder were skipped: {listed}."} if others else {}


def decode_utf8(data: bytes, name: str, offset: int = 0) -> str:
    r"""Characters of UTF-8 bytes, without a byte order mark; `offset` is where `data` begins in its file."""
    mark = codecs.BOM_UTF8 if offset == 0 and data.startswith(codecs.BOM_UTF8) else b""
    try:
        content = data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_utf8(data, name, offset, len(mark) + error.start) from error
    if "\0" in content:
        raise _no_utf8(data, name, offset, data.index(0))
    return content


def _no_utf8(data: bytes, name: str, offset: int, place: int) -> AttnscopeError:
    byte = "the character NUL" if data[place] == 0 else f"byte 0x{data[place]:02x}"
    return AttnscopeError(
        f"{name}: found {byte} at byte offset {offset + place}; expected text in UTF-8.\n"
        f"Convert it to UTF-8: iconv -f {_encoding(data, offset)} -t utf-8 OLD > NEW"
    )


def _encoding(data: bytes, offset: int) -> str:
    """UTF-16 by its mark, or by which half of each pair of bytes is zero; else unknown."""
    if offset == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = (data[(offset + half) % 2 :: 2].count(0) for half in (0, 1))
    if max(even, odd) < 2 or 10 * min(even, odd) > max(even, odd):  # noqa: PLR2004 some stray zeros
        return "ENCODING"
    return "utf-16le" if odd > even else "utf-16be"


def lines_of(content: str) -> list[str]:
    r"""The lines of a parallel file: only ``\n`` and ``\r\n`` end one, so that line i stays line i."""
    lines = content.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def json_objects(
    path: Path | Url, field: str, blocks: Iterable[bytes] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Objects of a JSON Lines file, also compressed, with their line numbers from 1; blank lines are skipped."""
    offset, stream = 0, _Stream(unpacked(path, read_blocks(path)) if blocks is None else blocks)
    for number, line in enumerate(io.BufferedReader(stream, BLOCK), start=1):
        where = f"{shown(path)}, line {number}"
        content = decode_utf8(line, where, offset)
        offset += len(line)
        if content.strip():
            try:
                value = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise AttnscopeError(
                    f"{where}: not JSON ({error}); expected one JSON object a line: correct or remove the line"
                ) from error
            if isinstance(value, list) and value and isinstance(value[0], dict):
                raise AttnscopeError(
                    f'{where}: found a JSON array; expected an object, for a chat {{"messages": [...]}}: correct or '
                    "remove the line"
                )
            if not isinstance(value, dict):
                raise AttnscopeError(
                    f"{where}: found a JSON {_kind(value)}; expected an object with the text in field "
                    f"{field!r}: correct or remove the line"
                )
            yield number, value


def named_spans(value: Any, where: str) -> Mapping[str, Any]:
    """The names of spans, with their characters as they are written."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", value)):
        raise AttnscopeError(f"{where}: the field {SPANS!r} is {value!r:.60}; {FORM_OF_SPANS}")
    return cast("Mapping[str, Any]", value)


def value_field(value: Mapping[str, Any], field: str, where: str) -> str:
    """The word or number in one field of a JSON object, as a string; named spans as JSON."""
    content = value.get(field)
    if field == SPANS:
        return json.dumps(named_spans(content, where))
    if content is None or isinstance(content, (list, dict)) or str(content).strip() == "":
        kind = "no value" if content is None or isinstance(content, str) else f"a JSON {_kind(content)}"
        raise AttnscopeError(f"{where}: field {field!r} has {kind}; expected a word or a number in each line")
    said = str(content).lower() if isinstance(content, bool) else str(content)
    check_characters(said, where)
    return said


def text_field(value: Mapping[str, Any], field: str, where: str, flag: str = "`field` (--field)") -> str:
    """The string in one field of a JSON object."""
    if field not in value:
        keys = ", ".join(map(repr, value)) or "none"
        raise AttnscopeError(f"{where}: no field {field!r}; found the fields {keys}. Choose one as {flag}")
    content = value[field]
    if not isinstance(content, str):
        keys = ", ".join(f"{key!r} ({_kind(item)})" for key, item in value.items())
        raise AttnscopeError(
            f"{where}: field {field!r} has a JSON {_kind(content)}; expected a string.\n"
            f"Found the fields {keys}. Choose one with a string as {flag}, or correct the line"
        )
    check_characters(content, where)
    return content


def check_characters(content: str, where: str) -> None:
    """Reject lone surrogates, which no tokenizer takes, and NUL, a sign of a wrong encoding."""
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise AttnscopeError(
            f"{where}: found a lone surrogate U+{ord(content[error.start]):04X} at character {error.start}; "
            "expected Unicode text.\nDecode the text with its encoding, or replace the character"
        ) from error
    if "\0" in content:
        raise AttnscopeError(
            f"{where}: found the character NUL at character {content.index(chr(0))}; expected text.\nDecode the text "
            "with its encoding (perhaps UTF-16), or remove the character"
        )


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    names: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


STANDARD_INPUT = Path("-")
PATIENCE = 5.0  # seconds to wait for the writer of a pipe
_OF_STANDARD_INPUT = frozenset(["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
_LISTED = 10_000  # names of a folder, at most, among which a near one is looked for
_HIDDEN = frozenset(["Cc", "Cs", "Zl", "Zp"])  # controls, stray bytes, line ends


def is_standard_input(path: Path) -> bool:
    """Whether a path means standard input."""
    return str(path) in _OF_STANDARD_INPUT


def shown(path: Path | Url | str) -> str:
    r"""A path that can be printed and hashed, with any bytes and control characters escaped."""
    return "".join(_escaped(letter) if unicodedata.category(letter) in _HIDDEN else letter for letter in str(path))


def _names_in(folder: Path) -> list[str]:
    try:
        return [path.name for path in islice(folder.iterdir(), _LISTED)]
    except (OSError, ValueError):
        return []


def file_mode(path: Path) -> int:
    """Mode of a file or folder, checked to exist and to be readable."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        reject_path_of_url(path)
        if path.is_symlink():
            raise AttnscopeError(f"{shown(path)}: a broken link: check the path") from error
        near = nearest(path.name, _names_in(path.parent))
        if near or path.suffix or len(path.parts) > 1:
            raise AttnscopeError(f"{shown(path)}: no such file or folder: check the path" + near) from error
        raise AttnscopeError(
            f"{shown(path)}: no such file or folder. A word without a space is read as the name of a file: to pass it "
            "as text, pipe it to -"
        ) from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise unreadable(path, "no permission")
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        with opened(path):  # rejects most other files
            pass
    return mode


@contextmanager
def opened(path: Path | Url) -> Generator[BinaryIO]:
    """Open a file, a pipe, a terminal, standard input or a URL to read bytes."""
    if isinstance(path, Url):
        with fetched(path).open("rb") as file:
            yield file
        return
    if is_standard_input(path):
        if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
            raise AttnscopeError("standard input is closed; expected a text on it: pipe one in, or name a file")
        with suppress(OSError, AttributeError):  # a replacement may have no descriptor
            _reject_device(sys.stdin.fileno(), "standard input")
        yield sys.stdin.buffer
        return
    try:
        # opening a pipe without a writer would block; Path.open takes no opener
        at_once = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once))  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        with file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
                _reject_device(file.fileno(), shown(path))
                os.set_blocking(file.fileno(), True)
            yield io.BytesIO(_from_pipe(file, path)) if stat.S_ISFIFO(mode) else file
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception | str) -> AttnscopeError:
    """The error for a file that is missing or unreadable."""
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


def _from_pipe(file: io.BufferedReader, path: Path) -> bytes:
    """The whole content of a pipe, however long its writer takes."""
    descriptor, first = file.fileno(), b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(1000 * PATIENCE):  # nothing to read, and no closed writer
        with suppress(BlockingIOError):  # an open writer without output yet
            first = os.read(descriptor, 1)
            if not first:
                raise AttnscopeError(
                    f"{shown(path)}: nothing wrote to this pipe for {PATIENCE:g} seconds; expected a text: start its "
                    "writer, or name a file"
                )
    os.set_blocking(descriptor, True)
    return first + file.read()


def _reject_device(descriptor: int, name: str) -> None:
    """Reject devices other than terminals, which have no text or no end."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        raise AttnscopeError(f"{name}: a device without text; expected a file, a pipe or a terminal: name another")


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
COMPRESSED = tuple(_OPENERS)


def inner_suffix(path: Path | Url) -> str:
    """The suffix of a file's content: that before ``.gz``, ``.bz2`` or ``.xz``, in lower case."""
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() if last in COMPRESSED else last


#: Files of other forms, whose bytes are not the text that people read.
DOCUMENTS = (
    *(".html", ".htm", ".xhtml", ".xml", ".json", ".ndjson", ".ipynb", ".pdf", ".epub", ".doc", ".docx", ".odt"),
    *(".rtf", ".ppt", ".pptx", ".xls", ".xlsx", ".ods", ".zip", ".tar", ".zst"),
)


def reject_documents(path: Path | Url) -> None:
    """Reject a file of a form that is not read, by its name."""
    if inner_suffix(path) in DOCUMENTS:
        raise AttnscopeError(
            f"{shown(path)}: {inner_suffix(path)} is not read as text; expected plain text (.txt, .md), JSON Lines "
            "(.jsonl), or a table (.csv, .tsv, .parquet, .arrow): save its text as one of them"
        )


def unpacked(path: Path | Url, blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""The content of a file: its bytes, decompressed by its suffix."""
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        yield from blocks
        return
    try:
        with io.BufferedReader(_Stream(blocks)) as packed, opener(packed) as file:
            while block := file.read1(BLOCK):
                yield block
    except EOFError as error:
        raise AttnscopeError(
            f"{shown(path)}: ends inside the compressed data; expected a whole file: copy it again"
        ) from error
    except (zlib.error, OSError, lzma.LZMAError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not a {path.suffix} file, or damaged ({error}): decompress it, or copy it again"
        ) from error


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest = iter(blocks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest and (block := next(self._blocks, b"")):
            self._rest = block
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class Unchanged:
    """A file that raises an error if its bytes differ from those of the first reading."""

    def __init__(self, path: Path | Url) -> None:
        self.path = path
        self._digests: list[bytes] = []  # of the blocks, and of the end

    def read(self) -> bytes:
        """All bytes."""
        return b"".join(self.blocks(-1))

    def blocks(self, size: int | None = None) -> Iterator[bytes]:
        """Blocks of about a megabyte, or of `size` bytes; -1 for one of all bytes."""
        if isinstance(self.path, Path) and self._digests and not self.path.is_file():
            raise self._changed("is gone")
        with opened(self.path) as file:
            for number in count():
                block = file.read(BLOCK if size is None else size)
                digest = hashlib.sha256(block).digest()
                if number == len(self._digests):
                    self._digests.append(digest)
                elif digest != self._digests[number]:
                    raise self._changed("changed")
                if not block:
                    return
                yield block

    def _changed(self, change: str) -> AttnscopeError:
        return AttnscopeError(
            f"{shown(self.path)}: {change} while it was being read; expected no change during a run. Finished parts "
            "are kept.\nTo measure the new text, repeat the command: it is another run, in another folder (with --out, "
            "name a new one)"
        )
