"""What is exported reads back as what was measured, whole or not at all, and over nothing that was there."""

import csv
import errno
import io
import json
import os
import signal
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
from safetensors import safe_open

from attnscope import AttnscopeError, open_run
from attnscope.cli.output import csv_text
from attnscope.results import export as _export
from attnscope.results.export import csv_file, export, rows_of
from attnscope.results.open import Node
from tests.results.planted_runs import HEADS, LAYERS, OFFSETS, explained_run, scan_run

TEXTS = 5


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return scan_run(tmp_path_factory.mktemp("scan") / "run")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return explained_run(tmp_path_factory.mktemp("tree") / "run")


def read_csv(path):
    """Numbers as Python reads them, without what pandas rounds."""
    with path.open(encoding="utf-8", newline="") as file:
        table = pd.DataFrame(csv.DictReader(file)).replace("", np.nan)
    numbers = {name for name in table.columns if name not in {"source", "layer_name", "kind", "cluster"}}
    return table.astype(dict.fromkeys(numbers, float))


READERS = {"parquet": pd.read_parquet, "csv": read_csv}


@pytest.mark.parametrize("to", READERS)
def test_tables_of_a_scan_hold_its_numbers_to_the_bit(to, scan, tmp_path):
    made = export(scan, to, out=tmp_path / "tables")
    opened = open_run(scan)
    names = {path.stem for path in made.iterdir()}
    assert names == {"about", "window", "window_layer_head", "window_layer_head_offset", "cluster_offset"}
    bands = READERS[to](made / f"window_layer_head_offset.{to}")
    assert len(bands) == TEXTS * LAYERS * HEADS * OFFSETS
    for name, table in (("band_sum", bands), ("entropy", READERS[to](made / f"window_layer_head.{to}"))):
        expected = opened[name].to_numpy()
        found = table[name].to_numpy().astype(expected.dtype).reshape(expected.shape)
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))
    assert bands.layer.unique().tolist() == [0, 3]
    assert bands.source[0] == "猫, 0.txt"
    assert len(READERS[to](made / f"cluster_offset.{to}")) == 2 * OFFSETS  # once, not with every piece


def test_parquet_knows_null_units_names_of_kinds_and_signature(scan, tmp_path):
    made = export(scan, "parquet", out=tmp_path / "tables")
    file = pq.read_table(made / "window_layer_head.parquet")
    assert file["entropy"].null_count == TEXTS
    heads = file.to_pandas()
    named = set(zip(heads.label, heads.kind.fillna("none"), strict=True))
    assert named == {(0, "previous"), (1, "mixed"), (-1, "none")}
    assert file.schema.field("entropy").metadata[b"units"] == b"nats"
    signature = json.loads(file.schema.metadata[b"signature"])
    assert signature == json.loads(open_run(scan).attrs["signature"])
    assert json.loads((made / "about.json").read_text())["signature"] == signature


def test_a_tree_is_a_folder_for_each_node(tree, tmp_path):
    made = export(tree, "parquet", out=tmp_path / "tables")
    files = {str(path.relative_to(made)) for path in made.rglob("*.parquet")}
    node = {"layer", "layer_head", "scalars"}
    assert files == {f"verdict/{name}.parquet" for name in node} | {"also/0/layer.parquet"}
    about = json.loads((made / "about.json").read_text(), parse_constant=pytest.fail)
    assert about["arrays"]["verdict"]["attributes"] == {"band": [3, 24], "one": [3], "seed": 0, "level": None}
    heads = pd.read_parquet(made / "verdict" / "layer_head.parquet")
    assert heads.agree.tolist() == [True, False, False, True]
    assert heads.swapped.tolist() == [1, 3, 2, 4]
    assert heads.share.tolist()[2] == np.inf
    assert pd.read_parquet(made / "verdict" / "scalars.parquet").chance.tolist() == [1 / 3]
    assert pd.read_parquet(made / "also" / "0" / "layer.parquet").form.tolist() == ["a|b", "猫"]


def test_netcdf_reads_back_identical(scan, tree, tmp_path):
    xr.testing.assert_identical(xr.load_dataset(export(scan, "nc", out=tmp_path / "a.nc")), open_run(scan))
    found = xr.load_datatree(export(tree, "nc", out=tmp_path / "b.nc"))
    assert found["verdict"].attrs.pop("one") == 3  # in netCDF one number and a list of it are the same
    opened = open_run(tree)
    del opened["verdict"].attrs["one"]
    xr.testing.assert_identical(found, opened)


def test_no_table_is_in_memory_as_a_whole(scan, tmp_path, monkeypatch):
    sizes = []

    def watched(*arguments):
        for part in rows_of(*arguments, at_once=1):
            sizes.append(len(part))
            yield part

    monkeypatch.setattr(_export, "rows_of", watched)
    made = export(scan, "parquet", out=tmp_path / "tables", variables=["band_sum"])
    assert sizes == [LAYERS * HEADS * OFFSETS] * TEXTS
    assert pq.ParquetFile(made / "window_layer_head_offset.parquet").num_row_groups == TEXTS


def test_safetensors_have_the_numbers_with_their_dimensions(scan, tree, tmp_path):
    made = export(scan, "safetensors", out=tmp_path / "a.safetensors")
    opened = open_run(scan)
    with safe_open(made, "numpy") as file:
        about = {name: json.loads(value) for name, value in file.metadata().items()}
        assert {*file.keys()} == {str(name) for name, one in opened.data_vars.items() if one.dtype.kind in "biuf"}
        for name in file.keys():  # noqa: SIM118 it is no dictionary
            np.testing.assert_array_equal(file.get_tensor(name), opened[name].to_numpy())
            assert about["dims"][name] == [*opened[name].dims]
    assert about["coords"]["layer"] == opened.layer.to_numpy().tolist()
    with safe_open(export(tree, "safetensors", out=tmp_path / "b.safetensors"), "numpy") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    nodes = open_run(tree)
    assert stored
    for name, values in stored.items():
        np.testing.assert_array_equal(values, nodes[name].to_numpy())


@pytest.mark.parametrize("to", ["csv", "nc"])
def test_nothing_is_overwritten(to, scan, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        with pytest.raises(AttnscopeError, match=f"{name} exists and is not overwritten"):
            export(scan, to, out=tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert not list((tmp_path / "folder").iterdir())
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize(("to", "broken"), [("csv", "rows_of"), ("nc", "read_run")])
def test_what_is_stopped_leaves_nothing(error, to, broken, scan, tmp_path, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(_export, broken, fails)
    with pytest.raises((AttnscopeError, KeyboardInterrupt), match=r"no space left|^$"):
        export(scan, to, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_export_removes_what_a_killed_one_left(scan, tmp_path):
    """A real process, killed by SIGKILL while it writes tables."""
    child = os.fork()
    if not child:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_export, "rows_of", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            export(scan, "csv", out=tmp_path / "out")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    export(scan, "csv", out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_exports_to_one_name_do_not_mix(scan, tmp_path, monkeypatch):
    rows = _export.rows_of

    def again(*arguments):
        monkeypatch.setattr(_export, "rows_of", rows)
        with pytest.raises(AttnscopeError, match="another command is writing to"):
            export(scan, "csv", out=tmp_path / "out")
        yield from rows(*arguments)

    monkeypatch.setattr(_export, "rows_of", again)
    export(scan, "csv", out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("package", "extra", "to"), [("pyarrow", "data", "parquet"), ("h5netcdf", "netcdf", "nc"), ("zarr", "zarr", "zarr")]
)
def test_a_package_that_is_not_there_is_named_with_its_extra(package, extra, to, scan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AttnscopeError, match=rf"pip install 'attnscope\[{extra}\]'"):
        export(scan, to, out=tmp_path / "out")


def test_what_cannot_be_exported_is_rejected(scan, tmp_path, no_types):
    unfinished = scan_run(tmp_path / "unfinished", finish=False)
    for run, out, says in (
        (tmp_path, "out", "contains no run"),
        (unfinished, "out", "unfinished run of attnscope scan"),
        (scan, "nowhere/out", "there is no folder"),
    ):
        with pytest.raises(AttnscopeError, match=says):
            export(run, "csv", out=tmp_path / out)
    with pytest.raises(
        AttnscopeError, match=r"found a run of scan; --to duo takes a card\. Every run can be exported to parquet, csv"
    ):
        export(scan, "duo", out=tmp_path / "out")
    with pytest.raises(AttnscopeError, match=r"'xlsx' \(str\); expected one of 'parquet', 'csv', 'nc'"):
        export(scan, "xlsx", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ('=HYPERLINK("http://x")', '\'=HYPERLINK("http://x")'),
        ("+1-2", "'+1-2"),
        ("-the", "'-the"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\tx", "'\tx"),
        ("\x1b]52;c;x\x07", r"\x1b]52;c;x\x07"),
        ("-0.5", "-0.5"),
        ("well-read", "well-read"),
    ],
)
def test_no_cell_is_a_formula_or_an_escape(given, written, tmp_path):
    with csv_file(tmp_path / "a.csv", {}) as file:
        file(pd.DataFrame({"token": [given], "kind": pd.Categorical([given]), "weight": [-0.5]}))
    assert read_rows(tmp_path / "a.csv") == [["token", "kind", "weight"], [written, written, "-0.5"]]
    assert list(csv.reader(io.StringIO(csv_text([[given, -0.5]])))) == [[written, "-0.5"]]


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_names_of_variables_do_not_leave_the_folder(scan, tmp_path, monkeypatch):
    odd = xr.Dataset({"a": ("../up", [1, 2]), "b": (("x", "/etc"), [[1]])})
    monkeypatch.setattr(_export, "nodes_of", lambda _: [Node("../../out/..", lambda: iter([odd]))])
    made = export(scan, "csv", out=tmp_path / "tables")
    assert {str(path.relative_to(made)) for path in made.rglob("*.csv")} == {
        "__/__/out/__/___up.csv",
        "__/__/out/__/x__etc.csv",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
