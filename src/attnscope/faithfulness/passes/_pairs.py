"""Pairs of a clean and a corrupted text, and the two answers between which the model decides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.errors import AttnscopeError


@dataclass(frozen=True)
class Pair:
    """A clean text and a corrupted one, as long in tokens, and what the model shall and shall not say after them.

    Attributes
    ----------
    clean, corrupted
        The texts. A masked language model is asked at the mask token that each holds, at the same position; others for
        the token after the last.
    answer, wrong
        The right token after the clean text, and the one that is right after the corrupted text.

    Examples
    --------
    >>> Pair("Mary gave it to", "John gave it to", " John", " Mary").wrong
    ' Mary'
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs from JSON Lines: ``clean``, ``corrupted``, ``answer`` and ``wrong`` in each line.

    Raises
    ------
    AttnscopeError
        If the file cannot be read, or a line is no such object.

    Examples
    --------
    >>> import tempfile
    >>> line = '{"clean": "a b", "corrupted": "c b", "answer": " a", "wrong": " c"}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.jsonl").write_text(line, encoding="utf-8")
    ...     read_pairs(Path(folder) / "pairs.jsonl")[0].answer
    ' a'
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AttnscopeError(
            f"{path} cannot be read as UTF-8 text: {error}. Give a file of JSON Lines"
        ) from error
    found = [_pair(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise AttnscopeError(
            f"{path} holds no pair; expected one JSON object a line with {', '.join(_FIELDS)}"
        )
    return found


_FIELDS = ("clean", "corrupted", "answer", "wrong")


def _pair(line: str, where: str) -> Pair:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AttnscopeError(f"{where} is no JSON: expected an object with {', '.join(_FIELDS)}") from error
    if not isinstance(given, dict) or any(not isinstance(given.get(name), str) for name in _FIELDS):
        raise AttnscopeError(f"{where}: expected an object with the strings {', '.join(_FIELDS)}")
    return Pair(*(given[name] for name in _FIELDS))


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs as the model reads them; all as long.

    Attributes
    ----------
    clean, corrupted
        ``(pair, position)``, token ids.
    places
        ``(pair, 1)``: the position whose prediction is looked at.
    answers, wrongs
        ``(pair,)``, token ids.
    tokens
        Of the first clean text, to show.
    """

    clean: Int[Tensor, "pair position"]
    corrupted: Int[Tensor, "pair position"]
    places: Int[Tensor, "pair 1"]
    answers: Int[Tensor, " pair"]
    wrongs: Int[Tensor, " pair"]
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, pairs: Iterable[Pair], tokenizer: Any, *, masked: bool, device: torch.device) -> EncodedPairs:
        """Encode pairs.

        Raises
        ------
        AttnscopeError
            If the texts of a pair, or two pairs, differ in their number of tokens, an answer is not one token, or a
            masked model's text does not hold one mask, at the same place on both sides.
        """
        pairs = list(pairs)
        if not pairs:
            raise AttnscopeError("found no pair of texts; expected one or more")
        rows: list[list[list[int]]] = [[], []]
        places: list[int] = []
        for number, pair in enumerate(pairs, 1):
            both = [_ids(tokenizer, text, masked=masked) for text in (pair.clean, pair.corrupted)]
            if len(both[0]) != len(both[1]):
                raise AttnscopeError(
                    f"pair {number}: the clean text has {len(both[0])} tokens and the corrupted one {len(both[1])}; "
                    "expected as many, so that a position means the same in both: reword one"
                )
            for row, ids in zip(rows, both, strict=True):
                row.append(ids)
            places.append(_place(both, tokenizer, number, masked=masked))
        lengths = {len(row) for row in rows[0]}
        if len(lengths) > 1:
            raise AttnscopeError(
                f"pairs have {min(lengths)} to {max(lengths)} tokens; expected all as long, so that positions can be "
                "averaged: give those of one length at a time"
            )
        answers, wrongs = (
            [_one_token(tokenizer, getattr(pair, name), name, number) for number, pair in enumerate(pairs, 1)]
            for name in ("answer", "wrong")
        )

        def tensor(values: Sequence[Any]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        shown = tuple(tokenizer.convert_ids_to_tokens(rows[0][0]))
        return cls(
            tensor(rows[0]), tensor(rows[1]), tensor(places)[:, None], tensor(answers), tensor(wrongs), shown
        )


def _ids(tokenizer: Any, text: str, *, masked: bool) -> list[int]:
    """Token ids with the special tokens before a text, and for a masked model those after it."""
    ids: list[int] = tokenizer(text)["input_ids"]
    end = getattr(tokenizer, "eos_token_id", None)
    if not masked and ids and end is not None and ids[-1] == end and ids[-1] != ids[0]:
        ids = ids[:-1]  # nothing is said after the end
    if not ids:
        raise AttnscopeError(f"the tokenizer makes no token of {text!r}; expected at least one")
    return ids


def _place(both: list[list[int]], tokenizer: Any, number: int, *, masked: bool) -> int:
    if not masked:
        return len(both[0]) - 1
    found = [np.flatnonzero(np.array(ids) == tokenizer.mask_token_id).tolist() for ids in both]
    if len(found[0]) != 1 or found[0] != found[1]:
        raise AttnscopeError(
            f"pair {number}: found {len(found[0])} and {len(found[1])} masks; expected one {tokenizer.mask_token} in "
            "each text, at the same position"
        )
    return int(found[0][0])


def _one_token(tokenizer: Any, word: str, what: str, number: int) -> int:
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise AttnscopeError(
            f"pair {number}: the {what} {word!r} is {len(ids)} tokens; expected one (perhaps it begins with a space)"
        )
    return int(ids[0])
