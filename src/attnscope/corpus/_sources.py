"""Where texts come from: each source gives its texts, and what can be read only once is kept."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attnscope.corpus._columns import chat_column, column, list_columns
from attnscope.corpus._compressed import unpacked
from attnscope.corpus._datasets import PREFIX, dataset_chats, dataset_rows
from attnscope.corpus._messages import CHAT_FIELDS, messages_of
from attnscope.corpus._opening import shown
from attnscope.corpus._picture_parts import has_pictures
from attnscope.corpus._spool import Spool
from attnscope.corpus._text import Text
from attnscope.corpus._unchanged import Unchanged
from attnscope.corpus.files import (
    check_characters,
    decode_utf8,
    json_objects,
    lines_of,
    read_bytes,
    text_field,
    value_field,
)
from attnscope.errors import AttnscopeError
from attnscope.remote import Url


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

    whole: "Source"
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

    whole: "JsonLines | Stream | Column | DatasetRows"
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


def held_apart(source: Source, by: str, name: str) -> Source:
    if isinstance(source, JsonLines):
        apart = JsonLines(source.name, source.file.path, source.field, by)
        apart.text_alone = source.text_alone
        return apart
    raise AttnscopeError(
        f"{name}: texts are held apart by {by!r} (--by), a field of JSON Lines (.jsonl): leave out other files"
    )


def as_asked(
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
