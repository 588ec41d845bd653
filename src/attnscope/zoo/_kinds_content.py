"""Circuits of one head that looks for words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from attnscope.models import IGNORED
from attnscope.zoo._draft import Draft, Ids
from attnscope.zoo._plan import Setting
from attnscope.zoo._task import ASK, GAIN, START, TEXTS, ZooTask, asking, at_key

_CLASSES, _EACH = 4, 4
_ROWS = np.arange(TEXTS)


@dataclass(frozen=True, eq=False)
class Naming:
    """Texts of words with one name, which is asked for, by its image.

    Attributes
    ----------
    names, images
        What may stand there, and what is to be said.
    where
        ``(text,)``: place of the name.
    keys
        ``(text, query, key)``: the name, from wherever it is asked for.
    task
        Texts and answers.
    """

    names: Ids
    images: Ids
    where: Int[np.ndarray, " text"]
    keys: Bool[np.ndarray, "text query key"]
    task: ZooTask


def named(draft: Draft, *, most: int | None = None, bait: str | None = None) -> Naming:
    """Ask for the only name of a text wherever it can be seen, or at `most` places, which then hold question marks.

    With `bait` the first word is one of that group.
    """
    names = draft.ids["name"]
    images = draft.rng.permutation(names)
    ids = draft.words(draft.ids["word"])
    last = draft.length // 2 if draft.is_causal else draft.length
    where = draft.rng.integers(3, last, TEXTS)
    ids[_ROWS, where] = draft.rng.choice(names, TEXTS)
    if bait is not None:
        ids[:, 1] = draft.rng.choice(draft.ids[bait], TEXTS)
    place = np.arange(draft.length)
    if draft.is_pair:
        asked = np.ones(ids.shape, dtype=bool)
    else:
        asked = place > where[:, None] if draft.is_causal else (place != where[:, None]) & (place > 1)
    if most is not None:
        order = np.where(asked, draft.rng.random(ids.shape), 1.0).argsort(1).argsort(1)
        asked &= order < most
        ids[asked] = ASK
    keys = at_key(asked, where)
    answers = np.broadcast_to(images[ids[_ROWS, where] - names[0]][:, None], ids.shape)
    target = draft.words(draft.ids["word"]) if draft.is_pair else None
    return Naming(names, images, where, keys, ZooTask(ids, asking(answers, asked), keys, target))


def copying(setting: Setting) -> tuple[Draft, ZooTask]:
    """The only name of the text, said wherever it can be seen."""
    draft = Draft(setting, {"word": 12, "name": 8})
    what = named(draft)
    head = draft.plant(
        draft.reading_calls()[0],
        "copying head: looks at the name and says it",
        draft.toward(what.names, 10.0),
        draft.moving("token", what.names, "answer", what.images, GAIN),
    )
    draft.must_look(head, what.keys)
    return draft, what.task


def rare(setting: Setting) -> tuple[Draft, ZooTask]:
    """A copying head that rests on the first token but where a question mark stands; only there is anything asked."""
    draft = Draft(setting, {"word": 12, "name": 8}, lengths=(20, 32))
    what = named(draft, most=2)
    head = draft.plant(
        draft.reading_calls()[0],
        "copying head that rests on the first token but at a question mark",
        draft.toward(what.names, 24.0, draft.rows("token", np.array([ASK]))) + draft.toward(START, 12.0),
        draft.moving("token", what.names, "answer", what.images, GAIN),
    )
    draft.must_look(head, what.keys)
    draft.must_look(head, at_key(what.task.labels == IGNORED, np.zeros(TEXTS, dtype=np.int64)))
    return draft, what.task


def duplicate(setting: Setting) -> tuple[Draft, ZooTask]:
    """Whether this word stands elsewhere (before, if the future is not seen)."""
    draft = Draft(setting, {"word": 20, "verdict": 2}, lengths=(15, 17))
    words, (yes, no) = draft.ids["word"], draft.ids["verdict"]
    twice = (draft.length - 1) // 3
    pool = draft.rng.permuted(np.tile(words, (TEXTS, 1)), axis=1)[:, : draft.length - 1 - twice]
    text = draft.rng.permuted(np.hstack([pool, pool[:, :twice]]), axis=1)
    ids = np.hstack([np.full((TEXTS, 1), START), text])
    itself = np.eye(draft.length, dtype=bool)
    same = (ids[:, :, None] == ids[:, None]) & ~itself
    if draft.is_causal:
        same &= np.tri(draft.length, dtype=bool)
    is_repeated = same.any(2)
    look = draft.matching("token", "token", words, 24.0) + draft.at(0, nats=-30.0) + draft.toward(START, 14.0)
    move = draft.moving("token", words, "answer", np.full(len(words), yes), GAIN)
    move += draft.moving("token", np.array([START]), "answer", np.array([no]), GAIN)
    head = draft.plant(
        draft.reading_calls()[0],
        "duplicate-token head: looks at the same word elsewhere, or rests on the first token",
        look,
        move,
    )
    draft.must_look(head, same)
    labels = asking(np.where(is_repeated, yes, no), np.broadcast_to(np.arange(draft.length) > 0, ids.shape))
    return draft, ZooTask(ids, labels, same | (is_repeated[:, :, None] & itself))


def diffuse(setting: Setting) -> tuple[Draft, ZooTask]:
    """The class that most words are of, by a head that looks at all alike."""
    groups = {f"class {number}": _EACH for number in range(_CLASSES)}
    draft = Draft(setting, {**groups, "verdict": _CLASSES}, lengths=(24, 32))
    words = np.concatenate([draft.ids[name] for name in groups])
    verdicts = draft.rng.permutation(draft.ids["verdict"])
    place = np.arange(draft.length - 1)
    most = draft.rng.integers(_CLASSES, size=TEXTS)
    others = (most[:, None] + 1 + place % (_CLASSES - 1)) % _CLASSES
    classes = draft.rng.permuted(np.where(place < 0.6 * len(place), most[:, None], others), axis=1)
    text = words[classes * _EACH + draft.rng.integers(_EACH, size=classes.shape)]
    ids = np.hstack([np.full((TEXTS, 1), START), text])
    asked = np.zeros(ids.shape, dtype=bool)
    asked[:, -2 if draft.is_causal else 1 :] = True
    head = draft.plant(
        draft.reading_calls()[0],
        "counting head: looks at all words alike",
        draft.anywhere(),
        draft.moving("token", words, "answer", np.repeat(verdicts, _EACH), 3.0 * GAIN),
    )
    half = np.zeros((*ids.shape, draft.length), dtype=bool)
    half[:, -1, : draft.length // 2] = True
    draft.must_look(head, half, 0.4, 0.6)
    return draft, ZooTask(ids, asking(np.broadcast_to(verdicts[most][:, None], ids.shape), asked))
