"""Labelled arrays as files."""

import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from attnscope.store.arrays import in_a_row, packed, unpacked
from attnscope.store.files import texts_of
from attnscope.support.errors import AttnscopeError
from tests.store.forged_folders import arrays

_PROGRAM = """
import xarray as xr
from attnscope.store.arrays import packed, unpacked
given = xr.Dataset({name: ("x", [1.0]) for name in "gdbhafce"}, {"alone": ("y", [2.0])})
found = unpacked(packed(given))
print(list(found), found.identical(given))
"""


def test_variables_come_in_one_order_in_every_process():
    """Else the page of the same results would list their statistics in another order each time."""
    seed = {"PYTHONHASHSEED": "1"}  # of Python's hashes, by which a set lists names
    command = [sys.executable, "-c", _PROGRAM]
    told = subprocess.run(command, env=os.environ | seed, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"{[*'abcdefgh']} True"


def test_every_kind_of_array_comes_back_as_it_was():
    """Strings with characters at their ends that NumPy's own strings lose, nothing at all, one number, no number."""
    given = xr.Dataset(
        {
            "token": ("window", np.array(["a\0", "é ", ""], object)),
            "file": ("window", np.array(["猫", "b", "c"], object), {"from": "attributes", "share": np.float64(0.5)}),
            "no_strings": (("window", "none"), np.empty((3, 0), object)),
            "no_rows": (("none", "window"), np.empty((0, 3), object)),
            "no_numbers": ("none", np.empty(0)),
            "one": "alone",
            "flags": ("window", [True, False, True]),
            "few": ("window", np.array([1, 2, 3], np.int8)),
            "gaps": ("window", [np.nan, np.inf, -0.0]),
            "turned": (("head", "window"), np.arange(6.0).reshape(3, 2).T),
        },
        {"layer": ["0", "10"], "head": [1, 2]},
        {"seed": 3, "chance": float("nan"), "words": ("a", "b")},
    )
    found = unpacked(packed(given))
    assert found.drop_attrs().identical(given.drop_attrs())
    for name, variable in given.variables.items():
        strings = variable.dtype.kind in "OU"
        assert found[name].dtype == (object if strings else variable.dtype)
    assert list(found.token.values) == ["a\0", "é ", ""]
    assert np.signbit(found.gaps.values[2])
    assert found.file.attrs == {"from": "attributes", "share": 0.5}
    assert (found.attrs["seed"], found.attrs["words"]) == (3, ["a", "b"])
    assert np.isnan(found.attrs["chance"])


def test_a_piece_of_another_version_raises():
    with pytest.raises(AttnscopeError, match=r"found results in pieces/000-001\.zarr\.zip; .* another version"):
        texts_of("pieces/000-001.zarr.zip")


def test_arrays_without_entries_cannot_claim_a_length_that_takes_for_ever():
    """Whoever goes through its windows would not come to an end."""
    endless = packed(xr.Dataset({"entropy": (("window", "head"), np.zeros((1 << 40, 0)))}))
    with pytest.raises(AttnscopeError, match="the shape of entropy"):
        unpacked(endless)
    with pytest.raises(AttnscopeError, match="not as this version of attnscope writes it"):
        unpacked(arrays(endless, **{"dataset.json": b"[" * 200_000}))


def piece(first, count, name="en"):
    return xr.Dataset(
        {
            "entropy": (("window", "layer"), np.full((count, 2), first, float), {"units": "nats"}),
            "near": ("offset", [1, 2]),
            "every": ("pooled_window", np.arange(2.0 * count)),
        },
        {
            "window": np.arange(first, first + count),
            "by": ("window", np.array([name] * count)),
            "offset": [-1, 1],
            "layer": ["a", "bc"],
        },
        {"model": f"m{first}"},
    )


@pytest.mark.parametrize("along", ["window", "pooled_window"])
def test_pieces_in_a_row_are_what_xarray_makes_of_them(along):
    given = [piece(0, 2), piece(2, 1, "german"), piece(5, 3)]
    given = [one.drop_dims("pooled_window" if along == "window" else "window") for one in given]
    expected = xr.concat(given, along, data_vars="minimal", coords="minimal", compat="override")
    found = in_a_row(given, along)
    xr.testing.assert_identical(found, expected)
    assert {name: value.dtype for name, value in found.variables.items()} == {
        name: value.dtype for name, value in expected.variables.items()
    }
    assert found.indexes.keys() == expected.indexes.keys()
