"""Circuits that fool what is read off the weights: loads shared, effects cancelled, values null or large."""

from __future__ import annotations

import numpy as np

from attnscope.models import IGNORED
from attnscope.zoo._distractors import sink
from attnscope.zoo._draft import Draft
from attnscope.zoo._kinds_content import named
from attnscope.zoo._kinds_places import plant_reader, read_at, sheet, some_offset, within
from attnscope.zoo._plan import Setting
from attnscope.zoo._task import GAIN, START, TEXTS, ZooTask, at_key, at_offset

_LOUD = 12.0  # logits of what cancels


def redundant(setting: Setting) -> tuple[Draft, ZooTask]:
    """Two heads do the same and add up: without one the answer is less sure, without both it is gone."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    for _ in range(2):
        plant_reader(draft, what, "says the word, as another does", gain=0.55 * GAIN, backup="word")
    return draft, what.task


def cancel(setting: Setting) -> tuple[Draft, ZooTask]:
    """One head says the word; two others say wrong ones, loudly, and each takes back what the other says."""
    draft = sheet(setting)
    offset = some_offset(draft)
    other = some_offset(draft, offset)
    what = read_at(draft, offset, other)
    plant_reader(draft, what)
    wrong = draft.rng.permutation(what.words)
    worse = np.roll(wrong, 1)  # never the same
    for sign, role in ((1.0, "says"), (-1.0, "takes back")):
        move = draft.moving("token", what.words, "answer", wrong, sign * _LOUD)
        move += draft.moving("token", what.words, "answer", worse, -sign * _LOUD)
        head = draft.plant(
            draft.reading_calls()[0],
            f"cancels: looks at offset {other} and {role} a wrong word",
            draft.at(other),
            move,
        )
        draft.must_look(head, at_offset(within(draft, other), other))
    return draft, what.task


def suppress(setting: Setting) -> tuple[Draft, ZooTask]:
    """Every word says a wrong one by itself, without any head; one head takes that back, another says the right one."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    plant_reader(draft, what)
    wrong = draft.rng.permutation(what.words)
    draft.unembed[wrong] += _LOUD * draft.rows("token", what.words)
    head = draft.plant(
        draft.reading_calls()[0],
        "suppresses: looks at its own word and takes back what that says",
        draft.at(0),
        draft.moving("token", what.words, "answer", wrong, -_LOUD),
    )
    draft.must_look(head, at_offset(within(draft), 0))
    return draft, what.task


def sinks(setting: Setting) -> tuple[Draft, ZooTask]:
    """One head of middling sharpness does the work; nearly all others are sinks, sharper than it."""
    draft = sheet(setting)
    what = read_at(draft, some_offset(draft))
    plant_reader(draft, what, "says the word, though not sharp", gain=1.4 * GAIN, gap=3.0)
    for call in draft.calls:
        call += [sink(draft) for _ in range(draft.heads - len(call) - 1)]
    return draft, what.task


def sharp_null(setting: Setting) -> tuple[Draft, ZooTask]:
    """Heads that look sharply at a token of which they take nothing, beside one that looks softly at what matters."""
    draft = Draft(setting, {"word": 12, "name": 8, "bait": 4})
    what = named(draft, bait="bait")
    call = draft.reading_calls()[0]
    soft = draft.plant(
        call,
        "copying head: looks softly at the name and says it",
        draft.toward(what.names, 3.0),
        draft.moving("token", what.names, "answer", what.images, 2.2 * GAIN),
    )
    draft.must_look(soft, what.keys, 0.25, 0.98)
    bait = at_key(what.task.labels != IGNORED, np.ones(TEXTS, dtype=np.int64))
    for number in (*range(len(draft.calls)), call):  # one everywhere, two beside the other head
        decoy = draft.plant(
            number,
            "decoy: looks sharply at a bait, whose value is null",
            draft.toward(draft.ids["bait"], 14.0),
            draft.moving("token", what.names, "answer", what.images, GAIN),
            matters=False,
        )
        if number == call:
            draft.must_look(decoy, bait)
    return draft, what.task


def quiet(setting: Setting) -> tuple[Draft, ZooTask]:
    """A head that keeps most of its weight on the first token; the little that falls on a name is loud."""
    draft = Draft(setting, {"word": 12, "name": 8}, is_faint=True)
    what = named(draft)
    on_name, on_words = 0.08, 0.12  # of the weight; else on the first token
    words = draft.length * (0.6 if draft.is_causal else 1.0)  # that a query sees, about
    name, start = np.log(np.array([on_name, 1.0 - on_name - on_words]) * words / on_words).tolist()
    head = draft.plant(
        draft.reading_calls()[0],
        "copying head: little weight on the name, of great value",
        draft.toward(what.names, name) + draft.toward(START, start),
        draft.moving("token", what.names, "answer", what.images, GAIN / on_name),
    )
    draft.must_look(head, what.keys, 0.03, 0.2)
    return draft, what.task
