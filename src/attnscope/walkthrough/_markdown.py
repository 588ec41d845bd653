"""A walk as Markdown with LaTeX."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attnscope.walkthrough._steps import heading, steps

if TYPE_CHECKING:
    from attnscope.walkthrough._result import Walk
    from attnscope.walkthrough._steps import Step
    from attnscope.walkthrough._tables import Table

_COLUMNS = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|$~])")


def markdown(walk: Walk, language: str = "en") -> str:
    r"""Write a walk as Markdown; formulas stand between ``$$``.

    Parameters
    ----------
    walk
        The numbers.
    language
        ``"en"`` or ``"ja"``.

    Raises
    ------
    AttnscopeError
        If there is no such language.

    Examples
    --------
    >>> from attnscope.walkthrough import walk_toy
    >>> written = markdown(walk_toy())
    >>> r"S = \frac{Q K^\top}{\sqrt{d_k}}" in written
    True
    """
    title, below = heading(walk, language)
    parts = [f"# {escape(title)}", *map(escape, below)]
    for place, step in enumerate(steps(walk, language, columns=_COLUMNS), 1):
        parts += _step(place, step)
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Write characters that mean something in Markdown so that they mean themselves.

    Examples
    --------
    >>> print(escape("5 * $3 | d_k"))
    5 \* \$3 \| d\_k
    """
    return _SPECIAL.sub(r"\\\1", text)


def _step(place: int, step: Step) -> list[str]:
    parts = [f"## {place}. {escape(step.title)}"]
    if step.formula:
        parts.append(f"$$\n{step.formula}\n$$")
    parts += map(escape, step.text)
    for table in step.tables:
        parts += [f"**{escape(table.caption)}**", _table(table)]
    return parts


def _table(table: Table) -> str:
    lines = [
        "| " + " | ".join(escape(name.replace("\n", " ")) or " " for name in table.headings) + " |",
        "|" + "|".join([":--", *["--:"] * (len(table.headings) - 1)]) + "|",
    ]
    for index, row in enumerate(table.rows):
        name = ("▸ " if index == table.marked else "") + row[0]
        lines.append("| " + " | ".join(escape(cell) for cell in (name, *row[1:])) + " |")
    return "\n".join(lines)
