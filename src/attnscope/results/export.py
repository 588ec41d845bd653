"""Export of a run's arrays for other tools: Parquet, CSV, netCDF, Zarr."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr

from attnscope.catalogue import verb_of
from attnscope.options import Count, Format
from attnscope.report.signature import short_hash
from attnscope.results.open import Node, Run, chosen, in_memory, known_run, nodes_of, read_run
from attnscope.store.arrays import in_a_row
from attnscope.store.files import explained, json_bytes, local_folder, locked, sync
from attnscope.support.checked import checked
from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import safe_cell, with_nulls
from attnscope.support.progress import Progress, Tell, no_progress

AT_ONCE = 1 << 19  # rows of a table in memory at a time


def tables_of(dataset: xr.Dataset) -> dict[tuple[str, ...], list[str]]:
    """The variables of each table, grouped by their dimensions."""
    by_dims: dict[frozenset[str], list[str]] = {}
    for name, values in dataset.data_vars.items():
        by_dims.setdefault(frozenset(map(str, values.dims)), []).append(str(name))
    return {tuple(map(str, dataset[names[0]].dims)): names for names in by_dims.values()}


def rows_of(
    dataset: xr.Dataset, dims: tuple[str, ...], names: Sequence[str], *, at_once: int = AT_ONCE
) -> Iterator[pd.DataFrame]:
    """The rows of one table in parts, in the order of the array's entries."""
    table = dataset[list(names)].transpose(*dims, ...)
    if not dims:
        yield pd.DataFrame({name: [table[name].item()] for name in names})
        return
    step = max(1, at_once // max(1, math.prod(table.sizes[dim] for dim in dims[1:])))
    for first in range(0, max(1, table.sizes[dims[0]]), step):
        yield _rows(table.isel({dims[0]: slice(first, first + step)}), dims, names, first)


def _rows(part: xr.Dataset, dims: tuple[str, ...], names: Sequence[str], first: int) -> pd.DataFrame:
    """The rows of a part, whose first entry of its first dimension has that number."""
    start = {dim: first if dim == dims[0] else 0 for dim in dims}
    numbers = {dim: start[dim] + np.arange(part.sizes[dim]) for dim in dims if dim not in part.coords}
    labels = [*dims, *sorted(str(name) for name in part.coords if name not in dims)]
    rows = part.assign_coords(numbers).to_dataframe(dim_order=list(dims)).reset_index()
    rows = rows.reindex(columns=[*labels, *names])
    return rows.astype({name: "category" for name in labels if not _is_number(rows[name])})  # strings are stored once


Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]  # attributes of each column; under "" those of the table
Add: TypeAlias = Callable[[pd.DataFrame], None]  # writes rows of a table after those that are there

_NEEDED = {"parquet": ("pyarrow", "data"), "nc": ("h5netcdf", "netcdf"), "zarr": ("zarr", "zarr")}  # its extra


@contextmanager
def csv_file(path: Path, _: Attributes) -> Generator[Add]:
    """Comma-separated values with one line of headings; missing values are empty, and no cell is a formula."""
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:

        def add(rows: pd.DataFrame) -> None:
            """Write rows; numbers have enough digits to be restored exactly."""
            safe = rows.assign(**{name: rows[name].map(safe_cell) for name in rows if not _is_number(rows[name])})
            safe = safe.rename(columns=safe_cell)
            safe.to_csv(file, header=not file.tell(), index=False, lineterminator="\n")

        yield add


@contextmanager
def parquet_file(path: Path, columns: Attributes) -> Generator[Add]:
    """Parquet with a row group for each part; NaN is null, and columns have their meaning and unit as metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    def attributes(name: str) -> dict[str, str]:
        return {
            key: value if isinstance(value, str) else json.dumps(value, default=str)
            for key, value in columns.get(name, {}).items()
        }

    def field(name: str, column: Any) -> Any:
        kind = pa.from_numpy_dtype(column.dtype) if _is_number(column) else pa.string()
        return pa.field(name, kind, metadata=attributes(name))

    with ExitStack() as stack:
        files: list[Any] = []

        def add(rows: pd.DataFrame) -> None:
            if not files:
                schema = pa.schema([field(str(name), rows[name]) for name in rows], metadata=attributes(""))
                files.append(stack.enter_context(parquet.ParquetWriter(path, schema, compression="zstd")))
            files[0].write_table(pa.Table.from_pandas(rows, schema=files[0].schema, preserve_index=False))

        yield add


def _is_number(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype)


ABOUT = "about.json"
#: Formats of files for other tools, with the commands whose runs they take.
_TAKES = {
    **dict.fromkeys(("duo", "minference", "qrhead", "names"), ("card",)),
    "alignment": ("card", "relations"),
    "graph": ("edges", "attribute"),
    "contacts": ("relations",),
}
_SAFE = "The run is unchanged, and no partial export remains. Free some disk space, or use another --out"
_TABLES = {"parquet": parquet_file, "csv": csv_file}
_OF_ONE_FILE = ("nc", "zarr", "safetensors")  # or a store; the others are folders


@checked
def export(
    path: str | Path,
    to: Format,
    *,
    out: str | Path | None = None,
    variables: Sequence[str] | None = None,
    top: Count | None = None,
    progress: Tell | None = None,
) -> Path:
    """Export the arrays of a finished run for other tools.

    Parameters
    ----------
    path
        Folder of the run.
    to
        ``parquet`` and ``csv`` write a folder of tidy tables, one for each combination of dimensions and named after
        them (``window_layer_head.csv``; ``scalars.csv`` without dimensions). There is a row for each combination of
        coordinates; missing values are empty in CSV and null in Parquet. Dimensions and coordinates are columns; for
        a scan, so is ``kind``, the name of the number in ``label``. Each node of a tree has a folder, as have the
        windows of a scan with pools. ``about.json`` has the signature, attributes and units. ``nc`` writes one netCDF
        file; open it with `xarray.open_dataset` (a tree with `xarray.open_datatree`). ``safetensors`` writes one file
        with the numbers alone, named by node and variable; its metadata has their dimensions and coordinates.
        ``zarr`` writes a Zarr 3 store; open it with `xarray.open_zarr`. Each head is a chunk, so that one head can be
        read over a million windows. ``latex`` writes the tables of the terminal, a paragraph on methods and its
        references (`attnscope.results.methods`). A card (`attnscope card`) becomes a folder with the heads as a tool
        reads them: ``duo`` (DuoAttention and kvpress) from the lowest kept share or highest score of the query heads
        that share a key-value head; ``minference``; ``qrhead``; ``alignment`` (Whisper's generation config); ``names``
        (TransformerLens). A run of relations of sounds or translations becomes its ``alignment`` heads, as several
        tools read them, and one of proteins with ``--together`` the head of ESM for ``contacts``. A run of edges or
        attribute becomes a ``graph`` for circuit-tracer and Neuronpedia.
    out
        The folder or file to write; by default in the current folder, named after the run.
    variables
        Names of the variables to write; by default all. For files of heads, the role that chooses them: by default the
        first kept share for ``duo`` and ``minference``, else ``retrieval``.
    top
        Number of heads in a list, of limited heads for ``minference``, and of links of a ``graph`` (500 by default). By
        default those heads that reach the role's threshold, or a kept share of 0.95.
    progress
        Called with a `Progress` from time to time.

    Returns
    -------
    Path
        The folder or file.

    Raises
    ------
    AttnscopeError
        If `out` exists, the run is unfinished or damaged, a variable is unknown, a package is not installed, or the
        disk is full. No partial files remain.

    Notes
    -----
    Tables of a scan are written piece by piece, so that memory does not grow with the number of rows. netCDF needs as
    much memory as `open_run`, and returns an attribute that is a list of one number as the number.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(folder) / "run")
    ...     made = export(Path(folder) / "run", "csv", out=Path(folder) / "tables", variables=["entropy", "profile"])
    ...     for file in sorted(made.glob("*.csv")):
    ...         print(file.name, file.read_text().splitlines()[0])
    window_layer_head.csv window,layer,head,layer_kind,layer_name,source,start,entropy
    window_layer_head_offset.csv window,layer,head,offset,layer_kind,layer_name,source,start,profile
    """
    if to in _NEEDED:
        check_installed(f"to (--to) {to}", *_NEEDED[to])
    run, tell = known_run(local_folder(path)), progress or no_progress
    takes = _TAKES.get(to, (run.command,))
    if run.command not in takes:
        what = " or ".join(f"a {one}" if one == "card" else f"a run of {one}" for one in takes)
        raise AttnscopeError(
            f"found a run of {run.command}; --to {to} takes {what}. Every run can be exported to "
            f"{', '.join([*_TABLES, *_OF_ONE_FILE])} and latex"
        )
    name = run.path.resolve().name
    usual = f"{name}.{to}" if to in _OF_ONE_FILE else f"{name}-{to}"
    target = local_folder(usual if out is None else out)
    names = None if variables is None else list(variables)
    with _whole(target) as new:
        if to in {*_TAKES, "latex"}:
            new.mkdir()
            for file, content in _files(run, to, names, top).items():
                (new / file).write_bytes(content.encode() if isinstance(content, str) else content)
        elif to == "nc":
            _write_netcdf(run, names, new)
        elif to == "safetensors":
            _write_safetensors(run, names, new)
        elif to == "zarr":
            write_zarr(chosen(nodes_of(run), names), new, lambda share: tell(Progress("export", share)))
        else:
            _write_tables(run, names, new, to, tell)
    return target


def _files(run: Run, to: str, names: Sequence[str] | None, top: int | None) -> Mapping[str, str | bytes]:
    """Names and contents of the files of a format for papers or for other tools."""
    if to == "latex":
        from attnscope.results.methods import methods

        described = methods(run.path)
        return {"tables.tex": described.tables, "methods.tex": described.latex, "references.bib": described.bibtex}
    return import_module(verb_of(run.command).files).files(read_run(run), to, top, names)


@contextmanager
def _whole(path: Path) -> Generator[Path]:
    """Yield a temporary path, which is renamed to `path` at the end, or removed after an error."""
    _reject_present(path)
    if not path.parent.is_dir():
        raise AttnscopeError(f"there is no folder {path.parent}: create it, or use another --out")
    # of the same name every time: what a killed export left there is removed by the next one
    folder = path.parent / f".attnscope-{short_hash(path.name)}"
    with explained(f"write {path}", _SAFE):
        lock = None
        while lock is None:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise AttnscopeError(f"{folder} is a link; expected a folder for unfinished exports. Remove the link")
            with suppress(FileNotFoundError):  # the process that just left removed it
                lock = locked(folder / "lock")
        with lock:
            new = folder / "new"
            try:
                shutil.rmtree(new) if new.is_dir() else new.unlink(missing_ok=True)
                yield new
                for inside in (*new.rglob("*"), new):
                    sync(inside)
                _reject_present(path)
                new.rename(path)
                sync(path.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _reject_present(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise AttnscopeError(f"{path} exists and is not overwritten: move it, or use another --out")


def _write_tables(run: Run, names: list[str] | None, new: Path, to: str, tell: Tell) -> None:
    nodes = chosen(nodes_of(run), names)
    new.mkdir()
    arrays: dict[str, Any] = {}
    for number, node in enumerate(nodes):

        def at(share: float, node: Node = node, number: int = number) -> None:
            tell(Progress(f"export {node.name}".rstrip(), (number + share) / len(nodes)))

        folder = new.joinpath(*map(_file_name, filter(None, node.name.split("/"))))
        folder.mkdir(parents=True, exist_ok=True)
        arrays[node.name] = _write_node(node, folder, to, at)
    signature = None if run.signature is None else run.signature.to_dict()
    (new / ABOUT).write_bytes(json_bytes({"command": run.command, "signature": signature, "arrays": arrays}))


def _write_node(node: Node, folder: Path, to: str, tell: Callable[[float], None]) -> dict[str, Any]:
    """Write the tables of a node, and return their descriptions."""
    files: dict[tuple[str, ...], Add] = {}
    about: dict[str, Any] = {"attributes": {}, "tables": {}}
    texts = 0
    with ExitStack() as stack:
        for piece in map(_with_kinds, node.pieces()):
            about["attributes"] = with_nulls(_attributes(piece))
            for dims, names in tables_of(piece).items():
                if dims not in files:
                    file = f"{_file_name('_'.join(dims)) or 'scalars'}.{to}"
                    variables = piece[names].variables.items()
                    columns = {str(name): with_nulls(_attributes(variable)) for name, variable in variables}
                    files[dims] = stack.enter_context(_TABLES[to](folder / file, columns | {"": about["attributes"]}))
                    about["tables"][file] = columns
                elif node.along not in dims:  # equal in every piece
                    continue
                for rows in rows_of(piece, dims, names):
                    files[dims](rows)
            texts += piece.sizes.get("window", 0)
            tell(min(1.0, texts / node.texts) if node.texts else 1.0)
    return about


def _with_kinds(piece: xr.Dataset) -> xr.Dataset:
    """Add the names of the labels as a coordinate."""
    if "label" not in piece or "cluster" not in piece.coords:
        return piece
    names = np.array([*piece.cluster.to_numpy(), None], dtype=object)  # -1, no head, is the last
    return piece.assign_coords(kind=(piece.label.dims, names[piece.label.to_numpy().astype(np.int64)]))


def _write_netcdf(run: Run, names: list[str] | None, new: Path) -> None:
    opened = read_run(run)
    if names is not None:
        nodes, attributes = {node.name: next(node.pieces()) for node in chosen(in_memory(opened), names)}, opened.attrs
        opened = nodes[""] if "" in nodes else xr.DataTree.from_dict(nodes)
        opened.attrs = {**opened.attrs, **attributes}
    opened.to_netcdf(new, engine="h5netcdf")


def _write_safetensors(run: Run, names: list[str] | None, new: Path) -> None:
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {}
    for node in chosen(in_memory(read_run(run)), names):
        dataset = next(node.pieces())
        for name, variable in dataset.variables.items():
            key = f"{node.name}/{name}".lstrip("/")
            dims[key] = [str(dim) for dim in variable.dims]
            if name in dataset.coords:
                coords[key] = with_nulls(variable.values)
            elif variable.dtype.kind in "biuf":
                arrays[key] = np.ascontiguousarray(variable.values)
    signature = None if run.signature is None else run.signature.to_dict()
    about = {"command": run.command, "signature": signature, "dims": dims, "coords": coords}
    save_file(arrays, new, {name: json.dumps(value) for name, value in about.items()})


def _file_name(text: str) -> str:
    """A safe name for a file or folder from the name of an array."""
    return re.sub(r"[^\w-]", "_", text)


SHARD = 1 << 26  # bytes of a variable that are buffered and written at once
_HEADS = ("layer", "head")  # dimensions with chunks of size 1


def write_zarr(nodes: Sequence[Node], path: Path, tell: Callable[[float], None]) -> None:
    """Write nodes as groups of a Zarr 3 store with consolidated metadata."""
    import zarr
    from zarr.errors import ZarrUserWarning

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", ZarrUserWarning)
        zarr.create_group(path, overwrite=False)
        for number, node in enumerate(nodes):
            texts = 0
            for block in _blocks(node):
                _write(block, node, path, first=not texts)
                texts += block.sizes.get(node.along, 0)
                tell((number + (min(1.0, texts / node.texts) if node.texts else 1.0)) / len(nodes))
        zarr.consolidate_metadata(str(path))


def _blocks(node: Node) -> Iterator[xr.Dataset]:
    """Pieces put together, so that each block fills a shard; the last may be smaller."""
    waiting: list[xr.Dataset] = []
    for piece in node.pieces():
        waiting.append(piece)
        if sum(part.sizes.get(node.along, 0) for part in waiting) >= _rows_of(piece, node.along):
            yield in_a_row(waiting, node.along)
            waiting = []
    if waiting:
        yield in_a_row(waiting, node.along)


def _rows_of(dataset: xr.Dataset, along: str) -> int:
    """The number of texts of the largest variable in a shard."""
    rows = dataset.sizes.get(along, 1)
    sizes = (variable.nbytes for variable in dataset.variables.values() if along in variable.dims)
    return max(1, int(SHARD / (max(sizes, default=1) / rows)))


def _write(block: xr.Dataset, node: Node, path: Path, *, first: bool) -> None:
    """Create the arrays with the first block, and append later ones."""
    # variable-length strings as Zarr specifies them, and attributes for JSON
    strings = [name for name, variable in block.variables.items() if variable.dtype.kind == "U"]
    whole = block.assign({name: block[name].astype(object) for name in strings})
    for one in (whole, *whole.variables.values()):
        one.attrs = _attributes(one)
    how: dict[str, Any] = {"append_dim": node.along}
    along = {str(name): variable for name, variable in whole.variables.items() if node.along in variable.dims}
    if first:
        rows = _rows_of(block, node.along)
        how = {
            "encoding": {name: _cut(variable, node.along, rows) for name, variable in along.items() if variable.size}
        }
    else:
        whole = whole.drop_vars(whole.variables.keys() - along.keys())
    whole.to_zarr(path, group=node.name or None, zarr_format=3, consolidated=False, mode="a", **how)


def _attributes(one: xr.Dataset | xr.Variable) -> dict[str, Any]:
    """Attributes as values of Python."""
    values = {str(key): value for key, value in one.attrs.items()}
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}


def _cut(variable: xr.Variable, along: str, rows: int) -> dict[str, Any]:
    """Chunks and shards of a variable: all rows of a block, one layer; each head a chunk."""
    sizes = dict(zip(variable.dims, variable.shape, strict=True))
    shard = tuple(rows if dim == along else 1 if dim == "layer" else size for dim, size in sizes.items())
    chunk = tuple(rows if dim == along else 1 if dim in _HEADS else size for dim, size in sizes.items())
    strings = variable.dtype.kind in "OTU"
    return {"chunks": chunk} if strings or math.prod(shard) == math.prod(chunk) else {"chunks": chunk, "shards": shard}
