"""A Zarr store holds what the run holds, however it is cut, and a head is read without the others."""

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope.bundled import TEXT
from attnscope.results import export as _zarr
from attnscope.results.export import export


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    attnscope.scan("bundled", TEXT, window=32, limit=12, batch_size=4, pool=4, out=folder, show=False, device="cpu")
    return folder


@pytest.mark.parametrize("shard", [1 << 26, 40_000])
def test_it_is_the_run_however_it_is_cut(shard, run, tmp_path, monkeypatch):
    import zarr  # two seconds, which every worker would take

    monkeypatch.setattr(_zarr, "SHARD", shard)
    store = export(run, "zarr", out=tmp_path / "run.zarr")
    assert set(xr.open_datatree(store, engine="zarr", chunks=None).children) == {"windows"}
    for name, expected in ((None, attnscope.open_run(run)), ("windows", attnscope.open_run(run, part="windows"))):
        found = xr.open_zarr(store, group=name, chunks=None).load()
        assert set(found.variables) == set(expected.variables)
        for one in expected.variables:
            assert found[one].dims == expected[one].dims
            np.testing.assert_array_equal(found[one].values, expected[one].values)
            assert found[one].attrs == expected[one].attrs
        assert found.attrs == expected.attrs
    assert zarr.open_group(store)["windows/window_entropy"].chunks[1:] == (1, 1)  # a chunk a head
