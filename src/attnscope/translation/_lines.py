"""Files of one sentence a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from attnscope.checks import check_kind
from attnscope.corpus import is_standard_input, shown
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


def lines_of_text(text: str | Path | Sequence[str], name: str = "the text") -> list[str]:
    """The lines of a file, or the sentences that were given.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, or what was given is neither a file nor sentences.

    Examples
    --------
    >>> lines_of_text(["a b", "c"])
    ['a b', 'c']
    """
    if isinstance(text, str | Path):
        return read_lines(text)
    check_kind("a file, or a list of sentences", Iterable, **{name: text})
    lines = list(text)
    for number, line in enumerate(lines, start=1):
        check_kind("a sentence", str, **{f"line {number} of {name}": line})
    return lines


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
    spaceless = [one for one in letters if unicodedata.name(one, "").startswith(_WITHOUT_SPACES)]
    return len(spaceless) > len(letters) / 2 and len(letters) > _LONG_WORD * len(words)
