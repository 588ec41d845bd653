"""Strings in CSV that neither a spreadsheet nor a terminal carries out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")  # of what a spreadsheet takes for a formula
_ESCAPED = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\r\n"
}


def safe_cell(value: Any) -> Any:
    r"""A value for CSV: a string that a spreadsheet would take for a formula begins with an apostrophe.

    Control characters but for tab and line breaks become their escapes. Numbers stay as they are.

    Examples
    --------
    >>> safe_cell("=HYPERLINK(1)"), safe_cell("\x1b[2J"), safe_cell("-0.5"), safe_cell(None), safe_cell("well-read")
    ("'=HYPERLINK(1)", '\\x1b[2J', '-0.5', None, 'well-read')
    """
    if not isinstance(value, str):
        return value
    text = value.translate(_ESCAPED)
    if text.startswith(_BEGINNINGS):
        with suppress(ValueError):
            float(text)
            return text
        return f"'{text}"
    return text
