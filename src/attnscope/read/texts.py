"""A corpus: named texts from strings, files, folders and standard input."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from attnscope.bundled import TEXT
from attnscope.read.columns import Names, refuse_file_name
from attnscope.read.files import is_standard_input, shown
from attnscope.read.sources import (
    OF_RECORDS,
    ChatLines,
    Lines,
    Source,
    Stream,
    String,
    Strings,
    Text,
    as_asked,
    each,
    held_apart,
    kept,
    open_path,
    open_url,
)
from attnscope.read.urls import Url, is_url
from attnscope.support.errors import AttnscopeError


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

    def __init__(self, sources: "Sequence[Source]") -> None:
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
        opened_sources: list[Source] = []
        strings, names = 0, Names()
        given = TEXT if sources is None else kept(sources)
        only_once = isinstance(given, Iterator)
        _refuse_mixed(given)
        for source in each(given):
            if isinstance(source, Url) or is_url(source):
                if only_once:
                    raise AttnscopeError(_no_text_but_url(str(source)))
                url = source if isinstance(source, Url) else Url(str(source))
                opened = open_url(url, field, names)
                if by is not None and not chats:
                    opened = [held_apart(source, by, shown(url)) for source in opened]
                opened_sources.extend(
                    as_asked(opened, url, field, chats=chats, lines=by_line, blank=blank_lines)
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
                text = String(name, source)
                last = opened_sources[-1] if opened_sources else None
                if only_once and isinstance(last, Strings):
                    last.add(source)
                else:
                    opened_sources.append(Strings(source, strings) if only_once else text)
            else:
                opened = open_path(source, "text" if field is None else field, names)
                if by is not None and not chats:
                    opened = [held_apart(part, by, shown(source)) for part in opened]
                opened_sources.extend(
                    as_asked(opened, source, field, chats=chats, lines=by_line, blank=blank_lines)
                )
        corpus = cls(opened_sources)
        if sum(map(is_standard_input, corpus.streams)) > 1:
            raise AttnscopeError(
                "standard input is given more than once, and can be read only once: give it once"
            )
        if field is not None and not any(
            isinstance(source, (*OF_RECORDS, ChatLines)) for source in opened_sources
        ):
            raise AttnscopeError(
                f"field {field!r} is given for .jsonl files, tables and data sets, and no source is one: "
                "leave it out, or name a .jsonl, .parquet or .arrow file"
            )
        if all(isinstance(source, String) and not source.content.strip() for source in opened_sources):
            raise _no_text(len(opened_sources))
        return corpus

    @property
    def streams(self) -> list[Path]:
        """What of it can be read only once."""
        wholes = (
            source.whole if isinstance(source, Lines | ChatLines) else source for source in self._sources
        )
        return [stream.path for stream in wholes if isinstance(stream, Stream)]

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


def _no_text(count: int) -> AttnscopeError:
    said = f"found nothing but white space (texts: {count})" if count else "found no text at all"
    return AttnscopeError(
        f"no text: {said}; expected at least one word: give a string or a file that has some"
    )
