"""Texts with known answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from attnscope.models import IGNORED

PAD, START, ASK = 0, 1, 2  # ids of every vocabulary
TEXTS = 32
GAIN = 6.5  # logits that a circuit adds to its answer


@dataclass(frozen=True, eq=False)
class ZooTask:
    """Texts and the token that the logits of a place shall name.

    Attributes
    ----------
    ids
        ``(text, token)``; of the source, where there are two texts.
    labels
        ``(text, query)``; -100 where nothing is asked. Not shifted: `labels` at a place are for the logits there.
    hangs_on
        ``(text, query, token)``: whether what is asked at the query changes with this token; None where no single one
        decides.
    target
        ``(text, query)``: what a decoder beside an encoder reads.
    """

    ids: Int[np.ndarray, "text token"]
    labels: Int[np.ndarray, "text query"]
    hangs_on: Bool[np.ndarray, "text query token"] | None = None
    target: Int[np.ndarray, "text query"] | None = None


def marked(
    length: int, queries: Int[np.ndarray, "*text place"], keys: Int[np.ndarray, "*text place"]
) -> Bool[np.ndarray, "text query key"]:
    """True where a query meets its key; places are the same in every text, or given for each.

    Examples
    --------
    >>> marked(3, np.array([1, 2]), np.array([0, 1]))[0].astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    """
    marks = np.zeros((TEXTS, length, length), dtype=bool)
    marks[np.arange(TEXTS)[:, None], queries, keys] = True
    return marks


def at_offset(
    asked: Bool[np.ndarray, "text query"], *offsets: int, mirror: int | None = None
) -> Bool[np.ndarray, "text query key"]:
    """The keys at these offsets from what is asked; with `mirror`, those whose sum with the query is that.

    Examples
    --------
    >>> asked = np.array([[False, True, True]])
    >>> at_offset(asked, -1)[0].astype(int).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    """
    text, query = asked.nonzero()
    marks = np.zeros((*asked.shape, asked.shape[1]), dtype=bool)
    if mirror is not None:
        marks[text, query, mirror - query] = True
    for offset in offsets:
        marks[text, query, query + offset] = True
    return marks


def at_key(
    asked: Bool[np.ndarray, "text query"], where: Int[np.ndarray, " text"]
) -> Bool[np.ndarray, "text query key"]:
    """One key of each text, from wherever something is asked.

    Examples
    --------
    >>> at_key(np.array([[False, True]]), np.array([0]))[0].astype(int).tolist()
    [[0, 0], [1, 0]]
    """
    return asked[:, :, None] & (np.arange(asked.shape[1]) == where[:, None])[:, None]


def asking(
    answers: Int[np.ndarray, "text query"], asked: Bool[np.ndarray, "text query"]
) -> Int[np.ndarray, "text query"]:
    """The answers where something is asked.

    Examples
    --------
    >>> asking(np.array([[7, 8]]), np.array([[False, True]])).tolist()
    [[-100, 8]]
    """
    return np.where(asked, answers, IGNORED)
