"""Files of one sentence a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from attnscope.checks import check_kind, unexpected
from attnscope.corpus import is_standard_input, shown
from attnscope.corpus.file_names import refuse_file_name
from attnscope.corpus.files import decode_utf8, lines_of, read_bytes
from attnscope.errors import AttnscopeError

_WITHOUT_SPACES = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
_LONG_WORD = 5  # letters; segmented Japanese and Chinese have about 2 a word
_LOOKED_AT = 1000


def read_lines(path: Path | str) -> list[str]:
    r"""Read a file of one sentence a line; ``-`` is standard input.

    UTF-8, with or without a byte order mark. Lines end with ``\n`` or ``\r\n``: other characters that Unicode calls
    line ends stay in the sentence, so that parallel files stay parallel.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list of str
        The lines without their ends; empty lines stay.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, is not UTF-8, or is a pipe to which nobody writes.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "text"
    ...     _ = file.write_bytes("a b\r\n\r\nc\u2028d\n".encode())
    ...     read_lines(file)
    ['a b', '', 'c\u2028d']
    """
    path = Path(path)
    name = "standard input" if is_standard_input(path) else shown(path)
    return lines_of(decode_utf8(read_bytes(path), name))


Lines: TypeAlias = (
    str | Path | Sequence[str]
)  # sentences: a text of one a line, such a file, or a list of them


def lines_of_text(text: Lines, name: str = "the text") -> list[str]:
    """The sentences that were given: of a file where it is a path, else the strings themselves.

    Parameters
    ----------
    text
        File, one string with a sentence a line, or sentences.
    name
        Word for the text, for errors.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, what was given is neither a path nor strings, or one string alone is, or looks like,
        the name of a file.

    Examples
    --------
    >>> lines_of_text(["a b", "c"]), lines_of_text("a b")
    (['a b', 'c'], ['a b'])
    """
    if isinstance(text, Path):
        return read_lines(text)
    if not gives_entries(text):
        raise unexpected("a string, a pathlib.Path, or a list of sentences", text, name)
    lines: list[Any] = lines_of(text) if isinstance(text, str) else list(text)
    if len(lines) == 1 and isinstance(lines[0], str):
        refuse_file_name(lines[0], name)
    for number, line in enumerate(lines, start=1):
        check_kind("a sentence", str, **{f"line {number} of {name}": line})
    return lines


def gives_entries(given: object) -> bool:
    """Whether something goes through as a list does: no bytes, no mapping, no array without dimensions.

    Examples
    --------
    >>> gives_entries(["a"]), gives_entries(iter("a")), gives_entries(b"a"), gives_entries({"a": 1})
    (True, True, False, False)
    """
    single = isinstance(given, bytes | Mapping) or getattr(given, "ndim", 1) == 0
    return isinstance(given, Iterable) and not single


def check_parallel(texts: Mapping[str, Sequence[object]]) -> int:
    """The number of lines that all texts share.

    Raises
    ------
    AttnscopeError
        If two texts have different numbers of lines, or none has any.

    Examples
    --------
    >>> check_parallel({"source": ["a", "b"], "target": ["c", "d"]})
    2
    """
    counts = {name: len(lines) for name, lines in texts.items()}
    (first, count), *others = counts.items()
    for name, other in others:
        if other != count:
            raise AttnscopeError(
                f"{first} has {count} lines and {name} has {other}: line i of each must be the same sentence"
            )
    if count == 0:
        raise AttnscopeError(f"{first} is empty: expected one sentence a line")
    return count


def is_unsegmented(lines: Iterable[str]) -> bool:
    """Whether most letters are of a script that puts no spaces between words, and no tool has put them there.

    Examples
    --------
    >>> is_unsegmented(["吾輩は猫である。"]), is_unsegmented(["吾輩 は 猫 で ある 。"]), is_unsegmented(["I am a cat."])
    (True, False, False)
    """
    words = [word for line in islice(lines, _LOOKED_AT) for word in line.split()]
    letters = [letter for word in words for letter in word if letter.isalpha()]
    spaceless = [letter for letter in letters if unicodedata.name(letter, "").startswith(_WITHOUT_SPACES)]
    return len(spaceless) > len(letters) / 2 and len(letters) > _LONG_WORD * len(words)
