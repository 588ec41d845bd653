"""Labelled arrays as one file in NumPy's npz format; equal arrays give equal bytes."""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from attnscope.store.files import read_as

_OUTLINE = "dataset.json"
_KINDS = ("coords", "data_vars")
_DEFLATE = 1  # zlib's level: as small as level 6 within 2% where results are noise, in two thirds of the time
_SAMPLE = 1 << 13  # entries sampled to decide about compression
_WORTH = 0.9  # share of its size: arrays that shrink less are noise; uncompressed, they are read in a third of the time
_STRINGS, _NUMBERS = "OTU", "biufcmM"  # kinds of dtypes
_LONGEST = 1 << 32  # entries of a dimension: one without entries may claim any number, which would be counted for ever
_HEADER = 1 << 16  # bytes of an array's file before its numbers


def packed(dataset: xr.Dataset) -> bytes:
    """A dataset as one file for `numpy.load`: one array for each numeric variable, by name."""
    told = dataset.to_dict(data=False)
    outline = {kind: dict(sorted(told[kind].items())) for kind in _KINDS} | {"attrs": told["attrs"]}
    variables = outline["coords"] | outline["data_vars"]
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=_DEFLATE) as archive:
        # in the order of names: equal datasets give equal bytes
        for name in sorted(dataset.variables, key=str):
            values = dataset.variables[name].values
            if values.dtype.kind in _STRINGS:  # of any length, and with any character at their ends
                variables[name]["data"] = values.tolist()
                continue
            archive.compression = zipfile.ZIP_DEFLATED if _shrinks(values) else zipfile.ZIP_STORED
            # the size is unknown before the array is written, and may pass 4 GiB
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
        archive.compression = zipfile.ZIP_DEFLATED
        with archive.open(_OUTLINE, "w") as file:
            file.write(json.dumps(outline).encode())
    return whole.getvalue()


def _shrinks(values: np.ndarray) -> bool:
    # the first entries stand for all: float noise does not shrink, counts and zeros do
    sample = np.asarray(values.flat[:_SAMPLE]).tobytes()
    return len(zlib.compress(sample, _DEFLATE)) < _WORTH * len(sample)


def unpacked(content: bytes, where: Path | str = "the file") -> xr.Dataset:
    """The dataset in such a file, in memory, with its variables in the order of their names."""
    with read_as(where), zipfile.ZipFile(io.BytesIO(content)) as archive:
        outline = json.loads(archive.read(_OUTLINE))
        variables = {
            kind: {name: _variable(archive, name, told) for name, told in outline[kind].items()} for kind in _KINDS
        }
        return xr.Dataset(variables["data_vars"], variables["coords"], dict(outline["attrs"]))


def _variable(archive: zipfile.ZipFile, name: str, told: Any) -> xr.Variable:
    """A variable whose array has the shape, type and number of bytes in the outline."""
    dims, shape, attrs = told["dims"], tuple(told["shape"]), told["attrs"]
    if any(type(size) is not int or not 0 <= size <= _LONGEST for size in shape) or len(set(dims)) < len(dims):
        raise ValueError(f"the shape of {name}")
    if "data" in told:
        values = np.empty(shape, object)
        values[...] = np.array(told["data"], object).reshape(shape)
        if not all(entry is None or isinstance(entry, str) for entry in values.flat):
            raise ValueError(f"the strings of {name}")
        return xr.Variable(dims, values, attrs)
    dtype = np.dtype(told["dtype"])
    # sizes are compared before anything is unpacked: a small archive may claim to hold terabytes
    member = archive.getinfo(f"{name}.npy")
    if dtype.kind not in _NUMBERS or not 0 <= member.file_size - math.prod(shape) * dtype.itemsize <= _HEADER:
        raise ValueError(f"the size of {name}")
    with archive.open(member) as file:
        values = np.lib.format.read_array(file, allow_pickle=False)
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(f"the array of {name}")
    return xr.Variable(dims, values, attrs)


def in_a_row(pieces: Sequence[xr.Dataset], along: str = "window") -> xr.Dataset:
    """Adjacent results as one dataset."""
    first = pieces[0]
    dimension = along or str(next(iter(first.data_vars.values())).dims[0])
    whole = {
        name: type(variable).concat([piece.variables[name] for piece in pieces], dimension)
        if dimension in variable.dims
        else variable
        for name, variable in first.variables.items()
    }
    coordinates = {name: variable for name, variable in whole.items() if name in first.coords}
    return xr.Dataset({name: whole[name] for name in whole if name not in coordinates}, coordinates, first.attrs)


def stacked(
    parts: Iterable[xr.Dataset],
    dim: str,
    labels: Sequence[int] | Sequence[str] | np.ndarray,
    *,
    attrs: Literal["override", "drop_conflicts"] = "override",
) -> xr.Dataset:
    """Stack datasets along a new dimension; shorter ones are padded with NaN."""
    whole = xr.concat(
        list(parts), dim, join="outer", combine_attrs=attrs, data_vars="all", coords="different", compat="equals"
    )
    return whole.assign_coords({dim: labels})


def padded_heads(rows: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Arrays of layers as one with ``layer`` first; layers with fewer heads along `axis` are padded with NaN."""
    most = max(row.shape[axis] for row in rows)

    def filled(row: np.ndarray) -> np.ndarray:
        beyond = [(0, 0)] * row.ndim
        beyond[axis] = (0, most - row.shape[axis])
        return np.pad(row, beyond, constant_values=np.nan) if most > row.shape[axis] else row

    return np.stack([filled(row) for row in rows])


def by_layer(layers: Sequence[np.ndarray]) -> np.ndarray:
    """Layers ``(text, ..., head)`` as one array ``(text, ..., layer, head)``; NaN beyond a layer's heads."""
    return np.moveaxis(padded_heads(layers, axis=layers[0].ndim - 1), 0, -2)


def of_layers(flat: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """Values of all heads, layer by layer, as ``(..., layer, head)``; NaN beyond a layer's heads."""
    return by_layer(np.split(flat, np.cumsum(heads)[:-1], -1))
