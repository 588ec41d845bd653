"""Columns of text in Parquet and Arrow files, a batch of rows at a time."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnscope.corpus._messages import without_nothing
from attnscope.corpus._opening import opened, shown
from attnscope.errors import AttnscopeError, reason_of
from attnscope.remote import Url

TABLES = (".parquet", ".arrow")
_ROWS = 1024


def column(path: Path | Url, field: str) -> Iterator[str]:
    """The strings of one column, row after row; what is null is blank.

    Parameters
    ----------
    path
        A Parquet file, or an Arrow file or stream (as Hugging Face datasets are saved to disk).
    field
        Name of the column.

    Raises
    ------
    AttnscopeError
        If pyarrow is not installed, the file is of another kind, or there is no such column of strings.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.parquet")
    ...     parquet.write_table(pa.table({"text": ["One.", None, "Two."]}), path)
    ...     list(column(path, "text"))
    ['One.', '', 'Two.']
    """
    for value in _values(path, field, lambda schema: _check_field(path, schema, field)):
        yield value or ""


def chat_column(path: Path | Url, field: str) -> Iterator[list[Any]]:
    """The lists of messages in one column, row after row; what is null has none.

    What a message does not have is null in a table, and left out here.

    Raises
    ------
    AttnscopeError
        As `column` does; if the column holds no lists.
    """
    for value in _values(path, field, lambda schema: _check_lists(path, schema, field)):
        yield without_nothing({field: value or []})[field]


def list_columns(path: Path | Url) -> dict[str, bool]:
    """The names of all columns, and whether each holds lists.

    Raises
    ------
    AttnscopeError
        If pyarrow is not installed, or the file is of another kind.
    """
    schemas: list[Any] = []
    next(_values(path, "", schemas.append), None)
    return {column.name: _is_list(column.type) for schema in schemas for column in schema}


def _values(path: Path | Url, field: str, check: Callable[[Any], None]) -> Iterator[Any]:
    """What one column holds, once its schema was checked; nothing without a column of that name."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise AttnscopeError(
            f"{shown(path)}: reading {path.suffix} files needs pyarrow, which is not installed: "
            "pip install 'attnscope[data]'"
        ) from error
    try:
        for batch in _batches(path, field, check):
            for value in batch.column(field):
                yield value.as_py()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise AttnscopeError(
            f"{shown(path)}: not a {path.suffix} file, or damaged ({reason_of(error)}): make it anew"
        ) from error


def _batches(path: Path | Url, field: str, check: Callable[[Any], None]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import ipc, parquet

    if path.suffix.lower() == ".parquet":
        with _opened(path) as given, parquet.ParquetFile(given) as file:
            check(file.schema_arrow)
            if field in file.schema_arrow.names:
                yield from file.iter_batches(_ROWS, columns=[field])
        return
    with (
        _opened(path) as given,
        pa.memory_map(str(path)) if given is path else pa.PythonFile(given) as source,
    ):
        try:
            file = ipc.open_file(source)
        except pa.ArrowInvalid:  # a stream, as datasets are saved
            source.seek(0)
            stream = ipc.open_stream(source)
            check(stream.schema)
            if field in stream.schema.names:
                yield from stream
            return
        check(file.schema)
        if field in file.schema.names:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


@contextmanager
def _opened(path: Path | Url) -> Generator[Any]:
    """What pyarrow opens by itself, or a file that it reads from."""
    if isinstance(path, Path):
        yield path
        return
    with opened(path) as file:
        if not file.seekable():
            raise AttnscopeError(
                f"{shown(path)}: comes from a server that gives no parts of files, as tables need: fetch it first"
            )
        yield file


def _check_field(path: Path | Url, schema: Any, field: str) -> None:
    import pyarrow.types as kinds

    known = ", ".join(f"{column.name!r} ({column.type})" for column in schema)
    place = schema.get_field_index(field)
    if place < 0:
        raise AttnscopeError(
            f"{shown(path)}: no column {field!r}; the columns found are: {known}. Name one as `field` (--field)"
        )
    kind = schema.field(place).type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise AttnscopeError(
            f"{shown(path)}: column {field!r} holds {kind}; expected strings. The columns found are: {known}"
        )


def _check_lists(path: Path | Url, schema: Any, field: str) -> None:
    known = ", ".join(f"{column.name!r} ({column.type})" for column in schema)
    if field not in schema.names:
        raise AttnscopeError(
            f"{shown(path)}: no column {field!r}; the columns found are: {known}. Name one as `field` (--field)"
        )
    kind = schema.field(field).type
    if not _is_list(kind):
        raise AttnscopeError(
            f"{shown(path)}: column {field!r} holds {kind}; expected lists of messages. The columns found are: {known}"
        )


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds

    return kinds.is_list(kind) or kinds.is_large_list(kind)
