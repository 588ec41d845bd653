"""Pairs of a clean and a corrupted text with the two answers between which a model decides, and where they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from attnscope._arguments import typed
from attnscope.corpus import shown
from attnscope.corpus.files import check_characters, decode_utf8, json_objects, lines_of, read_bytes
from attnscope.errors import AttnscopeError

_FIELDS = ("clean", "corrupted", "answer", "wrong")
_WHOLE: Mapping[str, Any] = dict.fromkeys(_FIELDS, "")  # has every field
_SIDES, _ALL = 2, 4  # files that hold the texts alone, and the answers too
_MEND = "Give them (answer and wrong; on the command line --answer and --wrong) for all pairs"


@dataclass(frozen=True)
class Pair:
    """A clean text and a corrupted one, as long in tokens, and what the model shall and shall not say after them.

    Attributes
    ----------
    clean, corrupted
        The texts. A masked language model is asked at the mask token that each holds, at the same position; others for
        the token after the last.
    answer, wrong
        The right token after the clean text, and the one that is right after the corrupted text.

    Examples
    --------
    >>> Pair("Mary gave it to", "John gave it to", " John", " Mary").wrong
    ' Mary'
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str


#: A file of JSON Lines, two or four text files (see `read_pairs`), or pairs themselves, as `Pair` or mappings.
Pairs = Path | Iterable[Path] | Iterable[Pair | Mapping[str, str]]


@typed
def read_pairs(*paths: Path, answer: str | None = None, wrong: str | None = None) -> list[Pair]:
    r"""Read pairs from one file of JSON Lines, or from text files whose lines i belong together.

    Parameters
    ----------
    *paths
        One file: in each line an object with the strings ``clean``, ``corrupted``, ``answer`` and ``wrong``. Two: the
        clean texts and the corrupted ones, a line each. Four: the answers and the wrong ones besides, with the space
        that begins them.
    answer, wrong
        For all pairs that have none of their own.

    Raises
    ------
    AttnscopeError
        If a file cannot be read, a line is no such object, files differ in their number of lines, answers lack, or no
        pair has use for those of all pairs.

    Examples
    --------
    >>> import tempfile
    >>> line = '{"clean": "a b", "corrupted": "c b", "answer": " a", "wrong": " c"}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.jsonl").write_text(line, encoding="utf-8")
    ...     _ = (Path(folder) / "clean.txt").write_text("a b\nb b\n", encoding="utf-8")
    ...     one = read_pairs(Path(folder) / "pairs.jsonl")
    ...     two = read_pairs(*[Path(folder) / "clean.txt"] * 2, answer=" a", wrong=" b")
    >>> one[0].answer, two[1].clean
    (' a', 'b b')
    """
    usual = {"answer": answer, "wrong": wrong}
    if len(paths) == 1:
        (path,) = paths
        objects = list(json_objects(path, "clean"))
        _refuse_unused([fields for _, fields in objects], usual)
        pairs = [pair_of(fields, f"{shown(path)}, line {number}", usual) for number, fields in objects]
    elif len(paths) in {_SIDES, _ALL}:
        _refuse_unused([_WHOLE] * (len(paths) == _ALL), usual)
        pairs = _beside_each_other(paths, usual)
    else:
        raise AttnscopeError(
            f"found {len(paths)} files of pairs; expected one of JSON Lines, two of texts (clean, corrupted), or four "
            "(answers and wrong answers too)"
        )
    if not pairs:
        raise AttnscopeError(
            f"{shown(paths[0])} holds no pair; expected one JSON object a line with {', '.join(_FIELDS)}, or texts "
            "line by line"
        )
    return pairs


def _refuse_unused(pairs: Sequence[Mapping[str, Any]], usual: Mapping[str, str | None]) -> None:
    """Refuse an answer for all pairs that none of them takes: what was asked for would not be what is measured."""
    unused = [
        name for name, value in usual.items() if value is not None and all(name in pair for pair in pairs)
    ]
    if pairs and unused:
        options = " and ".join(f"{name} (--{name})" for name in unused)
        raise AttnscopeError(
            f"no pair uses {options}: each has its own. Leave {'it' if len(unused) == 1 else 'them'} out, or give "
            "pairs without"
        )


def pair_of(given: Pair | Mapping[str, Any], where: str, usual: Mapping[str, str | None]) -> Pair:
    """One pair from its fields; `usual` holds answers for those that have none.

    Examples
    --------
    >>> pair_of({"clean": "a", "corrupted": "b"}, "pair 1", {"answer": " c", "wrong": None})
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: pair 1: no field 'wrong'; the fields found are: clean, corrupted. Give ...
    """
    if isinstance(given, Pair):
        given = asdict(given)
    fields = {name: value for name, value in usual.items() if value is not None} | dict(given)
    for name in _FIELDS:
        if name not in fields:
            keys = ", ".join(map(str, given)) or "none"
            mend = _MEND if name in usual else f"Each pair has {', '.join(_FIELDS)}"
            raise AttnscopeError(f"{where}: no field {name!r}; the fields found are: {keys}. {mend}")
        if not isinstance(fields[name], str):
            raise AttnscopeError(
                f"{where}: the field {name!r} is of type {type(fields[name]).__name__}; expected a string"
            )
        check_characters(fields[name], where)
    return Pair(*(str(fields[name]) for name in _FIELDS))


def given_pairs(pairs: Pairs, *, answer: str | None = None, wrong: str | None = None) -> list[Pair]:
    """Pairs from what a verb is given: files, or pairs themselves as `Pair` or mappings.

    Parameters
    ----------
    pairs
        One file or more, or pairs.
    answer, wrong
        Answers of pairs that have none of their own.

    Raises
    ------
    AttnscopeError
        If it is something else, or what `read_pairs` raises.

    Examples
    --------
    >>> given_pairs([{"clean": "a", "corrupted": "b"}], answer=" c", wrong=" d")[0].wrong
    ' d'
    """
    if isinstance(pairs, Path):
        return read_pairs(pairs, answer=answer, wrong=wrong)
    given = cast("object", pairs)
    if isinstance(given, str | bytes | Mapping | Pair) or not isinstance(given, Iterable):
        raise AttnscopeError(
            f"pairs are of type {type(given).__name__}; expected a pathlib.Path of JSON Lines, or several pairs in a "
            f"list, each with {', '.join(_FIELDS)}"
        )
    items = list(cast("Iterable[object]", given))
    if not items:
        raise AttnscopeError("found no pair of texts; expected one or more")
    paths = [item for item in items if isinstance(item, Path)]
    if len(paths) == len(items):
        return read_pairs(*paths, answer=answer, wrong=wrong)
    usual = {"answer": answer, "wrong": wrong}
    checked = [_checked(item, number) for number, item in enumerate(items, 1)]
    _refuse_unused([_WHOLE if isinstance(item, Pair) else item for item in checked], usual)
    return [pair_of(item, f"pair {number}", usual) for number, item in enumerate(checked, 1)]


def _checked(item: object, number: int) -> Pair | Mapping[str, Any]:
    if isinstance(item, Pair | Mapping):
        return cast("Pair | Mapping[str, Any]", item)
    raise AttnscopeError(
        f"pair {number} is of type {type(item).__name__}; expected a Pair, or a mapping with {', '.join(_FIELDS)}"
    )


@dataclass(frozen=True)
class PairTexts:
    """Pairs as what a signature knows of what was read.

    Examples
    --------
    >>> PairTexts((Pair("a", "b", " c", " d"),)).sha256()[:8]
    '3e9dbcb6'
    """

    pairs: tuple[Pair, ...]

    def sha256(self) -> str:
        """SHA-256 of all texts and answers."""
        rows = [[getattr(pair, name) for name in _FIELDS] for pair in self.pairs]
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


def _beside_each_other(paths: Sequence[Path], usual: Mapping[str, str | None]) -> list[Pair]:
    columns = [lines_of(decode_utf8(read_bytes(path), shown(path))) for path in paths]
    for path, column in zip(paths[1:], columns[1:], strict=True):
        if len(column) != len(columns[0]):
            raise AttnscopeError(
                f"{shown(paths[0])} has {len(columns[0])} lines and {shown(path)} {len(column)}; expected as many, as "
                "line i belongs to line i"
            )
    names = _FIELDS[: len(paths)]
    return [
        pair_of(dict(zip(names, row, strict=True)), f"{shown(paths[0])}, line {number}", usual)
        for number, row in enumerate(zip(*columns, strict=True), 1)
    ]
