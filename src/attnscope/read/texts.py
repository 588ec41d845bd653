"""A corpus: named texts from strings, files, folders and standard input."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from attnscope.bundled import TEXT
from attnscope.read.files import SPANS, is_standard_input, skipped_note
from attnscope.read.sources import (
    ChatLines,
    Given,
    Lines,
    Names,
    Plain,
    Records,
    Source,
    Stream,
    Text,
    as_list,
    as_requested,
    each,
    open_path,
    open_url,
    reject_file_name,
)
from attnscope.read.urls import Url, is_url
from attnscope.statistics.units import Repeats
from attnscope.support.errors import AttnscopeError

_FEW = 1 << 20  # characters that are kept in memory


class Corpus:
    """Named texts, read lazily one at a time."""

    language: str | None = None  # of a translation, by its code

    def __init__(self, sources: "Sequence[Source]") -> None:
        self._sources = tuple(sources)
        self._read: list[Text] | None = None  # all texts, if they are few
        self.notes: dict[str, str] = {}
        self.cut: dict[Any, Any] = {}  # windows, by everything that they depend on

    @classmethod
    def from_sources(
        cls,
        sources: Any = None,
        *,
        field: str | None = None,
        by_line: bool = False,
        blank_lines: bool = False,
        chats: bool = False,
        by: str | None = None,
    ) -> "Corpus":
        r"""Build a corpus from strings, files, folders and standard input."""
        opened: list[Source] = []
        notes: dict[str, str] = {}
        objects, names = 0, Names()
        inputs = TEXT if sources is None else as_list(sources)
        only_once = isinstance(inputs, Iterator)
        # reject URLs mixed with texts, where a link may be a text
        texts = [text for text in inputs if isinstance(text, str)] if isinstance(inputs, list) else []
        urls = [text for text in texts if is_url(text)]
        if urls and len(urls) < len(texts):
            raise AttnscopeError(_no_text_but_url(urls[0]))
        for item in each(inputs):
            if isinstance(item, Mapping) or (isinstance(item, str) and not is_url(item)):
                objects += 1
                name = f"text {objects}"
                if isinstance(item, str):
                    if by is not None:
                        option = "--part" if by == SPANS else "--by"
                        raise AttnscopeError(
                            f"{name} is a string without a field {by!r} ({option}): name .jsonl files, or leave it out"
                        )
                    reject_file_name(item, name)
                if chats and isinstance(item, str):
                    raise AttnscopeError(f"{name} is a string; expected a chat: a list of messages, or JSON Lines")
                last = opened[-1] if opened else None
                if not isinstance(last, Given):
                    last = Given(field or "text", by)
                    opened.append(last)
                last.add(objects, item)
                continue
            if isinstance(item, Path):
                parts = open_path(item, field or "text", names)
                files = [part.file.path for part in parts if isinstance(part, Records | Plain)]
                notes |= skipped_note([item] * item.is_dir(), [file for file in files if isinstance(file, Path)])
            elif only_once and isinstance(item, str):
                raise AttnscopeError(_no_text_but_url(item))
            else:
                item = item if isinstance(item, Url) else Url(item)  # noqa: PLW2901
                parts = open_url(item, field, names)
            opened += as_requested(parts, item, field=field, by=by, chats=chats, lines=by_line, blank=blank_lines)
        corpus = cls(opened)
        corpus.notes = notes
        if sum(map(is_standard_input, corpus.streams)) > 1:
            raise AttnscopeError("found standard input more than once; expected it once")
        if field is not None and not any(
            isinstance(source, Records | ChatLines) or getattr(source, "has_rows", False) for source in opened
        ):
            raise AttnscopeError(
                f"field {field!r} needs a .jsonl file, a table or a data set, but no source is one: leave it out, or "
                "name a .jsonl, .csv, .tsv, .parquet or .arrow file"
            )
        if all(isinstance(source, Given) and source.is_blank for source in opened):
            raise _no_text(objects)
        return corpus

    @property
    def streams(self) -> list[Path]:
        """The sources that can be read only once."""
        wholes = (source.whole if isinstance(source, Lines | ChatLines) else source for source in self._sources)
        return [stream.path for stream in wholes if isinstance(stream, Stream)]

    def __iter__(self) -> Iterator[Text]:
        """Yield the texts in order, also blank ones, unless all are blank; few are read only once."""
        if self._read is not None:
            yield from self._read
            return
        read: list[Text] = []
        count, characters, blank, repeats = 0, 0, True, Repeats()
        name = ""
        for source in self._sources:
            for text in source.texts():
                count += 1
                name = text.name
                content = text.content.strip()
                blank = blank and not content
                named = replace(text, name=repeats.named(text.name, content)) if content else text
                characters += len(text.content)
                if characters <= _FEW:
                    read.append(named)
                yield named
        if blank:
            raise _no_text(count, name)
        if characters <= _FEW:
            self._read = read

    def characters(self) -> int:
        """The length of all texts, which are read for it or before for `sha256`."""
        return self._measured[1]

    def sha256(self) -> str:
        """Hash names and contents of all texts, in order."""
        return self._measured[0]

    @cached_property
    def _measured(self) -> tuple[str, int]:
        digest, characters = hashlib.sha256(f"language {self.language}".encode() if self.language else b""), 0
        for text in self:
            characters += len(text.content)
            for part in (text.name, text.content, *([text.by] if text.by else [])):
                data = part.encode()
                digest.update(len(data).to_bytes(8, "big"))  # so that no two corpora give the same bytes
                digest.update(data)
        return digest.hexdigest(), characters


def _no_text_but_url(given: str) -> str:
    return f"found the URL {str(Url(given))[:100]!r} among texts: give URLs in a separate list"


def _no_text(count: int, name: str = "") -> AttnscopeError:
    if count == 1 and name:
        return AttnscopeError(f"{name}: found only white space; expected at least one word")
    problem = f"found only white space (texts: {count})" if count else "found no text"
    return AttnscopeError(f"{problem}; expected at least one word: give a string or a file with text")
