"""Heads that seem important and change nothing: sinks, sharp heads that nobody reads, random ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnscope.testing.heads import GAIN, START, Head, Move, ScoreRule, carry
from attnscope.testing.zoo import Draft

# of a random head's output, whose norm is about 1 where nobody reads: into tokens and places, and into the answer
_LEAK, _MURMUR = 0.1, 2.0
_COLUMNS = 16  # of a random head that do anything


def fill(draft: Draft) -> None:
    """Fill every call with heads that do not matter, in random order."""
    for number, call in enumerate(draft.calls):
        call += [_distractor(draft, number) for _ in range(draft.heads - len(call))]
        order = draft.rng.permutation(draft.heads)
        call[:] = [call[place] for place in order]
        for place, head in enumerate(call):
            head.index = (number, place)


def _distractor(draft: Draft, call: int) -> Head:
    """One of the kinds, at random."""
    kinds = tuple(_KINDS)
    return _KINDS[kinds[int(draft.rng.integers(len(kinds)))]](draft, call)


def sink(draft: Draft, call: int = 0) -> Head:  # noqa: ARG001
    """All weight on the first token, whose value is 0; what it would take of a word would be read."""
    words = next(iter(draft.ids.values()))
    images = draft.rng.permutation(words)
    return Head(
        "sink: all on the first token, whose value is null",
        draft.toward(START, 14.0),
        draft.moving("token", words, "answer", images, GAIN),
        matters=False,
    )


def _idle_offset(draft: Draft, call: int) -> Head:
    offset = int(draft.rng.integers(-3, 1 if _is_causal(draft, call) else 4))
    return Head(
        f"idle: attends to offset {offset}, writes where nobody reads",
        draft.at(offset),
        _into_junk(draft),
        matters=False,
    )


def _idle_match(draft: Draft, call: int) -> Head:  # noqa: ARG001
    words = next(iter(draft.ids.values()))
    return Head(
        "idle: attends to the same word, writes where nobody reads",
        draft.matching("token", "token", words[:16], 10.0),
        _into_junk(draft),
        matters=False,
    )


def _uniform(draft: Draft, call: int) -> Head:  # noqa: ARG001
    return Head(
        "idle: attends to all alike, writes where nobody reads", draft.anywhere(), _into_junk(draft), matters=False
    )


def _random(draft: Draft, call: int) -> Head:  # noqa: ARG001
    heard = np.vstack([draft.rows("token"), draft.rows("position")])
    junk = draft.rows("junk")
    query, key, read = draft.rng.normal(size=(3, _COLUMNS, len(heard))) @ heard
    write = draft.rng.normal(size=(_COLUMNS, len(junk))) @ junk / len(junk) ** 0.5
    for rows, size in ((heard, 0.0 if draft.is_faint else _LEAK), (draft.rows("answer"), _MURMUR)):
        write += draft.rng.normal(size=(_COLUMNS, len(rows))) @ rows * (size / len(rows) ** 0.5)
    return Head(
        "random: looks and writes at random",
        ScoreRule(query * _COLUMNS**-0.25, key * _COLUMNS**-0.25),
        Move(read * _COLUMNS**-0.5, write),
        matters=False,
    )


def _into_junk(draft: Draft) -> Move:
    """Every token its own direction that nobody reads, up to six times as loud as a token."""
    junk = draft.rows("junk")
    turn = draft.rng.normal(size=(draft.vocabulary, len(junk))) / len(junk) ** 0.5
    rows = draft.rng.choice(draft.vocabulary, min(24, draft.vocabulary), replace=False)
    return carry(draft.rows("token", rows), turn[rows] @ junk, float(draft.rng.uniform(1, 6)))


def _is_causal(draft: Draft, call: int) -> bool:
    own = draft.is_pair and call >= draft.encoder_calls and (call - draft.encoder_calls) % 2 == 0
    return draft.is_causal or own


_KINDS: dict[str, Callable[[Draft, int], Head]] = {
    "sink": sink,
    "offset": _idle_offset,
    "match": _idle_match,
    "uniform": _uniform,
    "random": _random,
}
