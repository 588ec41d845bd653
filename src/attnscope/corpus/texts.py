"""A corpus: named texts from strings, files, folders and standard input."""

import hashlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnscope.bundled import TEXT
from attnscope.corpus.files import (
    check_characters,
    decode_utf8,
    file_mode,
    json_objects,
    lines_of,
    read_bytes,
    text_field,
    unreadable,
)
from attnscope.errors import AttnscopeError

#: What texts are given as: strings are texts, paths are files or folders, one stands for a list of one, and None for
#: the bundled sample.
Sources = Sequence[str | Path] | str | Path | None

SUFFIXES = (".txt", ".md", ".jsonl")
NAMES_A_FILE = (*SUFFIXES, ".json", ".csv", ".tsv", ".text", ".html")  # a single word that ends so
LONGEST_NAME = 255  # characters; what is longer is no file's name
STANDARD_INPUT = Path("-")


@dataclass(frozen=True)
class Text:
    r"""One text and the name by which results refer to it.

    Attributes
    ----------
    name : str
        File name, path inside the given folder, ``FILE.jsonl:LINE``, ``text 1`` for a string, or
        ``standard input``. Two texts of a corpus may have the same name.
    content : str
        The characters of the text, unmodified except that a byte order mark is taken off; ``\r\n`` is kept.

    Examples
    --------
    >>> Text("text 1", "The tide is out.").content
    'The tide is out.'
    """

    name: str
    content: str


class Corpus:
    """Named texts, read one at a time as they are reached.

    Built by `from_sources`. Sources are checked when the corpus is built and read when it is iterated, so a
    corpus may be larger than the memory. Iterating again reads the files again; what can be read only once
    (standard input, a named pipe) is read at its first use and kept.

    Raises
    ------
    AttnscopeError
        While iterating: a file that cannot be read or is not UTF-8, a broken JSON line, or, at the end, a
        corpus in which no text holds anything but white space.

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
        sources: Sources = None,
        *,
        field: str | None = None,
        by_line: bool = False,
        blank_lines: bool = False,
    ) -> "Corpus":
        r"""Build a corpus from strings, files, folders and standard input.

        Parameters
        ----------
        sources : sequence of str or Path, or one of them
            By default the bundled sample. A `str` is a text itself; one that is, or looks like, the
            name of a file is refused. A `Path` is a file, a folder or
            ``Path("-")`` for standard input. In a folder, all ``.txt``, ``.md`` and ``.jsonl`` files are taken in
            sorted order, subfolders included; hidden files and folders are passed over, and links to folders are
            not followed. A file that is named itself may have any suffix. Each line of a ``.jsonl`` file is a
            text, any other file is one.
        field : str, optional
            Which field of each JSON object of a ``.jsonl`` file is the text (default ``text``).
        by_line : bool, optional
            Take every line of any other file as a text of its own (sentences, reactions), blank lines left out.
        blank_lines : bool, optional
            With `by_line`, keep blank lines and end lines at ``\n`` and ``\r\n`` alone, so that the lines of parallel
            files stay beside each other.

        Returns
        -------
        Corpus
            The texts in the order of the sources.

        Raises
        ------
        AttnscopeError
            No source, only blank strings, a string that names a file or cannot be written as UTF-8, a missing or
            unreadable file or folder, a folder without text files, standard input given twice, or `field` without a
            ``.jsonl`` file.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.jsonl").write_text('{"body": "One."}\n{"body": "Two."}\n')
        ...     [(text.name, text.content) for text in Corpus.from_sources([Path(folder)], field="body")]
        [('a.jsonl:1', 'One.'), ('a.jsonl:2', 'Two.')]
        """
        sources = TEXT if sources is None else sources
        sources = [sources] if isinstance(sources, str | Path) else list(sources)
        if Counter(sources)[STANDARD_INPUT] > 1:
            raise AttnscopeError(
                "standard input is given more than once, and can be read only once: give it once"
            )
        found: list[_Source] = []
        strings = 0
        for source in sources:
            if isinstance(source, str):
                strings += 1
                _refuse_file_name(source, f"text {strings}")
                found.append(_String(f"text {strings}", source))
            else:
                opened = _open_path(source, "text" if field is None else field)
                found.extend(
                    _Lines(one, blank_lines) if by_line and not isinstance(one, _JsonLines) else one
                    for one in opened
                )
        if field is not None and not any(isinstance(source, _JsonLines) for source in found):
            raise AttnscopeError(
                f"field {field!r} is given for .jsonl files, and no source is one: "
                "leave it out, or name a .jsonl file"
            )
        if all(isinstance(source, _String) and not source.content.strip() for source in found):
            raise _no_text(len(found))
        return cls(found)

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
        digest = hashlib.sha256()
        for text in self:
            for part in (text.name, text.content):
                data = part.encode()
                digest.update(len(data).to_bytes(8, "big"))  # so that no two corpora give the same bytes
                digest.update(data)
        return digest.hexdigest()


@dataclass(frozen=True)
class _String:
    name: str
    content: str

    def __post_init__(self) -> None:
        check_characters(self.content, self.name)

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self.content)


@dataclass(frozen=True)
class _Plain:
    """A file that is one text."""

    name: str
    path: Path

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, decode_utf8(read_bytes(self.path), str(self.path)))


class _Stream:
    """What can be read only once: standard input, a pipe."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def texts(self) -> Iterator[Text]:
        yield Text(self.name, self._content)

    @cached_property
    def _content(self) -> str:
        return decode_utf8(
            _read_standard_input() if self.path == STANDARD_INPUT else read_bytes(self.path), self.name
        )


@dataclass(frozen=True)
class _JsonLines:
    """A file with one JSON object a line."""

    name: str
    path: Path
    field: str

    def texts(self) -> Iterator[Text]:
        for number, value in json_objects(self.path, self.field):
            content = text_field(value, self.field, f"{self.path}, line {number}")
            yield Text(f"{self.name}:{number}", content)


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


_Source = _String | _Plain | _Stream | _JsonLines | _Lines


def _refuse_file_name(content: str, name: str) -> None:
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


def _open_path(path: Path, field: str) -> list[_Source]:
    """The sources behind a path."""
    if path == STANDARD_INPUT:
        return [_Stream("standard input", path)]
    mode = file_mode(path)
    if stat.S_ISDIR(mode):
        return [
            _open_file(file, _readable_name(file.relative_to(path)), field) for file in _files_below(path)
        ]
    name = _readable_name(Path(path.name))
    if not stat.S_ISREG(mode):
        return [_Stream(name, path)]
    return [_open_file(path, name, field)]


def _open_file(path: Path, name: str, field: str) -> _Source:
    return _JsonLines(name, path, field) if path.suffix.lower() == ".jsonl" else _Plain(name, path)


def _files_below(folder: Path) -> list[Path]:
    """All text files of a folder and its subfolders, sorted by their path."""

    def stop(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(".")]
        wanted = (name for name in names if not name.startswith(".") and name.lower().endswith(SUFFIXES))
        files.extend(Path(place, name) for name in wanted)
    files = [file for file in files if stat.S_ISREG(file_mode(file))]
    if not files:
        raise AttnscopeError(
            f"{folder}: no {', '.join(SUFFIXES)} file in this folder; expected at least one: "
            "name another folder, or the files themselves"
        )
    return sorted(files)


def _readable_name(path: Path) -> str:
    """The path as text that can be printed and hashed, whatever bytes the file name holds."""
    return os.fsencode(path.as_posix()).decode("utf-8", errors="backslashreplace")


def _read_standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
        raise AttnscopeError("standard input is closed; expected a text on it: pipe one in, or name a file")
    return sys.stdin.buffer.read()


def _no_text(count: int) -> AttnscopeError:
    found = f"found nothing but white space (texts: {count})" if count else "found no text at all"
    return AttnscopeError(
        f"no text: {found}; expected at least one word: give a string or a file that has some"
    )
