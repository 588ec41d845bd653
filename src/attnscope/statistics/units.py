"""Units that count as independent: documents, or windows where documents are few; equal texts are one document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnscope.report.reads import signed

LEAST = 6  # with fewer units no mean can be significant: all have one sign in more than 5% of cases
_BATCHES = 20  # of windows, where documents are few
_REPEATS = " (repeats "  # in the name of a text that equals an earlier one, before that one's name


class Repeats:
    """Marks the names of texts that equal an earlier one: they count as one document."""

    def __init__(self) -> None:
        self._first: dict[int, str] = {}

    def named(self, name: str, content: Hashable) -> str:
        """The name of a text, with that of the first one with this content."""
        first = self._first.setdefault(hash(content), name)
        return name if first == name else f"{name}{_REPEATS}{first})"


def original(name: Hashable) -> Hashable:
    """The document of a text with this name: the first text with its content."""
    if not isinstance(name, str) or _REPEATS not in name:
        return name
    return name.partition(_REPEATS)[2].removesuffix(")")


def units_of(documents: Sequence[Hashable], overlap: int = 1) -> tuple[Sequence[Hashable], str]:
    """The units that the bootstrap draws: documents, or windows if there are fewer than 6 documents.

    More than 20 windows of few documents are drawn in at most about 20 batches of consecutive windows, as neighbours
    are alike (batch means, Schmeiser 1982); windows that share tokens in batches twice as long as their `overlap`.
    """
    originals = [original(name) for name in documents]
    if len(set(originals)) >= LEAST:
        return originals, "documents"
    passed = Counter[Hashable]()
    windows: list[tuple[Hashable, int]] = []
    for name, first in zip(documents, originals, strict=True):
        windows.append((first, passed[name]))  # the same window of a text that repeats it
        passed[name] += 1
    size = max(1 if overlap == 1 else 2 * overlap, -(-len(set(windows)) // _BATCHES))
    return [(first, number // size) for first, number in windows], "windows"


def overlap_of(window: int | None, stride: int | None) -> int:
    """Consecutive windows of a text of which the last has no token of the first."""
    return -(-window // stride) if window and stride else 1


def units_in(results: xr.Dataset, selected: np.ndarray | None = None) -> tuple[Sequence[Hashable], str]:
    """The units that the bootstrap draws along ``window``, and their plural noun."""
    sources = results.source.values.tolist() if "source" in results.coords else list(range(results.sizes["window"]))
    if selected is not None:
        sources = [source for source, is_selected in zip(sources, selected, strict=True) if is_selected]
    settings = signed(results).get("settings") or {}
    drawn, unit = units_of(sources, overlap_of(settings.get("window"), settings.get("stride")))
    if "window_count" in results:
        return drawn, "pools" if len(set(drawn)) == len(drawn) else "pools of different documents"
    return drawn, called_in(results.attrs)[unit]


def called_in(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The plural nouns for documents and windows in results with these attributes."""
    called = str(attributes.get("reads", "texts"))
    return _CALLED.get(called, {"documents": called, "windows": called})


_CALLED = {
    "texts": {"documents": "documents", "windows": "windows"},
    "sounds": {"documents": "sounds", "windows": "windows"},
    "pools": {"documents": "pools of different documents", "windows": "pools"},
    "texts with images": {"documents": "texts", "windows": "texts"},
}


def numbered(units: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """Index of the unit of each text, from 0 in order of appearance, and the number of units."""
    units = [original(name) for name in units]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(units))}
    return np.array([numbers[name] for name in units], dtype=int), len(numbers)


def membership(units: Sequence[Hashable]) -> np.ndarray:
    """1 where a text belongs to a unit, ``(unit, text)``."""
    numbers, count = numbered(units)
    member = np.zeros((count, len(units)))
    member[numbers, np.arange(len(units))] = 1.0
    return member


def without_each(units: Sequence[Hashable]) -> np.ndarray:
    """Weights of texts without each unit, ``(unit, text)``; they add up to 1."""
    others = 1.0 - membership(units)
    return others / others.sum(1, keepdims=True)
