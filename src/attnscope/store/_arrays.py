"""Labelled arrays as the bytes of one file: Zarr in a zip archive, the same bytes for the same arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the earliest time that zip knows: a file's bytes tell of its arrays alone


def packed(dataset: xr.Dataset) -> bytes:
    """A dataset as one file.

    Examples
    --------
    >>> dataset = xr.Dataset({"length": ("text", [3, 4])}, attrs={"model": "m"})
    >>> unpacked(packed(dataset)).identical(dataset), packed(dataset) == packed(dataset)
    (True, True)
    """
    parts: dict[str, Buffer] = {}
    storable(dataset).to_zarr(MemoryStore(parts), consolidated=False)
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in sorted(parts.items()):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), content.to_bytes())
    return whole.getvalue()


def unpacked(content: bytes) -> xr.Dataset:
    """The dataset that such a file holds, in memory; its variables in the order of their names."""
    buffer = default_buffer_prototype().buffer
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: buffer.from_bytes(archive.read(name)) for name in archive.namelist()}
    store: Any = MemoryStore(parts)
    dataset = xr.load_dataset(store, engine="zarr", consolidated=False)
    strings = {
        name: (variable.dims, variable.values.astype(object), variable.attrs)
        for name, variable in dataset.variables.items()
        if variable.dtype.kind == "T"
    }
    whole = dataset.assign_coords(
        {name: variable for name, variable in strings.items() if name in dataset.coords}
    ).assign({name: variable for name, variable in strings.items() if name not in dataset.coords})
    ordered = {name: whole.variables[name] for name in sorted(whole.data_vars, key=str)}
    return xr.Dataset(ordered, whole.coords, whole.attrs)  # Zarr lists names in another order in each process


def in_a_row(pieces: Sequence[xr.Dataset], along: str = "text") -> xr.Dataset:
    """Results of texts that follow each other as one dataset; `along` may be empty, for the first dimension there is.

    Examples
    --------
    >>> piece = xr.Dataset({"length": ("text", [3, 4])})
    >>> in_a_row([piece, piece]).length.values.tolist()
    [3, 4, 3, 4]
    """
    dimension = along or next(iter(pieces[0].data_vars.values())).dims[0]
    return xr.concat(list(pieces), dimension, data_vars="minimal", coords="minimal", compat="override")


def storable(dataset: xr.Dataset) -> xr.Dataset:
    """Strings of any length, which Zarr has a specification for, and attributes that its JSON can hold.

    Examples
    --------
    >>> storable(xr.Dataset({"name": ("text", ["a", "bc"])})).name.dtype
    dtype('O')
    """
    strings = {
        name: value.astype(object) for name, value in dataset.variables.items() if value.dtype.kind == "U"
    }
    clean = dataset.assign_coords({name: value for name, value in strings.items() if name in dataset.coords})
    clean = clean.assign({name: value for name, value in strings.items() if name not in dataset.coords})
    for holder in (clean, *clean.variables.values()):
        holder.attrs = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in holder.attrs.items()
        }
    return clean
