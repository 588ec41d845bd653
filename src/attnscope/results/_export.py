"""A run's arrays as files for other tools: Parquet, CSV, netCDF, Zarr."""

from __future__ import annotations

import math
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.checks import check_kind
from attnscope.errors import AttnscopeError
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.results._nodes import Node, chosen, in_memory, nodes_of
from attnscope.results._open_run import read_run
from attnscope.results._run_list import Run, known_run
from attnscope.results._tables import rows_of, tables_of
from attnscope.results._writers import CsvFile, ParquetFile, TableFile, Told, check_installed
from attnscope.results._zarr import write_zarr
from attnscope.store import explained, json_bytes, local_folder, read_as, sync

Format: TypeAlias = Literal["parquet", "csv", "nc", "zarr"]
ABOUT = "about.json"
_SAFE = "Nothing is left there; the run is as it was. Free some room, or choose another place with --out"
_TABLES: dict[str, Callable[[Path, Told], TableFile]] = {"parquet": ParquetFile, "csv": CsvFile}


@typed
def export(
    path: str | Path,
    to: Format,
    *,
    out: str | Path | None = None,
    variables: Sequence[str] | None = None,
    progress: Tell | None = None,
) -> Path:
    """Write the arrays of a finished run as files that other tools read.

    Parameters
    ----------
    path
        Folder of the run.
    to
        ``parquet`` and ``csv`` give a folder of tidy tables: one file for all variables that share their dimensions,
        named after these (``text_layer_head.csv``; ``scalars.csv`` for those without), a row for each place, also one
        where nothing was measured (empty in CSV, null in Parquet). The dimensions and all coordinates along them are
        columns; so is, of a scan, ``kind``, the name that ``label`` numbers. Of runs that are a tree, each node has a
        folder; so have the windows of a scan with pools. ``about.json`` holds signature, attributes and units. ``nc``
        gives one netCDF file that `xarray.open_dataset` (of a tree, `xarray.open_datatree`) reads back as `open_run`
        gives it. ``zarr`` gives a Zarr 3 store that `xarray.open_zarr` opens lazily: each head is a chunk by itself, so
        that a statistic of one head is read over a million windows without the others.
    out
        The folder or file to make; by default in the current folder, named after the run.
    variables
        Names of those to write; all by default.
    progress
        Called with a `Progress` from time to time.

    Returns
    -------
    Path
        What was made.

    Raises
    ------
    AttnscopeError
        If something of that name is there already, the run is unfinished or damaged, a variable is unknown, a package
        is not installed, or the disk is full. Then nothing is left behind.

    Notes
    -----
    Tables of a scan are made from one piece of the run at a time, so that memory does not grow with their rows. netCDF
    takes as much memory as `open_run`; an attribute that is a list of one number reads back as the number, as netCDF
    knows no difference.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = attnscope.scan(texts=["The tide is out."], out=Path(place) / "run")
    ...     made = export(Path(place) / "run", "csv", out=Path(place) / "tables", variables=["entropy", "profile"])
    ...     for file in sorted(made.glob("*.csv")):
    ...         print(file.name, file.read_text().splitlines()[0])
    text_layer_head.csv text,layer,head,layer_kind,layer_name,source,start,entropy
    text_layer_head_offset.csv text,layer,head,offset,layer_kind,layer_name,source,start,profile
    """
    check_kind("a folder", str, Path, path=path)
    if to not in {*_TABLES, "nc", "zarr"}:
        raise AttnscopeError(f"to (--to) is {to!r:.40}; expected parquet, csv, nc or zarr")
    check_installed(to)
    return _exported(known_run(local_folder(path)), to, out, variables, progress or tell_nobody)


def _exported(
    run: Run, to: Format, out: str | Path | None, variables: Sequence[str] | None, tell: Tell
) -> Path:
    name = run.path.resolve().name
    usual = f"{name}.{to}" if to in {"nc", "zarr"} else f"{name}-{to}"
    made, names = local_folder(usual if out is None else out), None if variables is None else list(variables)
    with _whole(made) as new, read_as(run.path):
        if to == "nc":
            _write_netcdf(run, names, new)
        elif to == "zarr":
            write_zarr(chosen(nodes_of(run), names), new, lambda share: tell(Progress("export", share)))
        else:
            _write_tables(run, names, new, to, tell)
    return made


@contextmanager
def _whole(path: Path) -> Generator[Path]:
    """Yield another name beside `path`; what is made there gets its name at the end, or is gone."""
    _refuse_present(path)
    if not path.parent.is_dir():
        raise AttnscopeError(f"there is no folder {path.parent}: make it, or choose another place with --out")
    new = path.parent / f".attnscope-{secrets.token_hex(4)}"
    with explained(f"write {path}", _SAFE):
        try:
            yield new
            for inside in (*new.rglob("*"), new):
                sync(inside)
            _refuse_present(path)
            new.rename(path)
            sync(path.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True) if new.is_dir() else new.unlink(missing_ok=True)


def _refuse_present(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise AttnscopeError(
            f"{path} is there already, and nothing is overwritten: move it away, or choose another place with --out"
        )


def _write_tables(run: Run, names: list[str] | None, new: Path, to: str, tell: Tell) -> None:
    nodes = chosen(nodes_of(run), names)
    new.mkdir()
    told: dict[str, Any] = {}
    for number, node in enumerate(nodes):

        def at(share: float, node: Node = node, number: int = number) -> None:
            tell(Progress(f"export {node.name}".rstrip(), (number + share) / len(nodes)))

        folder = new.joinpath(*map(_file_name, filter(None, node.name.split("/"))))
        folder.mkdir(parents=True, exist_ok=True)
        told[node.name] = _write_node(node, folder, to, at)
    signature = None if run.signature is None else run.signature.to_dict()
    about = {"command": run.command, "signature": signature, "arrays": told}
    (new / ABOUT).write_bytes(json_bytes(about))


def _write_node(node: Node, folder: Path, to: str, tell: Callable[[float], None]) -> dict[str, Any]:
    """Write the tables of a node, and return what they are."""
    files: dict[tuple[str, ...], TableFile] = {}
    about: dict[str, Any] = {"attributes": {}, "tables": {}}
    texts = 0
    with ExitStack() as stack:
        for piece in map(_with_kinds, node.pieces()):
            about["attributes"] = {str(key): _plain(value) for key, value in piece.attrs.items()}
            for dims, names in tables_of(piece).items():
                if dims not in files:
                    file = f"{_file_name('_'.join(dims)) or 'scalars'}.{to}"
                    told = {
                        str(name): {str(key): _plain(value) for key, value in variable.attrs.items()}
                        for name, variable in piece[names].variables.items()
                    }
                    files[dims] = stack.enter_context(
                        _TABLES[to](folder / file, told | {"": about["attributes"]})
                    )
                    about["tables"][file] = told
                elif node.along not in dims:  # the same in every piece
                    continue
                for rows in rows_of(piece, dims, names):
                    files[dims].add(rows)
            texts += piece.sizes.get("text", 0)
            tell(min(1.0, texts / node.texts) if node.texts else 1.0)
    return about


def _with_kinds(piece: xr.Dataset) -> xr.Dataset:
    """With the names of the kinds that ``label`` numbers, as a coordinate."""
    if "label" not in piece or "cluster" not in piece.coords:
        return piece
    names = np.array([*piece.cluster.values, None], dtype=object)  # -1, no head, is the last
    return piece.assign_coords(kind=(piece.label.dims, names[piece.label.values.astype(np.int64)]))


def _write_netcdf(run: Run, names: list[str] | None, new: Path) -> None:
    opened = read_run(run)
    if names is not None or not isinstance(opened, xr.Dataset | xr.DataTree):
        kept = {node.name: next(node.pieces()) for node in chosen(in_memory(opened), names)}
        attributes = opened.attrs if isinstance(opened, xr.Dataset | xr.DataTree) else {}
        opened = kept[""] if "" in kept else xr.DataTree.from_dict(kept)
        opened.attrs = {**opened.attrs, **attributes}
    opened.to_netcdf(new, engine="h5netcdf")


def _file_name(text: str) -> str:
    """A name for a file or folder, whatever the run of somebody else calls its arrays."""
    return re.sub(r"[^\w-]", "_", text)


def _plain(value: Any) -> Any:
    """An attribute as JSON holds it, which knows no NaN."""
    plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(plain, list):
        return [_plain(item) for item in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
