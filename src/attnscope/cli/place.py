"""Where a command's results lie, what is drawn of them there, and what it says about that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnscope.cli.output import emit, emit_rows, json_text, new_console, print_note
from attnscope.store.folder import OwnedFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.results.schema import Report
    from attnscope.store.signature import Signature

PAGE = "report.html"


class OutputFolder:
    """The folder asked for, or the one that the signature names; remembers whether the run was finished there
    before.
    """

    def __init__(self, asked: Path | None, usual: Callable[[Any], Path], parts: Iterable[str] = ()) -> None:
        self.asked, self.usual, self.parts = asked, usual, tuple(parts)
        self.finished, self.signature = False, cast("Signature | None", None)
        self.found = False

    def __call__(self, signature: Signature | dict[str, Any]) -> Path:
        """Name the folder of a run with that signature."""
        from attnscope.store.files import RUN
        from attnscope.store.folder import manifest_of
        from attnscope.store.runs import is_finished
        from attnscope.store.signature import Signature

        self.signature = Signature.of(signature)
        folder = self.asked or self.usual(signature)
        manifest = manifest_of(folder)
        self.found = manifest is not None and bool(manifest.files.keys() - {RUN})
        self.finished = is_finished(folder) and all((folder / part).exists() for part in self.parts)
        return folder

    def reading(self, folder: Path) -> AbstractContextManager[None]:
        """Where results were there before, whatever goes wrong with them is told of in one line."""
        from attnscope.store.files import read_as

        return read_as(folder) if self.found else nullcontext()

    def say(self, folder: Path, page: Path | None) -> None:
        """Name the results, the page and the signature; on standard error, that nothing was measured anew."""
        console, where = new_console(), folder
        console.print(f"results: {where}", highlight=False, markup=False, soft_wrap=True)
        if page is not None:
            console.print(f"report:  {where}/{page.relative_to(folder)}", highlight=False, markup=False, soft_wrap=True)
        if self.signature is not None:
            console.print(f"signature: {self.signature.format()}", highlight=False, markup=False, soft_wrap=True)
        if self.finished:
            print_note(f"already finished in {where}: delete it or give another --out to measure again")


def present(
    result: xr.Dataset | xr.DataTree,
    command: str,
    place: OutputFolder,
    formats: tuple[str, ...] | None,
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Draw the page of a finished run, unless `formats` is None, and print its results."""
    from attnscope.results import reports

    if "task" in result.attrs:  # another process stores and prints the results
        print_note(result.attrs["task"])
        return
    folder = Path(result.attrs["run"])
    with place.reading(folder):
        report = reports.report_of(command, result)
        page = None
        if formats is not None:
            page = draw_page(
                result,
                formats,
                lambda _: reports.figures_of(report).items(),
                lambda _, path, figures: reports.write_page(report, path, figures),
            )
        show(report, place, folder, page, as_json=as_json, as_csv=as_csv)


def show(report: Report, place: OutputFolder, folder: Path, page: Path | None, *, as_json: bool, as_csv: bool) -> None:
    """Print a report as JSON or CSV; else as tables, and where everything is."""
    from attnscope.results import render

    if as_json:
        emit(json_text(render.as_json(report, folder)) + "\n")
    elif as_csv:
        emit_rows(render.as_csv(report))
    else:
        render.print_report(report, new_console())
        place.say(folder, page)


def draw_views(folder: OwnedFolder, shown: object, draw: Callable[[Path], None]) -> Path | None:
    """Draw the page and the figures, unless they lie there already or nothing can be written."""
    from attnscope import __version__
    from attnscope.store.files import VIEWS, explained
    from attnscope.store.signature import short_hash

    drawn = short_hash([__version__, shown])
    page = folder.path / PAGE
    if folder.state.get("views") != drawn or PAGE not in folder.files:
        with explained("write the page", "The results are safe: free some room and give the same command again"):
            if folder.is_writable():
                with folder.replacing(*VIEWS, views=drawn) as new:
                    draw(new)
                from attnscope.results.figures.style import LACKING

                if LACKING:  # drawn again the next time: a font may have been installed
                    folder.forget([], views=None)
    return page if PAGE in folder.files else None


def usual_folder(command: str) -> Callable[[Any], Path]:
    """Name the folders of a command's runs, where nothing else is asked for: one for each signature."""

    def named(signature: Any) -> Path:
        from attnscope.measure.stored import default_out

        folder = default_out(signature)
        return folder.with_name(f"{command}-{folder.name}")

    return named


def draw_page(
    result: xr.Dataset | xr.DataTree,
    formats: tuple[str, ...],
    figures_of: Callable[[Any], Iterable[tuple[str, Figure]]],
    write: Callable[[Any, Path, dict[str, Figure]], Path],
) -> Path | None:
    """Draw the figures and the page of a finished run into its folder, unless they lie there already."""
    import json
    from pathlib import Path

    from attnscope.results.figures.style import save_figure
    from attnscope.store.runs import RunFolder

    def draw(place: Path) -> None:
        figures = dict(figures_of(result))
        (place / "figures").mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            save_figure(figure, place / "figures" / name, formats)
        write(result, place / PAGE, figures)

    with RunFolder(Path(result.attrs["run"]), json.loads(result.attrs["signature"])) as run:
        return draw_views(run, [sorted(getattr(result, "children", ())), formats], draw)
