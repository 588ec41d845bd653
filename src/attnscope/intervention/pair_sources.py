"""Pairs from files, from Python, or from the name of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Bool

from attnscope.capture.borrow import LoadedModel
from attnscope.intervention.pairs import (
    FIELDS,
    Pair,
    is_masked,
    is_prediction,
    position_of_answer,
    positions_of_span,
    sides_of,
)
from attnscope.intervention.templates import TASKS, pairs_from
from attnscope.read.files import (
    check_characters,
    decode_utf8,
    json_objects,
    lines_of,
    named_spans,
    read_bytes,
    reject_documents,
    shown,
)
from attnscope.read.spans import Span, span_of
from attnscope.support.errors import AttnscopeError, nearest
from attnscope.support.numbers import count

_TARGETS = ("target", "corrupted_target")
_SIDES, _ALL = 2, 4  # numbers of files: texts alone, or answers too
_MEND = "Or set answer and wrong (--answer and --wrong) for all pairs"
_OF_A_TASK = 50  # pairs
_FORM = 'Write {"clean": "...", "corrupted": "...", "answer": " are", "wrong": " is"}, a line of a .jsonl file for each'

#: A file of JSON Lines, two or four text files, the name of a task, or pairs as `Pair`, mappings or a data frame.
Pairs = str | Path | pd.DataFrame | Iterable[str | Path] | Iterable[Pair | Mapping[str, Any]]


def pairs_of_input(
    pairs: Pairs, *, answer: str | None = None, wrong: str | None = None, answered: bool = True
) -> list[Pair]:
    """Pairs from files (see `patch`) or from Python; `answer` and `wrong` are for pairs without their own.

    If they are not `answered`, because a metric of one's own needs none, pairs may lack both.
    """
    task = task_named(pairs)
    if task is not None:
        pairs = pairs_from(TASKS[task], _OF_A_TASK, seed=0)
    items: list[Any] = [pairs] if isinstance(pairs, Path) else _listed(pairs)
    for item in items:
        if isinstance(item, str):  # a text, or a name without an ending, which is no file
            if " " in item:
                raise AttnscopeError(f"found a text in place of pairs. {_FORM}")
            raise AttnscopeError(f"found no file {item}; expected files of texts, or a task alone: {', '.join(TASKS)}")
    if all(isinstance(item, Path) for item in items):
        named = _in_files(items)
    else:
        named = [(f"pair {number}", _fields(item, number)) for number, item in enumerate(items, 1)]
    usual = {name: value for name, value in (("answer", answer), ("wrong", wrong)) if value is not None}
    unused = [name for name in usual if all(name in fields for _, fields in named)]
    if not answered:
        usual = {"answer": "", "wrong": ""} | usual
    if unused:
        options = " and ".join(f"{name} (--{name})" for name in unused)
        raise AttnscopeError(
            f"no pair uses {options}, because each has its own. Leave {'it' if len(unused) == 1 else 'them'} out, or "
            "remove the pairs' own"
        )
    return [_pair(usual | dict(fields), where) for where, fields in named]


def positions_of(pairs: Pairs, name: str, loaded: LoadedModel) -> Bool[np.ndarray, "pair position"]:
    """The positions of a span of each pair, in both of its texts: for `attnscope.edit`.

    Parameters
    ----------
    pairs
        Pairs with named spans, in any form of `attnscope.patch`, such as a table of `attnscope.pairs`.
    name
        Name of the span, or ``prediction``, the position that predicts the answer.
    loaded
        A model with its tokenizer, from ``attnscope.capture.load.load_model``.

    Returns
    -------
    numpy.ndarray
        Whether each position is within the span, ``(pair, position)``; False behind the end of shorter texts.

    Raises
    ------
    AttnscopeError
        If a pair has no such span, or has it at other positions in the two texts.

    Examples
    --------
    >>> import attnscope
    >>> from attnscope.capture.load import load_model
    >>> loaded = load_model("bundled:tasks", device="cpu")
    >>> found = attnscope.pairs("agreement", tokenizer=loaded.tokenizer, count=2)
    >>> positions_of(found, "subject", loaded).sum(1).tolist()
    [1, 1]
    """
    rows: list[np.ndarray] = []
    for number, pair in enumerate(pairs_of_input(pairs, answered=False), 1):
        sides = [sides_of(pair, loaded, number, corrupted=corrupted)[-1] for corrupted in (False, True)]
        is_last = is_prediction(name, pair)
        last = [position_of_answer(sides, loaded.tokenizer, number, masked=is_masked(loaded))] if is_last else []
        rows.append(np.isin(np.arange(len(sides[0])), last or positions_of_span(pair, name, loaded.tokenizer, number)))
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def spans_of(pairs: Pairs, names: Sequence[str], loaded: LoadedModel) -> dict[str, Bool[np.ndarray, "pair position"]]:
    """The positions of several spans, by name; an error for the two texts of an encoder-decoder."""
    reject_two_texts(loaded)
    return {name: positions_of(pairs, name, loaded) for name in names}


def reject_two_texts(loaded: LoadedModel) -> None:
    """Raise an error for an encoder-decoder, where positions are named."""
    if loaded.model.config.is_encoder_decoder:
        raise AttnscopeError(
            f"{loaded.name} is an encoder-decoder, whose positions are of two texts: leave out positions (--positions)"
        )


def task_named(pairs: object) -> str | None:
    """The name of a task, if pairs are those of one: see `attnscope.pairs`."""
    named: Any = pairs[0] if isinstance(pairs, list) and len(cast("list[Any]", pairs)) == 1 else pairs
    if isinstance(named, str) and named not in TASKS and Path(named).is_file():
        raise AttnscopeError(f"pairs is the string {named!r}; in Python a file is a pathlib.Path: give Path({named!r})")
    if isinstance(named, str) and " " in named:
        raise AttnscopeError(f"found a text in place of pairs. {_FORM}")
    if isinstance(named, str) and named not in TASKS:
        raise AttnscopeError(
            f"found no file {named}, and no task of that name; expected a pathlib.Path of JSON Lines, a list of pairs, "
            f"or a task: {', '.join(TASKS)}" + nearest(named, TASKS)
        )
    return named if isinstance(named, str) else None


def fitted(pairs: object, chosen: list[Pair], loaded: LoadedModel) -> tuple[list[Pair], dict[str, Any]]:
    """The pairs of a task that fit a tokenizer, with what a signature says of them; others as they were chosen."""
    task = task_named(pairs)
    if task is None:
        return chosen, {}
    mask = loaded.tokenizer.mask_token if is_masked(loaded) else None
    try:
        frame = pairs_from(TASKS[task], _OF_A_TASK, seed=0, tokenizer=loaded.tokenizer, mask=mask)
    except AttnscopeError as error:
        raise AttnscopeError(f"{task} has no pairs for the tokenizer of {loaded.name}: {error}") from error
    return pairs_of_input(frame), {"task": task, "pairs": len(frame)}


def note_of_task(of_task: Mapping[str, Any]) -> dict[str, str]:
    """A note, if few pairs of a task fit the tokenizer."""
    if not of_task or of_task["pairs"] == _OF_A_TASK:
        return {}
    fits = count(of_task["pairs"], "pair")
    return {"left_out": f"Of {_OF_A_TASK} pairs of {of_task['task']}, only {fits} of equal length could be made."}


def _listed(pairs: object) -> list[Any]:
    if isinstance(pairs, pd.DataFrame):
        rows = pairs.to_dict("records")
        return [{name: value for name, value in row.items() if value is not None and value == value} for row in rows]  # noqa: PLR0124 NaN
    if isinstance(pairs, str | bytes | Mapping | Pair) or not isinstance(pairs, Iterable):
        raise AttnscopeError(
            f"found pairs of type {type(pairs).__name__}; expected a pathlib.Path of JSON Lines, or a list of pairs, "
            f"each with {', '.join(FIELDS)}"
        )
    items = list(cast("Iterable[object]", pairs))
    if not items:
        raise AttnscopeError("found no pairs of texts; expected one or more")
    return items


def _fields(item: object, number: int) -> Mapping[str, Any]:
    if isinstance(item, Pair):
        return asdict(item)
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item)
    raise AttnscopeError(
        f"pair {number} is of type {type(item).__name__}; expected a Pair, or a mapping with {', '.join(FIELDS)}"
    )


def _in_files(paths: Sequence[Path]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Fields of each pair and their location, in a file of JSON Lines or in text files that match line by line."""
    if len(paths) == 1:
        named = [(f"{shown(paths[0])}, line {number}", fields) for number, fields in json_objects(paths[0], "clean")]
    elif len(paths) in {_SIDES, _ALL}:
        for path in paths:
            reject_documents(path)
        columns = [lines_of(decode_utf8(read_bytes(path), shown(path))) for path in paths]
        for path, column in zip(paths[1:], columns[1:], strict=True):
            if len(column) != len(columns[0]):
                raise AttnscopeError(
                    f"{shown(paths[0])} has {len(columns[0])} lines and {shown(path)} {len(column)}; expected the same "
                    "number, because files match line by line"
                )
        rows: list[dict[str, Any]] = [
            {str(name): text for name, text in zip(FIELDS, row, strict=False)} for row in zip(*columns, strict=True)
        ]
        named = [(f"{shown(paths[0])}, line {number}", row) for number, row in enumerate(rows, 1)]
    else:
        raise AttnscopeError(
            f"found {len(paths)} files of pairs; expected one of JSON Lines, two of texts (clean, corrupted), or four "
            "(answers and wrong answers too)"
        )
    if not named:
        raise AttnscopeError(
            f"{shown(paths[0])} contains no pairs; expected a JSON object on each line with {', '.join(FIELDS)}, or "
            "a text on each line"
        )
    return named


def _pair(fields: Mapping[str, Any], where: str) -> Pair:
    for name in (*FIELDS, *(name for name in _TARGETS if fields.get(name) is not None)):
        if name not in fields:
            keys = ", ".join(map(str, fields)) or "none"
            mend = _MEND if name in {"answer", "wrong"} else f"Each pair needs {', '.join(FIELDS)}"
            raise AttnscopeError(f"{where}: no field {name!r}; the fields found are: {keys}. {mend}")
        value = fields[name]
        several = name in {"answer", "wrong"} and isinstance(value, list | tuple) and bool(value)
        texts: Sequence[Any] = value if several else [value]
        if not all(isinstance(text, str) for text in texts):
            raise AttnscopeError(f"{where}: the field {name!r} is of type {type(value).__name__}; expected a string")
        for text in texts:
            check_characters(text, where)
    named: dict[str, Any] = {name: fields[name] for name in (*FIELDS, *_TARGETS) if fields.get(name) is not None}
    for name in ("answer", "wrong"):
        answers = [named[name]] if isinstance(named[name], str) else named[name]
        named[name] = answers[0] if len(answers) == 1 else tuple(answers)
    if fields.get("spans") is not None:
        named["spans"] = _spans(fields, where)
    return Pair(**named)


def _spans(fields: Mapping[str, Any], where: str) -> dict[str, tuple[Span, Span]]:
    """Named spans of a pair, each once for both texts, or one for each."""
    spans: dict[str, tuple[Span, Span]] = {}
    for name, value in named_spans(fields["spans"], where).items():
        both = (
            value if isinstance(value, list | tuple) and all(isinstance(one, list | tuple) for one in value) else None
        )
        sides = cast("Sequence[Any]", both) if both and len(both) == _SIDES else [value] * _SIDES
        texts = fields["clean"], fields["corrupted"]
        first, second = (span_of(side, name, where, len(text)) for side, text in zip(sides, texts, strict=True))
        spans[name] = first, second
    return spans
