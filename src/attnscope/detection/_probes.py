"""What a model reads so that roles show: windows of a corpus, random tokens said twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope._numbers import count
from attnscope.corpus import Window, grouping_of
from attnscope.detection._seen import Nearness, SeenText, SeenTwice
from attnscope.errors import AttnscopeError
from attnscope.mechanism.evidence import TOKENS_AT_ONCE

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.detection._role import Kind

_LEAST = 8  # tokens of a window from which offsets and sinks mean something
_SEQUENCES, _SAID_TWICE = 16, 50
_FEW = 2


@dataclass(frozen=True, eq=False)
class Probe:
    """Windows, and how one attention call over some of them is measured.

    Attributes
    ----------
    kind
        As a role names it.
    windows
        At least one.
    look
        From windows of one length, by number, and a call over them to what it shows, with its ``output``.
    batch_size
        Windows at a time.
    """

    kind: Kind
    windows: tuple[Window, ...]
    look: Callable[[Sequence[int], AttentionCall], Any]
    batch_size: int | None = None

    def batches(self) -> Iterator[list[int]]:
        """Numbers of windows of one length, some at a time: nothing is ever padded."""
        by_length = sorted(range(len(self.windows)), key=lambda number: len(self.windows[number]))
        for length, numbers in groupby(by_length, key=lambda number: len(self.windows[number])):
            several = list(numbers)
            size = self.batch_size or max(1, TOKENS_AT_ONCE // length)
            yield from (several[first : first + size] for first in range(0, len(several), size))


def text_probe(windows: Sequence[Window], length: int, reach: Nearness, batch_size: int | None) -> Probe:
    """Windows of the corpus: the full ones, where half of them are; else all of 8 tokens or more.

    Raises
    ------
    AttnscopeError
        If none is long enough.
    """
    full = [window for window in windows if len(window) == length]
    kept = full if 2 * len(full) >= len(windows) else [window for window in windows if len(window) >= _LEAST]
    if not kept:
        raise AttnscopeError(
            f"found no window of {_LEAST} tokens or more; expected some, so that places mean something: give longer "
            "texts"
        )
    marks = [torch.tensor(delimiters_of(window)) for window in kept]

    def look(numbers: Sequence[int], call: AttentionCall) -> SeenText:
        return SeenText.of(call, torch.stack([marks[number] for number in numbers]), reach)

    return Probe("text", tuple(kept), look, batch_size)


def left_out_note(windows: Sequence[Window], kept: Sequence[Window], length: int) -> dict[str, str]:
    """Which windows `text_probe` left out, and why; nothing where it left out none.

    Examples
    --------
    >>> long, short = (Window((0,) * n, (False,) * n, ((0, 0),) * n, "text 1", 0, ("a",) * n) for n in (16, 9))
    >>> left_out_note([long, long, short], [long, long], 16)["left_out"]
    '1 of 3 windows was left out: it has fewer than the 16 tokens of a full one, and where at least half are full only \
those are read, so that all are alike.'
    >>> left_out_note([long], [long], 16)
    {}
    """
    missing = len(windows) - len(kept)
    if not missing:
        return {}
    why = (
        f"fewer than the {length} tokens of a full one, and where at least half are full only those are read, so that "
        "all are alike."
        if 2 * sum(len(window) == length for window in windows) >= len(windows)
        else f"fewer than {_LEAST} tokens, too few for places to mean anything."
    )
    was, has = ("were", "they have") if missing > 1 else ("was", "it has")
    return {"left_out": f"{missing} of {count(len(windows), 'window')} {was} left out: {has} {why}"}


def delimiters_of(window: Window) -> list[bool]:
    r"""Which tokens part others: punctuation, line breaks, and special tokens behind the first place.

    Examples
    --------
    >>> tokens = ("<s>", " Out", ",", "\n", " in", "</s>")
    >>> window = Window((0,) * 6, (True, *[False] * 4, True), ((0, 0),) * 6, "text 1", 0, tokens)
    >>> delimiters_of(window)
    [False, False, True, True, False, True]
    """
    kinds = grouping_of("kinds").given(window)
    return [
        kind == "punctuation" or (kind == "special" and place > 0) or "\n" in token
        for place, (kind, token) in enumerate(zip(kinds, window.tokens, strict=True))
    ]


def repeated_probe(
    around: Window, words: Sequence[int], length: int, seed: int, batch_size: int | None
) -> Probe:
    """16 texts of random tokens said twice, with the special tokens around them that a window has.

    Parameters
    ----------
    around
        A window of the corpus.
    words
        Tokens to draw from; none twice in a text but by the repetition.
    length
        Most tokens of a text.
    seed
        Seed of the random number generator.
    batch_size
        Texts at a time.

    Raises
    ------
    AttnscopeError
        If there is no room to say two tokens twice.
    """
    begins = list(around.special).index(False) if False in around.special else 0
    ends = list(reversed(around.special)).index(False) if False in around.special else 0
    prefix, suffix = around.ids[:begins], around.ids[len(around) - ends :]
    period = min(_SAID_TWICE, (length - begins - ends) // 2, len(words))
    if period < _FEW:
        raise AttnscopeError(
            f"found {len(words)} different tokens and windows of {length}; expected room to say two tokens twice"
        )
    generator = np.random.default_rng(seed)
    windows: list[Window] = []
    for number in range(_SEQUENCES):
        drawn = tuple(generator.choice(np.asarray(words), period, replace=False).tolist())
        windows.append(plain_window((*prefix, *drawn, *drawn, *suffix), f"random tokens {number + 1}"))
    return Probe("repeated", tuple(windows), lambda _, call: SeenTwice.of(call, begins, period), batch_size)


def plain_window(ids: Sequence[int], name: str) -> Window:
    """A window of which the ids alone matter."""
    nothing = len(ids)
    return Window(tuple(ids), (False,) * nothing, ((0, 0),) * nothing, name, 0, ("",) * nothing)


def ordinary_tokens(tokenizer: Any, windows: Sequence[Window], rows: int) -> list[int]:
    """Ids of a vocabulary that are no special tokens; without a tokenizer, those of the texts.

    Parameters
    ----------
    tokenizer
        A fast tokenizer, or None.
    windows
        Windows of the corpus.
    rows
        Rows of the model's table of embeddings.
    """
    if tokenizer is None:
        pairs = (pair for window in windows for pair in zip(window.ids, window.special, strict=True))
        return sorted({token for token, special in pairs if not special})
    special = set(tokenizer.all_special_ids)
    return [token for token in range(min(len(tokenizer), rows)) if token not in special]
