"""`attnscope diff`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import TABLE_ROWS, csv_text, emit, json_text, new_console
from attnscope.cli.place import OutputFolder, draw_page, usual_folder
from attnscope.support.numbers import change_texts, count, places, plain, with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from attnscope.comparison.findings import Change

_READ = "{0}: mean over texts; size: the {0} in standard deviations of all heads of both models together."
_TOLD = "95% interval: of the {0}; * is significant at the false discovery rate (all heads and statistics)."


@options.takes("seed", *options.WRITING)
def diff(
    before: Annotated[Path, typer.Argument(help="Folder of a finished scan: the first model's.")],
    after: Annotated[
        Path, typer.Argument(help="Folder of a finished scan of the same texts: the second model's.")
    ],
    statistics: Annotated[
        str | None,
        typer.Option(
            help="Statistics to compare, with commas between.", show_default="all that both scans have"
        ),
    ] = None,
    heads: Annotated[
        str, typer.Option(help="Rule by which heads are matched within a layer: number, profile, auto.")
    ] = "auto",
    level: Annotated[
        float, typer.Option(help="False discovery rate, all heads and statistics together.")
    ] = 0.05,
    *,
    reading: dict[str, Any],
    output: options.Output,
) -> None:
    """Measure what changed between two models: two scans of one corpus, head by head."""
    place = OutputFolder(output.out, usual_folder("diff"))
    from attnscope.comparison.diff import diff as run_diff
    from attnscope.comparison.findings import changes_of, headline
    from attnscope.store.signature import Signature

    chosen = None if statistics is None else [name.strip() for name in statistics.split(",")]
    compared = run_diff(before, after, statistics=chosen, heads=heads, level=level, out=place, **reading)  # pyright: ignore[reportArgumentType]
    folder = Path(compared.attrs["run"])
    page = _draw(compared, output.formats) if output.report else None
    rows = changes_of(compared)
    if output.as_json:
        said = {
            "signature": json.loads(compared.attrs["signature"]),
            "says": headline(compared),
            "matching": compared.attrs["matching"],
            "kinship": compared.attrs.get("kinship", "untested"),
            "repeated": json.loads(compared.attrs.get("repeated", "{}")),
        }
        emit(
            json_text(said | {"changes": [with_nulls(asdict(row)) for row in rows], "run": str(folder)})
            + "\n"
        )
    elif output.as_csv:
        signature = {"signature": Signature.from_json(compared.attrs["signature"]).short}
        lines = [with_nulls(asdict(row)) | signature for row in rows]
        emit(csv_text([list(lines[0]), *(list(line.values()) for line in lines)]))
    else:
        _print(compared, rows)
        place.say(folder, page)


def _print(compared: xr.Dataset, rows: list[Change]) -> None:
    from attnscope.comparison.findings import headline, partner_heading, same_everywhere, value_headings
    from attnscope.measure.documents import called_in

    console = new_console()
    heads, texts = compared.sizes["layer"] * compared.sizes["head"], int(compared.attrs["texts"])
    window = called_in(compared.attrs)["windows"].removesuffix("s")
    console.print(
        f"{compared.attrs['before']} and {compared.attrs['after']}: {count(compared.sizes['statistic'], 'statistic')} "
        f"of {count(heads, 'head')} over {count(texts, window)}",
        highlight=False,
        markup=False,
    )
    for sentence in headline(compared):
        console.print(sentence, style="bold", highlight=False, markup=False)
    if same_everywhere(rows):
        return
    values = value_headings(compared)
    console.print(_table(rows[:TABLE_ROWS], values, partner=partner_heading(compared)))
    if len(rows) > TABLE_ROWS:
        console.print(f"and {len(rows) - TABLE_ROWS} more: --csv lists all", highlight=False)
    for note in (_READ, _TOLD) if compared.tested.any() else (_READ,):
        console.print(note.format(values[-1]), style="dim", highlight=False, markup=False)


def _table(rows: list[Change], values: tuple[str, str, str], *, partner: str | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("head", *([partner] if partner is not None else []), "statistic"):
        table.add_column(heading, justify="left" if heading == "statistic" else "right", overflow="fold")
    for heading in (*values, "95% interval", "size"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        names = [f"{row.layer}.{row.head}", *([f"{row.layer}.{row.partner}"] if partner is not None else [])]
        first, second, change, interval = change_texts(row.before, row.after, row.change, row.low, row.high)
        told = f"{change}{'*' if row.changed else ' '}"
        size = plain(row.size, places(row.size, 1), "+")
        table.add_row(*names, row.statistic, first, second, told, interval, size)
    return table


def _draw(compared: xr.Dataset, formats: tuple[str, ...]) -> Path | None:
    from attnscope.results.figures.diff import difference_figures
    from attnscope.results.page.diff import write_difference_report

    return draw_page(compared, formats, difference_figures, write_difference_report)
