"""The planted circuits: each function plants heads on a draft and draws texts."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from attnscope.models.common import IGNORED
from attnscope_zoo.heads import (
    ASK,
    GAIN,
    GAP,
    START,
    TEXTS,
    ScoreRule,
    Task,
    at_key,
    at_offset,
    carry,
    marked,
    matching,
)
from attnscope_zoo.zoo import Draft, Ids, Setting, sink

_MATCH = 18.0  # nats if query and key match
_REST = 9.0  # nats of the resting position
_CLASSES, _EACH = 4, 4
_ROWS = np.arange(TEXTS)[:, None]


def induction(setting: Setting, notes: int = 1) -> tuple[Draft, Task]:
    """Predicts the word that followed this word before: keys are composed with previous-token heads.

    If there are two such heads, one is enough, so neither matters alone.
    """
    is_pair = setting.form == "encoder-decoder"
    draft = Draft(setting, {"word": 16}, slots=1, lengths=(12, 17) if is_pair else (20, 32))
    words = draft.ids["word"]
    ids, labels, target, queried, steps = _followed(draft) if is_pair else _repeated(draft)
    first, *others = (marked(draft.length, queried, key) for key in steps)
    early, late = draft.calls_of_chain(2)
    for _ in range(notes):
        draft.plant(
            "previous-token head: copies the previous word",
            draft.at(-1),
            draft.moving("token", words, "slot0"),
            marked(draft.length, steps[0], steps[0] - 1),
            call=early,
            matters=notes == 1,
            backup="note" if notes > 1 else "",
        )
    strength = _MATCH + 6.0 * (notes - 1)  # one note must be enough
    query = "slot0" if setting.form == "encoder" else "token"
    rule = draft.matching(query, "slot0", words, strength) + draft.toward(START, _REST)
    if query != "token":
        rule += draft.toward(ASK, -1.2 * strength * notes**2)  # the question mark has a note of the same word
    move = draft.moving("token", words, "answer", gain=GAIN)
    draft.plant("induction head: attends to the word that followed this word", rule, move, first, call=late)
    return draft, Task(ids, labels, np.logical_or.reduce([first, *others]), target)


_Drawn = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, list[np.ndarray]]


def _repeated(draft: Draft) -> _Drawn:
    """A repeated sequence of words; in the repeat, the next word is queried at the word or at its position."""
    half = (draft.length - 1) // 2
    draft.length = 1 + 2 * half
    order = draft.rng.permuted(np.tile(draft.ids["word"], (TEXTS, 1)), axis=1)[:, :half]
    ids = np.hstack([np.full((TEXTS, 1), START), order, order])
    labels = np.full_like(ids, IGNORED)
    if draft.is_causal:
        word = queried = np.arange(1 + half, 2 * half)
        labels[:, queried] = ids[:, queried + 1]
    else:
        queried = np.arange(half + 3, 2 * half + 1, 3)
        word = queried - 1
        labels[:, queried] = ids[:, queried]
        ids[:, queried] = ASK
    return ids, labels, None, queried, [word - half + 1, word - half, word]


def _followed(draft: Draft) -> _Drawn:
    """Words of the source in another order; the next word of each is queried."""
    source, target = (np.full((TEXTS, draft.length), START) for _ in range(2))
    source[:, 1:] = draft.rng.permuted(np.tile(draft.ids["word"], (TEXTS, 1)), axis=1)[:, : draft.length - 1]
    place = draft.rng.permuted(np.tile(np.arange(1, draft.length - 1), (TEXTS, 1)), axis=1)
    queried = np.tile(np.arange(1, draft.length - 1), (TEXTS, 1))
    target[:, 1:-1] = source[_ROWS, place]
    labels = np.full_like(source, IGNORED)
    labels[:, 1:-1] = source[_ROWS, place + 1]
    return source, labels, target, queried, [place + 1, place]


def lookup(setting: Setting, *, is_composed: bool = False) -> tuple[Draft, Task]:
    """Predicts the word of the class of a question; composed, the question is the previous word."""
    classes = {f"class {number}": _EACH for number in range(_CLASSES)}
    draft = Draft(setting, {**classes, "question": _CLASSES, "filler": 4}, slots=1, lengths=(18, 30))
    questions = draft.ids["question"]
    words = np.concatenate([draft.ids[name] for name in classes])
    images = draft.rng.permutation(words)
    source, target, where, places = _with_questions(draft, list(classes))
    text = source if target is None else target
    late, part, query = draft.calls_of_chain()[0], "token", places
    if is_composed:
        early = late - 1 if draft.is_pair else 0  # the decoder's own attention, right before the cross-attention
        late, part, query = early + 1, "slot0", places + 1
        role, move = "previous-token head: copies the question", draft.moving("token", questions, "slot0")
        draft.plant(role, draft.at(-1), move, marked(draft.length, query, places), call=early)
    of_class = np.stack([draft.rows("token", draft.ids[name]).sum(0) for name in classes])
    answer = where[_ROWS, text[_ROWS, places] - questions[0]]
    labels = np.full_like(text, IGNORED)
    labels[_ROWS, query] = images[source[_ROWS, answer] - words[0]]
    keys = marked(draft.length, query, answer)
    rule = matching(draft.rows(part, questions), of_class, _MATCH) + draft.toward(START, _REST)
    move = draft.moving("token", words, "answer", images, GAIN)
    draft.plant("content head: attends to the word of the queried class", rule, move, keys, call=late)
    return draft, Task(source, labels, keys if draft.is_pair else keys | marked(draft.length, query, places), target)


def _with_questions(draft: Draft, classes: list[str]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Fillers with one word of each class and, each before a filler, one question for each."""
    rng = draft.rng
    source = np.hstack([np.full((TEXTS, 1), START), rng.choice(draft.ids["filler"], (TEXTS, draft.length - 1))])
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


@dataclass(frozen=True, eq=False)
class Asked:
    """Texts of words, one of which is to be answered by its image."""

    words: Ids  # the words that can be asked for, and their images
    images: Ids
    keys: Bool[np.ndarray, "text query key"]  # the word, from each query
    task: Task
    offset: int = 0  # of the word, where that is fixed

    def plant(
        self,
        draft: Draft,
        role: str,
        rule: ScoreRule,
        *more: Bool[np.ndarray, "text query key"],
        gain: float = GAIN,
        **how: Any,
    ) -> None:
        """Plant a head that gives the image of the word."""
        draft.plant(role, rule, draft.moving("token", self.words, "answer", self.images, gain), *more, **how)


def named(draft: Draft, *, most: int | None = None, bait: str | None = None) -> Asked:
    """Query the only name of a text wherever it is visible, or at `most` positions, marked by question marks."""
    names = draft.ids["name"]
    images = draft.rng.permutation(names)
    ids = draft.words(draft.ids["word"])
    where = draft.rng.integers(3, draft.length // 2 if draft.is_causal else draft.length, TEXTS)
    ids[_ROWS[:, 0], where] = draft.rng.choice(names, TEXTS)
    if bait is not None:
        ids[:, 1] = draft.rng.choice(draft.ids[bait], TEXTS)
    place = np.arange(draft.length)
    if draft.is_pair:
        queried = np.ones(ids.shape, dtype=bool)
    else:
        queried = place > where[:, None] if draft.is_causal else (place != where[:, None]) & (place > 1)
    if most is not None:
        queried &= np.where(queried, draft.rng.random(ids.shape), 1.0).argsort(1).argsort(1) < most
        ids[queried] = ASK
    keys = at_key(queried, where)
    answers = np.broadcast_to(images[ids[_ROWS[:, 0], where] - names[0]][:, None], ids.shape)
    target = draft.words(draft.ids["word"]) if draft.is_pair else None
    return Asked(names, images, keys, Task(ids, np.where(queried, answers, IGNORED), keys, target))


def copying(setting: Setting) -> tuple[Draft, Task]:
    """Predicts the only name of the text wherever it is visible."""
    draft = Draft(setting, {"word": 12, "name": 8})
    what = named(draft)
    what.plant(draft, "copying head: attends to the name and predicts it", draft.toward(what.words, 10.0), what.keys)
    return draft, what.task


def rare(setting: Setting) -> tuple[Draft, Task]:
    """A copying head that rests on the first token except at question marks, the only queries."""
    draft = Draft(setting, {"word": 12, "name": 8}, lengths=(20, 32))
    what = named(draft, most=2)
    rule = draft.toward(what.words, 24.0, draft.rows("token", np.array([ASK]))) + draft.toward(START, 12.0)
    rest = at_key(what.task.labels == IGNORED, np.zeros(TEXTS, dtype=np.int64))
    what.plant(draft, "copying head that rests on the first token except at a question mark", rule, what.keys, rest)
    return draft, what.task


def duplicate(setting: Setting) -> tuple[Draft, Task]:
    """Predicts whether this word occurs elsewhere (before it, under a causal mask)."""
    draft = Draft(setting, {"word": 20, "verdict": 2}, lengths=(15, 17))
    words, (yes, no) = draft.ids["word"], draft.ids["verdict"]
    twice = (draft.length - 1) // 3
    pool = draft.rng.permuted(np.tile(words, (TEXTS, 1)), axis=1)[:, : draft.length - 1 - twice]
    ids = np.hstack([np.full((TEXTS, 1), START), draft.rng.permuted(np.hstack([pool, pool[:, :twice]]), axis=1)])
    itself = np.eye(draft.length, dtype=bool)
    same = (ids[:, :, None] == ids[:, None]) & ~itself
    if draft.is_causal:
        same &= np.tri(draft.length, dtype=bool)
    is_repeated = same.any(2)
    rule = draft.matching("token", "token", words, 24.0) + draft.at(0, nats=-30.0) + draft.toward(START, 14.0)
    move = draft.moving("token", words, "answer", np.full(len(words), yes), GAIN)
    move += draft.moving("token", np.array([START]), "answer", np.array([no]), GAIN)
    role = "duplicate-token head: attends to the same word elsewhere, or rests on the first token"
    draft.plant(role, rule, move, same)
    labels = np.where(np.arange(draft.length) > 0, np.where(is_repeated, yes, no), IGNORED)
    return draft, Task(ids, labels, same | (is_repeated[:, :, None] & itself))


def diffuse(setting: Setting) -> tuple[Draft, Task]:
    """Predicts the most frequent class of words, by a head with uniform attention."""
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
    queried = np.zeros(ids.shape, dtype=bool)
    queried[:, -2 if draft.is_causal else 1 :] = True
    half = np.zeros((*ids.shape, draft.length), dtype=bool)
    half[:, -1, : draft.length // 2] = True
    move = draft.moving("token", words, "answer", np.repeat(verdicts, _EACH), 3.0 * GAIN)
    draft.plant("counting head: attends to all words uniformly", draft.anywhere(), move, half, least=0.4, most=0.6)
    return draft, Task(ids, np.where(queried, verdicts[most][:, None], IGNORED))


_LOUD = 12.0  # logits of cancelling heads


def redundant(setting: Setting) -> tuple[Draft, Task]:
    """Two heads add up: without one the answer is less certain, without both it is gone."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    for _ in range(2):
        plant_reader(draft, what, "predicts the word, with another head", gain=0.55 * GAIN, backup="word")
    return draft, what.task


def cancel(setting: Setting) -> tuple[Draft, Task]:
    """One head predicts the word; two others predict wrong words strongly and cancel each other."""
    draft = sheet(setting)
    offset = some_offset(draft)
    other = some_offset(draft, offset)
    what = read_at(draft, offset, other)
    plant_reader(draft, what)
    wrong = draft.rng.permutation(what.words)
    worse = np.roll(wrong, 1)  # always different
    for sign, does in ((1.0, "says"), (-1.0, "takes back")):
        move = draft.moving("token", what.words, "answer", wrong, sign * _LOUD)
        move += draft.moving("token", what.words, "answer", worse, -sign * _LOUD)
        role = f"cancels: attends to offset {other} and {does} a wrong word"
        draft.plant(role, draft.at(other), move, at_offset(within(draft, other), other))
    return draft, what.task


def suppress(setting: Setting) -> tuple[Draft, Task]:
    """Without heads every word predicts a wrong one; one head suppresses that, another predicts the right one."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    plant_reader(draft, what)
    wrong = draft.rng.permutation(what.words)
    draft.unembed[wrong] += _LOUD * draft.rows("token", what.words)
    role = "suppresses: attends to its own word and cancels its prediction"
    move = draft.moving("token", what.words, "answer", wrong, -_LOUD)
    draft.plant(role, draft.at(0), move, at_offset(within(draft), 0))
    return draft, what.task


def sinks(setting: Setting) -> tuple[Draft, Task]:
    """One head of medium sharpness does the work; nearly all others are sharper sinks."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    plant_reader(draft, what, "predicts the word, without sharp attention", gain=1.4 * GAIN, gap=3.0)
    for call in draft.calls:
        call += [sink(draft) for _ in range(draft.heads - len(call) - 1)]
    return draft, what.task


def sharp_null(setting: Setting) -> tuple[Draft, Task]:
    """Heads that attend sharply to a token without effect, and one that attends softly to the token that matters."""
    draft = Draft(setting, {"word": 12, "name": 8, "bait": 4})
    what = named(draft, bait="bait")
    call = draft.calls_of_chain()[0]
    role, rule = "copying head: attends softly to the name and predicts it", draft.toward(what.words, 3.0)
    what.plant(draft, role, rule, what.keys, least=0.25, most=0.98, gain=2.2 * GAIN, call=call)
    bait = at_key(what.task.labels != IGNORED, np.ones(TEXTS, dtype=np.int64))
    for number in (*range(len(draft.calls)), call):  # one everywhere, two in the layer of the other head
        keys = (bait,) if number == call else ()
        role, rule = "decoy: attends sharply to a bait, whose value is null", draft.toward(draft.ids["bait"], 14.0)
        what.plant(draft, role, rule, *keys, call=number, matters=False)
    return draft, what.task


def quiet(setting: Setting) -> tuple[Draft, Task]:
    """A head with most of its weight on the first token; the little on a name has a large value."""
    draft = Draft(setting, {"word": 12, "name": 8}, is_faint=True)
    what = named(draft)
    on_name, on_words = 0.08, 0.12  # of the weight; else on the first token
    words = draft.length * (0.6 if draft.is_causal else 1.0)  # about the number of visible words
    name, start = np.log(np.array([on_name, 1.0 - on_name - on_words]) * words / on_words).tolist()
    role = "copying head: little weight on the name, of great value"
    rule = draft.toward(what.words, name) + draft.toward(START, start)
    what.plant(draft, role, rule, what.keys, least=0.03, most=0.2, gain=GAIN / on_name)
    return draft, what.task


_WORDS = 16
_FARTHEST = 4  # tokens


def sheet(setting: Setting, *, calls: int = 2, slots: int = 0) -> Draft:
    """A draft with words only."""
    return Draft(setting, {"word": _WORDS}, calls=calls, slots=slots)


def read_at(draft: Draft, offset: int, *passed: int) -> Asked:
    """Query the word at an offset, if all tokens up to it are words."""
    words = draft.ids["word"]
    images = draft.rng.permutation(words)
    ids, target = texts(draft)
    queried = within(draft, offset, *passed)
    keys = at_offset(queried, offset)
    labels = np.where(queried, images_at(draft, ids, images, offset), IGNORED)
    return Asked(words, images, keys, Task(ids, labels, keys, target), offset)


def plant_reader(draft: Draft, what: Asked, role: str = "predicts the word", *, gap: float = GAP, **how: Any) -> None:
    """Plant the head for it; with a small `gap` it does not attend sharply."""
    least, most = (0.7, 1.0) if gap == GAP else (0.3, 0.99)
    role = f"attends to offset {what.offset} and {role}"
    what.plant(draft, role, draft.at(what.offset, gap=gap), what.keys, least=least, most=most, **how)


def some_offset(draft: Draft, *others: int) -> int:
    """A random offset for a head, other than these."""
    last = 0 if draft.is_causal else _FARTHEST + 1
    return int(draft.rng.choice([offset for offset in range(-_FARTHEST, last) if offset and offset not in others]))


def within(draft: Draft, *offsets: int) -> Bool[np.ndarray, "text query"]:
    """Queries with words at all of these offsets."""
    query = np.arange(draft.length)
    there = query >= (0 if draft.is_pair else 1)
    for offset in offsets:
        there &= (query + offset >= 1) & (query + offset < draft.length)
    return np.tile(there, (TEXTS, 1))


def texts(draft: Draft) -> tuple[Int[np.ndarray, "text token"], Int[np.ndarray, "text query"] | None]:
    """Random words for the model, and others for the decoder of an encoder-decoder."""
    words = draft.ids["word"]
    return draft.words(words), draft.words(words) if draft.is_pair else None


def images_at(
    draft: Draft, ids: Int[np.ndarray, "text token"], images: Ids, offset: int
) -> Int[np.ndarray, "text token"]:
    """The image of the word at an offset from each position."""
    table = np.zeros(draft.vocabulary, dtype=np.int64)
    table[draft.ids["word"]] = images
    return np.roll(table[ids], -offset, axis=1)


def at_one(setting: Setting, offset: int | None) -> tuple[Draft, Task]:
    """One head attends to an offset and predicts the image of the word there."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft) if offset is None else offset)
    plant_reader(draft, what)
    return draft, what.task


def reverse(setting: Setting) -> tuple[Draft, Task]:
    """The source's tokens from the last to the first."""
    draft = sheet(setting)
    words = draft.ids["word"]
    images = draft.rng.permutation(words)
    ids, target = texts(draft)
    queried = within(draft)
    queried[:, 0] = False  # the position that mirrors the source's start token
    keys = at_offset(queried, mirror=draft.length)
    answers = images_at(draft, ids, images, 0)[:, (-np.arange(draft.length)) % draft.length]
    what = Asked(words, images, keys, Task(ids, np.where(queried, answers, IGNORED), keys, target))
    rule = draft.at(draft.length, mirror=True)
    what.plant(draft, "attends to positions in reverse order and predicts the word", rule, keys)
    return draft, what.task


def pair(setting: Setting) -> tuple[Draft, Task]:
    """Two heads at two offsets write one half of the answer each."""
    draft = sheet(setting)
    words = draft.ids["word"]
    sides = int(_WORDS**0.5)
    order = draft.rng.permutation(words)  # the answer for a first and a second half
    ids, target = texts(draft)
    first = some_offset(draft)
    second = some_offset(draft, first)
    queried = within(draft, first, second)
    labels = np.zeros_like(ids)
    for half, worth, offset in ((np.arange(_WORDS) // sides, sides, first), (np.arange(_WORDS) % sides, 1, second)):
        agrees = (half[:, None] == half).astype(float)
        move = carry(draft.rows("token", words), agrees @ draft.rows("answer", order), GAIN)
        keys = at_offset(within(draft, offset), offset)
        draft.plant(f"attends to offset {offset} and predicts one half", draft.at(offset), move, keys)
        labels += worth * images_at(draft, ids, half, offset)
    keys = at_offset(queried, first, second)
    return draft, Task(ids, np.where(queried, order[labels], IGNORED), keys, target)


def relay(setting: Setting, heads: int = 2) -> tuple[Draft, Task]:
    """Each head passes on the word that the head before it read at its offset: values are composed."""
    draft = sheet(setting, calls=max(2, heads), slots=heads - 1)
    offsets = [0]
    while 0 in np.cumsum(offsets):  # a word would return to an earlier position
        offsets = [some_offset(draft) for _ in range(heads)]
    what = read_at(draft, sum(offsets), *np.cumsum(offsets[::-1])[:-1].tolist())
    parts = ["token", *(f"slot{number}" for number in range(heads - 1)), "answer"]
    for call, offset, (source, to) in zip(draft.calls_of_chain(heads), offsets, pairwise(parts), strict=True):
        if to == "answer":
            role, move = "predicts the word", draft.moving(source, what.words, to, what.images, GAIN)
        else:
            role, move = "passes the word on", draft.moving(source, what.words, to)
        keys = at_offset(within(draft, offset), offset)
        draft.plant(f"attends to offset {offset} and {role}", draft.at(offset), move, keys, call=call)
    return draft, what.task
