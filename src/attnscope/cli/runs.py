"""`attnscope runs`: list, show, export and merge run folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from attnscope.cli import options
from attnscope.cli.output import emit, json_text, new_console, print_note, progress_bar, working
from attnscope.cli.output import show as print_report_of
from attnscope.options import Format
from attnscope.report.language import language, translate
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from attnscope.results.describe import Description, Variable
    from attnscope.results.merge import Merged
    from attnscope.results.open import Run

_AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output instead of a table.")]
_DAYS = 180  # of a run that is older the year is shown, not the hour
_HEADINGS = ("command", "texts", "progress", "written", "size", "signature")


class _Runs(options.Group):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line: alone, list the runs."""
        return super().parse_args(ctx, args if {*self.commands, "-h", "--help"} & {*args} else [*args, "list"])


app = typer.Typer(cls=_Runs, help="List, show, export or merge run folders.")


@app.command("list", cls=options.Command)
def list_runs(
    folder: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=options.folder,
            help="Folders that are runs or contain runs.",
            show_default="attnscope-runs and the current folder",
        ),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """List runs: command, model, texts, progress, size; no model is loaded."""
    from attnscope.results.open import runs

    listed = runs(*folder or ())
    if as_json:
        emit(json_text([as_dict(run) for run in listed]) + "\n")
        return
    console = new_console()
    if not listed:
        where = ", ".join(map(str, folder or ())) or "attnscope-runs and the current folder"
        console.print(f"no runs in {where}", soft_wrap=True)
        return
    rows = [tuple(map(translate, _HEADINGS)), *map(_cells, listed)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    details = ["  " + "  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]
    console.print(Text(f"{translate('run')}  {translate('model')}\n{details[0]}", style="bold"))
    for run, line in zip(listed, details[1:], strict=True):
        console.print(Text.assemble(str(run.path), (f"  {run.model}", "dim")))
        console.print(Text(line, style="red" if run.damage else "" if run.complete else "yellow"))
    for run in listed:
        if run.damage:
            console.print(run.damage)


def as_dict(run: Run) -> dict[str, Any]:
    """A run as ``--json`` prints it."""
    return {
        "run": str(run.path),
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


def when_text(when: datetime) -> str:
    """A time for people, in the format of `ls -l`."""
    recent = abs((datetime.now().astimezone() - when).days) < _DAYS
    day = f"{when.month:2d}月{when.day:2d}日 " if language() == "ja" else f"{when:%b} {when.day:2d} "
    return day + (f"{when:%H:%M}" if recent else f"{when:%Y}".rjust(5))


def _cells(run: Run) -> tuple[str, ...]:
    size = "" if run.damage else decimal(run.bytes)
    signature = "" if run.signature is None else run.signature.short
    return run.command, run.corpus, translate(run.progress), when_text(run.when), size, signature


_Run = Annotated[Path, typer.Argument(parser=options.folder, help="Folder of a run, as attnscope runs list names it.")]


@app.command(cls=options.Command)
def show(
    run: _Run,
    verify: Annotated[bool, typer.Option("--verify", help="Check of every file against its checksum.")] = False,
    methods: Annotated[
        bool,
        typer.Option(
            "--methods", help="A paragraph on methods for a paper, in English, with its references as BibTeX."
        ),
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Show a run: signature, files, variables with units, findings."""
    from attnscope.results.describe import describe
    from attnscope.results.methods import methods as methods_of

    if methods:
        described = methods_of(run)
        paragraph = {"methods": described.sentences, "bibtex": described.bibtex}
        emit(f"{json_text(paragraph)}\n" if as_json else f"{' '.join(described.sentences)}\n\n{described.bibtex}")
        return

    told = describe(run, verify=verify)
    if as_json:
        emit(json_text(_plain(told)) + "\n")
    else:
        _print(told)
    if told.damaged or told.unread:
        raise typer.Exit(2)


def _print(told: Description) -> None:
    from attnscope.results.describe import settings_of

    console, run = new_console(), told.run
    parts = (run.command, translate(run.progress), " ".join(when_text(run.when).split()), decimal(run.bytes))
    console.print(Text(f"{run.path}: {', '.join(parts)}"), soft_wrap=True)
    if told.page is not None:
        console.print(Text(f"{translate('report:')} {told.page}"), soft_wrap=True)
    for sentence in told.headline:
        console.print(sentence, style="bold")
    for note in told.notes:
        console.print(note, style="dim")
    if told.unread and not told.damaged:
        console.print(told.unread, style="red")
    if told.damaged is not None:
        _print_damage(console, told.damaged, sum(number for number, _ in told.files.values()))
    if told.parts:
        lines = [(part.path.name, f"{part.progress}, {decimal(part.bytes)}") for part in told.parts]
        _section(console, "Tasks", lines)
    if run.signature is not None:
        _section(console, "Signature", settings_of(run.signature))
        console.print(Text(f"  {translate('to cite:')} {run.signature.format()}"), soft_wrap=True)
    files = [
        (translate(kind), f"{translate(count(n, 'file'))}, {decimal(size)}") for kind, (n, size) in told.files.items()
    ]
    _section(console, "Files", files)
    _print_variables(console, told.variables)


def _print_damage(console: Console, damaged: list[str], files: int) -> None:
    if not damaged:
        console.print(f"all {count(files, 'file')} are as they were written", soft_wrap=True)
        return
    for name in damaged:
        console.print(f"{name} is gone, or is not what was written", style="red")
    console.print("Repeat the command that wrote it, with --repair if it has that option")


def _print_variables(console: Console, variables: list[Variable]) -> None:
    for node, members in groupby(variables, key=lambda variable: variable.node):
        members_listed = list(members)
        results = [variable for variable in members_listed if not variable.coordinate]
        labels = [f"{variable.name}{_units(variable)}" for variable in members_listed if variable.coordinate]
        console.print(f"\nVariables of {node}" if node else "\nVariables", style="bold")
        by_sizes: dict[tuple[tuple[str, int], ...], list[Variable]] = {}
        for variable in results:
            by_sizes.setdefault(tuple(variable.sizes.items()), []).append(variable)
        for sizes, group in by_sizes.items():
            dims = ", ".join(f"{dim}: {size}" for dim, size in sizes) or translate("one number")
            console.print(Text(f"  {dims}"), soft_wrap=True)
            meanings = (f"{translate(one.long_name)}{_units(one)}" or one.dtype for one in group)
            console.print(_grid(zip((f"    {one.name}" for one in group), meanings, strict=True)))
        if labels:
            console.print(_grid([(f"  {translate('labelled by')}", ", ".join(labels))]))


def _units(variable: Variable) -> str:
    return "" if variable.units in {"", "1"} else f" [{variable.units}]"


def _section(console: Console, title: str, lines: Iterable[tuple[str, str]]) -> None:
    console.print(f"\n{translate(title)}", style="bold")
    console.print(_grid((f"  {name}", value) for name, value in lines))


def _grid(lines: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(Text(name), Text(value))
    return grid


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


@app.command(cls=options.Command)
def table(
    folders: Annotated[
        list[Path], typer.Argument(parser=options.folder, help="Finished runs of one command on several models.")
    ],
    quantity: Annotated[
        str | None, typer.Option(help="Column that heads are compared by.", show_default="the one that colours its map")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(parser=options.folder, help="Write a page with both tables and a map to this file.")
    ] = None,
    as_json: _AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV: a line for each model.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the tables as LaTeX, for a paper.")] = False,
) -> None:
    """Put runs of one command into one table: models by quantities, and heads by models."""
    from attnscope.results.reports import write_page
    from attnscope.results.several import several

    report = several(folders, quantity=quantity)
    if page is not None:
        write_page(report, page)
        print_note(f"written: {page}")
    print_report_of(report, options.Output(as_json=as_json, as_csv=as_csv, as_latex=as_latex))


@app.command(cls=options.Command)
def export(
    run: _Run,
    to: Annotated[
        Format,
        typer.Option(
            metavar="FORMAT",
            help="Format: tidy tables (parquet, csv), one for each set of dimensions; one netCDF file (nc); a Zarr "
            "store (zarr), for large runs; numbers alone (safetensors); tables, methods and references of a paper "
            "(latex); of edges or attribute, a graph for circuit-tracer and Neuronpedia (graph); of a card, heads as "
            "other tools read them (duo for DuoAttention and kvpress, minference, qrhead, alignment, names); of "
            "relations, the heads of sounds and translations (alignment), or that of ESM (contacts).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=options.folder,
            help="Folder of the tables or the store, or file of netCDF; never one that is there.",
            show_default="one here, named after the run",
        ),
    ] = None,
    variables: Annotated[
        str | None, typer.Option(help="Variables to write, with commas between; of a card, a role.", show_default="all")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Number of heads in a list, or of links of a graph.", show_default="those at the threshold"),
    ] = None,
) -> None:
    """Export a run's arrays to other tools: Parquet or CSV tables, netCDF or Zarr arrays."""
    from attnscope.results.export import export as run_export

    chosen = None if variables is None else [name.strip() for name in variables.split(",")]
    with progress_bar("export") as show:
        written = run_export(run, to, out=out, variables=chosen, top=top, progress=show)
    files = [written] if written.is_file() else [file for file in written.rglob("*") if file.is_file()]
    size = decimal(sum(file.stat().st_size for file in files))
    new_console().print(Text(f"{written}: {translate(count(len(files), 'file'))}, {size}"), soft_wrap=True)


@app.command(cls=options.Command)
def merge(
    run: Annotated[
        Path,
        typer.Argument(
            parser=options.folder, help="Folder of a run by --task; its parts are next to it, in RUN.tasks."
        ),
    ],
    report: Annotated[bool, typer.Option(help="Write a page (report.html) and figures next to the results.")] = True,
    figures: Annotated[
        str,
        typer.Option(
            metavar="FORMAT,...", help="Draw figures in these formats, with commas between: svg, pdf, png; or none."
        ),
    ] = "svg",
) -> None:
    """Merge what the tasks of a run have measured, if the last of them did not."""
    from attnscope.results.merge import merge as run_merge

    output = options.Output(report=report, figures=figures)
    working()
    merged = run_merge(run)
    page = _page(merged, output.formats) if output.report else None
    console = new_console()
    parts = count(merged.tasks, "task") if merged.tasks else ""
    console.print(
        f"{merged.path}: {count(merged.texts, 'text')}{f' of {parts}' if parts else ', whole before'}", soft_wrap=True
    )
    if page is not None:
        console.print(Text(f"{translate('report:  ')}{page}"), soft_wrap=True)
    if not merged.complete:
        print_note(f"to finish {merged.command}, which needs the model, repeat its command without --task")


def _page(merged: Merged, formats: tuple[str, ...]) -> Path | None:
    """The page of a scan, unless it has one already."""
    from attnscope.cli.output import draw_page
    from attnscope.results.open import known_run, read_run
    from attnscope.results.reports import report_of
    from attnscope.store.files import PAGE
    from attnscope.store.runs import RunFolder

    if merged.command != "scan" or not merged.complete:
        return None
    if (merged.path / PAGE).is_file():
        return merged.path / PAGE
    report = replace(report_of("scan", read_run(known_run(merged.path))), heads=[])
    return draw_page(report, RunFolder(merged.path, report.signature), formats)
