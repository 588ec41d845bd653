"""A walk for a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.walkthrough._steps import heading, steps

if TYPE_CHECKING:
    from attnscope.walkthrough._result import Walk
    from attnscope.walkthrough._steps import Step
    from attnscope.walkthrough._tables import Table

_NAMES, _COLUMN, _INDENT = 16, 8, 3  # columns of a terminal
_MOST_COLUMNS = 14  # of numbers
_WIDE = r"\u3041-\u30ff\u3400-\u9fff"  # kana and kanji
_UNIT = re.compile(rf"\d+ \S+ · |「?(?:[{_WIDE}]|[^\s{_WIDE}「]+)[、。」）：₀-₉]*\s*|\s+|「")


def terminal(walk: Walk, language: str = "en", *, width: int = 80) -> Group:
    """Lay a walk out for rich: ``Console().print(terminal(walk))``.

    Parameters
    ----------
    walk
        The numbers.
    language
        ``"en"`` or ``"ja"``.
    width
        Columns of the terminal.

    Raises
    ------
    AttnscopeError
        If there is no such language.

    Examples
    --------
    >>> import io
    >>> from rich.console import Console
    >>> from attnscope.walkthrough import walk_toy
    >>> console = Console(width=80, record=True, file=io.StringIO())
    >>> console.print(terminal(walk_toy()))
    >>> "4  Divide by √d_k" in console.export_text()
    True
    """
    title, below = heading(walk, language)
    columns = max(3, min(_MOST_COLUMNS, (width - _NAMES) // _COLUMN))
    parts: list[RenderableType] = [Text(title, style="bold reverse")]
    parts += [Text(wrapped(line, width)) for line in below]
    for place, step in enumerate(steps(walk, language, columns=columns), 1):
        parts += ["", *_step(place, step, width - _INDENT)]
    return Group(*parts)


def _step(place: int, step: Step, width: int) -> list[RenderableType]:
    within: list[RenderableType] = []
    if step.plain_formula:
        within.append(Text(step.plain_formula, style="cyan"))
    within += [Text(wrapped(paragraph, width)) for paragraph in step.text]
    for table in step.tables:
        within += [Text(""), Text(table.caption, style="italic"), _table(table, width)]
    inside = [Padding(part, (0, 0, 0, _INDENT), expand=False) for part in within]
    return [Text(f"{place}  {step.title}", style="bold"), *inside]


def wrapped(text: str, width: int) -> str:
    """Break a text into lines: between words, and between any two Japanese characters but before a 、 or a 。.

    Examples
    --------
    >>> wrapped("to be or not", 8).splitlines()
    ['to be or', 'not']
    >>> wrapped("猫である。 名前はない。", 8).splitlines()
    ['猫であ', 'る。 名', '前はな', 'い。']
    """
    lines = [""]
    for unit in _UNIT.findall(text):
        if cell_len(lines[-1] + unit.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += unit
    return "\n".join(line.rstrip() for line in lines)


def _table(table: Table, width: int) -> RichTable:
    columns = list(zip(table.headings, *table.rows, strict=True))
    needed = sum(max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns)
    roomy = len("▸ ") + needed + 3 * len(columns) - 1 <= width
    shown = RichTable(
        box=box.SIMPLE_HEAD,
        padding=(0, int(roomy)),  # rather close together than cut
        show_edge=False,
    )
    for index, name in enumerate(table.headings):
        bar = index == len(table.headings) - 1 and not name
        left = index == 0 or bar
        shown.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for index, row in enumerate(table.rows):
        marked = index == table.marked
        name, *cells = row
        shown.add_row(
            Text(("▸ " if marked else "  ") + name), *map(Text, cells), style="bold" if marked else ""
        )
    return shown
