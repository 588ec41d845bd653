"""Words of a text, and the tokens of each."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any, cast

import regex

from attnscope.read.files import json_objects, shown
from attnscope.read.shown import ShownTokens
from attnscope.read.windows import Window, window_name
from attnscope.support.checks import check_kind
from attnscope.support.errors import AttnscopeError

Span = tuple[int, int]
#: Forms of words: the name of a rule, a file of spans, or a function from a text to its spans.
Words = str | Path | Callable[[str], Sequence[Sequence[int]]]

_UNICODE = regex.compile(r"\b", regex.WORD)  # the boundaries of UAX #29
_SPACE = regex.compile(r"\S+")
_EXAMPLE = '{"text": "The tide", "spans": [[0, 3], [4, 8]]}'


@dataclass(frozen=True)
class WordRule:
    """A rule for the positions of the words of a text."""

    signature: str  # identity of the rule
    # from a text to the first character and one past the last of each word, in order
    spans: Callable[[str], list[Span]]

    def over(self, windows: Iterable[Window]) -> "WordRule":
        """The rule of a function that runs once over all texts; its results identify it."""
        if not self.signature.startswith("function "):
            return self
        digest = hashlib.sha256()
        for window in WordedWindows(windows, self):
            for side in (window, window.target):
                digest.update(json.dumps(() if side is None else side.words).encode() + b"\n")
        return replace(self, signature=f"{self.signature}:{digest.hexdigest()[:16]}")


@dataclass(eq=False)
class WordedWindows:
    """Windows whose tokens carry the number of their word."""

    windows: Iterable[Window]  # windows of texts, not of token ids
    rule: WordRule
    # tokens so far in the latest iteration, and the number of them that span several words
    tokens: int = field(default=0, init=False)
    across: int = field(default=0, init=False)
    _last: tuple[str, list[Span], list[int]] = field(default=("", [], []), init=False, repr=False)

    def __iter__(self) -> Iterator[Window]:
        self.tokens = self.across = 0
        for number, window in enumerate(self.windows):
            target = None if window.target is None else self._worded(window.target, number)
            yield replace(self._worded(window, number), target=target)

    def _worded(self, window: Window, number: int) -> Window:
        if window.words:  # given with the token ids
            self.tokens += len(window)
            return window
        if not window.text:
            raise AttnscopeError(
                f"{window_name(window, number)} has no words, as the characters of its tokens are unknown: give texts "
                "instead of token ids, use a fast tokenizer (tokenizer.json), or leave out words (--words)"
            )
        if self._last[0] is not window.text:
            words = _checked(self.rule.spans(window.text), window)
            self._last = window.text, words, [start for start, _ in words]
        numbers, across = _numbered(window, *self._last[1:])
        self.tokens, self.across = self.tokens + len(window), self.across + across
        return replace(window, words=numbers)


def word_rule_of(given: Words) -> WordRule:
    """Words from any form."""
    if isinstance(given, Path):
        return _of_file(given)
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return WordRule(f"function {name}", cast("Any", given))
    check_kind("unicode, space, a pathlib.Path of spans, or a function", str, words=given)
    if given == "unicode":
        return WordRule(given, _by_unicode)
    if given == "space":
        return WordRule(given, lambda text: [word.span() for word in _SPACE.finditer(text)])
    raise AttnscopeError(f"there is no rule of words {given!r}: choose unicode or space, or a file")


def in_words(window: Window) -> Window:
    """A window with words as tokens; unchanged without words."""
    if not window.words:
        return window
    members: list[list[int]] = [[] for _ in range(window.words[-1] + 1)]
    for token, word in enumerate(window.words):
        members[word].append(token)

    def of_first(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[tokens[0]] for tokens in members) if values else ()

    parts: dict[str, Any] = {name: of_first(getattr(window, name)) for name in ("ids", "special", "roles", "groups")}
    parts["spans"] = tuple((window.spans[tokens[0]][0], window.spans[tokens[-1]][1]) for tokens in members)
    parts["shown"] = ShownTokens(lambda: (_shown(window, tokens) for tokens in members))
    return replace(window, **parts, words=(), target=None if window.target is None else in_words(window.target))


def _shown(window: Window, tokens: list[int]) -> str:
    """The display of a word: its tokens, or its characters if tokens share some."""
    spans = [window.spans[token] for token in tokens]
    apart = all(end <= start for (_, end), (start, _) in pairwise(spans))
    if len(tokens) == 1 or apart or not window.text:
        return "".join(window.tokens[token] for token in tokens)
    space = " " if window.tokens[tokens[0]].startswith(" ") else ""
    return space + window.text[spans[0][0] : max(end for _, end in spans)].strip()


def _numbered(window: Window, words: list[Span], starts: list[int]) -> tuple[tuple[int, ...], int]:
    """The number of the word of each token, from 0, and the number of tokens that span several words."""
    numbers: list[int] = []
    across, before, waiting = 0, -1, False
    for (start, end), special in zip(window.spans, window.special, strict=True):
        first = -1 if special else _first_word(starts, words, start, end)
        if first >= 0 and first + 1 < len(words) and words[first + 1][0] < end:
            across += 1
        follows = numbers and not special and (waiting or (first >= 0 and first == before))
        numbers.append(numbers[-1] if follows else (numbers[-1] + 1 if numbers else 0))
        waiting = not special and not window.text[start:end].strip(" ")
        before = first
    return tuple(numbers), across


def _first_word(starts: list[int], words: list[Span], start: int, end: int) -> int:
    """The first word with a character from `start` to `end`; -1 for none."""
    at = bisect_right(starts, start) - 1
    if at >= 0 and start < words[at][1]:
        return at if end > start else -1
    following = at + 1
    return following if following < len(words) and words[following][0] < end else -1


def _by_unicode(text: str) -> list[Span]:
    ends = [word.start() for word in _UNICODE.finditer(text)]
    return [(start, end) for start, end in pairwise(ends) if not text[start:end].isspace()]


def joined(words: list[Span], text: str, joins: Iterable[str]) -> list[Span]:
    """Words of a text, where adjacent ones that spell one of `joins` are one word."""
    for wanted in joins:
        starts, ends = ({span[side]: i for i, span in enumerate(words)} for side in (0, 1))
        for start, end in reversed([match.span() for match in regex.finditer(regex.escape(wanted), text)]):
            if start in starts and end in ends:
                words[starts[start] : ends[end] + 1] = [(start, end)]
    return words


def _checked(given: Any, window: Window) -> list[Span]:
    try:
        spans = [(index(start), index(end)) for start, end in given]
    except (TypeError, ValueError):
        raise AttnscopeError(
            f"the words of {window.source} are {given!r:.60}; expected pairs of first character and one past the last"
        ) from None
    last = 0
    for start, end in spans:
        if not last <= start < end <= len(window.text):
            raise AttnscopeError(
                f"the words of {window.source} have the span {start} to {end}; expected spans in order, each after the "
                f"one before (which ends at {last}), within {len(window.text)} characters"
            )
        last = end
    return spans


def _of_file(path: Path) -> WordRule:
    """The spans of a file, by their text."""
    of_text: dict[str, list[Any]] = {}
    for number, value in json_objects(path, "spans"):
        text, spans = value.get("text"), value.get("spans")
        if not isinstance(text, str) or not isinstance(spans, list):
            raise AttnscopeError(f"{shown(path)}, line {number}: expected a text and its spans, such as {_EXAMPLE}")
        if of_text.setdefault(text, cast("list[Any]", spans)) != spans:
            raise AttnscopeError(
                f"{shown(path)}, line {number}: has other spans for the text of an earlier line: leave out one of them"
            )
    digest = hashlib.sha256(json.dumps(of_text, sort_keys=True).encode()).hexdigest()
    return WordRule(f"spans:{digest[:16]}", partial(_dictionary_words, of_text, shown(path)))


def _dictionary_words(of_text: dict[str, list[Any]], name: str, text: str) -> list[Any]:
    if text not in of_text:
        begin = f"{text[:40]}..." if len(text) > 40 else text  # noqa: PLR2004
        raise AttnscopeError(
            f"{name} has no spans for the text {begin!r}; expected a line for each text, such as {_EXAMPLE}"
        )
    return of_text[text]
