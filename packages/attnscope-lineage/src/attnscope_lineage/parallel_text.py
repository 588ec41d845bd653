"""Parallel text: pairs of lines that are translations of each other."""

from __future__ import annotations

import hashlib
import random
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeAlias

from attnscope.read.files import (
    decode_utf8,
    is_standard_input,
    json_objects,
    lines_of,
    read_bytes,
    reject_documents,
    shown,
    text_field,
)
from attnscope.read.sources import reject_file_name
from attnscope.support.checks import check_kind, unexpected
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True)
class ParallelText:
    """Pairs of lines, in the order of the files."""

    source: list[str]  # line i of each translates line i of the other
    target: list[str]
    # number of dropped pairs, by reason: ``empty source``, ``empty target``, ``both empty``
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise AttnscopeError(
                f"found {len(self.source)} source lines and {len(self.target)} target lines; "
                "expected equal numbers: line i of each translates line i of the other"
            )

    def __len__(self) -> int:
        return len(self.source)

    def sha256(self) -> str:
        """Hash all pairs in order: 64 hexadecimal digits, independent of the location of the files."""
        digest = hashlib.sha256()
        for pair in zip(self.source, self.target, strict=True):
            for line in pair:
                data = line.encode()
                digest.update(len(data).to_bytes(8, "big"))  # different texts give different bytes
                digest.update(data)
        return digest.hexdigest()

    def joined(self, most: int, seed: int) -> ParallelText:
        """Join neighbouring pairs, so that a corpus of short sentences also has long ones."""
        return ParallelText(*self._sides(self._groups(most, seed), " "), self.left_out)

    def _groups(self, most: int, seed: int) -> list[range]:
        """Divide the numbers of the pairs at random into runs of 1 to `most`."""
        generator = random.Random(seed)
        groups: list[range] = []
        start = 0
        while start < len(self):
            stop = min(len(self), start + generator.randint(1, most))
            groups.append(range(start, stop))
            start = stop
        return groups

    def _sides(self, groups: Sequence[range], between: str) -> tuple[list[str], list[str]]:
        source, target = ([between.join(side[i] for i in one) for one in groups] for side in (self.source, self.target))
        return source, target


def read_parallel(
    source: Path, target: Path | None = None, *, sides: tuple[str, str] = ("source", "target")
) -> ParallelText:
    """Read two text files with one sentence per line, or JSON Lines with a field for each side."""
    sources: list[str] = []
    targets: list[str] = []
    left_out: dict[str, int] = defaultdict(int)
    for pair in _pairs_of_objects(source, sides) if target is None else _pairs_of_files(source, target):
        first, second = (line.strip() for line in pair)
        if first and second:
            sources.append(first)
            targets.append(second)
        else:
            left_out["empty source" if second else "empty target" if first else "both empty"] += 1
    if not sources:
        raise AttnscopeError(
            f"{shown(source)}: found no pair of lines (dropped for an empty side: {sum(left_out.values())}); "
            "expected at least one"
        )
    return ParallelText(sources, targets, dict(left_out))


def _pairs_of_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    objects = next((path for path in (source, target) if path.suffix.lower() == ".jsonl"), None)
    if objects is not None:
        raise AttnscopeError(
            f"{shown(objects)} is JSON Lines with both sides, but found another file too: pass it as the source, "
            "without a target"
        )
    first, second = read_lines(source), read_lines(target)
    if len(first) != len(second):
        raise AttnscopeError(
            f"{shown(source)} has {len(first)} lines and {shown(target)} {len(second)}; expected equal "
            "numbers: line i of each translates line i of the other.\n"
            f"Correct the files; the shorter ends after line {min(len(first), len(second))}"
        )
    return zip(first, second, strict=True)


def _pairs_of_objects(path: Path, sides: tuple[str, str]) -> Iterator[tuple[str, str]]:
    if path.suffix.lower() != ".jsonl":
        raise AttnscopeError(f"{shown(path)}: found one text file; expected two (source and target), or a .jsonl file")
    for number, value in json_objects(path, sides[0]):
        where = f"{shown(path)}, line {number}"
        source, target = (text_field(value, side, where, "`sides` (--sides)") for side in sides)
        yield source, target


_WITHOUT_SPACES = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
_LONG_WORD = 5  # letters; segmented Japanese and Chinese have about 2 a word
_SAMPLED = 1000  # lines


def read_lines(path: Path | str) -> list[str]:
    r"""Read a file of one sentence a line; ``-`` is standard input."""
    path = Path(path)
    reject_documents(path)
    return lines_of(decode_utf8(read_bytes(path), "standard input" if is_standard_input(path) else shown(path)))


Lines: TypeAlias = str | Path | Sequence[str]  # sentences: a text of one a line, such a file, or a list of them


def lines_of_text(text: Lines, name: str = "the text") -> list[str]:
    """The sentences of a file, or the strings themselves."""
    if isinstance(text, Path):
        return read_lines(text)
    if not has_entries(text):
        raise unexpected("a string, a pathlib.Path, or a list of sentences", text, name)
    lines: list[Any] = lines_of(text) if isinstance(text, str) else list(text)
    if len(lines) == 1 and isinstance(lines[0], str):
        reject_file_name(lines[0], name)
    for number, line in enumerate(lines, start=1):
        check_kind("a sentence", str, **{f"line {number} of {name}": line})
    return lines


def lines_sha256(lines: Iterable[str]) -> str:
    """Hash of the lines, for signatures."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def has_entries(value: object) -> bool:
    """Whether a value can be iterated like a list: not bytes, a mapping, or an array without dimensions."""
    single = isinstance(value, bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Iterable) and not single


def check_parallel(texts: Mapping[str, Sequence[object]]) -> int:
    """The number of lines, which must be equal in all texts."""
    (first, count), *others = {name: len(lines) for name, lines in texts.items()}.items()
    for name, other in others:
        if other != count:
            raise AttnscopeError(
                f"{first} has {count} lines and {name} has {other}; expected equal numbers, line by line"
            )
    if count == 0:
        raise AttnscopeError(f"{first} is empty; expected one sentence per line")
    return count


def is_unsegmented(lines: Iterable[str]) -> bool:
    """Whether most letters are of a script without spaces between words, and the text is not segmented."""
    words = [word for line in islice(lines, _SAMPLED) for word in line.split()]
    letters = [letter for word in words for letter in word if letter.isalpha()]
    spaceless = [letter for letter in letters if unicodedata.name(letter, "").startswith(_WITHOUT_SPACES)]
    return len(spaceless) > len(letters) / 2 and len(letters) > _LONG_WORD * len(words)


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
TAGE = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")
MONATE = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni"),
    *("Juli", "August", "September", "Oktober", "November", "Dezember"),
)
SMALL = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
KLEINE = (
    *("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf"),
    *("zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
ZEHNER = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
TRANSLATIONS = {
    **dict(zip(DAYS, TAGE, strict=True)),
    **dict(zip(MONTHS, MONATE, strict=True)),
    **dict(zip(SMALL, KLEINE, strict=True)),
    **dict(zip(TENS, ZEHNER, strict=True)),
    "hundred": "hundert",
    "thousand": "tausend",
    ",": ",",
}  # "and" has none
HELD_OUT = 10  # one in this number of sentences is never trained on
DATES = 0.4  # of the items
UNITS = 0.5  # of the numbers have thousands; as many have hundreds
PAIR = 2  # words, as in "twenty one"
PATIENCE = 100  # draws for each sentence before an error


@dataclass(frozen=True)
class _Phrase:
    """Source words, and the positions of the translated ones in the order of the target."""

    words: tuple[str, ...]
    order: tuple[int, ...]

    @classmethod
    @cache
    def of(cls, word: str) -> _Phrase:
        return cls((word,), (0,) if word in TRANSLATIONS else ())

    @classmethod
    def join(cls, parts: Sequence[_Phrase], target: Sequence[int] | None = None) -> _Phrase:
        """Parts in sequence; on the target side in the order of `target`."""
        starts = list(accumulate((len(part.words) for part in parts), initial=0))
        order = range(len(parts)) if target is None else target
        return cls(
            tuple(word for part in parts for word in part.words),
            tuple(starts[k] + position for k in order for position in parts[k].order),
        )


@dataclass(frozen=True)
class TaskText(ParallelText):
    """Parallel text with known alignments."""

    # for each pair: source word and target word, both counted from 0, in the order of the target
    alignments: list[tuple[tuple[int, int], ...]] = field(kw_only=True)

    def joined(self, most: int, seed: int) -> TaskText:
        """With a comma between, for a sentence is a list; alignments move with their words."""
        groups = self._groups(most, seed)
        links = [self._links(group) for group in groups]
        return TaskText(*self._sides(groups, " , "), self.left_out, alignments=links)

    def _links(self, group: range) -> tuple[tuple[int, int], ...]:
        """Join these pairs with commas."""
        links: list[tuple[int, int]] = []
        source, target = 0, 0  # words before this part
        for i in group:
            if i != group[0]:
                links.append((source - 1, target - 1))
            links += [(source + at, target + by) for at, by in self.alignments[i]]
            source += len(self.source[i].split()) + 1
            target += len(self.target[i].split()) + 1
        return tuple(links)


def generate_task(pairs: int, seed: int, longest: int, *, shortest: int = 1, held_out: bool = False) -> TaskText:
    """Write lists of dates and numbers in English words, and in German words in another order."""
    generator = random.Random(seed)
    by_source: dict[str, _Phrase] = {}
    for _ in range(PATIENCE * pairs):
        phrase = _sentence(generator, generator.randint(shortest, longest))
        source = " ".join(phrase.words)
        if (zlib.crc32(source.encode()) % HELD_OUT == 0) == held_out:
            by_source[source] = phrase
        if len(by_source) == pairs:
            break
    else:
        raise AttnscopeError(
            f"found only {len(by_source)} different sentences of {shortest} to {longest} words; expected {pairs}: "
            "request fewer pairs, or longer sentences"
        )
    phrases = by_source.values()
    return TaskText(
        list(by_source),
        [" ".join(TRANSLATIONS[phrase.words[position]] for position in phrase.order) for phrase in phrases],
        alignments=[tuple((position, at) for at, position in enumerate(phrase.order)) for phrase in phrases],
    )


def _sentence(generator: random.Random, words: int) -> _Phrase:
    """Items with commas between them, of exactly `words` words."""
    parts: list[_Phrase] = []
    while words > 0:
        item = _date(generator) if generator.random() < DATES else _number(generator)
        if len(item.words) > words or len(item.words) == words - 1:  # too long, or leaves a comma alone
            item = _below_hundred(generator.randint(21, 29) if words == PAIR else generator.randint(1, 19))
        parts += [item, _Phrase.of(",")]
        words -= len(item.words) + 1
    return _Phrase.join(parts[:-1])


def _date(generator: random.Random) -> _Phrase:
    parts = (
        _Phrase.of(generator.choice(DAYS)),
        _Phrase.of(generator.choice(MONTHS)),
        _below_hundred(generator.randint(1, 31)),
        _below_hundred(generator.randint(17, 19)),
        _below_hundred(generator.randint(1, 99)),
    )
    return _Phrase.join(parts, (0, 2, 1, 3, 4))


def _number(generator: random.Random) -> _Phrase:
    words: list[str] = []
    for unit in ("thousand", "hundred"):
        if generator.random() < UNITS:
            words += [generator.choice(SMALL[:9]), unit]
    words += ["and"] if words else []
    return _Phrase.join([*map(_Phrase.of, words), _below_hundred(generator.randint(1, 99))])


@cache
def _below_hundred(number: int) -> _Phrase:
    tens, ones = divmod(number, 10)
    if tens < 2 or not ones:  # noqa: PLR2004
        return _Phrase.of(SMALL[number - 1] if tens < 2 else TENS[tens - 2])  # noqa: PLR2004
    return _Phrase((TENS[tens - 2], SMALL[ones - 1]), (1, 0))
