"""`attnscope diff`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.place import run


@options.takes("seed", *options.WRITING)
def diff(
    before: Annotated[Path, typer.Argument(help="Folder of a finished scan: the first model's.")],
    after: Annotated[Path, typer.Argument(help="Folder of a finished scan of the same texts: the second model's.")],
    statistics: Annotated[
        str | None,
        typer.Option(help="Statistics to compare, with commas between.", show_default="all that both scans have"),
    ] = None,
    heads: Annotated[
        str, typer.Option(help="Rule by which heads are matched within a layer: number, profile, auto.")
    ] = "auto",
    level: Annotated[float, typer.Option(help="False discovery rate, all heads and statistics together.")] = 0.05,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Measure what changed between two models: two scans of one corpus, head by head."""
    chosen = None if statistics is None else [name.strip() for name in statistics.split(",")]
    run("diff", output, before=before, after=after, statistics=chosen, heads=heads, level=level, **reading)
