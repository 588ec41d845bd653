"""Spans of a text by name, as characters, and the tokens within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError

#: First character of a span and one past its last.
Span: TypeAlias = tuple[int, int]
FORM = 'expected names with first character and one past the last, such as {"subject": [4, 7]}'


def span_of(value: Any, name: str, where: str, length: int) -> Span:
    """A span as it is written in data: two characters of a text of some length."""
    ends: list[Any] = [*cast("Sequence[Any]", value)] if isinstance(value, Sequence) else []
    is_span = len(ends) == 2 and all(isinstance(end, int) for end in ends)  # noqa: PLR2004
    if not is_span or not 0 <= ends[0] < ends[1] <= length:
        raise AttnscopeError(f"{where}: the span {name!r} is {value!r:.60} in a text of {length} characters; {FORM}")
    return ends[0], ends[1]


def named_spans(value: Any, where: str) -> Mapping[str, Any]:
    """The names of spans, with their characters as they are written."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[Any, Any]", value)):
        raise AttnscopeError(f"{where}: the field 'spans' is {value!r:.60}; {FORM}")
    return cast("Mapping[str, Any]", value)


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
