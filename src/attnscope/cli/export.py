"""`attnscope export`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope._numbers import count
from attnscope.cli import options
from attnscope.cli.ls import size_text
from attnscope.cli.output import new_console, progress_bar
from attnscope.cli.show import RunArgument


def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="parquet|csv|nc|zarr",
            help="Format: tidy tables (parquet, csv), one for each set of dimensions; one netCDF file (nc); or a Zarr "
            "store (zarr), for large runs.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=options.run_folder,
            help="Folder of the tables or the store, or file of netCDF; never one that is there.",
            show_default="one here, named after the run",
        ),
    ] = None,
    variables: Annotated[
        str | None, typer.Option(help="Variables to write, with commas between.", show_default="all")
    ] = None,
) -> None:
    """A run's arrays for other tools: Parquet or CSV for tables, netCDF or Zarr for labelled arrays."""
    from attnscope.results import export as run_export

    chosen = None if variables is None else [name.strip() for name in variables.split(",")]
    with progress_bar("export") as show:
        made = run_export(run, to, out=out, variables=chosen, progress=show)  # pyright: ignore[reportArgumentType] checked there
    files = [made] if made.is_file() else [file for file in made.rglob("*") if file.is_file()]
    size = size_text(sum(file.stat().st_size for file in files))
    new_console().print(
        f"{made}: {count(len(files), 'file')}, {size}", highlight=False, markup=False, soft_wrap=True
    )
