"""Circuits of two heads, of which the second looks by what the first has noted."""

from __future__ import annotations

import numpy as np

from attnscope.models import IGNORED
from attnscope.zoo._draft import Draft
from attnscope.zoo._heads import matching
from attnscope.zoo._plan import Setting
from attnscope.zoo._task import ASK, GAIN, START, TEXTS, ZooTask, marked

_MATCH = 18.0  # nats where query and key agree
_REST = 9.0  # nats of the place to rest at
_CLASSES, _EACH = 4, 4
_ROWS = np.arange(TEXTS)[:, None]


def induction(setting: Setting) -> tuple[Draft, ZooTask]:
    """What followed this word before: keys are composed with what a previous-token head noted.

    Where both sides are seen, a question mark asks for what followed the word before it elsewhere.
    """
    return _induction(setting, notes=1)


def spare(setting: Setting) -> tuple[Draft, ZooTask]:
    """As `induction`, but two heads note the word before, and one note is enough: neither matters alone."""
    return _induction(setting, notes=2)


def _induction(setting: Setting, notes: int) -> tuple[Draft, ZooTask]:
    is_pair = setting.form == "encoder-decoder"
    draft = Draft(setting, {"word": 16}, slots=1, lengths=(12, 17) if is_pair else (20, 32))
    words = draft.ids["word"]
    ids, labels, target, asked, steps = _followed(draft) if is_pair else _repeated(draft)
    first, *others = (marked(draft.length, asked, key) for key in steps)
    early, late = draft.reading_calls(2)
    for _ in range(notes):
        noting = draft.plant(
            early,
            "previous-token head: notes the word before",
            draft.at(-1),
            draft.moving("token", words, "slot0"),
            matters=notes == 1,
            backup="note" if notes > 1 else "",
        )
        draft.must_look(noting, marked(draft.length, steps[0], steps[0] - 1))
    strength = _MATCH + 6.0 * (notes - 1)  # one note must be enough
    query = "slot0" if setting.form == "encoder" else "token"
    look = draft.matching(query, "slot0", words, strength) + draft.toward(START, _REST)
    if query != "token":
        look += draft.toward(ASK, -1.2 * strength * notes**2)  # the question mark has noted the same word
    copies = draft.plant(
        late,
        "induction head: looks for what followed this word",
        look,
        draft.moving("token", words, "answer", gain=GAIN),
    )
    draft.must_look(copies, first)
    return draft, ZooTask(ids, labels, np.logical_or.reduce([first, *others]), target)


_Drawn = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, list[np.ndarray]]


def _repeated(draft: Draft) -> _Drawn:
    """A run of words twice; in the second, a word's follower is asked for at the word or in the follower's place.

    Returns the texts, labels, no target, where something is asked, and what it hangs on: the answer first.
    """
    half = (draft.length - 1) // 2
    draft.length = 1 + 2 * half
    order = draft.rng.permuted(np.tile(draft.ids["word"], (TEXTS, 1)), axis=1)[:, :half]
    ids = np.hstack([np.full((TEXTS, 1), START), order, order])
    labels = np.full_like(ids, IGNORED)
    if draft.is_causal:
        word = asked = np.arange(1 + half, 2 * half)
        labels[:, asked] = ids[:, asked + 1]
    else:
        asked = np.arange(half + 3, 2 * half + 1, 3)
        word = asked - 1
        labels[:, asked] = ids[:, asked]
        ids[:, asked] = ASK
    return ids, labels, None, asked, [word - half + 1, word - half, word]


def _followed(draft: Draft) -> _Drawn:
    """Words of the source in another order; the follower of each is asked for."""
    source, target = (np.full((TEXTS, draft.length), START) for _ in range(2))
    source[:, 1:] = draft.rng.permuted(np.tile(draft.ids["word"], (TEXTS, 1)), axis=1)[:, : draft.length - 1]
    place = draft.rng.permuted(np.tile(np.arange(1, draft.length - 1), (TEXTS, 1)), axis=1)
    asked = np.tile(np.arange(1, draft.length - 1), (TEXTS, 1))
    target[:, 1:-1] = source[_ROWS, place]
    labels = np.full_like(source, IGNORED)
    labels[:, 1:-1] = source[_ROWS, place + 1]
    return source, labels, target, asked, [place + 1, place]


def lookup(setting: Setting) -> tuple[Draft, ZooTask]:
    """The word of the class that a question asks for."""
    return _questions(setting, is_composed=False)


def gate(setting: Setting) -> tuple[Draft, ZooTask]:
    """The word of the class that the question before asks for: queries are composed with what another head noted."""
    return _questions(setting, is_composed=True)


def _questions(setting: Setting, *, is_composed: bool) -> tuple[Draft, ZooTask]:
    classes = {f"class {number}": _EACH for number in range(_CLASSES)}
    draft = Draft(setting, {**classes, "question": _CLASSES, "filler": 4}, slots=1, lengths=(18, 30))
    questions = draft.ids["question"]
    words = np.concatenate([draft.ids[name] for name in classes])
    images = draft.rng.permutation(words)
    source, target, where, places = _with_questions(draft, list(classes))
    text = source if target is None else target
    late, part, query = draft.reading_calls()[0], "token", places
    if is_composed:
        early = (
            late - 1 if draft.is_pair else 0
        )  # the decoder's own attention, right before the cross-attention
        late, part, query = early + 1, "slot0", places + 1
        noting = draft.plant(
            early,
            "previous-token head: notes the question",
            draft.at(-1),
            draft.moving("token", questions, "slot0"),
        )
        draft.must_look(noting, marked(draft.length, query, places))
    of_class = np.stack([draft.rows("token", draft.ids[name]).sum(0) for name in classes])
    head = draft.plant(
        late,
        "content head: looks at the word of the class that is asked for",
        matching(draft.rows(part, questions), of_class, _MATCH) + draft.toward(START, _REST),
        draft.moving("token", words, "answer", images, GAIN),
    )
    answer = where[_ROWS, text[_ROWS, places] - questions[0]]
    labels = np.full_like(text, IGNORED)
    labels[_ROWS, query] = images[source[_ROWS, answer] - words[0]]
    keys = marked(draft.length, query, answer)
    draft.must_look(head, keys)
    hangs_on = keys if draft.is_pair else keys | marked(draft.length, query, places)
    return draft, ZooTask(source, labels, hangs_on, target)


def _with_questions(
    draft: Draft, classes: list[str]
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Fillers with one word of each class and, each before a filler, one question for each.

    Returns the text (or source and target), where the word of each class stands, and where the questions stand.
    """
    rng = draft.rng
    fillers = rng.choice(draft.ids["filler"], (TEXTS, draft.length - 1))
    source = np.hstack([np.full((TEXTS, 1), START), fillers])
    target = source.copy() if draft.is_pair else source
    where, places = (np.empty((TEXTS, _CLASSES), dtype=np.int64) for _ in range(2))
    middle = draft.length - 2 * _CLASSES
    for text in range(TEXTS):
        pairs = 1 + 2 * rng.permutation((draft.length - 1) // 2)
        if draft.is_causal:
            where[text] = rng.permutation(np.arange(1, middle))[:_CLASSES]
            places[text] = middle + 2 * np.arange(_CLASSES)
        else:
            where[text], places[text] = pairs[:_CLASSES], pairs[_CLASSES : 2 * _CLASSES]
        source[text, where[text]] = [rng.choice(draft.ids[name]) for name in classes]
        target[text, places[text]] = rng.permutation(draft.ids["question"])
    return source, target if draft.is_pair else None, where, places
