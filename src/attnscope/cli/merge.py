"""`attnscope merge`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console, tell, working
from attnscope.cli.place import count

if TYPE_CHECKING:
    from attnscope.results import Merged


def merge(
    run: Annotated[
        Path,
        typer.Argument(
            parser=options.run_folder,
            help="Folder of a run by --task, here or in an object store; beside it lie the parts (RUN.tasks).",
        ),
    ],
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
) -> None:
    """Put together what the tasks of a run have measured, where the last of them did not: kinds of heads, and page."""
    from attnscope.results import merge as run_merge

    formats = options.formats_of(figures)
    working()
    found = run_merge(run)
    page = _page(found, formats) if report else None
    _print(found, page)


def _page(found: Merged, formats: tuple[str, ...]) -> Path | None:
    """The page of a scan, unless it has one already."""
    from attnscope.cli.place import PAGE
    from attnscope.cli.scan import draw
    from attnscope.statistics import load_scan
    from attnscope.store import RunFolder, manifest_of

    if found.command != "scan" or not found.complete:
        return None
    if (found.path / PAGE).is_file():
        return found.path / PAGE
    manifest = manifest_of(found.path) or {}
    with RunFolder(found.path, manifest["state"]["signature"]) as run:
        results = load_scan(run)
    return draw(results, found.path, formats, [])


def _print(found: Merged, page: Path | None) -> None:
    from attnscope.store import named

    where, out = named(found.path), new_console()

    def line(text: str) -> None:
        out.print(text, highlight=False, markup=False, soft_wrap=True)

    texts = count(found.texts, "text")
    line(
        f"{where}: {texts} of {count(found.tasks, 'task')}"
        if found.tasks
        else f"{where}: {texts}, whole before"
    )
    if page is not None:
        line(f"report:  {where}/{page.relative_to(found.path)}")
    if not found.complete:
        tell(
            f"what {found.command} makes of all texts together needs the model: give its command again, without --task"
        )
