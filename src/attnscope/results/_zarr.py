"""A run as one Zarr store, cut so that a statistic of one head is read over all texts without reading the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.errors import ZarrUserWarning

from attnscope.results._nodes import Node
from attnscope.store import in_a_row

SHARD = 1 << 26  # bytes of a variable that are written at once, and wait in memory for it
_HEADS = ("layer", "head")  # dimensions along which chunks have one place each


def write_zarr(nodes: Sequence[Node], path: Path, tell: Callable[[float], None]) -> None:
    """Write nodes as groups of a Zarr 3 store with consolidated metadata.

    Each shard is a file that is written once, whole: the heads of a layer, over as many texts as make up `SHARD` bytes.
    Within it each head is a chunk, so that a reader takes what it asks for and no more.
    """
    zarr.create_group(path, overwrite=False)
    for number, node in enumerate(nodes):
        texts = 0
        for first, block in _blocks(node):
            _write(block, node, path, first=first)
            texts += block.sizes.get(node.along, 0)
            share = min(1.0, texts / node.texts) if node.texts else 1.0
            tell((number + share) / len(nodes))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", ZarrUserWarning)
        zarr.consolidate_metadata(str(path))


def _blocks(node: Node) -> Iterator[tuple[bool, xr.Dataset]]:
    """Pieces put together and cut anew, each of as many texts as a shard has; the last of fewer."""
    waiting: xr.Dataset | None = None
    first, rows = True, 0
    for piece in node.pieces():
        waiting = piece if waiting is None else in_a_row([waiting, piece], node.along)
        if node.along not in waiting.dims:
            continue
        rows = rows or _rows_of(waiting, node.along)
        while waiting.sizes[node.along] >= 2 * rows:
            yield first, waiting.isel({node.along: slice(rows)})
            waiting, first = waiting.isel({node.along: slice(rows, None)}), False
    while waiting is not None and node.along in waiting.dims and waiting.sizes[node.along] > rows:
        yield first, waiting.isel({node.along: slice(rows)})
        waiting, first = waiting.isel({node.along: slice(rows, None)}), False
    if waiting is not None:
        yield first, waiting


def _rows_of(dataset: xr.Dataset, along: str) -> int:
    """How many texts of the largest variable fit a shard."""
    rows = dataset.sizes[along]
    largest = max(variable.nbytes / rows for variable in dataset.variables.values() if along in variable.dims)
    return max(1, int(SHARD / largest))


def _write(block: xr.Dataset, node: Node, path: Path, *, first: bool) -> None:
    """The first block makes the arrays; later ones are put behind it, whole shards behind whole shards."""
    whole = _storable(block)
    group = node.name or None
    if not first:
        whole = whole.drop_vars(
            [name for name, variable in whole.variables.items() if node.along not in variable.dims]
        )
        _stored(whole, path, group, mode="a", append_dim=node.along)
        return
    rows = _rows_of(block, node.along) if node.along in block.dims else 0
    encoding = {
        str(name): _cut(variable, node.along, rows)
        for name, variable in whole.variables.items()
        if node.along in variable.dims and variable.size
    }
    _stored(whole, path, group, mode="a", encoding=encoding)


def _storable(block: xr.Dataset) -> xr.Dataset:
    """Strings of any length, which Zarr has a specification for, and attributes that its JSON can hold."""
    strings = [name for name, variable in block.variables.items() if variable.dtype.kind == "U"]
    whole = block.assign({name: block[name].astype(object) for name in strings if name in block.data_vars})
    whole = whole.assign_coords(
        {name: block[name].astype(object) for name in strings if name in block.coords}
    )
    for told in (whole, *whole.variables.values()):
        told.attrs = {
            key: value.item() if isinstance(value, np.generic) else value for key, value in told.attrs.items()
        }
    return whole


def _cut(variable: xr.Variable, along: str, rows: int) -> dict[str, Any]:
    """Chunks and shards of a variable: all rows of a block, one layer; each head a chunk."""
    sizes = dict(zip(variable.dims, variable.shape, strict=True))
    shard = tuple(rows if dim == along else 1 if dim == "layer" else size for dim, size in sizes.items())
    chunk = tuple(rows if dim == along else 1 if dim in _HEADS else size for dim, size in sizes.items())
    strings = variable.dtype.kind in "OTU"
    return (
        {"chunks": chunk}
        if strings or math.prod(shard) == math.prod(chunk)
        else {"chunks": chunk, "shards": shard}
    )


def _stored(dataset: xr.Dataset, path: Path, group: str | None, **settings: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata", ZarrUserWarning)
        dataset.to_zarr(path, group=group, zarr_format=3, consolidated=False, **settings)
