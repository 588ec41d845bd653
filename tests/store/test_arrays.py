"""Labelled arrays as files."""

import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from attnscope.store import in_a_row

_PROGRAM = """
import xarray as xr
from attnscope.store import packed, unpacked
given = xr.Dataset({name: ("x", [1.0]) for name in ["delta", "alpha", "gamma", "beta"]}, {"alone": ("y", [2.0])})
found = unpacked(packed(given))
print(list(found), found.identical(given))
"""


def test_variables_come_in_one_order_in_every_process():
    """Else the page of the same results would list their statistics in another order each time."""
    for seed in ("1", "2"):  # of Python's hashes, by which Zarr lists names
        told = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == "['alpha', 'beta', 'delta', 'gamma'] True"


def piece(first, count, name="en"):
    return xr.Dataset(
        {
            "entropy": (("text", "layer"), np.full((count, 2), first, float), {"units": "nats"}),
            "near": ("offset", [1, 2]),
            "every": ("window", np.arange(2.0 * count)),
        },
        {
            "text": np.arange(first, first + count),
            "by": ("text", np.array([name] * count)),
            "offset": [-1, 1],
            "layer": ["a", "bc"],
        },
        {"model": f"m{first}"},
    )


@pytest.mark.parametrize("along", ["text", "window"])
def test_pieces_in_a_row_are_what_xarray_makes_of_them(along):
    given = [piece(0, 2), piece(2, 1, "german"), piece(5, 3)]
    given = [one.drop_dims("window" if along == "text" else "text") for one in given]
    expected = xr.concat(given, along, data_vars="minimal", coords="minimal", compat="override")
    found = in_a_row(given, along)
    xr.testing.assert_identical(found, expected)
    assert {name: value.dtype for name, value in found.variables.items()} == {
        name: value.dtype for name, value in expected.variables.items()
    }
    assert found.indexes.keys() == expected.indexes.keys()
