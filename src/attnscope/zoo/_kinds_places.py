"""Circuits of positional heads alone: what stands at an offset is said, at once or by way of other places."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int

from attnscope.zoo._draft import Draft, Ids
from attnscope.zoo._heads import GAP, carry
from attnscope.zoo._plan import Setting
from attnscope.zoo._task import GAIN, TEXTS, ZooTask, asking, at_offset

_WORDS = 16
_FARTHEST = 4  # tokens


@dataclass(frozen=True, eq=False)
class ReadingTask:
    """Texts of random words, of which the one at an offset is asked for, by its image.

    Attributes
    ----------
    words, images
        What stands there, and what is to be said.
    offset
        Tokens.
    keys
        ``(text, query, key)``: what must be looked at.
    task
        Texts and answers.
    """

    words: Ids
    images: Ids
    offset: int
    keys: Bool[np.ndarray, "text query key"]
    task: ZooTask


def sheet(setting: Setting, *, calls: int = 2, slots: int = 0) -> Draft:
    """A draft with words only."""
    return Draft(setting, {"word": _WORDS}, calls=calls, slots=slots)


def read_at(draft: Draft, offset: int, *passed: int) -> ReadingTask:
    """Ask for the word at an offset, where those that are passed on the way are words as well."""
    words = draft.ids["word"]
    images = draft.rng.permutation(words)
    ids, target = texts(draft)
    asked = within(draft, offset, *passed)
    keys = at_offset(asked, offset)
    answers = images_at(draft, ids, images, offset)
    return ReadingTask(words, images, offset, keys, ZooTask(ids, asking(answers, asked), keys, target))


def plant_reader(
    draft: Draft,
    what: ReadingTask,
    role: str = "says the word",
    *,
    gain: float = GAIN,
    gap: float = GAP,
    backup: str = "",
) -> None:
    """Plant the head that does it; with a small `gap` it does not look sharply."""
    look = draft.at(what.offset, gap=gap)
    move = draft.moving("token", what.words, "answer", what.images, gain)
    role = f"looks at offset {what.offset} and {role}"
    head = draft.plant(draft.reading_calls()[0], role, look, move, backup=backup)
    draft.must_look(head, what.keys, *((0.7,) if gap == GAP else (0.3, 0.99)))


def some_offset(draft: Draft, *others: int) -> int:
    """An offset that a head may look at, other than these."""
    last = 0 if draft.is_causal else _FARTHEST + 1
    possible = [offset for offset in range(-_FARTHEST, last) if offset and offset not in others]
    return int(draft.rng.choice(possible))


def within(draft: Draft, *offsets: int) -> Bool[np.ndarray, "text query"]:
    """Queries from which all of these offsets lie on words."""
    query = np.arange(draft.length)
    there = query >= (0 if draft.is_pair else 1)
    for offset in offsets:
        there &= (query + offset >= 1) & (query + offset < draft.length)
    return np.tile(there, (TEXTS, 1))


def texts(draft: Draft) -> tuple[Int[np.ndarray, "text token"], Int[np.ndarray, "text query"] | None]:
    """Random words for the model, and beside an encoder others for the decoder."""
    words = draft.ids["word"]
    return draft.words(words), draft.words(words) if draft.is_pair else None


def images_at(
    draft: Draft, ids: Int[np.ndarray, "text token"], images: Ids, offset: int
) -> Int[np.ndarray, "text token"]:
    """The image of the word at an offset from each place."""
    table = np.zeros(draft.vocabulary, dtype=np.int64)
    table[draft.ids["word"]] = images
    return np.roll(table[ids], -offset, axis=1)


def at_one(setting: Setting, offset: int | None) -> tuple[Draft, ZooTask]:
    """One head looks at an offset and says the image of the word there."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft) if offset is None else offset)
    plant_reader(draft, what)
    return draft, what.task


def previous(setting: Setting) -> tuple[Draft, ZooTask]:
    """The previous token, said."""
    return at_one(setting, -1)


def following(setting: Setting) -> tuple[Draft, ZooTask]:
    """The next token, said."""
    return at_one(setting, 1)


def another(setting: Setting) -> tuple[Draft, ZooTask]:
    """The token at another offset, said."""
    return at_one(setting, None)


def same_place(setting: Setting) -> tuple[Draft, ZooTask]:
    """The source's token at the same place, said."""
    return at_one(setting, 0)


def reverse(setting: Setting) -> tuple[Draft, ZooTask]:
    """The source's tokens, said from the last to the first."""
    draft = sheet(setting)
    words = draft.ids["word"]
    images = draft.rng.permutation(words)
    ids, target = texts(draft)
    asked = within(draft)
    asked[:, 0] = False  # the place that mirrors the source's start token
    keys = at_offset(asked, mirror=draft.length)
    place = np.arange(draft.length)
    answers = images_at(draft, ids, images, 0)[:, (-place) % draft.length]
    head = draft.plant(
        draft.reading_calls()[0],
        "looks at the places in reverse order and says the word",
        draft.at(draft.length, mirror=True),
        draft.moving("token", words, "answer", images, GAIN),
    )
    draft.must_look(head, keys)
    return draft, ZooTask(ids, asking(answers, asked), keys, target)


def pair(setting: Setting) -> tuple[Draft, ZooTask]:
    """Two heads at two offsets give one half of the answer each."""
    draft = sheet(setting)
    words = draft.ids["word"]
    sides = int(_WORDS**0.5)
    order = draft.rng.permutation(words)  # the answer for a first and a second half
    ids, target = texts(draft)
    first = some_offset(draft)
    second = some_offset(draft, first)
    asked = within(draft, first, second)
    labels = np.zeros_like(ids)
    for half, worth, offset in (
        (np.arange(_WORDS) // sides, sides, first),
        (np.arange(_WORDS) % sides, 1, second),
    ):
        agrees = (half[:, None] == half).astype(float)
        head = draft.plant(
            draft.reading_calls()[0],
            f"looks at offset {offset} and says one half",
            draft.at(offset),
            carry(draft.rows("token", words), agrees @ draft.rows("answer", order), GAIN),
        )
        draft.must_look(head, at_offset(within(draft, offset), offset))
        labels += worth * images_at(draft, ids, half, offset)
    return draft, ZooTask(ids, asking(order[labels], asked), at_offset(asked, first, second), target)


def relay(setting: Setting, heads: int = 2) -> tuple[Draft, ZooTask]:
    """Each head hands on what the one before it found at its own offset: values are composed."""
    draft = sheet(setting, calls=max(2, heads), slots=heads - 1)
    offsets = [0]
    while 0 in np.cumsum(offsets):  # a word would come back to a place where it was
        offsets = [some_offset(draft) for _ in range(heads)]
    what = read_at(draft, sum(offsets), *np.cumsum(offsets[::-1])[:-1].tolist())
    parts = ["token", *(f"slot{number}" for number in range(heads - 1)), "answer"]
    steps = zip(draft.reading_calls(heads), offsets, pairwise(parts), strict=True)
    for call, offset, (source, to) in steps:
        if to == "answer":
            role, move = "says the word", draft.moving(source, what.words, to, what.images, GAIN)
        else:
            role, move = "hands the word on", draft.moving(source, what.words, to)
        head = draft.plant(call, f"looks at offset {offset} and {role}", draft.at(offset), move)
        draft.must_look(head, at_offset(within(draft, offset), offset))
    return draft, what.task


def chain(setting: Setting) -> tuple[Draft, ZooTask]:
    """A relay of three heads in three layers."""
    return relay(setting, 3)
