"""`attnscope show`: parse, call, print."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope._numbers import count
from attnscope.cli import options
from attnscope.cli.ls import as_dict, size_text, when_text
from attnscope.cli.output import emit, json_text, new_console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

    from attnscope.results import Description, Variable

RunArgument = Annotated[
    Path,
    typer.Argument(
        parser=options.run_folder,
        help="Folder of a run, as attnscope ls names it.",
    ),
]


def show(
    run: RunArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check of every file against its checksum.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """What is a run, and what does it hold? Signature, files, variables with units, what came out."""
    from attnscope.results import describe

    told = describe(run, verify=verify)
    if as_json:
        emit(json_text(_plain(told)) + "\n")
    else:
        _print(told)
    if told.damaged or told.unread:
        raise typer.Exit(2)


def _print(told: Description) -> None:
    from attnscope.results import settings_of

    console, run = new_console(), told.run
    parts = (run.command, run.progress, when_text(run.when).replace("  ", " "), size_text(run.bytes))
    _line(console, f"{run.place}: {', '.join(parts)}")
    if told.page is not None:
        _line(console, f"report: {told.page}")
    for sentence in told.headline:
        console.print(sentence, style="bold", highlight=False, markup=False)
    for note in told.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    if told.unread and not told.damaged:
        console.print(told.unread, style="red", highlight=False, markup=False)
    if told.damaged is not None:
        _print_damage(console, told.damaged, sum(number for number, _ in told.files.values()))
    if told.parts:
        lines = [(part.path.name, f"{part.progress}, {size_text(part.bytes)}") for part in told.parts]
        _section(console, "Tasks", lines)
    if run.signature is not None:
        _section(console, "Signature", settings_of(run.signature))
        _line(console, f"  to cite: {run.signature.format()}")
    files = [(kind, f"{count(n, 'file')}, {size_text(size)}") for kind, (n, size) in told.files.items()]
    _section(console, "Files", files)
    _print_variables(console, told.variables)


def _print_damage(console: Console, damaged: list[str], files: int) -> None:
    if not damaged:
        _line(console, f"all {count(files, 'file')} are as they were written")
        return
    for name in damaged:
        console.print(
            f"{name} is gone, or is not what was written", style="red", highlight=False, markup=False
        )
    console.print(
        "Give the command that wrote it again, with --repair if it has that option, to make it anew",
        highlight=False,
    )


def _print_variables(console: Console, variables: list[Variable]) -> None:
    for node, members in groupby(variables, key=lambda variable: variable.node):
        own = list(members)
        results = [variable for variable in own if not variable.coordinate]
        labels = [f"{variable.name}{_units(variable)}" for variable in own if variable.coordinate]
        _heading(console, f"Variables of {node}" if node else "Variables")
        by_sizes: dict[tuple[tuple[str, int], ...], list[Variable]] = {}
        for variable in results:
            by_sizes.setdefault(tuple(variable.sizes.items()), []).append(variable)
        for sizes, group in by_sizes.items():
            _line(console, f"  {_sizes(dict(sizes))}")
            console.print(_grid((f"    {variable.name}", _meaning(variable)) for variable in group))
        if labels:
            console.print(_grid([("  labelled by", ", ".join(labels))]))


def _meaning(variable: Variable) -> str:
    return f"{variable.long_name}{_units(variable)}" or variable.dtype


def _units(variable: Variable) -> str:
    return "" if variable.units in {"", "1"} else f" [{variable.units}]"


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{dim}: {size}" for dim, size in sizes.items()) or "one number"


def _section(console: Console, title: str, lines: Iterable[tuple[str, str]]) -> None:
    _heading(console, title)
    console.print(_grid((f"  {name}", value) for name, value in lines))


def _heading(console: Console, title: str) -> None:
    console.print(f"\n{title}", style="bold", highlight=False, markup=False)


def _grid(lines: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(Text(name), Text(value))
    return grid


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _plain(told: Description) -> dict[str, Any]:
    signature = told.run.signature
    return as_dict(told.run) | {
        "signature": None if signature is None else signature.to_dict(),
        "cite": None if signature is None else signature.format(),
        "says": told.headline,
        "notes": told.notes,
        "parts": [as_dict(part) for part in told.parts],
        "files": {kind: {"files": number, "bytes": size} for kind, (number, size) in told.files.items()},
        "variables": [vars(variable) | {"sizes": dict(variable.sizes)} for variable in told.variables],
        "report": told.page,
        "damaged": told.damaged,
        "unread": told.unread or None,
    }
