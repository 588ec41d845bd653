"""Readers of a caller's own: rows from files of an ending, in place of these files."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from attnscope.read.files import shown
from attnscope.read.sources import SUFFIXES
from attnscope.report import registry
from attnscope.support.errors import AttnscopeError, explaining

#: From a file to its rows, by ending without its dot.
READERS: dict[str, Callable[[Path], Iterable[Any]]] = {}


def register_reader(function: Callable[[Path], Iterable[Any]], ending: str) -> None:
    """Add a reader of a caller's own to `READERS`."""
    taken = {suffix.removeprefix(".") for suffix in SUFFIXES}
    registry.register("reader", ending.removeprefix("."), function, READERS, function, taken=taken)


def with_rows(texts: object) -> object:
    """The rows of files that a registered reader reads, in place of the files; other texts as they are."""
    items = cast("list[Any]", [*texts] if isinstance(texts, list | tuple) else [texts])
    if not items or not all(isinstance(item, Path) for item in items):
        return texts
    endings = {Path(item).suffix.removeprefix(".") for item in items}
    if not endings <= READERS.keys():
        registry.load_records()
    registered = endings & READERS.keys()
    if not registered:
        return texts
    if endings - registered:
        raise AttnscopeError(
            f"found files of .{min(registered)}, which a reader of yours reads, and others: give them to two calls"
        )
    return [row for path in items for row in _rows_of(path)]


def _rows_of(path: Path) -> Iterator[Any]:
    """The rows of a file, each a text, or a mapping with token ids."""
    ending = path.suffix.removeprefix(".")
    if not path.is_file():
        raise AttnscopeError(f"{shown(path)} is no file; expected one with rows for the reader {ending}")
    with explaining(f"the reader {ending} failed on {shown(path)}", "Correct its function"):
        returned: Any = READERS[ending](path)
        rows: list[Any] = [returned] if isinstance(returned, str | Mapping) else list(returned)
    if not rows:
        raise AttnscopeError(f"the reader {ending} found no row in {shown(path)}; expected at least one")
    are_texts = isinstance(rows[0], str)
    for number, row in enumerate(rows, start=1):
        is_row = isinstance(row, str) if are_texts else isinstance(row, Mapping) and "input_ids" in row
        if not is_row:
            raise AttnscopeError(
                f"the reader {ending} returns {row!r:.60} as row {number} of {shown(path)}; expected texts, or a "
                "mapping with input_ids for each"
            )
        yield row if are_texts else {"name": f"{shown(path.name)}, row {number}"} | cast("dict[str, Any]", row)
