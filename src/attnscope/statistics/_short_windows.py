"""Windows that have no more queries than a scan was asked for: what their numbers then are of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._documents import called_in
from attnscope.statistics._catalogue import KNOWN
from attnscope.statistics._row_intervals import intervals_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr


def observation_note(names: Sequence[str], observation: int, length: int) -> dict[str, str]:
    """What a reader has to know where no window can have more queries than its observation window.

    Examples
    --------
    >>> list(observation_note(["recent_top_key"], 32, 32)), list(observation_note(["recent_top_key"], 32, 33))
    (['observation'], [])
    """
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
    if "window_count" in results or "text" not in results.dims or "length" not in results:
        return 0, 0
    lengths = results["length"].values
    if "target_length" in results:  # no layer has more
        lengths = np.maximum(lengths, results["target_length"].values)
    return int((lengths <= queries).sum()), lengths.size


def _said(short: int, windows: int, results: xr.Dataset) -> str:
    called = called_in(results.attrs)["windows"]
    return (
        f"{short:,} of {windows:,} {called if windows > 1 else called[:-1]} {'have' if short > 1 else 'has'}"
    )
