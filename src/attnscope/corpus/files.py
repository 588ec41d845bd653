"""What every reader of text files shares: bytes to characters, JSON lines, and the errors that say what is wrong."""

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnscope.corpus._opening import opened, shown, unreadable
from attnscope.errors import AttnscopeError
from attnscope.remote import Url

BLOCK = 1 << 20  # bytes that are read at once


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, a pipe or (``-``) standard input.

    Raises
    ------
    AttnscopeError
        It cannot be read, is a device that holds no text, or a pipe to which nobody writes.

    Examples
    --------
    >>> len(read_bytes(Path(__file__))) > 0
    True
    """
    with opened(path) as file:
        return file.read()


def read_blocks(path: Path | Url) -> Iterator[bytes]:
    """The same, about a megabyte at a time."""
    with opened(path) as file:
        while block := file.read(BLOCK):
            yield block


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and its subfolders, sorted; hidden ones and links to folders are left out.

    Raises
    ------
    AttnscopeError
        A folder cannot be read.

    Examples
    --------
    >>> Path(__file__) in files_below(Path(__file__).parent)
    True
    """

    def stop(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files.extend(Path(place, name) for name in names if not name.startswith("."))
    return sorted(files)


def decode_utf8(data: bytes, name: str, offset: int = 0) -> str:
    r"""Characters of UTF-8 bytes, without a byte order mark; `offset` is where `data` begins in its file.

    Raises
    ------
    AttnscopeError
        Not UTF-8, or no text, as it holds the character NUL; the message gives the byte and its offset in the file.

    Examples
    --------
    >>> decode_utf8(b"\xef\xbb\xbfThe tide", "a.txt")
    'The tide'
    """
    mark = codecs.BOM_UTF8 if offset == 0 and data.startswith(codecs.BOM_UTF8) else b""
    try:
        content = data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_utf8(data, name, offset, len(mark) + error.start) from error
    if "\0" in content:
        raise _no_utf8(data, name, offset, data.index(0))
    return content


def _no_utf8(data: bytes, name: str, offset: int, place: int) -> AttnscopeError:
    what = "the character NUL" if data[place] == 0 else f"byte 0x{data[place]:02x}"
    return AttnscopeError(
        f"{name}: found {what} at byte offset {offset + place}; expected text in UTF-8.\n"
        f"Convert it from its own encoding: iconv -f {_encoding(data, offset)} -t utf-8 OLD > NEW"
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
    r"""The lines of a parallel file: only ``\n`` and ``\r\n`` end one, so that line i stays line i.

    Examples
    --------
    >>> lines_of("a b\r\n\r\nc\u2028d\n")
    ['a b', '', 'c\u2028d']
    """
    lines = content.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def json_objects(
    path: Path | Url, field: str, blocks: Iterable[bytes] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Objects of a JSON Lines file with their line numbers from 1; blank lines are passed over.

    Parameters
    ----------
    path
        The file.
    field
        A field that is wanted, for the error message alone.
    blocks
        What the file holds; by default it is read.

    Raises
    ------
    AttnscopeError
        The file cannot be read or is not UTF-8, or a line holds no JSON object.

    Examples
    --------
    >>> list(json_objects(Path("a.jsonl"), "text", [b'{"text": "On', b'e."}\n{}']))
    [(1, {'text': 'One.'}), (2, {})]
    """
    offset = 0
    for number, line in enumerate(_lines(read_blocks(path) if blocks is None else blocks), start=1):
        where = f"{shown(path)}, line {number}"
        content = decode_utf8(line, where, offset)
        offset += len(line)
        if content.strip():
            yield number, _json_object(content, field, where)


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines with their ends, however they lie across blocks."""
    begun: list[bytes] = []
    for block in blocks:
        *whole, rest = block.split(b"\n")
        for line in whole:
            yield b"".join([*begun, line, b"\n"])
            begun.clear()
        begun.append(rest)
    last = b"".join(begun)
    if last:
        yield last


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


def value_field(value: dict[str, Any], field: str, where: str) -> str:
    """The word or number in one field of a JSON object, as a string.

    Raises
    ------
    AttnscopeError
        No such field, or something else in it.

    Examples
    --------
    >>> value_field({"text": "One.", "year": 1901}, "year", "a.jsonl, line 1")
    '1901'
    """
    content = value.get(field)
    if content is None or isinstance(content, (list, dict)) or str(content).strip() == "":
        kind = "no value" if content is None or isinstance(content, str) else f"a JSON {_kind(content)}"
        raise AttnscopeError(
            f"{where}: field {field!r} (--by) holds {kind}; expected a word or a number in each line, by which texts "
            "are held apart"
        )
    said = str(content).lower() if isinstance(content, bool) else str(content)
    check_characters(said, where)
    return said


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
    """Refuse lone surrogates, which no tokenizer takes, and NUL, which is in no text but one that was read wrongly.

    Raises
    ------
    AttnscopeError
        One of them; the message gives its place.

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
    if "\0" in content:
        raise AttnscopeError(
            f"{where}: found the character NUL at character {content.index(chr(0))}; expected text.\nDecode the text "
            "with its own encoding (it may be UTF-16), or remove the character"
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
