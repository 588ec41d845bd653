"""A corpus: named texts from strings, files, folders and standard input."""

import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from attnscope.bundled import TEXT
from attnscope.corpus._columns import TABLES, chat_column, column, list_columns
from attnscope.corpus._compressed import COMPRESSED, inner_suffix, unpacked
from attnscope.corpus._datasets import PREFIX, dataset_chats, dataset_rows, names_a_dataset
from attnscope.corpus._given import each, kept
from attnscope.corpus._messages import CHAT_FIELDS, messages_of
from attnscope.corpus._names import Names
from attnscope.corpus._opening import STANDARD_INPUT, file_mode, is_standard_input, shown
from attnscope.corpus._picture_parts import has_pictures
from attnscope.corpus._spool import Spool
from attnscope.corpus._unchanged import Unchanged
from attnscope.corpus.files import (
    check_characters,
    decode_utf8,
    files_below,
    json_objects,
    lines_of,
    read_bytes,
    text_field,
    value_field,
)
from attnscope.errors import AttnscopeError
from attnscope.remote import Url, is_url
from attnscope.remote import files_below as files_below_url

_PLAIN = (".txt", ".md", ".jsonl")
SUFFIXES = (*_PLAIN, *TABLES)  # ... or compressed
NAMES_A_FILE = (
    *SUFFIXES,
    *COMPRESSED,
    ".json",
    ".csv",
    ".tsv",
    ".text",
    ".html",
)  # a single word that ends so
LONGEST_NAME = 255  # characters; what is longer is no file's name


@dataclass(frozen=True)
class Text:
    r"""One text and the name by which results refer to it.

    Attributes
    ----------
    name : str
        File name, path inside the given folder, ``FILE.jsonl:LINE``, ``text 1`` for a string, or
        ``standard input``; with a number where a file before has the same name.
    content : str
        The characters of the text, unmodified except that a byte order mark is taken off; ``\r\n`` is kept.
    by : str
        The value of the field by which texts are held apart, where one is named.

    Examples
    --------
    >>> Text("text 1", "The tide is out.").content
    'The tide is out.'
    """

    name: str
    content: str
    by: str = ""


class Corpus:
    """Named texts, read one at a time as they are reached.

    Built by `from_sources`. Sources are checked when the corpus is built and read when it is iterated, so a
    corpus may be larger than the memory. Iterating again reads the files again, and gives the same texts: a
    file that was changed meanwhile is refused. What can be read only once (standard input, a named pipe) is read
    at its first use and kept.

    Raises
    ------
    AttnscopeError
        While iterating: a file that cannot be read, is not UTF-8 or is not what it was when it was first read, a
        broken JSON line, or, at the end, a corpus in which no text holds anything but white space.

    Examples
    --------
    >>> corpus = Corpus.from_sources(["The tide is out.", "The boats lie on the mud."])
    >>> [text.name for text in corpus]
    ['text 1', 'text 2']
    """

    def __init__(self, sources: "Sequence[_Source]") -> None:
        self._sources = tuple(sources)

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
        r"""Build a corpus from strings, files, folders and standard input.

        Parameters
        ----------
        sources : str, Path, or an iterable of them
            By default the bundled sample. A list, a column of a table, a generator (read at once, and kept on disk if
            it is long): anything that gives strings or paths in an order. A `str` is a text itself; one that is, or
            looks like, the name of a file is refused. Strings that are URLs (``s3://bucket/corpus/``,
            ``https://host/a.jsonl.gz``) name files and folders that fsspec reads; beside strings that are texts
            they are refused, so that nothing is fetched for a text. A `Path` is a file, a folder, ``Path("-")`` for
            standard input, or ``Path("datasets:NAME:CONFIG:SPLIT")``, a data set of Hugging Face by its id on the hub
            or its folder. In a folder, all ``.txt``, ``.md`` and ``.jsonl`` files are taken, also compressed
            (``.gz``, ``.bz2``, ``.xz``), and ``.parquet`` and ``.arrow`` files, in sorted order, subfolders included;
            hidden files and folders are passed over, and links to folders are not followed. A file that is
            named itself may have any suffix. Each line of a ``.jsonl`` file is a text, and so is each row of a
            ``.parquet`` or ``.arrow`` file; any other file is one.
        field : str, optional
            Which field of each JSON object of a ``.jsonl`` file, or which column of a table, is the text (default
            ``text``).
        by_line : bool, optional
            Take every line of any other file as a text of its own (sentences, reactions), blank lines left out.
        blank_lines : bool, optional
            With `by_line`, keep blank lines and end lines at ``\n`` and ``\r\n`` alone, so that the lines of parallel
            files stay beside each other.
        chats : bool, optional
            Take files and standard input as JSON Lines of chats. Each text is then the messages of one, as JSON.
        by : str, optional
            Another field of each JSON object of a ``.jsonl`` file (language, source, year), by which texts are held
            apart. All sources must have it.

        Returns
        -------
        Corpus
            The texts in the order of the sources.

        Raises
        ------
        AttnscopeError
            Something else than strings and paths, no source, only blank strings, a string that names a file or cannot
            be written as UTF-8, a missing or unreadable file or folder, a device, a folder without text files, standard
            input given twice, or `field` without a ``.jsonl`` file.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.jsonl").write_text('{"body": "One."}\n{"body": "Two."}\n')
        ...     [(text.name, text.content) for text in Corpus.from_sources([Path(folder)], field="body")]
        [('a.jsonl:1', 'One.'), ('a.jsonl:2', 'Two.')]
        """
        opened_sources: list[_Source] = []
        strings, names = 0, Names()
        given = TEXT if sources is None else kept(sources)
        only_once = isinstance(given, Iterator)
        _refuse_mixed(given)
        for source in each(given):
            if isinstance(source, Url) or is_url(source):
                if only_once:
                    raise AttnscopeError(_no_text_but_url(str(source)))
                url = source if isinstance(source, Url) else Url(str(source))
                opened = _open_url(url, field, names)
                if by is not None and not chats:
                    opened = [_held_apart(source, by, shown(url)) for source in opened]
                opened_sources.extend(
                    _as_asked(opened, url, field, chats=chats, lines=by_line, blank=blank_lines)
                )
            elif isinstance(source, str):
                strings += 1
                name = f"text {strings}"
                if by is not None:
                    raise AttnscopeError(
                        f"{name} is a string, which has no field {by!r} (--by): name .jsonl files, or leave it out"
                    )
                if chats:
                    raise AttnscopeError(
                        f"{name} is a string; expected a chat: a list of messages, or JSON Lines"
                    )
                refuse_file_name(source, name)
                text = _String(name, source)
                last = opened_sources[-1] if opened_sources else None
                if only_once and isinstance(last, _Strings):
                    last.add(source)
                else:
                    opened_sources.append(_Strings(source, strings) if only_once else text)
            else:
                opened = _open_path(source, "text" if field is None else field, names)
                if by is not None and not chats:
                    opened = [_held_apart(part, by, shown(source)) for part in opened]
                opened_sources.extend(
                    _as_asked(opened, source, field, chats=chats, lines=by_line, blank=blank_lines)
                )
        corpus = cls(opened_sources)
        if sum(map(is_standard_input, corpus.streams)) > 1:
            raise AttnscopeError(
                "standard input is given more than once, and can be read only once: give it once"
            )
        if field is not None and not any(
            isinstance(source, (*_OF_RECORDS, _Chats)) for source in opened_sources
        ):
            raise AttnscopeError(
                f"field {field!r} is given for .jsonl files, tables and data sets, and no source is one: "
                "leave it out, or name a .jsonl, .parquet or .arrow file"
            )
        if all(isinstance(source, _String) and not source.content.strip() for source in opened_sources):
            raise _no_text(len(opened_sources))
        return corpus

    @property
    def streams(self) -> list[Path]:
        """What of it can be read only once."""
        wholes = (source.whole if isinstance(source, _Lines | _Chats) else source for source in self._sources)
        return [stream.path for stream in wholes if isinstance(stream, _Stream)]

    def __iter__(self) -> Iterator[Text]:
        """Yield the texts in order; blank ones too, as long as not all of them are blank."""
        count, blank = 0, True
        for source in self._sources:
            for text in source.texts():
                count += 1
                blank = blank and not text.content.strip()
                yield text
        if blank:
            raise _no_text(count)

    def characters(self) -> int:
        """How long all texts are; they are read for it, if not for `sha256` before.

        Examples
        --------
        >>> Corpus.from_sources(["One.", "Two."]).characters()
        8
        """
        return self._measured[1]

    def sha256(self) -> str:
        """Hash names and contents of all texts, in order.

        Names do not hold the place of a file or folder, so the same texts have the same hash wherever they
        lie. All texts are read for it.

        Returns
        -------
        str
            64 hexadecimal digits.

        Examples
        --------
        >>> Corpus.from_sources(["The tide is out."]).sha256()[:16]
        '36e53a76b27d455c'
        """
        return self._measured[0]

    @cached_property
    def _measured(self) -> tuple[str, int]:
        digest, characters = hashlib.sha256(), 0
        for text in self:
            characters += len(text.content)
            for part in (text.name, text.content, *([text.by] if text.by else [])):
                data = part.encode()
                digest.update(len(data).to_bytes(8, "big"))  # so that no two corpora give the same bytes
                digest.update(data)
        return digest.hexdigest(), characters


@dataclass(frozen=True)
class _String:
    name: str
    content: str

    def __post_init__(self) -> None:
        check_characters(self.content, self.name)

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self.content)


class _Strings:
    """Strings that can be read only once where they come from, numbered from `first`."""

    def __init__(self, content: str, first: int) -> None:
        self.first, self._spool = first, Spool()
        self.add(content)

    def add(self, content: str) -> None:
        self._spool.add(content)

    def texts(self) -> Iterator[Text]:
        for number, content in enumerate(self._spool, start=self.first):
            yield Text(f"text {number}", content)


class _Rows:
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


class _Plain:
    """A file that is one text."""

    def __init__(self, name: str, path: Path | Url) -> None:
        self.name, self.file = name, Unchanged(path)

    def texts(self) -> Iterator[Text]:
        whole = b"".join(unpacked(self.file.path, [self.file.read()]))
        yield Text(self.name, decode_utf8(whole, shown(self.file.path)))


class _Stream:
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


class _JsonLines:
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


class _Column:
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
class _Lines:
    """A file or stream of which every line is a text."""

    whole: "_Source"
    blank: bool = False

    def texts(self) -> Iterator[Text]:
        for text in self.whole.texts():
            lines = lines_of(text.content) if self.blank else text.content.splitlines()
            for number, line in enumerate(lines, start=1):
                if self.blank or line.strip():
                    yield Text(f"{text.name}:{number}", line)


@dataclass(frozen=True)
class _Chats:
    """A file, table or stream with one chat a line or row: each text is its messages, as JSON."""

    whole: "_JsonLines | _Stream | _Column | _Rows"
    field: str | None

    def texts(self) -> Iterator[Text]:
        if isinstance(self.whole, _Rows):
            yield from self.whole.chats(self.field)
            return
        for number, value in self.whole.objects(self.field or CHAT_FIELDS[0]):
            name = f"{self.whole.name}:{number}"
            yield Text(name, json.dumps(messages_of(value, name, self.field), ensure_ascii=False))


_OF_RECORDS = (_JsonLines, _Column, _Rows)  # of which one field is the text
_Source = _String | _Strings | _Rows | _Plain | _Stream | _JsonLines | _Column | _Lines | _Chats


def refuse_file_name(content: str, name: str) -> None:
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


def _held_apart(source: _Source, by: str, name: str) -> _Source:
    if isinstance(source, _JsonLines):
        apart = _JsonLines(source.name, source.file.path, source.field, by)
        apart.text_alone = source.text_alone
        return apart
    raise AttnscopeError(
        f"{name}: texts are held apart by {by!r} (--by), a field of JSON Lines (.jsonl): leave out other files"
    )


def _as_asked(
    opened: list[_Source], given: Path | Url, field: str | None, *, chats: bool, lines: bool, blank: bool
) -> Iterator[_Source]:
    """Files as chats or by line, where that is asked for."""
    for source in opened:
        if chats:
            yield _chats(source, given, field)
        else:
            yield _Lines(source, blank) if lines and not isinstance(source, _OF_RECORDS) else source


def _refuse_mixed(given: Any) -> None:
    """Refuse URLs beside strings that are texts: among texts, a link may be one of them."""
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    urls = [text for text in texts if is_url(text)]
    if urls and len(urls) < len(texts):
        raise AttnscopeError(_no_text_but_url(urls[0]))


def _no_text_but_url(given: str) -> str:
    return (
        f"{str(Url(given))[:100]!r} stands where texts do, and nothing is fetched for a text: give URLs in a list by "
        "themselves"
    )


def chat_field(path: Path | Url) -> str | None:
    """The column of a table that holds chats: none where it holds texts."""
    columns = list_columns(path)
    named = (name for name in CHAT_FIELDS if columns.get(name))
    return None if "text" in columns else next(named, None)


def _chats(source: _Source, path: Path | Url, field: str | None) -> _Source:
    if isinstance(source, _JsonLines | _Stream | _Column | _Rows):
        return _Chats(source, field)
    name = shown(Url(path) if isinstance(path, str) else path)
    raise AttnscopeError(
        f"{name}: chats are read from JSON Lines (.jsonl), tables (.parquet, .arrow) and data sets, one a line or row: "
        "leave out other files"
    )


def _open_path(path: Path, field: str, names: Names) -> list[_Source]:
    """The sources behind a path."""
    if is_standard_input(path):
        return [_Stream("standard input", STANDARD_INPUT)]
    if names_a_dataset(path):
        return [_Rows(path, field)]
    mode = file_mode(path)
    if stat.S_ISDIR(mode):
        return [
            _open_file(file, names.new(file.relative_to(path).as_posix()), field)
            for file in _text_files(path)
        ]
    name = names.new(path.name)
    if not stat.S_ISREG(mode):
        return [_Stream(name, path)]
    return [_open_file(path, name, field)]


def _open_url(url: Url, field: str | None, names: Names) -> list[_Source]:
    """The sources behind a URL."""
    files = files_below_url(url)
    start = len(url.inner.strip("/")) + 1
    named = (
        [(url, url.name)]
        if files is None
        else [(file, file.inner.strip("/")[start:]) for file in files if holds_text(file)]
    )
    sources = [_open_file(file, names.new(name), field or "text") for file, name in named]
    for source in sources:
        if isinstance(source, _JsonLines):
            source.text_alone = field is None
    return sources or _refuse_empty(url)


def _open_file(path: Path | Url, name: str, field: str) -> _Source:
    if path.suffix.lower() in TABLES:
        return _Column(name, path, field)
    return _JsonLines(name, path, field) if inner_suffix(path) == ".jsonl" else _Plain(name, path)


def _text_files(folder: Path) -> list[Path]:
    """All text files of a folder and its subfolders, sorted by their path."""
    wanted = (file for file in files_below(folder) if holds_text(file))
    files = [file for file in wanted if stat.S_ISREG(file_mode(file))]
    return files or _refuse_empty(folder)


def _refuse_empty(folder: Path | Url) -> NoReturn:
    raise AttnscopeError(
        f"{shown(folder)}: no {', '.join(SUFFIXES)} file in this folder; expected at least one: "
        "name another folder, or the files themselves"
    )


def holds_text(file: Path | Url) -> bool:
    """Whether a file of a folder is taken as text, by its name."""
    return file.suffix.lower() in SUFFIXES or inner_suffix(file) in _PLAIN


def _no_text(count: int) -> AttnscopeError:
    said = f"found nothing but white space (texts: {count})" if count else "found no text at all"
    return AttnscopeError(
        f"no text: {said}; expected at least one word: give a string or a file that has some"
    )
