"""Output of commands: text, run folders and pages."""

from __future__ import annotations

import csv
import errno
import gc
import importlib
import inspect
import io
import json
import logging
import math
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from attnscope.report.language import language, translate, wrapped
from attnscope.support.numbers import safe_cell

if TYPE_CHECKING:
    from attnscope.cli.options import Output
    from attnscope.report.schema import Report
    from attnscope.report.signature import Signature
    from attnscope.results.several import Models
    from attnscope.store.folder import OwnedFolder
    from attnscope.support.progress import Tell


_LEAST_MEMORY = 768 << 20
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
# the second set of control characters, and those that turn the direction of what follows
_NAMED = {
    code: f"<U+{code:04X}>"
    for code in (*range(0x80, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_SHOWN: dict[int, int | str] = {**_PICTURES, **_NAMED}
_ESCAPED = {code: f"\\u{code:04x}" for code in (0x7F, *_NAMED)}


def printable(text: str) -> str:
    r"""Text without control characters: each is replaced by a picture or its number."""
    return text.translate(_SHOWN).encode(errors="backslashreplace").decode()


def json_text(value: Any) -> str:
    r"""JSON as people read it, with control characters escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False).translate(_ESCAPED)
    return text.encode(errors="backslashreplace").decode()


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated values, a line for each row; no cell is a formula."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([*map(safe_cell, row)] for row in rows)
    return written.getvalue()


def as_cell(value: Any) -> Any:
    """A value as CSV has it: nothing where there is none."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return "" if value is None else value


def emit(text: str) -> None:
    """Write data to standard output as they are; a terminal gets them printable."""
    try:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left
        abandon(sys.stdout)
        raise SystemExit(0) from None


def print_note(message: str) -> None:
    """Write a line for people to standard error, in their language."""
    sys.stderr.write(printable(translate(message)) + "\n")
    sys.stderr.flush()


def print_written(path: Path) -> None:
    """Name the file that was written; its name is in no language."""
    new_console().print(Text(f"{translate('written:')} {path}"), soft_wrap=True)


#: What no line of Japanese ends within: a word in Latin letters, or a letter with the marks before and after it.
class CleanConsole(Console):
    """A console on which text is in the user's language and cannot do more than be read."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print as rich does, with texts translated."""
        super().print(*(self._shown(one, **settings) if isinstance(one, str) else one for one in objects), **settings)

    def _shown(self, text: str, *, soft_wrap: bool = False, **_: Any) -> str:
        text = translate(text)
        if language() == "en" or soft_wrap:
            return text
        return "\n".join(part for line in text.split("\n") for part in wrapped(line, self.width))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with every text printable."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Exit without an error when the reader of the output has left."""
        abandon(sys.stdout)
        raise SystemExit(0)


def new_console(*, errors: bool = False) -> Console:
    """The console of standard output, or of standard error."""
    return CleanConsole(stderr=errors, highlight=False, markup=False, emoji=False)


def working() -> None:
    """Prepare for long work: check the memory, and let Ctrl-C raise KeyboardInterrupt."""
    from attnscope.support.errors import AttnscopeError, leave

    try:
        mmap.mmap(-1, _LEAST_MEMORY).close()
    except OSError as error:
        raise AttnscopeError(
            f"memory ran out: less than {_LEAST_MEMORY >> 20} MiB can be had ({error.strerror}). Close other "
            "programs, or raise the limit (ulimit -v)"
        ) from error
    if "transformers" in sys.modules:  # whose models are about to be loaded
        importlib.import_module("transformers.modeling_utils")
    if not gc.isenabled():  # `main` turned it off: all that was imported stays, and no later search goes through it
        gc.freeze()
        gc.enable()
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


PROGRESS_SECONDS = 60.0  # between two lines of progress, where there is no terminal


@contextmanager
def progress_bar(command: str, *, shown: bool = True, lines: bool = False) -> Generator[Tell]:
    """A progress bar: current step, share of all work, time spent and left, and details; a line a minute in a file."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = new_console(errors=True)
    drawn = shown and console.is_terminal
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),  # so that a line of 80 columns holds the rest
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn(translate("left")),
        TimeRemainingColumn(),
        TextColumn("{task.fields[details]}", markup=False),
    )
    names: set[str] = set()
    with (
        # a step may take minutes: the speed is that of the last ten
        Bar(*columns, console=console, transient=True, disable=not drawn, speed_estimate_period=600) as bar,
        _lines_of_progress(command) if shown and not console.is_terminal else nullcontext() as written,
    ):
        task = bar.add_task(command, total=1.0, details="")

        def show(at: Any) -> None:
            if lines and not console.is_terminal and at.name not in names:
                print_note(at.name)
            names.add(at.name)
            details = "  ".join(f"{name} {_number(value)}" for name, value in getattr(at, "details", {}).items())
            bar.update(task, description=translate(at.name), completed=at.share, details=details)
            if written is not None:
                written(at.name, at.share, details)

        working()
        yield show


@contextmanager
def _lines_of_progress(command: str) -> Generator[Callable[[str, float, str], None]]:
    """Write how far the work has come every minute, also while a step takes longer than that."""
    began, ended = time.monotonic(), threading.Event()
    reports: list[tuple[float, float, str]] = []  # the first and the last: seconds, share, and what is being done

    def tell(name: str, share: float, details: str) -> None:
        now = time.monotonic() - began, share, f"{translate(name)} {details}".rstrip()
        reports[1:] = [now] if reports else []
        reports[:1] = reports[:1] or [now]

    def write() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            seconds = time.monotonic() - began
            first, last = (reports[0], reports[-1]) if reports else ((0.0, 0.0, command),) * 2
            if last[1] > first[1]:
                left = (seconds - first[0]) * (1 - last[1]) / (last[1] - first[1])
                print_note(f"{last[2]}: {last[1]:.0%} done after {seconds:,.0f} s, about {left:,.0f} s left")
            else:
                print_note(f"{last[2]}: at work for {seconds:,.0f} s")

    thread = threading.Thread(target=write, name="attnscope progress", daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    whole = isinstance(value, int) or abs(value) >= 1000  # noqa: PLR2004
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def prepare() -> None:
    """Make standard output and error writable, and print warnings."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] closed by whoever started us
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = cast("TextIO", _Closed())
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    log = logging.getLogger("attnscope")
    if not log.handlers:
        log.addHandler(_ReportText())


def abandon(stream: TextIO) -> None:
    """Discard unwritten output, so that Python does not retry it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _ReportText(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warns = record.levelno >= logging.WARNING
        print_note(f"attnscope: {record.getMessage()}" if warns else record.getMessage())


class _Closed(io.TextIOBase):
    """Standard output that was closed before we started."""

    def write(self, _: str, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


class OutputFolder:
    """The requested folder, or the one that the signature names; remembers whether the run was finished before."""

    def __init__(self, requested: Path | None, command: str, parts: Sequence[str] = ()) -> None:
        self.requested, self.command, self.parts = requested, command, tuple(parts)
        self.finished = self.existed = False

    def __call__(self, signature: Signature | dict[str, Any]) -> Path:
        """Name the folder of a run with that signature."""
        from attnscope.measure.stored import default_out
        from attnscope.store.files import RUN
        from attnscope.store.folder import manifest_of
        from attnscope.store.runs import is_finished

        usual = default_out(signature)
        usual = usual if self.command == "scan" else usual.with_name(f"{self.command}-{usual.name}")
        folder = self.requested or usual
        manifest = manifest_of(folder)
        self.existed = manifest is not None and bool(manifest.files.keys() - {RUN})
        self.finished = is_finished(folder) and all((folder / part).exists() for part in self.parts)
        return folder


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
    from attnscope.catalogue import function_of
    from attnscope.model_names import models_of

    folders, verb = OutputFolder(output.out, command, parts), function_of(command)
    several = models_of(arguments["model"]) if "model" in arguments else None
    out = output.out if several is not None and output.out is not None else folders
    with progress_bar(command) as bar:
        reports_progress = "progress" in inspect.signature(verb).parameters
        result = verb(**arguments, out=out, **({"progress": bar} if reports_progress else {}))
    if several is not None:
        _show_models(result, output)
        return
    if arguments.get("dry_run"):
        show(result, output)
        return
    if "task" in result.attrs:  # another process stores and prints the results
        print_note(result.attrs["task"])
        return
    from attnscope.results import reports
    from attnscope.store.files import read_as
    from attnscope.store.runs import RunFolder

    folder = Path(result.attrs["run"] if "run" in result.attrs else result.encoding["source"])
    with read_as(folder) if folders.existed else nullcontext():
        report = reports.report_of(command, result, data=output.as_json or output.as_csv)
        page = None
        if output.report:
            listed_heads = page_heads(report) if callable(page_heads) else page_heads
            page = draw_page(replace(report, heads=listed_heads), RunFolder(folder, report.signature), output.formats)
        if first is not None and not output.as_data:
            first(result)
        show(report, output, folder, page, report.signature)
    if folders.finished and not output.as_data:
        again = f"already finished in {folder}: delete it or give another --out to measure again"
        print_note(f"{again}. Page and figures are drawn from it" if output.report else again)


def _show_models(results: Models, output: Output) -> None:
    """Draw one page of a verb's results on several models, and print its tables; if a model failed, exit with 2."""
    waiting = [result.attrs["task"] for result in results.values() if "task" in result.attrs]
    if waiting:
        print_note(waiting[0])
        return
    from attnscope.report.signature import Signature
    from attnscope.results import reports
    from attnscope.store.files import PAGE, explained

    report, page = results.report(), None
    usual = f"{report.command}-{len(results)}-models-{Signature.of(report.signature).short}"
    folder = output.out or Path("attnscope-runs") / usual
    if output.report:
        figures = reports.figures_of(report)
        with explained("write the page", "The results are safe: free some room and give the same command again"):
            page = reports.write_page(report, folder / PAGE, figures)
            save_figures(figures, folder, output.formats)
    show(report, output, output.out or folder.parent, page, report.signature)
    if results.failed:
        raise SystemExit(2)


def save_figures(figures: Mapping[str, Any], folder: Path, formats: Sequence[str]) -> None:
    """Write the figures of a page next to it."""
    from attnscope.results.figures.style import save_figure

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / name, formats)


def show(
    report: Report,
    output: Output,
    folder: Path | None = None,
    page: Path | None = None,
    signature: Mapping[str, Any] | None = None,
) -> None:
    """Print a report as JSON, CSV or LaTeX; else as tables, with the paths of results and page."""
    from attnscope.catalogue import verbs
    from attnscope.report import render
    from attnscope.report.signature import Signature

    if output.as_json:
        emit(json_text(render.as_json(report, folder or "")) + "\n")
    elif output.as_csv:
        rows = render.as_csv(report)
        emit(csv_text([*map(list, rows[:1]), *(list(map(as_cell, row.values())) for row in rows)]))
    elif output.as_latex:
        emit(render.as_latex(report) + "\n")
    else:
        console, cited = new_console(), None if signature is None else Signature.of(signature).format()
        render.print_report(report, console, legend=output.legend, page=page is not None)
        for name, value in {"results: ": folder, "report:  ": page, "signature: ": cited}.items():
            if value is not None:
                link = f"link {page.resolve().as_uri()}" if value is page and page is not None else ""  # to click
                console.print(Text.assemble(translate(name), (str(value), link)), soft_wrap=True)
        if page is not None and report.command in verbs():
            from attnscope.cli.following import next_commands

            for question, command in next_commands(report, output.typed):
                console.print(Text(f"{translate(f'Next ({question}):')} {command}"), soft_wrap=True)


def finish(
    report: Report, output: Output, folder: OwnedFolder | None, page: bool = True, key: Sequence[object] = ()
) -> None:
    """Draw the page of a result that its verb has stored, and print what it found."""
    drawn = draw_page(report, folder, output.formats, key) if page and output.report and folder is not None else None
    show(report, output, None if folder is None else folder.path, drawn, report.signature)


def draw_page(report: Report, folder: OwnedFolder, formats: tuple[str, ...], key: Sequence[object] = ()) -> Path | None:
    """Draw the figures and the page of a finished run, unless they exist already or nothing can be written."""
    from attnscope import __version__
    from attnscope.report.signature import short_hash
    from attnscope.results import reports
    from attnscope.store.files import PAGE, VIEWS, explained

    # of a tree its nodes, and which models' position tables are beside this one's
    nodes = sorted(str(node.attrs.get("identity", node.path)) for node in getattr(report.result, "subtree", ()))
    drawn = short_hash([__version__, language(), [nodes, report.heads, formats, *key]])
    with folder, explained("write the page", "The results are safe: free some room and give the same command again"):
        if not (folder.state.get("views") == drawn and PAGE in folder.files) and folder.is_writable():
            from attnscope.results.figures.style import LACKING

            with folder.replacing(*VIEWS, views=drawn) as new:
                figures = reports.figures_of(report)
                save_figures(figures, new, formats)
                reports.write_page(report, new / PAGE, figures, folder.path)
            if LACKING:  # drawn again the next time: a font may have been installed
                folder.forget([], views=None)
        return folder.path / PAGE if PAGE in folder.files else None
