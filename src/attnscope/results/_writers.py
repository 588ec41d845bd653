"""Files of tables that grow row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import pandas as pd

from attnscope._cells import safe_cell
from attnscope.errors import AttnscopeError

Told: TypeAlias = Mapping[str, Mapping[str, Any]]  # attributes of each column; under "" those of the table

_NEEDED = {
    "parquet": (("pyarrow",), "data"),
    "nc": (("h5netcdf", "h5py"), "netcdf"),
}  # packages, and their extra


class TableFile(Protocol):
    """A table on the disk, to which rows are added; closed on leaving."""

    def __enter__(self) -> TableFile: ...  # noqa: PYI034 beartype knows no Self here, D105

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def add(self, rows: pd.DataFrame) -> None:
        """Write rows after those that are there."""
        ...


class CsvFile:
    """Comma-separated values with one line of headings; what is not there is empty, and no cell is a formula."""

    def __init__(self, path: Path, _: Told) -> None:
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        self._headed = False

    def __enter__(self) -> CsvFile:  # noqa: PYI034
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, rows: pd.DataFrame) -> None:
        """Write rows; a number has as many digits as bring it back to the bit."""
        safe = rows.assign(**{name: rows[name].map(safe_cell) for name in rows if not _is_number(rows[name])})
        safe = safe.rename(columns=safe_cell)
        safe.to_csv(self._file, header=not self._headed, index=False, lineterminator="\n")
        self._headed = True


class ParquetFile:
    """Parquet, a row group for each part; NaN is null, and columns know their meaning and unit."""

    def __init__(self, path: Path, told: Told) -> None:
        self._path, self._told = path, told
        self._file: Any = None
        self._schema: Any = None

    def __enter__(self) -> ParquetFile:  # noqa: PYI034
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: pd.DataFrame) -> None:
        """Write rows as one row group."""
        import pyarrow as pa
        from pyarrow import parquet

        if self._schema is None:
            self._schema = self._schema_of(rows)
            self._file = parquet.ParquetWriter(self._path, self._schema, compression="zstd")
        self._file.write_table(pa.Table.from_pandas(rows, schema=self._schema, preserve_index=False))

    def _schema_of(self, rows: pd.DataFrame) -> Any:
        import pyarrow as pa

        def field(name: str) -> Any:
            kind, numeric = rows[name].dtype, _is_number(rows[name])
            told = {key: _text(value) for key, value in self._told.get(name, {}).items()}
            return pa.field(name, pa.from_numpy_dtype(kind) if numeric else pa.string(), metadata=told)

        about = {key: _text(value) for key, value in self._told.get("", {}).items()}
        return pa.schema([field(str(name)) for name in rows.columns], metadata=about)


def check_installed(to: str) -> None:
    """Refuse a format whose packages are not there.

    Raises
    ------
    AttnscopeError
        Names the package, and what to install.

    Examples
    --------
    >>> check_installed("csv")
    """
    packages, extra = _NEEDED.get(to, ((), ""))
    lacking = next((name for name in packages if find_spec(name) is None), None)
    if lacking is not None:
        raise AttnscopeError(
            f"--to {to} needs {lacking}, which is not installed: pip install 'attnscope[{extra}]', or choose --to csv"
        )


def _is_number(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
