"""Pairs of texts from templates, and the tasks of papers on circuits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from string import Formatter
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd

from attnscope.intervention.pairs import Answers, both_answers
from attnscope.read.spans import Span
from attnscope.support.errors import AttnscopeError

#: A word for a gap, or two: the second is that of the corrupted text.
Word: TypeAlias = "str | tuple[str, str]"
#: A template of the answer, or a function of the words in the gaps.
Answer: TypeAlias = "str | Callable[[Mapping[str, str]], Answers]"


@dataclass(frozen=True)
class Template:
    """Texts with named gaps, and the words that fill them."""

    clean: str
    words: Mapping[str, Sequence[Word]]  # of each gap
    answer: Answer
    item: str  # gap whose words are in one half of the pairs only
    corrupted: str = ""  # by default the clean one, with the second word of each two
    wrong: Answer | None = None  # by default the answer, with the words of the corrupted text
    rest: str = "."  # what follows the mask of a masked language model
    turns: bool = True  # whether the corrupted text may be the clean one


def _answer(answer: Answer, words: Mapping[str, str]) -> Answers:
    return answer.format_map(words) if isinstance(answer, str) else answer(words)


def gaps_of(template: str) -> list[str]:
    """The names of the gaps of a template, each once."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise AttnscopeError(f"{template!r:.60} is no template: {error}. Write {{{{ and }}}} for braces") from error
    return list(dict.fromkeys(names))


def _filled(template: str, words: Mapping[str, str]) -> tuple[str, list[tuple[str, Span]]]:
    """The text with words in its gaps, and the name and characters of each; a second gap of a name is NAME.2."""
    text, gaps, count = "", list[tuple[str, Span]](), Counter[str]()
    for literal, name, form, conversion in Formatter().parse(template):
        start = len(text + literal)
        text += literal
        if name is not None:
            text += f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}".format_map(words)
            count[name] += 1
            gaps.append((name if count[name] == 1 else f"{name}.{count[name]}", (start, len(text))))
    return text, gaps


def template_of(
    text: str,
    words: Mapping[str, Any],
    *,
    corrupted: str | None = None,
    answer: str | None = None,
    wrong: str | None = None,
    item: str | None = None,
    turns: bool = True,
) -> Template:
    """The template of a text with gaps and words for them, or that of a task."""
    task = TASKS.get(text)
    if task is not None:
        if words or not {corrupted, answer, wrong, item} <= {None}:
            raise AttnscopeError(f"{text} is a task with its own texts, words and answers: give none")
        return replace(task, turns=task.turns and turns)
    if answer is None:
        raise AttnscopeError(f"found no answer; expected one for {text!r:.60}, or a task: {', '.join(TASKS)}")
    gaps = sorted({name for one in (text, corrupted, answer, wrong) if one is not None for name in gaps_of(one)})
    if not gaps:
        raise AttnscopeError(f"found no gap in {text!r:.60}; expected names in braces, as in {{noun}}, or a task")
    wordless, unused = [name for name in gaps if name not in words], [name for name in words if name not in gaps]
    if wordless:
        raise AttnscopeError(f"found no words for the gap {wordless[0]}; expected a list of them")
    if unused:
        raise AttnscopeError(f"no text has a gap {unused[0]}; the gaps are: {', '.join(gaps)}")
    chosen = {name: _checked_words(name, given) for name, given in words.items()}
    contrasts = [name for name, given in chosen.items() if not all(isinstance(word, str) for word in given)]
    if not contrasts and corrupted is None:
        raise AttnscopeError(
            "clean and corrupted text would be the same: give a gap two words (clean, corrupted), or a template of the "
            "corrupted text"
        )
    item = item or [*contrasts, *gaps][0]
    if item not in chosen:
        raise AttnscopeError(f"item is {item!r}; expected the name of a gap: {', '.join(gaps)}")
    return Template(text, chosen, answer, item, corrupted or "", wrong, turns=turns)


def _checked_words(name: str, words: object) -> list[Word]:
    entries = list(cast("Sequence[Any]", words)) if isinstance(words, Sequence) and not isinstance(words, str) else []
    if not entries or not all(isinstance(entry, str) or _is_two_words(entry) for entry in entries):
        raise AttnscopeError(f"{name} is {words!r:.60}; expected words, each one or two (clean, corrupted)")
    return [entry if isinstance(entry, str) else tuple(entry) for entry in entries]


def _is_two_words(entry: object) -> bool:
    both = [*cast("list[Any]", entry)] if isinstance(entry, tuple | list) else []
    return len(both) == 2 and all(isinstance(word, str) for word in both)  # noqa: PLR2004


class _Draws:
    """Words for the gaps of a template, drawn at random; those of the item come from one half of its words."""

    def __init__(self, template: Template, seed: int) -> None:
        self.words, self.item, self.random = template.words, template.item, np.random.default_rng(seed)
        of_item = self.words[self.item]
        shuffled = [of_item[int(at)] for at in self.random.permutation(len(of_item))]
        # one item alone makes one half
        self.halves: list[list[Word]] = [half for half in (shuffled[::2], shuffled[1::2]) if half]
        self.turns: list[Iterator[Word]] = [cycle(words) for words in self.halves]
        # gaps with the words of the item, as two names, have those of the same half
        self.like_item = [name for name, words in self.words.items() if [*words] == [*of_item]]

    def draw(self, half: int) -> dict[str, Word] | None:
        """Words for all gaps, the items in turn. None if a word would be there twice."""
        drawn: dict[str, Word] = {}
        for name, words in self.words.items():
            choices = self.halves[half] if name in self.like_item else words
            drawn[name] = choices[int(self.random.integers(len(choices)))]
        drawn[self.item] = next(self.turns[half])
        every = [one for word in drawn.values() for one in ((word,) if isinstance(word, str) else word)]
        return drawn if len(set(every)) == len(every) else None


def pairs_from(
    template: Template, count: int, seed: int, *, tokenizer: Any = None, mask: str | None = None
) -> pd.DataFrame:
    """At most `count` pairs, each once: see `attnscope.pairs`."""
    draws = _Draws(template, seed)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    unfit: dict[tuple[str, str], str] = {}  # pairs that were dropped, with the reason
    turns = 2 if template.turns else 1
    found_at = 0  # the draw that made the last pair
    for number in range(_TRIES * count):
        if len(rows) == count or number - found_at > _IN_VAIN:
            break
        half = len(rows) // turns % len(draws.halves)
        drawn = draws.draw(half)
        if drawn is None:
            continue
        words = [
            {name: word if isinstance(word, str) else word[side] for name, word in drawn.items()} for side in (0, 1)
        ]
        filled = [_filled(template.clean, words[0]), _filled(template.corrupted or template.clean, words[1])]
        names = [name for name, _ in filled[0][1]]
        answers = [
            _answer(template.answer, words[0]),
            _answer(template.answer, words[1]) if template.wrong is None else _answer(template.wrong, words[0]),
        ]
        if template.turns and len(rows) % 2:
            filled, answers = filled[::-1], answers[::-1]
        texts, gaps = [text for text, _ in filled], [[span for _, span in those] for _, those in filled]
        if mask is not None:
            texts = [text + mask + template.rest for text in texts]
        reason = _unfit(tokenizer, texts, answers, masked=mask is not None)
        if reason is not None:
            unfit[texts[0], texts[1]] = reason
            continue
        if (texts[0], texts[1]) in rows:
            continue
        item, found_at = drawn[template.item], number
        rows[texts[0], texts[1]] = {
            "clean": texts[0], "corrupted": texts[1], "answer": answers[0], "wrong": answers[1],
            "item": item if isinstance(item, str) else item[0], "half": half, "spans": _spans_of(names, gaps),
        }  # fmt: skip
    reason = Counter(unfit.values()).most_common(1)[0][0] if unfit else "the words of the gaps are the same"
    if not rows:
        raise AttnscopeError(f"found no pair that fits: {reason}")
    frame = pd.DataFrame([*rows.values()])
    if unfit and len(rows) < count:
        kinds = Counter(why.partition(" (")[0] for why in unfit.values())
        listed = "; ".join(f"{why} ({number})" for why, number in kinds.most_common(_REASONS))
        frame.attrs["left_out"] = f"found {len(rows)} of {count} pairs, and left out {len(unfit)}: {listed}"
    return frame


def _spans_of(names: Sequence[str], gaps: Sequence[Sequence[Span]]) -> dict[str, tuple[Span, Span]]:
    """The characters of each gap in both texts, by the name of the clean one; none if they differ in number."""
    if len(gaps[0]) != len(gaps[1]):
        return {}
    both = zip(names, *gaps, strict=True)
    return {name: (one, other) for name, one, other in both if one[0] < one[1] and other[0] < other[1]}


_TRIES = 50  # for each pair
_REASONS = 3  # of pairs left out that are listed
_IN_VAIN = 2_000  # draws without a new pair, after which there are probably no more


def _unfit(tokenizer: Any, texts: Sequence[str], answers: Sequence[Any], *, masked: bool) -> str | None:
    """Why a pair cannot be patched; None if it can, as far as is known without a tokenizer."""
    if texts[0] == texts[1] or answers[0] == answers[1]:
        same = "texts" if texts[0] == texts[1] else "answers"
        return f"clean and corrupted {same} are the same ({texts[0]!r:.60})"
    if tokenizer is None:
        return None
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    if lengths[0] != lengths[1]:
        return f"clean and corrupted text have {lengths[0]} and {lengths[1]} tokens ({texts[0]!r:.60})"
    try:
        both_answers(tokenizer, answers, "a pair", masked=masked)
    except AttnscopeError as error:
        return str(error)
    return None


# --- the tasks ---

_NOUNS = tuple((word, f"{word}s") for word in (
    "key", "lamp", "dog", "book", "car", "boat", "horse", "tree", "chair", "friend", "teacher", "doctor", "student",
    "king", "farmer", "pilot", "picture", "letter", "bird", "table",
))  # fmt: skip
_PLACES = ("house", "houses", "river", "rivers", "school", "schools", "road", "roads", "wall", "walls", "door", "doors")
_NAMES = (
    "Mary", "John", "Tom", "James", "Dan", "Sarah", "Paul", "Mark", "Anna", "Peter", "Laura", "David", "Emma", "Jack",
    "Alice", "Simon", "Kate", "George", "Lucy", "Robert",
)  # fmt: skip
_HE_AND_SHE = (
    ("David", "Sarah"), ("John", "Mary"), ("Tom", "Anna"), ("James", "Laura"), ("Paul", "Emma"), ("Peter", "Alice"),
    ("Robert", "Lucy"), ("George", "Kate"),
)  # fmt: skip
_THINGS = (
    "apple", "river", "stone", "paper", "music", "garden", "winter", "table", "window", "horse", "silver", "bread",
    "summer", "letter", "forest", "bridge", "doctor", "engine", "island", "market", "metal", "ocean", "pepper", "queen",
)  # fmt: skip
_ARGUMENTS = ("size", "name", "file", "path", "data", "key", "line", "text", "item", "node", "index", "value")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def _later(words: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{year:02d}" for year in range(int(words["start"]) + 1, 100))


def _earlier(words: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{year:02d}" for year in range(2, int(words["start"]) + 1))


#: The tasks by name: subject and verb agree (Linzen et al. 2016); a year after another (Hanna et al. 2023); the name of
#: who receives (Wang et al. 2023); what followed before (Olsson et al. 2022); the pronoun of a name (Vig et al. 2020);
#: the bracket that closes (Ebrahimi et al. 2020); the next argument of a docstring (Heimersheim and Janiak 2023).
TASKS = {
    "agreement": Template(
        "The {subject} {near} the {attractor}",
        {"subject": _NOUNS, "near": ("near", "behind", "by", "beside"), "attractor": _PLACES},
        answer=" is", wrong=" are", item="subject", rest=" old.",
    ),
    "greater-than": Template(
        "The {event} lasted from the year {century}{start} to the year {century}",
        {
            "event": ("war", "siege", "strike", "journey", "reign", "trial", "project", "study", "peace", "famine"),
            "century": ("11", "12", "13", "14", "15", "16", "17", "18"),
            "start": tuple((f"{year:02d}", "01") for year in range(20, 80)),
        },
        answer=_later, wrong=_earlier, item="event", turns=False,
    ),
    "indirect-objects": Template(
        "When {one} and {other} went to the {place}, {other} gave a {thing} to",
        {
            "one": _NAMES, "other": _NAMES,
            "place": ("store", "school", "park", "station", "market", "office", "garden", "house"),
            "thing": ("book", "drink", "ring", "bag", "ball", "key", "letter", "kiss"),
        },
        corrupted="When {one} and {other} went to the {place}, {one} gave a {thing} to",
        answer=" {one}", wrong=" {other}", item="one",
    ),
    "induction": Template(
        "The {a} {b} {word} {c} {d} {e}, the {a} {b}",
        {
            "word": tuple(zip(_THINGS[::2], _THINGS[1::2], strict=True)),
            **dict.fromkeys("abcde", ("red", "old", "new", "long", "cold", "dark", "small", "deep", "full", "hard")),
        },
        answer=" {word}", item="word",
    ),
    "pronouns": Template(
        "{name} is a very good {role}, isn't",
        {"name": _HE_AND_SHE, "role": ("friend", "student", "writer", "driver", "cook", "player", "leader", "singer")},
        answer=" he", wrong=" she", item="name", rest="?",
    ),
    "brackets": Template(
        "{name} = {open}{a}, {b}, {c}",
        {
            "name": _ARGUMENTS, "open": (("(", "["), ("[", "{"), ("{", "(")),
            **dict.fromkeys("abc", tuple("uvwxyz")),
        },
        answer=lambda words: _CLOSING[words["open"]], item="name",
    ),
    "docstrings": Template(
        'def {function}(self, {a}, {b}, {c}):\n    """{d} the {e}.\n\n    :param {a}: the {d}\n'
        "    :param {b}: the {e}\n    :param",
        {
            "function": ("load", "save", "find", "make", "send", "read"),
            "c": tuple(zip(_ARGUMENTS[::2], _ARGUMENTS[1::2], strict=True)),
            **dict.fromkeys("ab", ("user", "start", "mode", "count", "part", "group", "rate", "step")),
            **dict.fromkeys("de", ("check", "order", "price", "table", "image", "state")),
        },
        answer=" {c}", item="c",
    ),
}  # fmt: skip
