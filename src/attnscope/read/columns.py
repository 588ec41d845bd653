"""Names of texts, strings that are stored on disk, rows of tables, and what the name of a file says."""

import struct
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from attnscope.read.files import COMPRESSED, inner_suffix, shown
from attnscope.read.urls import Url, fetched
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


def table_rows(path: Path | Url, fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a table: those columns, or all where none is named or one is not there."""
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise AttnscopeError(
            f"{shown(path)}: reading {path.suffix} files needs pyarrow, which is not installed: "
            "pip install 'attnscope[data]'"
        ) from error

    def wanted(schema: Any) -> list[str]:
        return [*fields] if fields and {*fields} <= {*schema.names} else schema.names

    file = str(fetched(path) if isinstance(path, Url) else path)
    try:
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(file) as table:
                for batch in table.iter_batches(_ROWS, columns=wanted(table.schema_arrow)):
                    yield from batch.to_pylist()
            return
        with pa.memory_map(file) as source:
            try:
                table = ipc.open_file(source).read_all()  # which maps what it does not need yet
            except pa.ArrowInvalid:  # a stream, as datasets are saved
                source.seek(0)
                table = ipc.open_stream(source).read_all()
            for batch in table.select(wanted(table.schema)).to_batches(_ROWS):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not a {path.suffix} file, or damaged ({reason_of(error)}): make it anew"
        ) from error


_ROWS = 1024
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
