"""What a scan of texts reads on either side, and what a reader of its results has to know of its windows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnscope.measure.documents import called_in, intervals_note
from attnscope.measure.quantities import KNOWN
from attnscope.read.chats import Chats, are_chats
from attnscope.read.encoded import Sources, Texts, texts_and_targets
from attnscope.read.groups import Grouping, Groups, grouping_of
from attnscope.read.sources import as_list
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError


def observation_note(names: Sequence[str], observation: int, length: int) -> dict[str, str]:
    """What a reader has to know where no window can have more queries than its observation window."""
    recent = _of_recent(names)
    if not recent or length > observation:
        return {}
    return {
        "observation": f"Windows have {length} tokens at most, and the last {observation} queries of each were asked "
        f"for (--observation): {', '.join(recent)} are over all queries."
    }


def notes_of_short(results: xr.Dataset, notes: dict[str, str]) -> dict[str, str]:
    """Notes of a scan, with how many of its windows are as short as that."""
    told = dict(notes)
    settings = _settings_of(results)
    if "observation" in settings and "observation" not in notes:
        last = settings["observation"]
        short, windows = _as_short_as(results, last)
        if short:
            told["observation"] = (
                f"{_said(short, windows, results)} no more queries than the last {last} (--observation): there "
                f"{', '.join(_of_recent(settings['statistics']))} are over all queries."
            )
    if "rows" in notes:
        short, windows = _as_short_as(results, settings.get("rows", 0))
        if short and short == windows:
            told["rows"] = (
                f"{_said(short, windows, results)} no more than {settings['rows']} queries (--rows): all were "
                "measured, and nothing is estimated."
            )
        else:
            whole = f" {_said(short, windows, results)} no more: there all queries were measured."
            told["rows"] += (whole if short else "") + intervals_note(results)
    return told


def _settings_of(results: xr.Dataset) -> dict[str, Any]:
    """What the signature says was asked for; nothing of results whose signature is their maker's own."""
    try:
        return json.loads(results.attrs["signature"])["settings"] or {}
    except (KeyError, TypeError, ValueError):
        return {}


def _of_recent(names: Sequence[str]) -> list[str]:
    return [name for name in names if "recent" in KNOWN[name].needs]


def _as_short_as(results: xr.Dataset, queries: int) -> tuple[int, int]:
    """How many windows have no more queries than that, and how many there are; of pools it is not known."""
    if "window_count" in results or "window" not in results.dims or "length" not in results:
        return 0, 0
    lengths = results["length"].values
    if "target_length" in results:  # no layer has more
        lengths = np.maximum(lengths, results["target_length"].values)
    return int((lengths <= queries).sum()), lengths.size


def _said(short: int, windows: int, results: xr.Dataset) -> str:
    called = called_in(results.attrs)["windows"]
    return f"{short:,} of {windows:,} {called if windows > 1 else called[:-1]} {'have' if short > 1 else 'has'}"


def read_sides(
    texts: Sources,
    targets: Sources,
    *,
    field: str | None,
    by_line: bool,
    stride: int | None,
    chat: bool,
    chat_template: str | Path | None,
    by: str | None = None,
    with_inputs: bool = False,
) -> tuple[Texts | Chats, Corpus | None]:
    """What is read; with targets line by line, empty lines too, so that line i stays beside line i."""
    paired = targets is not None
    given = as_list(texts)
    if chat or (not by_line and are_chats(given, field)):
        if paired or by_line:
            other = "target (--target)" if paired else "by_line (--by-line)"
            raise AttnscopeError(f"the texts are chats, one a line, which take no {other}: leave it out")
        if by is not None:
            raise AttnscopeError("chats are not held apart by a field: leave out by (--by)")
        if given is None:
            raise AttnscopeError("no chat is given: name a file of JSON Lines with messages")
        return Chats(given, field=field, template=chat_template), None
    if chat_template is not None:
        raise AttnscopeError(
            "a chat template is given, and the texts are not chats: leave it out, or say so with chat (--chat)"
        )
    if by is not None and paired:
        raise AttnscopeError("texts with targets are not held apart by a field: leave out by (--by)")
    if by is not None and given is None:
        raise AttnscopeError("the bundled sample has no fields: name .jsonl files, or leave out by (--by)")
    corpus, target = texts_and_targets(
        given, targets, field=field, by_line=by_line or paired, blank_lines=paired, by=by, with_inputs=with_inputs
    )
    if target is not None and stride is not None:
        raise AttnscopeError("stride is of windows in running text; with targets every line is a window: leave it out")
    return corpus, target


def grouping_for(groups: Groups | None, corpus: Texts | Chats) -> Grouping | None:
    """The groups asked for; those of a chat are its roles where nothing else is."""
    is_chat = isinstance(corpus, Chats)
    if isinstance(groups, str) and groups == "roles" and not is_chat:
        raise AttnscopeError(
            "roles are those of a chat, and the texts are not chats: give chats (JSON Lines with messages), or other "
            "groups"
        )
    if groups is None:
        return grouping_of("roles") if is_chat else None
    return grouping_of(groups)
