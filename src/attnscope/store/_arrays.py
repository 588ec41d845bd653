"""Labelled arrays as the bytes of one file: Zarr in a zip archive, the same bytes for the same arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Hashable, Mapping, Sequence
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
    """The dataset that such a file holds, in memory; its variables in the order of their names.

    Examples
    --------
    >>> from attnscope.store import packed, unpacked
    >>> unpacked(packed(xr.Dataset({"loss": 1.5}))).loss.item()
    1.5
    """
    buffer = default_buffer_prototype().buffer
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: buffer.from_bytes(archive.read(name)) for name in archive.namelist()}
    store: Any = MemoryStore(parts)
    dataset = xr.load_dataset(store, engine="zarr", consolidated=False)
    # Zarr lists names in another order in each process
    return _with_variables(
        dataset, {name: _plain(dataset.variables[name]) for name in sorted(dataset.variables, key=str)}
    )


def in_a_row(pieces: Sequence[xr.Dataset], along: str = "text") -> xr.Dataset:
    """Results that follow each other as one dataset.

    Pieces are results of one kind: what lies along no text, and all attributes, are those of the first. This is what
    `xarray.concat` with ``"minimal"`` and ``"override"`` gives, which aligns every variable of every piece first: that
    took longer than to measure a short text.

    Parameters
    ----------
    pieces
        The results, in order.
    along
        Dimension along which they follow each other; where it is empty, the first that there is.

    Examples
    --------
    >>> piece = xr.Dataset({"length": ("text", [3, 4])})
    >>> in_a_row([piece, piece]).length.values.tolist()
    [3, 4, 3, 4]
    """
    first = pieces[0]
    dimension = along or str(next(iter(first.data_vars.values())).dims[0])
    whole = {
        name: type(variable).concat([piece.variables[name] for piece in pieces], dimension)
        if dimension in variable.dims
        else variable
        for name, variable in first.variables.items()
    }
    return _with_variables(first, whole)


def storable(dataset: xr.Dataset) -> xr.Dataset:
    """Strings of any length, which Zarr has a specification for, and attributes that its JSON can hold.

    Examples
    --------
    >>> storable(xr.Dataset({"name": ("text", ["a", "bc"])})).name.dtype
    dtype('O')
    """
    variables = {name: _storable(variable) for name, variable in dataset.variables.items()}
    return _with_variables(dataset, variables).assign_attrs(_in_json(dataset.attrs))


def _storable(variable: xr.Variable) -> xr.Variable:
    clean = variable.astype(object) if variable.dtype.kind == "U" else variable.copy(deep=False)
    clean.attrs = _in_json(variable.attrs)
    return clean


def _in_json(attributes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    return {
        key: value.item() if isinstance(value, np.generic) else value for key, value in attributes.items()
    }


def _plain(variable: xr.Variable) -> xr.Variable:
    """Strings of any length as objects, as they were before they were stored."""
    if variable.dtype.kind != "T":
        return variable
    return xr.Variable(variable.dims, variable.values.astype(object), variable.attrs)


def _with_variables(dataset: xr.Dataset, variables: Mapping[Hashable, xr.Variable]) -> xr.Dataset:
    """The dataset with these variables for its own, data and coordinates as there."""
    return xr.Dataset(
        {name: variable for name, variable in variables.items() if name not in dataset.coords},
        {name: variable for name, variable in variables.items() if name in dataset.coords},
        dataset.attrs,
    )
