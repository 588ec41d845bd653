"""Parallel text: lines of which one translates the other."""

import hashlib
import random
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attnscope.corpus import file_mode, shown
from attnscope.corpus.files import decode_utf8, files_below, json_objects, read_bytes, text_field
from attnscope.errors import AttnscopeError


@dataclass(frozen=True)
class ParallelText:
    """Pairs of lines, in the order of the files.

    Attributes
    ----------
    source, target : list of str
        Line i of one translates line i of the other. No line is empty, and none begins or ends with white space.
    left_out : dict of str to int
        How many pairs were left out, by reason: ``empty source``, ``empty target``, ``both empty``. Reasons
        that did not occur are not in it.

    Examples
    --------
    >>> text = ParallelText(["a cat"], ["eine Katze"])
    >>> len(text), text.sha256()[:16]
    (1, '84cc9ed6d5fec86e')
    """

    source: list[str]
    target: list[str]
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise AttnscopeError(
                f"found {len(self.source)} source lines and {len(self.target)} target lines; "
                "expected as many: line i of one translates line i of the other"
            )

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.source)

    def sha256(self) -> str:
        """Hash all pairs in order: 64 hexadecimal digits, the same wherever the files lie."""
        digest = hashlib.sha256()
        for pair in zip(self.source, self.target, strict=True):
            for line in pair:
                data = line.encode()
                digest.update(len(data).to_bytes(8, "big"))  # so that no two texts give the same bytes
                digest.update(data)
        return digest.hexdigest()

    def joined(self, most: int, seed: int) -> "ParallelText":
        """Neighbouring pairs made into longer ones, so that a corpus of short sentences has long ones too.

        Parameters
        ----------
        most
            Pairs in one, at most: from 1 to so many, each number equally often. 1 changes nothing.
        seed
            What is joined is a function of this, of `most` and of the number of pairs.

        Examples
        --------
        >>> ParallelText(["a", "b", "c"], ["x", "y", "z"]).joined(2, seed=4)
        ParallelText(source=['a', 'b c'], target=['x', 'y z'], left_out={})
        """
        groups = join_groups(len(self), most, seed)
        return ParallelText(
            [" ".join(self.source[i] for i in group) for group in groups],
            [" ".join(self.target[i] for i in group) for group in groups],
            self.left_out,
        )


def join_groups(count: int, most: int, seed: int) -> list[range]:
    """Numbers 0 to `count` - 1 cut at random into runs of 1 to `most`.

    Examples
    --------
    >>> join_groups(5, 3, seed=0)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    generator = random.Random(seed)
    groups: list[range] = []
    start = 0
    while start < count:
        stop = min(count, start + generator.randint(1, most))
        groups.append(range(start, stop))
        start = stop
    return groups


def read_parallel(
    source: Path, target: Path | None = None, *, sides: tuple[str, str] = ("source", "target")
) -> ParallelText:
    r"""Read parallel text.

    Lines end with ``\n`` or ``\r\n``; any other character, U+2028 or a form feed too, is part of its line. A byte
    order mark is taken off, and so is white space at both ends of a line. A pair with an empty side is left
    out and counted. A line may have any length: pairs with too many tokens are left out, and counted, where
    their tokens are known (`encode_pairs`).

    Parameters
    ----------
    source, target : Path
        One of

        * two text files, one sentence a line;
        * two folders: files of the same name, or of the same name up to the last suffix (``a/news.en``,
          ``b/news.de``), are read together, subfolders included;
        * a ``.jsonl`` file alone, one JSON object a line (blank lines are passed over);
        * a folder alone: its ``.jsonl`` files, and its text files in pairs ``NAME.SIDE`` (``news.en``,
          ``news.de``).

        Files of a folder are read in sorted order; hidden ones are passed over.
    sides : pair of str, optional
        Names of source and target where `source` stands alone: fields of the JSON objects, and suffixes
        of the text files.

    Returns
    -------
    ParallelText
        The pairs, at least one.

    Raises
    ------
    AttnscopeError
        A file that is missing, unreadable or not UTF-8; a broken JSON line or a missing field; files with
        unequal line counts; a file of a folder without its partner; no pair at all. File and line are named.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.en").write_bytes(b"a cat\r\n\r\na dog\r\n")
    ...     _ = Path(folder, "a.de").write_bytes(b"eine Katze\nleer\nein Hund")
    ...     read_parallel(Path(folder), sides=("en", "de"))
    ParallelText(source=['a cat', 'a dog'], target=['eine Katze', 'ein Hund'], left_out={'empty source': 1})
    """
    pairs = _pairs_of_one(source, sides) if target is None else _pairs_of_two(source, target)
    return _without_empty(pairs, source)


def _without_empty(pairs: Iterable[tuple[str, str]], place: Path) -> ParallelText:
    sources: list[str] = []
    targets: list[str] = []
    left_out: dict[str, int] = defaultdict(int)
    for source, target in pairs:
        kept = source.strip(), target.strip()
        if all(kept):
            sources.append(kept[0])
            targets.append(kept[1])
        else:
            left_out["empty source" if kept[1] else "empty target" if kept[0] else "both empty"] += 1
    if not sources:
        raise AttnscopeError(
            f"{shown(place)}: no pair of lines (left out for an empty side: {sum(left_out.values())}); "
            "expected at least one: check the files"
        )
    return ParallelText(sources, targets, dict(left_out))


def _pairs_of_two(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    folders = stat.S_ISDIR(file_mode(source)), stat.S_ISDIR(file_mode(target))
    if folders == (False, False):
        objects = next((path for path in (source, target) if path.suffix.lower() == ".jsonl"), None)
        if objects is not None:
            raise AttnscopeError(
                f"{shown(objects)}: JSON Lines of both sides stand alone; found another file beside it: give it as the "
                "source and no target"
            )
        yield from _pairs_of_files(source, target)
        return
    if folders != (True, True):
        raise AttnscopeError(
            f"found a file and a folder ({shown(source)}, {shown(target)}); expected two files or two folders: "
            "name the file inside the folder"
        )
    first, second = (_by_stem(folder) for folder in (source, target))
    for stem in sorted({*first, *second}):
        if stem not in first or stem not in second:
            here, there = (first[stem], target) if stem in first else (second[stem], source)
            raise AttnscopeError(
                f"{shown(here)}: no file of this name in {shown(there)}; expected one for each: add it, or remove "
                "this one"
            )
        yield from _pairs_of_files(first[stem], second[stem])


def _pairs_of_one(place: Path, sides: tuple[str, str]) -> Iterator[tuple[str, str]]:
    if not stat.S_ISDIR(file_mode(place)):
        if place.suffix.lower() != ".jsonl":
            raise AttnscopeError(
                f"{shown(place)}: one text file alone; expected two (source and target), or a .jsonl file: "
                "name the file of the other side too"
            )
        yield from _pairs_of_objects(place, sides)
        return
    files = files_below(place)
    some = False
    for file in files:
        if file.suffix.lower() == ".jsonl":
            some = True
            yield from _pairs_of_objects(file, sides)
        elif file.suffix in {f".{side}" for side in sides}:
            some = True
            partners = [file.with_suffix(f".{side}") for side in sides]
            missing = next((path for path in partners if path not in files), None)
            if missing:
                raise AttnscopeError(
                    f"{shown(file)}: its partner {shown(missing.name)} is not there: add it, or remove this one"
                )
            if file == partners[0]:
                yield from _pairs_of_files(*partners)
    if not some:
        raise AttnscopeError(
            f"{shown(place)}: no .jsonl file and no pair of files NAME.{sides[0]}, NAME.{sides[1]} in this folder: "
            "name its sides, or two files"
        )


def _pairs_of_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    first, second = _lines(source), _lines(target)
    if len(first) != len(second):
        raise AttnscopeError(
            f"{shown(source)} has {len(first)} lines and {shown(target)} {len(second)}; expected as many: "
            "line i of one translates line i of the other.\n"
            f"Mend the files; the shorter ends after line {min(len(first), len(second))}"
        )
    yield from zip(first, second, strict=True)


def _pairs_of_objects(path: Path, sides: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, value in json_objects(path, sides[0]):
        where = f"{shown(path)}, line {number}"
        yield text_field(value, sides[0], where), text_field(value, sides[1], where)


def _lines(path: Path) -> list[str]:
    raw = read_bytes(path).split(b"\n")
    if not raw[-1]:
        raw.pop()  # what follows the last line's end
    lines: list[str] = []
    offset = 0
    for number, line in enumerate(raw, start=1):
        lines.append(decode_utf8(line, f"{shown(path)}, line {number}", offset))
        offset += len(line) + 1
    return lines


def _by_stem(folder: Path) -> dict[Path, Path]:
    """Files of a folder by their path without the last suffix."""
    files: dict[Path, Path] = {}
    for file in files_below(folder):
        stem = file.relative_to(folder).with_suffix("")
        if stem in files:
            raise AttnscopeError(
                f"{shown(folder)}: {shown(files[stem].name)} and {shown(file.name)} differ in their suffix alone; "
                "expected one file of that name: rename or remove one"
            )
        files[stem] = file
    return files
