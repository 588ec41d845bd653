"""Where texts come from: each source gives its texts, and what can be read only once is kept."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn, cast

from attnscope.read.columns import SUFFIXES, TABLES, Names, Spool, chat_column, column, holds_text, list_columns
from attnscope.read.files import (
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
    read_bytes,
    shown,
    text_field,
    unpacked,
    value_field,
)
from attnscope.read.messages import CHAT_FIELDS, messages_of, without_nothing
from attnscope.read.picture_parts import has_pictures
from attnscope.read.urls import Url
from attnscope.read.urls import files_below as files_below_url
from attnscope.support.errors import AttnscopeError, reason_of


@dataclass(frozen=True)
class String:
    name: str
    content: str

    def __post_init__(self) -> None:
        check_characters(self.content, self.name)

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self.content)


class Strings:
    """Strings that can be read only once where they come from, numbered from `first`."""

    def __init__(self, content: str, first: int) -> None:
        self.first, self._spool = first, Spool()
        self.add(content)

    def add(self, content: str) -> None:
        self._spool.add(content)

    def texts(self) -> Iterator[Text]:
        for number, content in enumerate(self._spool, start=self.first):
            yield Text(f"text {number}", content)


class DatasetRows:
    """A data set of Hugging Face: read once, at its first use, and kept."""

    def __init__(self, path: Path, field: str) -> None:
        self.path, self.field = path, field
        self._chats: Spool | None = None

    def texts(self) -> Iterator[Text]:
        return self._named(self._spool)

    def chats(self, field: str | None) -> Iterator[Text]:
        """The messages of each row, as JSON."""
        if self._chats is None:
            self._chats = Spool()
            for messages in dataset_chats(self.path, field):
                self._chats.add(json.dumps(messages, ensure_ascii=False))
        return self._named(self._chats)

    def _named(self, contents: Spool) -> Iterator[Text]:
        name = str(self.path).removeprefix(PREFIX)
        for number, content in enumerate(contents, start=1):
            yield Text(f"{name}:{number}", content)

    @cached_property
    def _spool(self) -> Spool:
        spool = Spool()
        for number, content in enumerate(dataset_rows(self.path, self.field), start=1):
            check_characters(content, f"{self.path}, row {number}")
            spool.add(content)
        return spool


class Plain:
    """A file that is one text."""

    def __init__(self, name: str, path: Path | Url) -> None:
        self.name, self.file = name, Unchanged(path)

    def texts(self) -> Iterator[Text]:
        whole = b"".join(unpacked(self.file.path, [self.file.read()]))
        yield Text(self.name, decode_utf8(whole, shown(self.file.path)))


class Stream:
    """What can be read only once: standard input, a pipe."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self._content)

    def objects(self, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """As JSON Lines."""
        return json_objects(self.path, field, [self._content.encode()])

    @cached_property
    def _content(self) -> str:
        return decode_utf8(read_bytes(self.path), self.name)


class JsonLines:
    """A file with one JSON object a line; with `text_alone` none may name an image."""

    text_alone = False

    def __init__(self, name: str, path: Path | Url, field: str, by: str | None = None) -> None:
        self.name, self.file, self.field, self.by = name, Unchanged(path), field, by

    def texts(self) -> Iterator[Text]:
        for number, value in self.objects(self.field):
            where = f"{shown(self.file.path)}, line {number}"
            if self.text_alone and has_pictures(value):
                raise AttnscopeError(
                    f"{where}: names an image, and texts with images are read from files here alone: copy them, or "
                    "name the field of the text (--field)"
                )
            by = "" if self.by is None else value_field(value, self.by, where)
            yield Text(f"{self.name}:{number}", text_field(value, self.field, where), by)

    def objects(self, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.file.path
        return json_objects(path, field, unpacked(path, self.file.blocks()))


class Column:
    """A file with one text a row."""

    def __init__(self, name: str, path: Path | Url, field: str) -> None:
        self.name, self.file, self.field = name, Unchanged(path), field

    def texts(self) -> Iterator[Text]:
        self._check()
        for number, content in enumerate(column(self.file.path, self.field), start=1):
            name = f"{self.name}:{number}"
            check_characters(content, name)
            yield Text(name, content)

    def objects(self, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """As chats: `field`, or the first of the usual ones that there is."""
        self._check()
        path = self.file.path
        named = field if field not in CHAT_FIELDS else chat_field(path) or field
        for number, messages in enumerate(chat_column(path, named), start=1):
            yield number, {named: messages}

    def _check(self) -> None:
        for _ in self.file.blocks():
            pass  # which refuses a file that is another one than before


@dataclass(frozen=True)
class Lines:
    """A file or stream of which every line is a text."""

    whole: Source
    blank: bool = False

    def texts(self) -> Iterator[Text]:
        for text in self.whole.texts():
            lines = lines_of(text.content) if self.blank else text.content.splitlines()
            for number, line in enumerate(lines, start=1):
                if self.blank or line.strip():
                    yield Text(f"{text.name}:{number}", line)


@dataclass(frozen=True)
class ChatLines:
    """A file, table or stream with one chat a line or row: each text is its messages, as JSON."""

    whole: JsonLines | Stream | Column | DatasetRows
    field: str | None

    def texts(self) -> Iterator[Text]:
        if isinstance(self.whole, DatasetRows):
            yield from self.whole.chats(self.field)
            return
        for number, value in self.whole.objects(self.field or CHAT_FIELDS[0]):
            name = f"{self.whole.name}:{number}"
            yield Text(name, json.dumps(messages_of(value, name, self.field), ensure_ascii=False))


OF_RECORDS = (JsonLines, Column, DatasetRows)  # of which one field is the text
Source = String | Strings | DatasetRows | Plain | Stream | JsonLines | Column | Lines | ChatLines


def grouped_by(source: Source, by: str, name: str) -> Source:
    if isinstance(source, JsonLines):
        apart = JsonLines(source.name, source.file.path, source.field, by)
        apart.text_alone = source.text_alone
        return apart
    raise AttnscopeError(
        f"{name}: texts are held apart by {by!r} (--by), a field of JSON Lines (.jsonl): leave out other files"
    )


def as_requested(
    opened: list[Source], given: Path | Url, field: str | None, *, chats: bool, lines: bool, blank: bool
) -> Iterator[Source]:
    """Files as chats or by line, where that is asked for."""
    for source in opened:
        if chats:
            yield as_chats(source, given, field)
        else:
            yield Lines(source, blank) if lines and not isinstance(source, OF_RECORDS) else source


def chat_field(path: Path | Url) -> str | None:
    """The column of a table that holds chats: none where it holds texts."""
    columns = list_columns(path)
    named = (name for name in CHAT_FIELDS if columns.get(name))
    return None if "text" in columns else next(named, None)


def as_chats(source: Source, path: Path | Url, field: str | None) -> Source:
    if isinstance(source, JsonLines | Stream | Column | DatasetRows):
        return ChatLines(source, field)
    name = shown(Url(path) if isinstance(path, str) else path)
    raise AttnscopeError(
        f"{name}: chats are read from JSON Lines (.jsonl), tables (.parquet, .arrow) and data sets, one a line or row: "
        "leave out other files"
    )


def open_path(path: Path, field: str, names: Names) -> list[Source]:
    """The sources behind a path."""
    if is_standard_input(path):
        return [Stream("standard input", STANDARD_INPUT)]
    if names_a_dataset(path):
        return [DatasetRows(path, field)]
    mode = file_mode(path)
    if stat.S_ISDIR(mode):
        return [_opened_file(file, names.new(file.relative_to(path).as_posix()), field) for file in _text_files(path)]
    name = names.new(path.name)
    if not stat.S_ISREG(mode):
        return [Stream(name, path)]
    return [_opened_file(path, name, field)]


def open_url(url: Url, field: str | None, names: Names) -> list[Source]:
    """The sources behind a URL."""
    files = files_below_url(url)
    start = len(url.inner.strip("/")) + 1
    named = (
        [(url, url.name)]
        if files is None
        else [(file, file.inner.strip("/")[start:]) for file in files if holds_text(file)]
    )
    sources = [_opened_file(file, names.new(name), field or "text") for file, name in named]
    for source in sources:
        if isinstance(source, JsonLines):
            source.text_alone = field is None
    return sources or _reject_empty(url)


def _opened_file(path: Path | Url, name: str, field: str) -> Source:
    if path.suffix.lower() in TABLES:
        return Column(name, path, field)
    return JsonLines(name, path, field) if inner_suffix(path) == ".jsonl" else Plain(name, path)


def _text_files(folder: Path) -> list[Path]:
    """All text files of a folder and its subfolders, sorted by their path."""
    wanted = (file for file in files_below(folder) if holds_text(file))
    files = [file for file in wanted if stat.S_ISREG(file_mode(file))]
    return files or _reject_empty(folder)


def _reject_empty(folder: Path | Url) -> NoReturn:
    raise AttnscopeError(
        f"{shown(folder)}: no {', '.join(SUFFIXES)} file in this folder; expected at least one: "
        "name another folder, or the files themselves"
    )


_EXPECTED = "expected a string, a pathlib.Path, or several of them in a list"
_MISSING = frozenset(["nan", "<NA>", "NaT"])  # how tables write that there is nothing


def each(given: Any) -> Iterator[str | Path | Url]:
    """Strings and paths in their order; one stands for a list of one."""
    texts = as_list(given)
    many = texts if isinstance(texts, list | Iterator) else [texts]
    for number, item in enumerate(cast("Iterable[Any]", many), start=1):
        yield _text(item, number)


def as_list(given: Any) -> Any:
    """What is given, as a list where it has items."""
    if given is None or isinstance(given, str | os.PathLike | Mapping | Url):
        return given
    columns = getattr(given, "column_names", None) or getattr(given, "columns", None)
    if columns is not None:  # a table, whose items are its rows or the names of its columns
        raise AttnscopeError(_no_column(given, columns))
    if isinstance(given, bytes | bytearray | memoryview):
        raise AttnscopeError("the texts are bytes; expected strings: decode them first, with .decode('utf-8')")
    if isinstance(given, set | frozenset):
        raise AttnscopeError("the texts are a set, which has no order; expected a list: give list(...)")
    if hasattr(given, "read"):
        raise AttnscopeError("the texts are an open file; expected its path: give pathlib.Path(...)")
    items = given.tolist() if hasattr(given, "tolist") else given  # arrays, tensors, columns of a table
    if isinstance(items, str):
        return items
    try:
        one_by_one: Iterator[Any] = iter(items)
    except TypeError as error:
        raise AttnscopeError(f"the texts are {kind(items)}; {_EXPECTED}") from error
    if hasattr(items, "__len__"):
        return list(one_by_one)
    first = list(islice(one_by_one, 1))
    whole = chain(first, one_by_one)
    return whole if first and isinstance(first[0], str) else list(whole)


def kind(value: object) -> str:
    """Name what a value is."""
    if isinstance(value, int | float):
        return f"the number {value}"
    return "None" if value is None else f"of type {type(value).__name__}"


def _text(item: Any, number: int) -> str | Path | Url:
    if isinstance(item, str):
        return str(item)  # NumPy's own kind of string too
    if isinstance(item, Url):
        return item
    if isinstance(item, os.PathLike):
        return Path(cast("os.PathLike[str]", item))
    if isinstance(item, Mapping):
        raise AttnscopeError(_no_column(item, cast("Mapping[Any, Any]", item)))
    if item is None or str(item) in _MISSING:
        advice = "leave it out"
    elif isinstance(item, bytes):
        advice = "decode it first, with .decode('utf-8')"
    elif isinstance(item, float):
        advice = "token ids are whole numbers"
    else:
        advice = "give the strings themselves, in one list"
    raise AttnscopeError(f"item {number} of the texts is {kind(item)}; expected a string or a pathlib.Path: {advice}")


def _no_column(table: object, names: Iterable[Any]) -> str:
    listed = ", ".join(repr(name) for name in names) or "none"
    return (
        f"the texts are {kind(table)} with the keys or columns {listed}; {_EXPECTED}: give one of its columns, such as "
        "table['text']"
    )


@dataclass(frozen=True)
class Text:
    r"""One text and the name by which results refer to it."""

    # file name, path inside the given folder, ``FILE.jsonl:LINE``, ``text 1`` for a string, or ``standard input``;
    # with a number where a file before has the same name
    name: str
    content: str  # the characters of the text, unmodified except that a byte order mark is taken off; ``\r\n`` is kept
    by: str = ""  # the value of the field by which texts are held apart, where one is named


PREFIX = "datasets:"
_FORM = "datasets:NAME, datasets:NAME:SPLIT or datasets:NAME:CONFIG:SPLIT"


def names_a_dataset(path: Path) -> bool:
    """Whether a path stands for a data set of the hub."""
    return str(path).startswith(PREFIX)


def dataset_rows(path: Path, field: str) -> Iterator[str]:
    """The strings of one column of a data set, as they stream in; what is null is blank."""
    for number, row in enumerate(_rows(path), start=1):
        if field not in row:
            raise AttnscopeError(
                f"{path}: no column {field!r}; the columns found are: {', '.join(map(repr, row))}. Name one as "
                "`field` (--field)"
            )
        if not isinstance(row[field], str | None):
            raise AttnscopeError(
                f"{path}: column {field!r} holds {type(row[field]).__name__} in row {number}; expected strings: "
                "name another as `field` (--field)"
            )
        yield row[field] or ""


def dataset_chats(path: Path, field: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """The messages of the chats of a data set, as they stream in."""
    for number, row in enumerate(_rows(path), start=1):
        yield messages_of(without_nothing(row), f"{path}, row {number}", field)


def first_row(path: Path) -> dict[str, Any]:
    """The first row of a data set; empty where it has none."""
    return without_nothing(next(_rows(path), {}))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    name, config, split = _parts(path)
    try:
        import datasets
    except ImportError as error:
        raise AttnscopeError(
            f"{path}: reading data sets of Hugging Face needs the package datasets, which is not installed: "
            "pip install 'attnscope[data]'"
        ) from error
    with _explained(path):
        if split is None:
            split = _only_split(path, datasets.get_dataset_split_names(name, config))
        rows: Any = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from rows


def _parts(path: Path) -> tuple[str, str | None, str | None]:
    """Name, configuration and split."""
    name, *more = str(path).removeprefix(PREFIX).split(":")
    if not name or len(more) > 2 or not all(more):  # noqa: PLR2004 configuration and split
        raise AttnscopeError(f"{path}: expected {_FORM}")
    return name, more[0] if len(more) > 1 else None, more[-1] if more else None


def _only_split(path: Path, splits: list[str]) -> str:
    if len(splits) != 1:
        raise AttnscopeError(f"{path}: has the splits {', '.join(splits)}: name one, as in {path}:{splits[-1]}")
    return splits[0]


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Whatever the package raises, as an error that says which data set it is about."""
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
            f"{path}: cannot be read ({reason_of(error)}): expected {_FORM}, with the id of a data set on the hub or "
            "its folder"
        ) from error
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
