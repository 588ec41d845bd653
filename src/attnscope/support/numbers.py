"""Numbers for people."""

import math
from contextlib import suppress
from typing import Any

_MOST = 5  # digits after the point; what needs more is written by its power of ten


def significant(value: float, digits: int) -> str:
    """Round to significant digits; a large number is written out, not as a power of ten."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def places(value: float, least: int) -> int:
    """Decimals that show two digits of a small number: at least `least`, at most 9."""
    if not value or not math.isfinite(value):
        return least
    return min(max(least, 1 - math.floor(math.log10(abs(value)))), 9)


def change_places(change: float, low: float, high: float, least: int) -> int:
    """Decimals for a change and its interval; for a tiny change no more than the interval needs."""
    digits = places(change, least)
    if digits <= _MOST:
        return digits
    return places(max(abs(value) for value in (change, low, high) if math.isfinite(value)), least)


def plain(value: float, digits: int, sign: str = "") -> str:
    """A number with these decimals, or with a power of ten if they are more than 5."""
    if digits <= _MOST or not math.isfinite(value):
        return f"{value:{sign}.{min(digits, _MOST)}f}"
    if not value:
        return f"{value:{sign}.0f}"
    number, power = f"{value:{sign}.1e}".split("e")
    return f"{number}e{int(power)}"


def percent(share: float) -> str:
    """Write a share in percent; a dash where there is none."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else "–"


def are(number: int) -> str:
    """A number of things behind "there": "is 1", "are 5"."""
    return "is 1" if number == 1 else f"are {number}"


def count(number: int, what: str) -> str:
    """Say how many.

    >>> count(1, "edge"), count(70651, "edge")
    ('1 edge', '70,651 edges')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def with_nulls(value: Any) -> Any:
    """The same with None for each number that is not finite, at any depth; arrays as lists."""
    values: Any = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(values, dict):
        return {name: with_nulls(inner) for name, inner in values.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(values, list | tuple):
        return type(values)(with_nulls(inner) for inner in values)  # pyright: ignore[reportUnknownVariableType, reportCallIssue]
    return None if isinstance(values, float) and not math.isfinite(values) else values


_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")  # of what a spreadsheet takes for a formula
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\r\n"}


def safe_cell(value: Any) -> Any:
    r"""A value for CSV: a string that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = value.translate(_ESCAPED)
    if text.startswith(_BEGINNINGS):
        with suppress(ValueError):
            float(text)
            return text
        return f"'{text}"
    return text
