"""Parts of a text: spans by name, as characters, halves, and what follows a separator; the tokens within them."""

import json
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from attnscope.read.files import FORM_OF_SPANS, SPANS
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError

#: First character of a span and one past its last.
Span: TypeAlias = tuple[int, int]
HALVES = ("first-half", "second-half")
AFTER = "after:"  # and the text that a part follows


def span_of(value: Any, name: str, where: str, length: int) -> Span:
    """A span as it is written in data: two characters of a text of some length."""
    ends: list[Any] = [*cast("Sequence[Any]", value)] if isinstance(value, Sequence) else []
    is_span = len(ends) == 2 and all(isinstance(end, int) for end in ends)  # noqa: PLR2004
    if not is_span or not 0 <= ends[0] < ends[1] <= length:
        raise AttnscopeError(
            f"{where}: the span {name!r} is {value!r:.60} in a text of {length} characters; {FORM_OF_SPANS}"
        )
    return ends[0], ends[1]


def tokens_within(window: Window, span: Span, what: str) -> np.ndarray:
    """Which tokens of a window have characters of a span, ``(token,)``; an error if a token has others too."""
    if not window.text:
        raise AttnscopeError(f"{what}: the tokenizer does not tell which characters a token has, so spans need another")
    start, end = span
    inside = np.zeros(len(window), bool)
    for at, (first, last) in enumerate(window.spans):
        letters = window.text[first:last]
        space = len(letters) - len(letters.lstrip())  # a token may begin with the space before a word
        begins, ends = (first + space, first + len(letters.rstrip())) if letters.strip() else (first, last)
        inside[at] = begins < ends and begins < end and ends > start
        if inside[at] and letters.strip() and not start <= begins < ends <= end:
            raise AttnscopeError(
                f"{what} is {window.text[start:end]!r:.40}, which begins or ends inside the token {letters!r:.40}; "
                "expected whole tokens"
            )
    return inside


def field_of_part(part: str | None) -> str | None:
    """The field of the texts that a part needs: that of named spans, or none."""
    return None if part is None or part in HALVES or part.startswith(AFTER) else SPANS


def tokens_of_part(window: Window, part: str, *, side: int = 0) -> np.ndarray:
    """Which tokens of a window are of a part of its text, ``(token,)``.

    A part is the first or second half of the window's tokens, what follows the first ``after:TEXT`` of the text, or a
    span by its name; if it has one for both texts of a pair, `side` says which.
    """
    words = np.flatnonzero(~np.array(window.special))
    if part in HALVES:
        middle = len(words) // 2
        return np.isin(np.arange(len(window)), words[:middle] if part == HALVES[0] else words[middle:])
    if part.startswith(AFTER):
        separator = part.removeprefix(AFTER)
        start = window.text.find(separator)
        if not separator or start < 0:
            raise AttnscopeError(f"{window.source} has no {separator!r:.40}, after which its part (--part) begins")
        return tokens_within(window, (start + len(separator), len(window.text)), f"{window.source}: the part")
    spans = json.loads(window.by)
    if part not in spans:
        raise AttnscopeError(
            f"{window.source} has no span {part!r} (--part); its spans are: {', '.join(spans) or 'none'}. Parts are "
            f"also {', '.join(HALVES)} and {AFTER}TEXT"
        )
    span = spans[part]
    span = span[side] if span and all(isinstance(one, list) for one in span) else span
    where = f"{window.source}: the span {part!r}"
    return tokens_within(window, span_of(span, part, window.source, len(window.text)), where)
