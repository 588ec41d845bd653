"""`attnscope roles`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console
from attnscope.cli.place import run

_Only = Annotated[
    str | None, typer.Option(help="Roles to look for, with commas between; list names them all.", show_default="all")
]
_Needles = Annotated[
    Path | None,
    typer.Option(
        help="File of needles for retrieval heads: JSON Lines with needle and question in each line.",
        show_default="three sentences in English",
    ),
]
_Controls = Annotated[
    str, typer.Option(help="Weights that know nothing, with commas between: initialised, shuffled; or none.")
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
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Find which published roles heads have, next to uniform attention and untrained weights."""
    if only == "list":
        _list()
        return
    run("roles", output, **reading, only=only, needles=needles, controls=controls)


def _list() -> None:
    from attnscope.detection.role import ROLES

    console = new_console()
    for role in ROLES.values():
        console.print(f"{role.name}: {role.definition}", highlight=False, markup=False)
        console.print(f"  {role.source}", style="dim", highlight=False, markup=False)
