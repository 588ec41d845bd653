"""Corners of matrices as cells of text: which rows and columns are shown, and how a number is written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size

from attnscope.corpus import with_marked_spaces

_HEADING = 6  # columns of a terminal


@dataclass(frozen=True)
class Table:
    """Cells of text under a caption.

    Attributes
    ----------
    caption
        What it is, with its shape.
    headings
        One for each column; the first column holds the names of the rows.
    rows
        Cells.
    marked
        Which row is that of the token that is followed, or None.

    Examples
    --------
    >>> table = Table("Weights (1 x 2)", ("query", "The", "tide"), (("tide", "0.25", "0.75"),), marked=0)
    >>> table.rows[table.marked][0]
    'tide'
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None


def shown_tokens(row: np.ndarray, followed: int | None, count: int) -> list[int]:
    """Positions to show: the followed one, the first and last, and those of the largest weights, in order.

    Examples
    --------
    >>> shown_tokens(np.array([0.0, 0.1, 0.0, 0.7, 0.2, 0.0]), 2, 4)
    [0, 2, 3, 5]
    >>> shown_tokens(np.ones(3), 2, 4)
    [0, 1, 2]
    """
    ends = [0, len(row) - 1] if followed is None else [followed, 0, len(row) - 1]
    by_weight = np.argsort(-row, kind="stable").tolist()
    wanted = list(dict.fromkeys([*ends, *by_weight]))
    return sorted(wanted[:count])


def number(value: float, decimals: int) -> str:
    """Write a number; what is too large for its column, in powers of ten.

    Examples
    --------
    >>> number(-0.1234, 2), number(123456.7, 0), number(-0.001, 2)
    ('-0.12', '1e+05', '0.00')
    """
    if abs(value) >= 1e5:  # noqa: PLR2004 six columns
        return f"{value:.0e}"
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def decimals_for(values: np.ndarray) -> int:
    """As many decimals as show about two digits of the usual number, within six columns.

    Examples
    --------
    >>> decimals_for(np.array([12.0, -30.0])), decimals_for(np.array([0.04])), decimals_for(np.array([1e4]))
    (1, 3, 0)
    """
    usual = float(np.median(np.abs(values))) if values.size else 0.0
    if usual == 0:
        usual = float(np.abs(values).max(initial=0.0)) or 1.0
    if usual >= 100:  # noqa: PLR2004
        return 0
    return int(np.clip(1 - math.floor(math.log10(usual)), 1, 4))


def plain(value: float) -> str:
    """Write a number within a sentence: three digits.

    Examples
    --------
    >>> plain(5.656854), plain(1e-9), plain(1234.5), plain(4.2e20)
    ('5.66', '0.000', '1234', '4e+20')
    """
    size = abs(value)
    if size >= 1000 or size < 1e-3:  # noqa: PLR2004
        return "0.000" if size < 1e-3 else number(value, 0)  # noqa: PLR2004
    return f"{value:#.3g}".rstrip(".")


def visible(token: str) -> str:
    r"""Write a token so that it can be seen: marks for the spaces at its ends, and for what has no shape.

    Examples
    --------
    >>> visible(" it"), visible("  "), visible("a\n")
    ('␣it', '␣␣', 'a⏎')
    """
    shown = re.sub(r"\r\n?|\n", "⏎", with_marked_spaces(token)) or "∅"
    return "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in shown)


def spoken(token: str) -> str:
    """Write a token within a sentence: without the spaces around it, where it has more.

    Examples
    --------
    >>> spoken(" it"), spoken(" ")
    ('it', '␣')
    """
    return visible(token.strip() or token)


def short(text: str, columns: int) -> str:
    """Cut a text to so many columns of a terminal, where a Japanese character takes two.

    Examples
    --------
    >>> short("street", 6), short("tomorrow", 6), short("注意機構", 6)
    ('street', 'tomor…', '注意…')
    """
    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1).rstrip() + "…"


def corner(
    values: np.ndarray,
    caption: str,
    rows: Sequence[tuple[int, str]],
    columns: int,
    *,
    marked: int | None = None,
    first: str = "",
) -> Table:
    """Some rows of a matrix and its first columns.

    Parameters
    ----------
    values
        The matrix.
    caption
        Caption of the table.
    rows
        Which rows, each with its name.
    columns
        How many columns at most.
    marked
        Row of the matrix that is followed.
    first
        Heading of the names.

    Examples
    --------
    >>> corner(np.eye(3), "I: 3 × 3", [(0, "0 a"), (2, "2 c")], 2).rows
    (('0 a', '1.0', '0.0', '…'), ('2 c', '0.0', '0.0', '…'))
    """
    count = min(values.shape[1], columns)
    more = ["…"] * (values.shape[1] > count)
    part = values[[row for row, _ in rows], :count]
    digits = decimals_for(part if marked is None else values[marked, :count])
    cells = [
        (name, *(number(value, digits) for value in line), *more)
        for (_, name), line in zip(rows, part, strict=True)
    ]
    return Table(caption, (first, *map(str, range(count)), *more), tuple(cells), marked=_index(rows, marked))


def square(
    cells: np.ndarray,
    caption: str,
    rows: Sequence[tuple[int, str]],
    columns: Sequence[tuple[int, str]],
    *,
    marked: int | None = None,
    first: str = "",
) -> Table:
    """Some rows and columns of a matrix of tokens by tokens; its cells are text."""
    lines = [(name, *(str(cells[row, column]) for column, _ in columns)) for row, name in rows]
    headings = (first, *(_two_lines(name) for _, name in columns))
    return Table(caption, headings, tuple(lines), marked=_index(rows, marked))


def _two_lines(name: str) -> str:
    position, _, token = name.partition(" ")
    return f"{position}\n{short(token, _HEADING)}"


def _index(rows: Sequence[tuple[int, str]], marked: int | None) -> int | None:
    return next((index for index, (row, _) in enumerate(rows) if row == marked), None)
