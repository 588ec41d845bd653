"""`attnscope ls`: parse, call, print."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, json_text, new_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from attnscope.results import Run

_DAYS = 180  # of a run that is older the year is shown, not the hour
_UNITS = ("B", "kB", "MB", "GB", "TB")
_THOUSAND = 1000
_HEADINGS = ("command", "model", "texts", "how far", "written", "size", "signature")
_MODEL = _HEADINGS.index("model")
_ANY = 1 << 16  # columns


def ls(
    folder: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=options.run_folder,
            help="Folders that hold runs, or are runs.",
            show_default="attnscope-runs and the current folder",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Which runs are there? Command, model, texts, how far, how large; no model is loaded."""
    from attnscope.results import runs

    listed = runs(*folder or ())
    if as_json:
        emit(json_text([as_dict(run) for run in listed]) + "\n")
        return
    console = new_console()
    if not listed:
        where = ", ".join(map(str, folder or ())) or "attnscope-runs and the current folder"
        console.print(f"no runs in {where}", highlight=False, markup=False, soft_wrap=True)
        return
    table = _table(listed)
    if console.measure(table, options=console.options.update(max_width=_ANY)).maximum <= console.width:
        console.print(table)
    else:
        for line in _lines(listed):
            console.print(line, highlight=False)
    for run in listed:
        if run.damage:
            console.print(run.damage, highlight=False, markup=False)


def as_dict(run: Run) -> dict[str, Any]:
    """A run as ``--json`` prints it."""
    return {
        "run": run.place,
        "command": run.command or None,
        "model": run.model or None,
        "corpus": run.corpus or None,
        "complete": run.complete,
        "windows": run.windows,
        "tasks": None if run.tasks is None else {"done": run.tasks[0], "of": run.tasks[1]},
        "written": run.when.isoformat(timespec="seconds"),
        "bytes": run.bytes,
        "signature": None if run.signature is None else run.signature.short,
        "damage": run.damage or None,
    }


def size_text(size: int) -> str:
    """Bytes for people.

    Examples
    --------
    >>> size_text(999), size_text(1_440), size_text(3_321_719), size_text(12_900_000_000)
    ('999 B', '1.4 kB', '3.3 MB', '13 GB')
    """
    value, unit = float(size), 0
    while value >= _THOUSAND and unit < len(_UNITS) - 1:
        value, unit = value / _THOUSAND, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit and value < 10 else f"{value:.0f} {_UNITS[unit]}"  # noqa: PLR2004


def when_text(when: datetime) -> str:
    """A time for people, as `ls -l` of the shell gives it.

    Examples
    --------
    >>> when_text(datetime(2020, 3, 1, 12, 30).astimezone())
    'Mar  1  2020'
    """
    recent = abs((datetime.now().astimezone() - when).days) < _DAYS
    return f"{when:%b} {when.day:2d} " + (f"{when:%H:%M}" if recent else f"{when:%Y}".rjust(5))


def _table(listed: list[Run]) -> Table:
    """One line for each run."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for run in listed:
        table.add_row(Text(run.place), *_cells(run))
    return table


def _lines(listed: list[Run]) -> Iterator[RenderableType]:
    """Two lines for each run: path and model, and all else in columns."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    rows = [[Text(heading, style="bold") for heading in _HEADINGS], *map(_cells, listed)]
    names = [Text("run  model", style="bold"), *(Text(run.place) for run in listed)]
    for name, run in zip(names[1:], listed, strict=True):
        name.append(f"  {run.model}", style="dim")
    columns = list(zip(*rows, strict=True))
    del columns[_MODEL]
    widths = [max(cell_len(cell.plain) for cell in column) for column in columns]
    for name, *row in zip(names, *columns, strict=True):
        yield name
        grid = Table.grid(padding=(0, 1, 0, 0))
        for width in (1, *widths):
            grid.add_column(width=width + 1, overflow="fold")
        grid.add_row("", *row)
        yield grid


def _cells(run: Run) -> list[Text]:
    from rich.text import Text

    style = "red" if run.damage else "" if run.complete else "yellow"
    size = "" if run.damage else size_text(run.bytes)
    told = (run.command, run.model, run.corpus, run.progress, when_text(run.when), size)
    signature = "" if run.signature is None else run.signature.short
    cells = [Text(part) for part in (*told, signature)]
    cells[_HEADINGS.index("how far")].stylize(style)
    return cells
