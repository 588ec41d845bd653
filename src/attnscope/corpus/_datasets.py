"""Data sets of Hugging Face, by their id on the hub or their folder: one column, row after row."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnscope.corpus._messages import messages_of, without_nothing
from attnscope.errors import AttnscopeError, reason_of

PREFIX = "datasets:"
_FORM = "datasets:NAME, datasets:NAME:SPLIT or datasets:NAME:CONFIG:SPLIT"


def names_a_dataset(path: Path) -> bool:
    """Whether a path stands for a data set of the hub.

    Examples
    --------
    >>> names_a_dataset(Path("datasets:Salesforce/wikitext:wikitext-2-raw-v1:test")), names_a_dataset(Path("a.txt"))
    (True, False)
    """
    return str(path).startswith(PREFIX)


def dataset_rows(path: Path, field: str) -> Iterator[str]:
    """The strings of one column of a data set, as they stream in; what is null is blank.

    Parameters
    ----------
    path
        ``datasets:NAME``, ``datasets:NAME:SPLIT`` or ``datasets:NAME:CONFIG:SPLIT``; the name is an id on the hub or a
        folder that ``datasets.load_dataset`` takes.
    field
        Name of the column.

    Raises
    ------
    AttnscopeError
        If the package datasets is not installed, there is no such data set, configuration, split or column of
        strings, or several splits and no name of one.
    """
    for number, row in enumerate(_rows(path), start=1):
        if field not in row:
            raise AttnscopeError(
                f"{path}: no column {field!r}; the columns found are: {', '.join(map(repr, row))}. Name one as "
                "`field` (--field)"
            )
        if not isinstance(row[field], str | None):
            raise AttnscopeError(
                f"{path}: column {field!r} holds {type(row[field]).__name__} in row {number}; expected strings: "
                "name another as `field` (--field)"
            )
        yield row[field] or ""


def dataset_chats(path: Path, field: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """The messages of the chats of a data set, as they stream in.

    Parameters
    ----------
    path
        See `dataset_rows`.
    field
        Name of the column; by default ``messages`` or ``conversations``.

    Raises
    ------
    AttnscopeError
        As `dataset_rows` does; if a row is no chat.
    """
    for number, row in enumerate(_rows(path), start=1):
        yield messages_of(without_nothing(row), f"{path}, row {number}", field)


def first_row(path: Path) -> dict[str, Any]:
    """The first row of a data set; empty where it has none."""
    return without_nothing(next(_rows(path), {}))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    name, config, split = _parts(path)
    try:
        import datasets
    except ImportError as error:
        raise AttnscopeError(
            f"{path}: reading data sets of Hugging Face needs the package datasets, which is not installed: "
            "pip install 'attnscope[data]'"
        ) from error
    with _explained(path):
        if split is None:
            split = _only_split(path, datasets.get_dataset_split_names(name, config))
        rows: Any = datasets.load_dataset(name, config, split=split, streaming=True)
        yield from rows


def _parts(path: Path) -> tuple[str, str | None, str | None]:
    """Name, configuration and split."""
    name, *more = str(path).removeprefix(PREFIX).split(":")
    if not name or len(more) > 2 or not all(more):  # noqa: PLR2004 configuration and split
        raise AttnscopeError(f"{path}: expected {_FORM}")
    return name, more[0] if len(more) > 1 else None, more[-1] if more else None


def _only_split(path: Path, splits: list[str]) -> str:
    if len(splits) != 1:
        raise AttnscopeError(
            f"{path}: has the splits {', '.join(splits)}: name one, as in {path}:{splits[-1]}"
        )
    return splits[0]


@contextmanager
def _explained(path: Path) -> Generator[None]:
    """Whatever the package raises, as an error that says which data set it is about."""
    from datasets import logging

    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as error:
        raise AttnscopeError(
            f"{path}: cannot be read ({reason_of(error)}): expected {_FORM}, with the id of a data set on the hub or "
            "its folder"
        ) from error
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
