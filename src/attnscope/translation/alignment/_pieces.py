"""A sentence as the tokenizer cut it: which token belongs to which word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NO_WORD = -1  # the word of </s> and other marks


@dataclass(frozen=True, eq=False)
class Pieces:
    """One sentence as the tokenizer cut it: token ids, and for each the word it belongs to."""

    ids: list[int]
    word: np.ndarray
    words: list[str]


def cut(tokenizer: Any, texts: list[str], words: str, *, target: bool) -> list[Pieces]:
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "truncation": False}
    options["verbose"] = False  # too long is refused below, by its line
    coded = tokenizer(text_target=texts, **options) if target else tokenizer(texts, **options)
    rows = zip(texts, coded["input_ids"], coded["offset_mapping"], coded["special_tokens_mask"], strict=True)
    belongs = _spaced if words == "space" else _each
    return [Pieces(list(ids), *belongs(text, offsets, marks)) for text, ids, offsets, marks in rows]


def _spaced(
    text: str, offsets: Sequence[tuple[int, int]], marks: Sequence[int]
) -> tuple[np.ndarray, list[str]]:
    """The word of each token, and the words between spaces."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    ends = [stop for _, stop in spans]
    # A token belongs to the first word that ends after it begins: spaces go to the word they precede.
    word = [
        NO_WORD if mark or not spans else min(int(np.searchsorted(ends, start, side="right")), len(spans) - 1)
        for (start, _), mark in zip(offsets, marks, strict=True)
    ]
    return np.array(word, dtype=np.int64), [text[start:stop] for start, stop in spans]


def _each(
    text: str, offsets: Sequence[tuple[int, int]], marks: Sequence[int]
) -> tuple[np.ndarray, list[str]]:
    """Every token that is no mark is a word."""
    kept = np.array(marks, dtype=np.int64) == 0
    word = np.where(kept, np.cumsum(kept) - 1, NO_WORD)
    pieces = [text[start:stop] for (start, stop), keep in zip(offsets, kept, strict=True) if keep]
    return word, [piece.strip() or piece for piece in pieces]
