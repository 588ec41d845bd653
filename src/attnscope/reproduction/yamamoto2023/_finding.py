"""What a model has in the place of a published number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was found: in words, as a number, whether the published value holds (None: nothing to hold), remarks.

    Examples
    --------
    >>> Finding("t=-1", -1, holds=True).note
    ''
    """

    text: str
    number: float | int = float("nan")
    holds: bool | None = None
    note: str = ""
