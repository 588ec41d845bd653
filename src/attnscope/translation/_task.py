"""A parallel text of our own, of any size and length, whose word alignments are known."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from attnscope.errors import AttnscopeError
from attnscope.translation._parallel_text import ParallelText, join_groups

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
SMALL = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NOTATION = {
    **{day: day[:2].capitalize() for day in DAYS},
    **dict(zip(MONTHS, ROMAN, strict=True)),
    **{word: str(number) for number, word in enumerate(SMALL, start=1)},
    **{word: str(number) for number, word in zip(range(20, 100, 10), TENS, strict=True)},
    "hundred": "100",
    "thousand": "1000",
    ",": ",",
}  # "and" has none
HELD_OUT = 10  # one sentence of so many is never trained on
DATES = 0.4  # of the items
UNITS = 0.5  # of the numbers have thousands; as many have hundreds
PAIR = 2  # words, as in "twenty one"
PATIENCE = 100  # sentences drawn for each one that is wanted, before giving up


@dataclass(frozen=True)
class _Phrase:
    """Source words, and the places of those that are translated in the order of the target."""

    words: tuple[str, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, word: str) -> _Phrase:
        return cls((word,), (0,) if word in NOTATION else ())

    @classmethod
    def join(cls, parts: Sequence[_Phrase], target: Sequence[int] | None = None) -> _Phrase:
        """Parts one after the other; on the target side in the order of `target`."""
        starts = list(accumulate((len(part.words) for part in parts), initial=0))
        places = range(len(parts)) if target is None else target
        return cls(
            tuple(word for part in parts for word in part.words),
            tuple(starts[k] + place for k in places for place in parts[k].order),
        )


@dataclass(frozen=True)
class TaskText(ParallelText):
    """Parallel text whose alignments are known.

    Attributes
    ----------
    alignments : list of tuple of (int, int)
        For each pair: source word and target word, both counted from 0, in the order of the target. Words are what
        spaces separate. Every target word has one source word; the source word "and" has no target word.

    Examples
    --------
    >>> from attnscope.translation import generate_task
    >>> task = generate_task(1, seed=0, longest=4)
    >>> source, target = task.source[0].split(), task.target[0].split()
    >>> [(source[from_], target[to]) for from_, to in task.alignments[0]]
    [('thirteen', '13'), (',', ','), ('six', '6'), ('forty', '40')]
    """

    alignments: list[tuple[tuple[int, int], ...]] = field(kw_only=True)

    def joined(self, most: int, seed: int) -> TaskText:
        """As `ParallelText.joined`, with a comma between, for a sentence is a list; alignments move with their words.

        Examples
        --------
        >>> task = TaskText(["one", "twenty two"], ["1", "2 20"], alignments=[((0, 0),), ((1, 0), (0, 1))])
        >>> joined = task.joined(2, seed=0)
        >>> joined.source, joined.alignments
        (['one , twenty two'], [((0, 0), (1, 1), (3, 2), (2, 3))])
        """
        groups = join_groups(len(self), most, seed)
        return TaskText(
            [" , ".join(self.source[i] for i in group) for group in groups],
            [" , ".join(self.target[i] for i in group) for group in groups],
            self.left_out,
            alignments=[self._links(group) for group in groups],
        )

    def _links(self, group: range) -> tuple[tuple[int, int], ...]:
        """Of these pairs joined by commas."""
        links: list[tuple[int, int]] = []
        source, target = 0, 0  # words that stand before
        for i in group:
            if i != group[0]:
                links.append((source - 1, target - 1))
            links += [(source + at, target + by) for at, by in self.alignments[i]]
            source += len(self.source[i].split()) + 1
            target += len(self.target[i].split()) + 1
        return tuple(links)


def generate_task(
    pairs: int, seed: int, longest: int, *, shortest: int = 1, held_out: bool = False
) -> TaskText:
    """Write lists of dates and numbers in English words, and in a notation that has another order.

    In the notation units come before tens and the day before the month, as in German, and the weekday last:

    ======================================  ==================
    English words                           notation
    ======================================  ==================
    monday march twenty one nineteen fifty  1 20 III 19 50 Mo
    two hundred and forty two               2 100 2 40
    ======================================  ==================

    A sentence is a list of such items with commas between them. Each word has one translation, so what is hard
    is to remember a long sentence and to find the place in it: what a fixed vector fails at and attention does.

    Parameters
    ----------
    pairs
        How many; no two are equal.
    seed
        The text is a function of this and of the other arguments.
    longest, shortest
        Words in a source sentence, commas included; all lengths between are drawn equally often.
    held_out
        For testing: a tenth of all sentences, chosen by a hash, is given here and is never given
        otherwise, whatever the seed.

    Returns
    -------
    TaskText
        The pairs and their alignments.

    Raises
    ------
    AttnscopeError
        Fewer than one pair, `shortest` not between 1 and `longest`, or sentences too short to be all different.

    Examples
    --------
    >>> task = generate_task(1, seed=9, longest=8, shortest=8)
    >>> task.source[0], task.target[0]
    ('three thousand and one , two , six', '3 1000 1 , 2 , 6')
    >>> task.alignments[0]
    ((0, 0), (1, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6))
    """
    if pairs < 1 or not 1 <= shortest <= longest:
        raise AttnscopeError(
            f"found {pairs} pairs of {shortest} to {longest} words; expected at least one pair, and "
            "1 <= shortest <= longest"
        )
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
            "ask for fewer pairs, or for longer sentences"
        )
    phrases = by_source.values()
    return TaskText(
        list(by_source),
        [" ".join(NOTATION[phrase.words[place]] for place in phrase.order) for phrase in phrases],
        alignments=[tuple((place, at) for at, place in enumerate(phrase.order)) for phrase in phrases],
    )


def _sentence(generator: random.Random, words: int) -> _Phrase:
    """Items with commas between them, of exactly so many words."""
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
    return _Phrase.join(parts, (2, 1, 3, 4, 0))


def _number(generator: random.Random) -> _Phrase:
    words: list[str] = []
    for unit in ("thousand", "hundred"):
        if generator.random() < UNITS:
            words += [generator.choice(SMALL[:9]), unit]
    words += ["and"] if words else []
    return _Phrase.join([*map(_Phrase.of, words), _below_hundred(generator.randint(1, 99))])


def _below_hundred(number: int) -> _Phrase:
    tens, ones = divmod(number, 10)
    if tens < 2 or not ones:  # noqa: PLR2004
        return _Phrase.of(SMALL[number - 1] if tens < 2 else TENS[tens - 2])  # noqa: PLR2004
    return _Phrase((TENS[tens - 2], SMALL[ones - 1]), (1, 0))
