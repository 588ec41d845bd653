"""`attnscope roles`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console, progress_bar
from attnscope.cli.place import OutputFolder, present, usual_folder

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
_Window = Annotated[
    int | None,
    typer.Option(help="Tokens of a window, and of a prompt.", show_default="the model's length, at most 512"),
]
_BatchSize = Annotated[
    int | None, typer.Option(help="Windows at a time.", show_default="about 2,048 tokens' worth")
]


def roles(
    model: options.Model = options.BUNDLED,
    text: options.Texts = None,
    only: _Only = None,
    needles: _Needles = None,
    controls: _Controls = "initialised,shuffled",
    out: options.Out = None,
    repair: options.Repair = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    window: _Window = None,
    limit: Annotated[int, typer.Option(help="Largest number of windows.")] = 32,
    batch_size: _BatchSize = None,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Which published roles do heads have? Each score beside equal weights and weights that know nothing."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    if only == "list":
        _list()
        return
    place = OutputFolder(out, usual_folder("roles"))
    from attnscope.detection.roles import roles as run_roles

    with progress_bar("roles") as show:
        result = run_roles(
            model,
            text or None,
            out=place,
            repair=repair,
            tokenizer=tokenizer,
            only=only,
            needles=needles,
            controls=controls,
            window=window,
            limit=limit,
            batch_size=batch_size,
            seed=seed,
            field=field,
            by_line=by_line,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    present(result, "roles", place, formats if report else None, as_json=as_json, as_csv=as_csv)


def _list() -> None:
    from attnscope.detection.role import ROLES

    console = new_console()
    for role in ROLES.values():
        console.print(f"{role.name}: {role.definition}", highlight=False, markup=False)
        console.print(f"  {role.source}", style="dim", highlight=False, markup=False)
