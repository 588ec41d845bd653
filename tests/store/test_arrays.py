"""Labelled arrays as files."""

import os
import subprocess
import sys

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
