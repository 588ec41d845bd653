"""Cells of the tables that can be sorted."""

from __future__ import annotations

from dataclasses import dataclass

#: What a cell is, by whether its effect is told from 0; nothing where that was not tested.
TOLD = {True: "shown", False: "open", None: ""}


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and what its column is sorted by; its class, and a second line.

    Examples
    --------
    >>> Cell("+0.250", 0.25, TOLD[True], "+0.100 to +0.400").kind
    'shown'
    """

    text: str
    value: float | str
    kind: str = ""
    below: str = ""
