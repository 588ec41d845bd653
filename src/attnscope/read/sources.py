"""Sources of texts: files, streams, strings stored on disk, rows of tables."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import weakref
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NoReturn, cast

from attnscope.read.files import (
    COMPRESSED,
    DOCUMENTS,
    STANDARD_INPUT,
    Unchanged,
    check_characters,
    decode_utf8,
    file_mode,
    files_below,
    inner_suffix,
    is_standard_input,
    json_objects,
    lines_of,
    read_blocks,
    read_bytes,
    reject_documents,
    shown,
    text_field,
    unpacked,
    value_field,
)
from attnscope.read.messages import CHAT_FIELDS, is_chat, messages_of, without_nothing
from attnscope.read.picture_parts import has_pictures
from attnscope.read.urls import Url, fetched
from attnscope.read.urls import files_below as files_below_url
from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError, reason_of


class Names:
    """Unique names for files, which identify documents in results and intervals."""

    def __init__(self) -> None:
        self._count = Counter[str]()

    def new(self, name: str) -> str:
        """The printable name, with a number if it is used already."""
        name = shown(name)
        self._count[name] += 1
        return name if self._count[name] == 1 else f"{name} ({self._count[name]})"


_IN_MEMORY = 1 << 26  # bytes: more are stored on disk


class Spool:
    """Lines in order: few are stored in memory, many in a temporary file of this object."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 it lives as long as this
        weakref.finalize(self, self._file.close)
        self._end = 0

    def add(self, text: str) -> None:
        """Add a line."""
        self._file.seek(self._end)
        self._file.write(text.encode() + b"\n")
        self._end = self._file.tell()

    def __iter__(self) -> Iterator[str]:
        """Yield all lines; several readers may run at the same time."""
        position = 0
        while position < self._end:
            self._file.seek(position)
            line = self._file.readline()
            position += len(line)
            yield line[:-1].decode()


TABLES = (".parquet", ".arrow")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def is_table(path: Path | Url) -> bool:
    """Whether a name is that of a table."""
    return path.suffix.lower() in TABLES or inner_suffix(path) in _DELIMITERS


def table_rows(path: Path | Url, fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a table: the named columns, or all if none is named or one is missing."""
    if inner_suffix(path) in _DELIMITERS:
        yield from _separated_rows(path)
        return
    check_installed(f"{shown(path)}: reading {path.suffix} files", "pyarrow", "data")
    import pyarrow as pa
    from pyarrow import ipc, parquet

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
                table = ipc.open_file(source).read_all()  # memory-mapped
            except pa.ArrowInvalid:  # a stream, the format of saved datasets
                source.seek(0)
                table = ipc.open_stream(source).read_all()
            for batch in table.select(wanted(table.schema)).to_batches(_ROWS):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not a {path.suffix} file, or damaged ({reason_of(error)}): create it again"
        ) from error


def _separated_rows(path: Path | Url) -> list[dict[str, Any]]:
    """The rows of a table of cells with separators, named by its first row."""
    content = decode_utf8(b"".join(unpacked(path, read_blocks(path))), shown(path))
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=_DELIMITERS[inner_suffix(path)], strict=True)
    before = csv.field_size_limit(len(content) + 1)
    try:
        rows: list[dict[Any, Any]] = list(reader)
    except csv.Error as error:
        raise AttnscopeError(
            f"{shown(path)}, after line {reader.line_num}: not a row of cells ({error}): correct or remove it"
        ) from error
    finally:
        csv.field_size_limit(before)
    long = next((number for number, row in enumerate(rows, start=1) if None in row), 0)
    if long:
        raise AttnscopeError(
            f"{shown(path)}, row {long}: has more cells than the {len(reader.fieldnames or ())} names in the first "
            "row: put cells with separators in quotes"
        )
    return rows


_ROWS = 1024
_PLAIN = (".txt", ".md", ".jsonl")
SUFFIXES = (*_PLAIN, *TABLES)  # ... or compressed
NAMES_A_FILE = (*SUFFIXES, *COMPRESSED, *_DELIMITERS, *DOCUMENTS, ".text")  # endings of a single word
LONGEST_NAME = 255  # characters of a file name


def holds_text(file: Path | Url) -> bool:
    """Whether a file of a folder is read as text, by its name."""
    return file.suffix.lower() in SUFFIXES or inner_suffix(file) in _PLAIN


def reject_file_name(content: str, name: str) -> None:
    """Reject a single word that is a file name, which was probably meant as the file."""
    if len(content) > LONGEST_NAME or not content or any(character.isspace() for character in content):
        return
    instead = f"strings are texts. To read a file, give pathlib.Path({content!r})"
    try:
        exists = Path(content).exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        raise AttnscopeError(f"{name} is {content!r}, the name of a file or folder here, but {instead}")
    if content.lower().endswith(NAMES_A_FILE) or content.startswith(("./", "../", "~/")):
        raise AttnscopeError(f"{name} is {content!r}, which looks like a file name but does not exist; {instead}")


class Given:
    """Strings or rows of a table given as objects: stored as they arrive, as iterators run only once."""

    def __init__(self, field: str, by: str | None) -> None:
        self.field, self.by = field, by
        self.is_blank, self.has_rows, self._spool = True, False, Spool()

    def add(self, number: int, item: str | Mapping[str, Any]) -> None:
        if not isinstance(item, str):
            self.has_rows = True
            text = text_field(item, self.field, f"row {number}")
            by = "" if self.by is None else value_field(item, self.by, f"row {number}")
        else:
            text, by = item, ""
            check_characters(text, f"text {number}")
        self.is_blank &= not text.strip()
        self._spool.add(json.dumps([number, text, by]))

    def texts(self) -> Iterator[Text]:
        for number, text, by in map(json.loads, self._spool):
            yield Text(f"text {number}", text, by)


class Records:
    """A file with one text a line or row, in one field: JSON Lines, a table, a Hugging Face data set."""

    text_alone = False  # whether a row that names an image is rejected

    def __init__(self, name: str, path: Path | Url, field: str, by: str | None = None) -> None:
        self.name, self.file, self.field, self.by = name, Unchanged(path), field, by
        self.is_table = is_table(path) or names_a_dataset(path)
        self._spool: Spool | None = None

    def texts(self) -> Iterator[Text]:
        for number, value in self.rows([self.field, *([] if self.by is None else [self.by])]):
            where = f"{shown(self.file.path)}, {'row' if self.is_table else 'line'} {number}"
            if self.text_alone and has_pictures(value):
                raise AttnscopeError(
                    f"{where}: names an image, but texts with images must be local files: copy them, or name the field "
                    "of the text (--field)"
                )
            by = "" if self.by is None else value_field(value, self.by, where)
            is_null = self.is_table and self.field in value and value[self.field] is None
            yield Text(f"{self.name}:{number}", "" if is_null else text_field(value, self.field, where), by)

    def rows(self, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Objects with their numbers; from tables only these fields, if all exist."""
        path = self.file.path
        if names_a_dataset(path):
            yield from enumerate(self._stored(fields), start=1)
        elif self.is_table:
            for _ in self.file.blocks():
                pass  # rejects a file that changed
            yield from enumerate(table_rows(path, fields), start=1)
        else:
            yield from json_objects(path, self.field, unpacked(path, self.file.blocks()))

    def _stored(self, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The rows of a data set, read once at first use."""
        if self._spool is None:
            self._spool = Spool()
            for row in _rows(cast("Path", self.file.path)):
                is_whole = {*fields} <= row.keys()
                self._spool.add(json.dumps({name: row[name] for name in fields} if is_whole else row, default=str))
                if not is_whole:
                    break  # leads to an error
        return map(json.loads, self._spool)


class Plain:
    """A file with one text."""

    def __init__(self, name: str, path: Path | Url) -> None:
        self.name, self.file = name, Unchanged(path)

    def texts(self) -> Iterator[Text]:
        whole = b"".join(unpacked(self.file.path, [self.file.read()]))
        yield Text(self.name, decode_utf8(whole, shown(self.file.path)))


class Stream:
    """A source that can be read only once: standard input, a pipe."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self._content)

    def rows(self, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """As JSON Lines."""
        return json_objects(self.path, fields[0], [self._content.encode()])

    @cached_property
    def _content(self) -> str:
        return decode_utf8(read_bytes(self.path), self.name)


@dataclass(frozen=True)
class Lines:
    """A file or stream with one text a line."""

    whole: Source
    blank: bool = False

    def texts(self) -> Iterator[Text]:
        for text in self.whole.texts():
            for number, line in enumerate(lines_of(text.content) if self.blank else text.content.splitlines(), start=1):
                if self.blank or line.strip():
                    yield Text(f"{text.name}:{number}", line)


@dataclass(frozen=True)
class ChatLines:
    """A file, table or stream with one chat a line or row: each text is the JSON of its messages."""

    whole: Records | Stream
    field: str | None

    def texts(self) -> Iterator[Text]:
        field = self.field
        if field is None and isinstance(self.whole, Records) and self.whole.is_table:
            first = first_row(self.whole.file.path)
            field = next((name for name in CHAT_FIELDS if name in first), None)
        for number, value in self.whole.rows([field or CHAT_FIELDS[0]]):
            name = f"{self.whole.name}:{number}"
            yield Text(name, json.dumps(messages_of(without_nothing(value), name, field), ensure_ascii=False))


Source = Given | Records | Plain | Stream | Lines | ChatLines


def as_requested(
    parts: list[Source], given: Path | Url, *, field: str | None, by: str | None, chats: bool, lines: bool, blank: bool
) -> Iterator[Source]:
    """Files as chats, by line, or with a field that groups texts."""
    for source in parts:
        if chats:
            if not isinstance(source, Records | Stream):
                raise AttnscopeError(
                    f"{shown(given)}: chats must be JSON Lines (.jsonl), tables (.parquet, .arrow) or data sets, one a "
                    "line or row: leave out other files"
                )
            yield ChatLines(source, field)
        elif isinstance(source, Records):
            source.by = by
            yield source
        elif by is not None:
            raise AttnscopeError(
                f"{shown(given)}: grouping by {by!r} (--by) needs JSON Lines (.jsonl), tables or data sets with that "
                "field: leave out other files"
            )
        else:
            yield Lines(source, blank) if lines else source


def open_path(path: Path, field: str, names: Names) -> list[Source]:
    """The sources behind a path."""
    if is_standard_input(path):
        return [Stream("standard input", STANDARD_INPUT)]
    if names_a_dataset(path):
        return [Records(str(path).removeprefix(PREFIX), path, field)]
    mode = file_mode(path)
    if stat.S_ISDIR(mode):
        wanted = (file for file in files_below(path) if holds_text(file))
        files = [file for file in wanted if stat.S_ISREG(file_mode(file))] or _reject_empty(path)
        return [_opened_file(file, names.new(file.relative_to(path).as_posix()), field) for file in files]
    name = names.new(path.name)
    return [_opened_file(path, name, field) if stat.S_ISREG(mode) else Stream(name, path)]


def open_url(url: Url, field: str | None, names: Names) -> list[Source]:
    """The sources behind a URL."""
    files = files_below_url(url)
    start = len(url.inner.strip("/")) + 1
    named = [(url, url.name)]
    if files is not None:
        named = [(file, file.inner.strip("/")[start:]) for file in files if holds_text(file)]
    sources = [_opened_file(file, names.new(name), field or "text") for file, name in named]
    for source in sources:
        if isinstance(source, Records):
            source.text_alone = field is None
    return sources or _reject_empty(url)


def _opened_file(path: Path | Url, name: str, field: str) -> Source:
    reject_documents(path)
    is_record = is_table(path) or inner_suffix(path) == ".jsonl"
    return Records(name, path, field) if is_record else Plain(name, path)


def _reject_empty(folder: Path | Url) -> NoReturn:
    raise AttnscopeError(
        f"{shown(folder)}: found no {', '.join(SUFFIXES)} file in this folder; expected at least one: "
        "name another folder, or the files"
    )


_EXPECTED = "expected a string, a pathlib.Path, or several of them in a list"
_MISSING = frozenset(["nan", "<NA>", "NaT"])  # missing values in tables


def each(given: Any) -> Iterator[str | Path | Url | Mapping[str, Any]]:
    """Strings, paths and rows in order; one string or path counts as a list of one."""
    texts = as_list(given)
    if isinstance(texts, Mapping):
        listed = ", ".join(repr(name) for name in cast("Mapping[Any, Any]", texts)) or "none"
        raise AttnscopeError(
            f"the texts are {kind(cast('object', texts))} with the keys or columns {listed}; {_EXPECTED}: give one of "
            "its columns, such as table['text']"
        )
    many = texts if isinstance(texts, list | Iterator) else [texts]
    for number, item in enumerate(cast("Iterable[Any]", many), start=1):
        yield _text(item, number)


def as_list(given: Any) -> Any:
    """The input, as a list if it has items."""
    if given is None or isinstance(given, str | os.PathLike | Mapping | Url):
        return given
    to_rows = getattr(given, "to_dicts", None) or getattr(given, "to_pylist", None)
    if to_rows is not None:
        given = to_rows()  # a frame of polars, a table or column of Arrow
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # a pandas frame, which iterates over its columns
        given = given.to_dict("records")
    if isinstance(given, bytes | bytearray | memoryview):
        raise AttnscopeError("the texts are bytes; expected strings: use .decode('utf-8')")
    if isinstance(given, set | frozenset):
        raise AttnscopeError("the texts are a set, without an order; expected a list: give list(...)")
    if hasattr(given, "read"):
        raise AttnscopeError("the texts are an open file; expected its path: give pathlib.Path(...)")
    items = given.tolist() if hasattr(given, "tolist") else given  # arrays, tensors, columns of a table
    if isinstance(items, str):
        return items
    try:
        one_by_one: Iterator[Any] = iter(items)
    except TypeError as error:
        raise AttnscopeError(f"the texts are {kind(items)}; {_EXPECTED}") from error
    if hasattr(items, "__len__") and not hasattr(items, "column_names"):  # rows of a data set may not fit into memory
        return list(one_by_one)
    first = list(islice(one_by_one, 1))
    whole = chain(first, one_by_one)
    is_row = bool(first) and isinstance(first[0], Mapping) and not is_chat(first[0]) and "input_ids" not in first[0]
    return whole if is_row or (first and isinstance(first[0], str)) else list(whole)


def kind(value: object) -> str:
    """The name of a value's type."""
    if isinstance(value, int | float):
        return f"the number {value}"
    return "None" if value is None else f"of type {type(value).__name__}"


def _text(item: Any, number: int) -> str | Path | Url | Mapping[str, Any]:
    if isinstance(item, str):
        return str(item)  # also NumPy's strings
    if isinstance(item, Url):
        return item
    if isinstance(item, os.PathLike):
        return Path(cast("os.PathLike[str]", item))
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item)
    if item is None or str(item) in _MISSING:
        advice = "leave it out"
    elif isinstance(item, bytes):
        advice = "use .decode('utf-8')"
    elif isinstance(item, float):
        advice = "token ids are whole numbers"
    else:
        advice = "give the strings in one list"
    raise AttnscopeError(f"item {number} of the texts is {kind(item)}; expected a string or a pathlib.Path: {advice}")


@dataclass(frozen=True)
class Text:
    r"""One text and its name in results."""

    # file name, path inside the given folder, ``FILE.jsonl:LINE``, ``text 1`` for a string, or ``standard input``;
    # with a number if an earlier file has the same name
    name: str
    content: str  # the characters of the text, without a byte order mark, with ``\r\n`` as it is
    by: str = ""  # the value of the field that groups texts, if one is named


PREFIX = "datasets:"
_FORM = "datasets:NAME, datasets:NAME:SPLIT or datasets:NAME:CONFIG:SPLIT"


def names_a_dataset(path: Path | Url) -> bool:
    """Whether a path names a data set of the hub."""
    return str(path).startswith(PREFIX)


def first_row(path: Path | Url) -> dict[str, Any]:
    """The first row of a table or a data set; empty without rows."""
    rows = _rows(path) if isinstance(path, Path) and names_a_dataset(path) else table_rows(path)
    return without_nothing(next(rows, {}))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    name, config, split = _parts(path)
    check_installed(f"{path}: reading Hugging Face data sets", "datasets", "data")
    import datasets

    with _explained(path):
        if split is None:
            splits = datasets.get_dataset_split_names(name, config)
            if len(splits) != 1:
                listed = ", ".join(splits)
                raise AttnscopeError(f"{path}: has the splits {listed}: name one, such as {path}:{splits[-1]}")
            split = splits[0]
        rows: Any = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from rows


def _parts(path: Path) -> tuple[str, str | None, str | None]:
    """Name, configuration and split."""
    name, *more = str(path).removeprefix(PREFIX).split(":")
    if not name or len(more) > 2 or not all(more):  # noqa: PLR2004 configuration and split
        raise AttnscopeError(f"{path}: expected {_FORM}")
    return name, more[0] if len(more) > 1 else None, more[-1] if more else None


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Errors of the package, with the name of the data set."""
    from datasets import logging

    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as error:
        raise AttnscopeError(
            f"{path}: cannot be read ({reason_of(error)}); expected {_FORM}, with the id of a data set on the hub or "
            "its folder"
        ) from error
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
