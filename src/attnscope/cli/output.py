"""Everything that a command prints: cleaned for the terminal, and told of when it cannot be written."""

from __future__ import annotations

import csv
import errno
import gc
import importlib
import io
import json
import logging
import math
import mmap
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnscope.support.numbers import safe_cell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from attnscope.support.progress import Tell

TABLE_ROWS = 20  # rows of a table: --csv has all
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
    r"""Text in which no character does anything to a terminal: each that would is shown by a picture or its number."""
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


def emit_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows by the names of their columns to standard output, as CSV with a line of names."""
    emit(csv_text([*map(list, rows[:1]), *(list(map(as_cell, row.values())) for row in rows)]))


def emit(text: str) -> None:
    """Write data to standard output as they are; a terminal gets them printable."""
    try:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left
        abandon(sys.stdout)
        raise SystemExit(0) from None


def print_note(message: str) -> None:
    """Write a line for people to standard error."""
    sys.stderr.write(printable(message) + "\n")
    sys.stderr.flush()


def print_path(path: Path) -> None:
    """Say which file was written, as its user named it; a device, such as /dev/stdout, holds nothing to look up."""
    if path.is_file():
        new_console().print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)


class CleanConsole(Console):
    """A console on which text cannot do more than be read."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with every text printable."""
        return self._cleaned(super().render(renderable, options))

    @staticmethod
    def _cleaned(segments: Iterable[Segment]) -> Iterator[Segment]:
        for text, style, control in segments:
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Leave in peace when the reader of our output has left."""
        abandon(sys.stdout)
        raise SystemExit(0)


def new_console(*, errors: bool = False) -> Console:
    """The console of standard output, or of standard error."""
    return CleanConsole(stderr=errors)


def working() -> None:
    """From here on there is work to stop in order: Ctrl-C raises KeyboardInterrupt."""
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


@contextmanager
def progress_bar(command: str, *, shown: bool = True, lines: bool = False) -> Generator[Tell]:
    """A bar while a command works: what is done now, the share of all work, time gone and left, and what is told."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = new_console(errors=True)
    drawn = shown and console.is_terminal
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),  # so that a line of 80 columns holds the rest
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    names: set[str] = set()
    with Bar(*columns, console=console, transient=True, disable=not drawn) as bar:
        task = bar.add_task(command, total=1.0, told="")

        def show(at: Any) -> None:
            if lines and not console.is_terminal and at.name not in names:
                print_note(at.name)
            names.add(at.name)
            bar.update(task, description=at.name, completed=at.share, told=report_text(getattr(at, "told", {})))

        working()
        yield show


def report_text(told: Mapping[str, float | int | str]) -> str:
    """What a report tells, in one line."""
    return "  ".join(f"{name} {_number(value)}" for name, value in told.items())


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    whole = isinstance(value, int) or abs(value) >= 1000  # noqa: PLR2004
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def prepare() -> None:
    """Make standard output and error fit to write to, whatever they are, and let warnings be told."""
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
    """Give up what was not written, so that it is not tried again when Python ends."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
    except (OSError, ValueError):
        pass


class _ReportText(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_note(f"attnscope: {record.getMessage()}")


class _Closed(io.TextIOBase):
    """Standard output that was closed before we started."""

    def write(self, _: str, /) -> int:
        raise OSError(errno.EBADF, "it is closed")
