"""`attnscope roles`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import as_cell, csv_text, emit, new_console, progress_bar
from attnscope.cli.place import Forms, OutputFolder, draw_page, usual_folder
from attnscope.support.numbers import with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from attnscope.detection.role_controls import RoleCount

_READ = (
    "heads: whose score reaches the threshold that the source gives; beside it as many of the same model with weights "
    "that know nothing; equal: the score of equal weights. Where no threshold is published, the highest score of the "
    "controls stands in parentheses. above: heads above every head of all controls; of a model that knows nothing it "
    "would be about one head, or half a head with two controls. head: the one with the highest score, layer.head."
)

_Only = Annotated[
    str | None,
    typer.Option(help="Roles to look for, with commas between; list names them all.", show_default="all"),
]
_Needles = Annotated[
    Path | None,
    typer.Option(
        help="File of needles for retrieval heads: JSON Lines with needle and question in each line.",
        show_default="three sentences in English",
    ),
]
_Controls = Annotated[
    str,
    typer.Option(help="Weights that know nothing, with commas between: initialised, shuffled; or none."),
]


@options.takes(
    *options.READING,
    "window",
    "limit",
    "seed",
    "batch_size",
    "repair",
    *options.WRITING,
    limit=32,
    batch_size=options.varied("batch_size", show_default="about 2,048 tokens' worth"),
    examples=(
        ("attnscope roles", "the bundled model on the bundled text"),
        ("attnscope roles gpt2 corpus.txt --only induction", "one role in a model of the hub"),
        ("attnscope roles --only list", "the definitions of all roles"),
    ),
)
def roles(
    only: _Only = None,
    needles: _Needles = None,
    controls: _Controls = "initialised,shuffled",
    *,
    reading: dict[str, Any],
    output: options.Output,
) -> None:
    """Find which published roles heads have, next to uniform attention and untrained weights."""
    if only == "list":
        _list()
        return
    from attnscope.detection.roles import roles as run_roles

    place = OutputFolder(output.out, usual_folder("roles"))
    with progress_bar("roles") as show:
        result = run_roles(**reading, only=only, needles=needles, controls=controls, out=place, progress=show)
    folder = Path(result.attrs["run"])
    page = _draw(result, output.formats) if output.report else None
    forms = Forms(as_dict, _print_csv, _print)
    forms.show(result, place, folder, page, as_json=output.as_json, as_csv=output.as_csv)


def _print_csv(result: xr.Dataset) -> None:
    """One line for each head and role, with the signature that names the run's folder."""
    from attnscope.store.signature import Signature

    names, *rows = _rows(result)
    signature = Signature.from_json(result.attrs["signature"]).short
    emit(csv_text([[*names, "signature"], *([*map(as_cell, row), signature] for row in rows)]))


def _list() -> None:
    from attnscope.detection.role import ROLES

    console = new_console()
    for role in ROLES.values():
        console.print(f"{role.name}: {role.definition}", highlight=False, markup=False)
        console.print(f"  {role.source}", style="dim", highlight=False, markup=False)


def as_dict(result: xr.Dataset, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.detection.role_controls import counts_of, headline
    from attnscope.measure.stored import notes_of
    from attnscope.store.runs import skipped_of

    names, *rows = _rows(result)
    heads = [dict(zip(names, row, strict=True)) for row in rows]
    return {
        "signature": json.loads(result.attrs["signature"]),
        "says": headline(result),
        "notes": notes_of(result),
        "roles": with_nulls([asdict(row) for row in counts_of(result)]),
        "heads": with_nulls(heads),
        "skipped": skipped_of(result),
        "run": str(folder),
    }


def _rows(result: xr.Dataset) -> list[list[Any]]:
    """A heading, and a row for each head and role."""
    controls = [str(name) for name in result.control.values] if "control" in result.coords else []
    columns = ("score", "low", "high", "windows_reached")
    table: list[list[Any]] = [["layer", "head", "role", *columns, "equal", *controls]]
    for role in map(str, result.role.values):
        part = result.sel(role=role)
        for row, layer in enumerate(result.layer.values):
            for head in range(result.sizes["head"]):
                values = [float(part[name].values[row, head]) for name in columns]
                if values[0] != values[0]:
                    continue
                values.append(float(part["equal"].values[row]))
                values += [
                    float(part["control_score"].sel(control=name).values[row, head]) for name in controls
                ]
                table.append([int(layer), head, role, *values])
    return table


def _print(result: xr.Dataset) -> None:
    from attnscope.detection.role import ROLES
    from attnscope.detection.role_controls import counts_of
    from attnscope.measure.stored import notes_of
    from attnscope.results.account import describe_read
    from attnscope.store.runs import skipped_of

    console = new_console()
    console.print(f"{result.attrs['model']}: {describe_read('roles', result)}", highlight=False, markup=False)
    for note in notes_of(result).values():
        console.print(note, style="dim", highlight=False, markup=False)
    console.print(_table(counts_of(result)))
    for name, reason in skipped_of(result).items():
        title = ROLES[name].title if name in ROLES else name
        console.print(f"no {title}: {reason}", style="dim", highlight=False, markup=False)
    console.print(_READ, style="dim", highlight=False, markup=False)


def _table(rows: list[RoleCount]) -> Table:
    from rich import box
    from rich.table import Table

    controls = list(rows[0].controls)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("role", no_wrap=True)
    for heading in ("from", "heads", *controls, *(["above"] if controls else []), "head", "highest", "equal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        beside = [
            f"({highest:.2f})" if count is None else str(count) for count, highest in row.controls.values()
        ]
        table.add_row(
            row.title,
            "" if row.threshold is None else f"{row.threshold:g}",
            "–" if row.reached is None else f"{row.reached} of {row.heads}",
            *beside,
            *([str(row.above)] if controls else []),
            f"{row.layer}.{row.head}",
            f"{row.best:.2f}",
            f"{row.equal:.2f}",
        )
    return table


def _draw(result: xr.Dataset, formats: tuple[str, ...]) -> Path | None:
    from attnscope.results.figures.roles import role_figures
    from attnscope.results.page.roles import write_roles_report

    return draw_page(result, formats, role_figures, write_roles_report)
