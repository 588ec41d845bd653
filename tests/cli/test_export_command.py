"""`attnscope runs export` writes a run's arrays where it is told, and says what it made."""

import pandas as pd
import xarray as xr

from attnscope import open_run
from tests.cli.command import attnscope
from tests.results.planted import scan_run


def test_tables_and_netcdf_lie_here_under_the_runs_name(tmp_path):
    scan_run(tmp_path / "runs" / "one")
    found = attnscope("runs", "export", "runs/one", "--to", "parquet", "--variables", "entropy, label", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("one-parquet: 2 files, ")
    assert len(pd.read_parquet(tmp_path / "one-parquet" / "window_layer_head.parquet")) == 30
    assert attnscope("runs", "export", "runs/one", "--to", "nc", cwd=tmp_path).stdout.startswith("one.nc: 1 file, ")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "one.nc"), open_run(tmp_path / "runs" / "one"))

    assert attnscope("runs", "export", "runs/one", cwd=tmp_path).returncode == 2  # no format
