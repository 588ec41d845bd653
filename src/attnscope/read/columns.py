"""What the name of a file says: whether it holds text, and whether a string was meant as one."""

import struct
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from attnscope.read.files import COMPRESSED, inner_suffix, opened, shown
from attnscope.read.messages import without_nothing
from attnscope.read.urls import Url
from attnscope.support.errors import AttnscopeError, reason_of


class Names:
    """Gives each file a name of its own, by which results refer to it and intervals tell documents apart."""

    def __init__(self) -> None:
        self._count = Counter[str]()

    def new(self, name: str) -> str:
        """The name, as it can be shown; with a number where it was there before."""
        name = shown(name)
        self._count[name] += 1
        return name if self._count[name] == 1 else f"{name} ({self._count[name]})"


_IN_MEMORY = 1 << 26  # bytes: more goes to disk
_LENGTH = struct.Struct(">Q")


class Spool:
    """Strings in their order: few are held in memory, many in a file that goes with this object."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 it lives as long as this
        weakref.finalize(self, self._file.close)
        self._end = 0

    def add(self, text: str) -> None:
        """Keep one more."""
        data = text.encode()
        self._file.seek(self._end)
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._end = self._file.tell()

    def __iter__(self) -> Iterator[str]:
        """Yield all of them; several may read at the same time."""
        place = 0
        while place < self._end:
            self._file.seek(place)
            (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
            yield self._file.read(length).decode()
            place += _LENGTH.size + length


TABLES = (".parquet", ".arrow")
_ROWS = 1024


def column(path: Path | Url, field: str) -> Iterator[str]:
    """The strings of one column, row after row; what is null is blank."""
    for value in _values(path, field, lambda schema: _check_field(path, schema, field)):
        yield value or ""


def chat_column(path: Path | Url, field: str) -> Iterator[list[Any]]:
    """The lists of messages in one column, row after row; what is null has none."""
    for value in _values(path, field, lambda schema: _check_lists(path, schema, field)):
        yield without_nothing({field: value or []})[field]


def list_columns(path: Path | Url) -> dict[str, bool]:
    """The names of all columns, and whether each holds lists."""
    schemas: list[Any] = []
    next(_values(path, "", schemas.append), None)
    return {column.name: _is_list(column.type) for schema in schemas for column in schema}


def _values(path: Path | Url, field: str, check: Callable[[Any], None]) -> Iterator[Any]:
    """What one column holds, once its schema was checked; nothing without a column of that name."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise AttnscopeError(
            f"{shown(path)}: reading {path.suffix} files needs pyarrow, which is not installed: "
            "pip install 'attnscope[data]'"
        ) from error
    try:
        for batch in _batches(path, field, check):
            for value in batch.column(field):
                yield value.as_py()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not a {path.suffix} file, or damaged ({reason_of(error)}): make it anew"
        ) from error


def _batches(path: Path | Url, field: str, check: Callable[[Any], None]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import ipc, parquet

    if path.suffix.lower() == ".parquet":
        with _opened(path) as given, parquet.ParquetFile(given) as file:
            check(file.schema_arrow)
            if field in file.schema_arrow.names:
                yield from file.iter_batches(_ROWS, columns=[field])
        return
    with _opened(path) as given, pa.memory_map(str(path)) if given is path else pa.PythonFile(given) as source:
        try:
            file = ipc.open_file(source)
        except pa.ArrowInvalid:  # a stream, as datasets are saved
            source.seek(0)
            stream = ipc.open_stream(source)
            check(stream.schema)
            if field in stream.schema.names:
                yield from stream
            return
        check(file.schema)
        if field in file.schema.names:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


@contextmanager
def _opened(path: Path | Url) -> Generator[Any]:
    """What pyarrow opens by itself, or a file that it reads from."""
    if isinstance(path, Path):
        yield path
        return
    with opened(path) as file:
        if not file.seekable():
            raise AttnscopeError(
                f"{shown(path)}: comes from a server that gives no parts of files, as tables need: fetch it first"
            )
        yield file


def _check_field(path: Path | Url, schema: Any, field: str) -> None:
    import pyarrow.types as kinds

    known = ", ".join(f"{column.name!r} ({column.type})" for column in schema)
    place = schema.get_field_index(field)
    if place < 0:
        raise AttnscopeError(
            f"{shown(path)}: no column {field!r}; the columns found are: {known}. Name one as `field` (--field)"
        )
    kind = schema.field(place).type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise AttnscopeError(
            f"{shown(path)}: column {field!r} holds {kind}; expected strings. The columns found are: {known}"
        )


def _check_lists(path: Path | Url, schema: Any, field: str) -> None:
    known = ", ".join(f"{column.name!r} ({column.type})" for column in schema)
    if field not in schema.names:
        raise AttnscopeError(
            f"{shown(path)}: no column {field!r}; the columns found are: {known}. Name one as `field` (--field)"
        )
    kind = schema.field(field).type
    if not _is_list(kind):
        raise AttnscopeError(
            f"{shown(path)}: column {field!r} holds {kind}; expected lists of messages. The columns found are: {known}"
        )


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds

    return kinds.is_list(kind) or kinds.is_large_list(kind)


_PLAIN = (".txt", ".md", ".jsonl")
SUFFIXES = (*_PLAIN, *TABLES)  # ... or compressed
NAMES_A_FILE = (*SUFFIXES, *COMPRESSED, ".json", ".csv", ".tsv", ".text", ".html")  # a single word that ends so
LONGEST_NAME = 255  # characters; what is longer is no file's name


def holds_text(file: Path | Url) -> bool:
    """Whether a file of a folder is taken as text, by its name."""
    return file.suffix.lower() in SUFFIXES or inner_suffix(file) in _PLAIN


def reject_file_name(content: str, name: str) -> None:
    """A single word that is a file's name was meant as the file: taken as a text, it would give numbers of nothing."""
    if len(content) > LONGEST_NAME or not content or any(character.isspace() for character in content):
        return
    instead = f"strings are texts themselves. For what a file holds, give pathlib.Path({content!r})"
    try:
        exists = Path(content).exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        raise AttnscopeError(f"{name} is {content!r}, the name of a file or folder here, and {instead}")
    if content.lower().endswith(NAMES_A_FILE) or content.startswith(("./", "../", "~/")):
        raise AttnscopeError(
            f"{name} is {content!r}, which looks like a file and does not exist; and {instead}, if it is there"
        )
