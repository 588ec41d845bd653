"""What every reader of text files shares: bytes to characters, JSON lines, and the errors that say what is wrong."""

import codecs
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError


def file_mode(path: Path) -> int:
    """Mode of a file or folder, checked to exist and to be readable.

    Raises
    ------
    AttnscopeError
        Nothing there, or no permission to read it.

    Examples
    --------
    >>> stat.S_ISDIR(file_mode(Path.cwd()))
    True
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        what = "a link to nothing" if path.is_symlink() else "no such file or folder"
        raise AttnscopeError(
            f"{path}: {what}; expected a text file, or a folder of them: check the path"
        ) from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        raise unreadable(path, "no permission")
    return mode


def read_bytes(path: Path) -> bytes:
    """All bytes of a file.

    Raises
    ------
    AttnscopeError
        The file cannot be read.

    Examples
    --------
    >>> len(read_bytes(Path(__file__))) > 0
    True
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def decode_utf8(data: bytes, name: str, offset: int = 0) -> str:
    r"""Characters of UTF-8 bytes, without a byte order mark; `offset` is where `data` begins in its file.

    Raises
    ------
    AttnscopeError
        Not UTF-8; the message gives the byte and its offset in the file.

    Examples
    --------
    >>> decode_utf8(b"\xef\xbb\xbfThe tide", "a.txt")
    'The tide'
    """
    mark = codecs.BOM_UTF8 if offset == 0 and data.startswith(codecs.BOM_UTF8) else b""
    try:
        return data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        place = offset + len(mark) + error.start
        byte = error.object[error.start]
        utf16 = offset == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if utf16 else "ENCODING"
        raise AttnscopeError(
            f"{name}: found byte 0x{byte:02x} at byte offset {place}; expected text in UTF-8.\n"
            f"Convert it from its own encoding: iconv -f {encoding} -t utf-8 OLD > NEW"
        ) from error


def lines_of(content: str) -> list[str]:
    r"""The lines of a parallel file: only ``\n`` and ``\r\n`` end one, so that line i stays line i.

    Examples
    --------
    >>> lines_of("a b\r\n\r\nc\u2028d\n")
    ['a b', '', 'c\u2028d']
    """
    lines = content.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def json_objects(path: Path, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a JSON Lines file with their line numbers from 1; blank lines are passed over.

    Parameters
    ----------
    path
        The file.
    field
        A field that is wanted, for the error message alone.

    Raises
    ------
    AttnscopeError
        The file cannot be read or is not UTF-8, or a line holds no JSON object.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.jsonl")
    ...     _ = file.write_text('{"text": "One."}')
    ...     list(json_objects(file, "text"))
    [(1, {'text': 'One.'})]
    """
    offset = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                content = decode_utf8(line, f"{path}, line {number}", offset)
                offset += len(line)
                if content.strip():
                    yield number, _json_object(content, field, f"{path}, line {number}")
    except OSError as error:
        raise unreadable(path, error) from error


def _json_object(line: str, field: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AttnscopeError(
            f"{where}: not JSON ({error}); expected one JSON object a line: mend the line or remove it"
        ) from error
    if not isinstance(value, dict):
        raise AttnscopeError(
            f"{where}: found a JSON {_kind(value)}; expected an object with the text in field "
            f"{field!r}: mend the line or remove it"
        )
    return value


def text_field(value: dict[str, Any], field: str, where: str) -> str:
    """The string in one field of a JSON object.

    Raises
    ------
    AttnscopeError
        No such field, no string in it, or a string that is not Unicode text.

    Examples
    --------
    >>> text_field({"text": "One."}, "text", "a.jsonl, line 1")
    'One.'
    """
    if field not in value:
        keys = ", ".join(map(repr, value)) or "none"
        raise AttnscopeError(
            f"{where}: no field {field!r}; the fields found are: {keys}. Name one of them as `field` (--field; of "
            "parallel text --sides)"
        )
    content = value[field]
    if not isinstance(content, str):
        keys = ", ".join(f"{key!r} ({_kind(item)})" for key, item in value.items())
        raise AttnscopeError(
            f"{where}: field {field!r} holds a JSON {_kind(content)}; expected a string.\n"
            f"The fields found are: {keys}. Name one that holds a string as `field` (--field; of parallel "
            "text --sides), or mend the line"
        )
    check_characters(content, where)
    return content


def check_characters(content: str, where: str) -> None:
    """Refuse lone surrogates: they are not characters, and no tokenizer takes them.

    Raises
    ------
    AttnscopeError
        A lone surrogate; the message gives its place.

    Examples
    --------
    >>> check_characters("The tide", "text 1")
    """
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise AttnscopeError(
            f"{where}: found a lone surrogate U+{ord(content[error.start]):04X} at character {error.start}; "
            "expected Unicode text.\nDecode the text with its own encoding, or replace the character"
        ) from error


def unreadable(path: Path, error: Exception | str) -> AttnscopeError:
    """The error for a file that is not there or cannot be read.

    Examples
    --------
    >>> str(unreadable(Path("a.txt"), "no permission"))
    'a.txt: cannot be read (no permission); expected a readable file or folder: check its permissions'
    """
    if isinstance(error, FileNotFoundError):
        return AttnscopeError(f"{path}: no such file or folder: check the path")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return AttnscopeError(
        f"{path}: cannot be read ({reason}); expected a readable file or folder: check its permissions"
    )


def _kind(value: object) -> str:
    """Name a JSON value's type as JSON names it."""
    names: dict[type, str] = {
        dict: "object",
        list: "array",
        str: "string",
        bool: "boolean",
        type(None): "null",
    }
    return names.get(type(value), "number")
