"""Prompts: the beginnings of texts, or chats up to where the assistant speaks, with the spans that are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from attnscope.corpus import ChatTexts, Corpus, Frame, Grouping, Texts, Window, cut_windows
from attnscope.errors import AttnscopeError
from attnscope.statistics.generation._spans import OWN, PROMPT, SOURCE, START

if TYPE_CHECKING:
    from attnscope.capture import LoadedModel
    from attnscope.statistics.generation._spans import Spans

ANY = "..."  # in a pattern: whatever stands between


def prompts_of(
    texts: Texts | ChatTexts, loaded: LoadedModel, *, length: int, limit: int | None
) -> list[Window]:
    """The first `length` tokens of each text; a chat, whose end matters, must fit as a whole.

    Raises
    ------
    AttnscopeError
        A chat does not fit, or there is no prompt.
    """
    prompts: list[Window] = []
    if isinstance(texts, ChatTexts):
        for window in texts.windows(length=length):
            if prompts and window.source == prompts[-1].source:
                raise AttnscopeError(
                    f"{window.source} has more than {length} tokens, all that fit before what is generated: leave that "
                    "chat out, or raise --window"
                )
            if len(prompts) == limit:
                break
            prompts.append(window)
    elif isinstance(texts, Corpus):
        frame = Frame.of(loaded.tokenizer)
        if not loaded.model.config.is_encoder_decoder:
            frame = replace(frame, suffix=())  # a text that goes on has no end
        for text in texts:
            if len(prompts) == limit:
                break
            prompts += cut_windows([text], loaded.tokenizer, length=length, limit=1, frame=frame)
    else:
        prompts += texts.windows(loaded.tokenizer, length=length, limit=limit)
    if not prompts:
        raise AttnscopeError("no prompt: expected a text at least")
    return prompts


def spans_of(prompt: Window, patterns: Mapping[str, str], grouping: Grouping | None) -> Spans:
    """The tokens of each named span of a prompt: by patterns in its text, and by groups.

    Examples
    --------
    >>> marks, tokens = ((0, 2), (2, 5), (5, 6)), ("Is", " it", "?")
    >>> window = Window((5, 6, 7), (False,) * 3, marks, "text 1", 0, tokens, text="Is it?")
    >>> spans_of(window, {"question": "it...?", "all": "...", "gone": "tide"}, None)
    {'question': [1, 2], 'all': [0, 1, 2]}
    """
    spans: dict[str, list[int]] = {}
    if grouping is not None:
        for number, name in enumerate(grouping.given(prompt)):
            spans.setdefault(name, []).append(number)
    for name, pattern in patterns.items():
        stretches = _stretches(prompt.text, pattern)
        tokens = [
            number
            for number, (start, end) in enumerate(prompt.spans)
            if any(start < last and max(end, start + 1) > first for first, last in stretches)
        ]
        if tokens:
            spans[name] = tokens
    return spans


def refuse_unmatched(prompts: Sequence[Window], patterns: Mapping[str, str]) -> None:
    """Refuse a pattern that marks nothing in any prompt.

    Raises
    ------
    AttnscopeError
        Names the first one.
    """
    left = dict(patterns)
    for prompt in prompts:
        for name in spans_of(prompt, left, None):
            del left[name]
        if not left:
            return
    for name, pattern in left.items():
        is_cut = next((len(prompt) for prompt in prompts if _stretches(prompt.text, pattern)), None)
        raise AttnscopeError(
            f"the span {name!r} (--span) is {pattern!r:.60}, which stands in "
            + (
                f"none of the {len(prompts)} prompts: give it as the text reads, with ... for whatever stands between"
                if is_cut is None
                else f"no prompt, but in a text behind its first {is_cut} tokens: raise window (--window), or leave "
                "the span out"
            )
        )


def patterns_of(given: object) -> dict[str, str]:
    """Spans as patterns by name.

    Raises
    ------
    AttnscopeError
        They are something else.

    Examples
    --------
    >>> patterns_of({"document": "<doc>...</doc>"})
    {'document': '<doc>...</doc>'}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise AttnscopeError(
            f'spans are {given!r:.60}; expected patterns by name, as {{"document": "<doc>...</doc>"}}'
        )
    named = cast("Mapping[Any, Any]", given)
    for name, pattern in named.items():
        if not isinstance(name, str) or not name.strip() or name in {PROMPT, SOURCE, START, OWN}:
            raise AttnscopeError(f"a span has the name {name!r:.60}; expected another word")
        if not isinstance(pattern, str) or not pattern:
            raise AttnscopeError(
                f'the span {name!r} is {pattern!r:.60}; expected how it reads, as "<doc>...</doc>", with ... for '
                "whatever stands between"
            )
    return {str(name): str(pattern) for name, pattern in named.items()}


def _stretches(text: str, pattern: str) -> list[tuple[int, int]]:
    """Characters from a pattern's beginning to its end, each time that it is there."""
    parts: Sequence[str] = pattern.split(ANY)
    stretches: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        first = end = text.find(parts[0], at)
        for part in parts:
            place = text.find(part, end) if end >= 0 else -1
            end = place + len(part) if place >= 0 else -1
        if end < 0:
            break
        if not parts[-1]:  # nothing is said about the end
            end = len(text)
        stretches.append((first, end))
        at = max(end, at + 1)
    return stretches
