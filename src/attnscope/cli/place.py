"""Where a command's results lie, what is drawn of them there, and what it says about that."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnscope.cli.output import emit, emit_rows, json_text, new_console, print_note, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnscope.cli.options import Output
    from attnscope.results.schema import Report
    from attnscope.store.folder import OwnedFolder
    from attnscope.store.signature import Signature

PAGE = "report.html"


class OutputFolder:
    """The folder asked for, or the one that the signature names; remembers whether the run was finished there
    before.
    """

    def __init__(self, asked: Path | None, usual: Callable[[Any], Path], parts: Sequence[str] = ()) -> None:
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

    def say(self, folder: Path | None, page: Path | None) -> None:
        """Name the results, the page and the signature; on standard error, that nothing was measured anew."""
        lines = [] if folder is None else [f"results: {folder}"]
        lines += [] if page is None else [f"report:  {page}"]
        lines += [] if self.signature is None else [f"signature: {self.signature.format()}"]
        for line in lines:
            new_console().print(line, highlight=False, markup=False, soft_wrap=True)
        if self.finished:
            print_note(f"already finished in {folder}: delete it or give another --out to measure again")


def run(
    command: str,
    output: Output,
    *,
    parts: Sequence[str] = (),
    page_heads: Sequence[tuple[int, int]] | Callable[[Report], Sequence[tuple[int, int]]] | None = None,
    first: Callable[[Any], None] | None = None,
    **arguments: Any,
) -> None:
    """Run a verb into its folder, draw its page, and print what it found.

    `page_heads` are those that the page shows one by one; `first` prints tables of text before the others.
    """
    import attnscope

    place, verb = OutputFolder(output.out, usual_folder(command), parts), getattr(attnscope, command)
    with progress_bar(command) as bar:
        reports_progress = "progress" in inspect.signature(verb).parameters
        result = verb(**arguments, out=place, **({"progress": bar} if reports_progress else {}))
    if "task" in result.attrs:  # another process stores and prints the results
        print_note(result.attrs["task"])
        return
    from attnscope.results import reports
    from attnscope.store.runs import RunFolder

    folder = Path(result.attrs["run"] if "run" in result.attrs else result.encoding["source"])
    with place.reading(folder):
        report = reports.report_of(command, result, data=output.as_json or output.as_csv)
        page = None
        if output.report:
            shown = page_heads(report) if callable(page_heads) else page_heads
            page = draw_page(replace(report, heads=shown), RunFolder(folder, report.signature), output.formats)
        if first is not None and not (output.as_json or output.as_csv):
            first(result)
        show(report, place, folder, page, as_json=output.as_json, as_csv=output.as_csv)


def show(
    report: Report, place: OutputFolder, folder: Path | None, page: Path | None, *, as_json: bool, as_csv: bool
) -> None:
    """Print a report as JSON or CSV; else as tables, and where everything is."""
    from attnscope.results import render

    if as_json:
        emit(json_text(render.as_json(report, folder or "")) + "\n")
    elif as_csv:
        emit_rows(render.as_csv(report))
    else:
        render.print_report(report, new_console())
        place.say(folder, page)


def finish(
    report: Report, output: Output, folder: OwnedFolder | None, page: bool = True, key: Sequence[object] = ()
) -> None:
    """Draw the page of a result that its verb has stored, and print what it found."""
    from attnscope.store.signature import Signature

    page = page and output.report and folder is not None
    drawn = draw_page(report, folder, output.formats, key) if page and folder is not None else None
    place = OutputFolder(output.out, lambda _: Path())
    place.signature = Signature.of(report.signature)
    where = None if folder is None else folder.path
    show(report, place, where, drawn, as_json=output.as_json, as_csv=output.as_csv)


def draw_page(report: Report, folder: OwnedFolder, formats: tuple[str, ...], key: Sequence[object] = ()) -> Path | None:
    """Draw the figures and the page of a finished run into its folder, unless they are there already."""
    from attnscope.results import reports

    def draw(new: Path) -> None:
        from attnscope.results.figures.style import save_figure

        figures = reports.figures_of(report)
        (new / "figures").mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            save_figure(figure, new / "figures" / name, formats)
        reports.write_page(report, new / PAGE, figures)

    # of a tree its nodes, and which models' position tables are beside this one's
    nodes = sorted(str(node.attrs.get("identity", node.path)) for node in getattr(report.result, "subtree", ()))
    drawn = [nodes, report.heads, formats, *key]
    with folder:
        return draw_views(folder, drawn, draw)


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
        return folder if command == "scan" else folder.with_name(f"{command}-{folder.name}")

    return named
