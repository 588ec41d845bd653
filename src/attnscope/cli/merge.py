"""`attnscope merge`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope._numbers import count
from attnscope.cli import options
from attnscope.cli.output import new_console, tell, working

if TYPE_CHECKING:
    from attnscope.results import Merged


def merge(
    run: Annotated[
        Path,
        typer.Argument(
            parser=options.run_folder,
            help="Folder of a run by --task; beside it lie the parts (RUN.tasks).",
        ),
    ],
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
) -> None:
    """Put together what the tasks of a run have measured, where the last of them did not: kinds of heads, and page."""
    from attnscope.results import merge as run_merge

    formats = options.formats_of(figures, report=report)
    working()
    merged = run_merge(run)
    page = _page(merged, formats) if report else None
    _print(merged, page)


def _page(merged: Merged, formats: tuple[str, ...]) -> Path | None:
    """The page of a scan, unless it has one already."""
    from attnscope.cli.place import PAGE
    from attnscope.cli.scan import draw
    from attnscope.statistics import load_scan
    from attnscope.store import RunFolder, manifest_of

    if merged.command != "scan" or not merged.complete:
        return None
    if (merged.path / PAGE).is_file():
        return merged.path / PAGE
    manifest = manifest_of(merged.path)
    with RunFolder(merged.path, manifest.state.get("signature", {}) if manifest else {}) as run:
        results = load_scan(run)
    return draw(results, merged.path, formats, [])


def _print(merged: Merged, page: Path | None) -> None:
    where, out = merged.path, new_console()

    def line(text: str) -> None:
        out.print(text, highlight=False, markup=False, soft_wrap=True)

    texts = count(merged.texts, "text")
    line(
        f"{where}: {texts} of {count(merged.tasks, 'task')}"
        if merged.tasks
        else f"{where}: {texts}, whole before"
    )
    if page is not None:
        line(f"report:  {where}/{page.relative_to(merged.path)}")
    if not merged.complete:
        tell(
            f"what {merged.command} makes of all texts together needs the model: give its command again, without --task"
        )
