"""The page of a walk: one step a screen, its formula, and its matrices as heat maps."""

from __future__ import annotations

import io
import re
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from rich.console import Console

from attnscope.report.language import language
from attnscope.report.schema import Finding, Report
from attnscope.results.notebook import Page
from attnscope.results.page.parts import write_page
from attnscope_lineage.head_walk import Walk
from attnscope_lineage.steps import Table, heading, steps, terminal

if TYPE_CHECKING:
    from attnscope_lineage.recurrent_walk import RecurrentWalk

_HERE = Path(__file__).parent
_MOST = 40  # rows and columns of a matrix
_HEIGHT = 760  # pixels, in a notebook


def write(walk: Walk | RecurrentWalk, path: Path | str, run: Path | None = None) -> Path:
    """Write a walk as one page in the language of pages; its arrow keys go from step to step."""
    title, (read, *below) = heading(walk, language())
    worst = max(walk.errors.values(), default=0.0)
    finding = Finding(
        below, f"every number was compared with the model's own; the largest difference is {worst:.0e}", headline=title
    )
    report = Report(title, read.rstrip(".。"), finding, [], walk.arrays, command="walk", model=walk.model)
    screens = [
        {
            "title": step.title,
            "formula": Markup(re.sub(r"_([A-Za-z]+)", r"<sub>\1</sub>", str(escape(step.plain_formula)))),  # noqa: S704
            # a token stays with its position at the end of a line
            "text": [re.sub(r"(?:^|(?<=· ))(\d+) ", "\\1\u00a0", text) for text in step.text],
            "tables": [(table, _shaded(table)) for table in step.tables],
        }
        for step in steps(walk, language(), columns=_MOST, rows=_MOST)
    ]
    scripts = ("draw.js", str(_HERE / "walk.js"))
    return write_page(path, str(_HERE / "walk"), report, scripts=scripts, run=run, steps=screens)


def in_words(walk: Walk | RecurrentWalk) -> str:
    """Every step as text, as wide as the terminal."""
    console = Console(file=io.StringIO())
    with console.capture() as text:
        console.print(terminal(walk, language(), width=console.width))
    return text.get()


def framed(walk: Walk | RecurrentWalk) -> str:
    """The page in the frame of a notebook."""
    with tempfile.TemporaryDirectory() as folder:
        return Page(write(walk, Path(folder) / "walk.html").read_text(encoding="utf-8"), _HEIGHT)._repr_html_()  # pyright: ignore[reportPrivateUsage]


def _shaded(table: Table) -> list[list[tuple[str, float | None]]]:
    """Cells of a table with their share of its largest number; None where there is nothing to shade."""
    values = [[_number(cell) if table.shades else None for cell in row[1:]] for row in table.rows]
    sizes = (abs(value) for value in chain.from_iterable(values) if value is not None)
    largest = max(sizes, default=0.0) or 1.0
    shares = [[None if value is None else round(value / largest, 3) for value in row] for row in values]
    return [[*zip(row[1:], line, strict=True)] for row, line in zip(table.rows, shares, strict=True)]


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return None
