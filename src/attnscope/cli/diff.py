"""`attnscope diff`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.place import OutputFolder, present, usual_folder


def diff(
    before: Annotated[Path, typer.Argument(help="Folder of a finished scan: the first model's.")],
    after: Annotated[
        Path, typer.Argument(help="Folder of a finished scan of the same texts: the second model's.")
    ],
    out: options.Out = None,
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
    seed: options.Seed = 0,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """What changed between two models? Two scans of one corpus, head by head."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    place = OutputFolder(out, usual_folder("diff"))
    from attnscope.comparison.diff import diff as run_diff

    chosen = None if statistics is None else [name.strip() for name in statistics.split(",")]
    compared = run_diff(before, after, statistics=chosen, heads=heads, level=level, out=place, seed=seed)  # pyright: ignore[reportArgumentType]
    present(compared, "diff", place, formats if report else None, as_json=as_json, as_csv=as_csv)
