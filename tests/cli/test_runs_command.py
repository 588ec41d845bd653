"""`attnscope runs`: list, show, export and merge, at any width and for damaged runs."""

import json

import pandas as pd
import pytest
import xarray as xr
from rich.cells import cell_len

from attnscope import open_run
from attnscope.store.files import MANIFEST
from attnscope.store.folder import OwnedFolder
from tests.cli.command import attnscope
from tests.results.planted_runs import part_of, scan_run

LONG = "a-folder-with-a-very-long-name-" * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "二つ目", LONG, "[red]odd"):
        scan_run(folder / "attnscope-runs" / name, finish=name != "二つ目")
    damaged = scan_run(folder / "damaged") / MANIFEST
    damaged.write_bytes(damaged.read_bytes().replace(b"scan", b"scam"))
    return folder


@pytest.mark.parametrize("width", [80, 240])
def test_list_shows_every_run_at_every_width(width, place, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    found = attnscope("runs", "list", cwd=place)
    assert attnscope("runs", cwd=place).stdout == found.stdout
    assert (found.returncode, found.stderr) == (0, "")
    assert max(map(cell_len, found.stdout.splitlines())) <= width
    together = found.stdout.replace("\n", "")
    for part in ("one", "二つ目", LONG, "[red]odd", "小さな", "unfinished", "all 5 windows", "01234567", "is damaged"):
        assert part in together, part


def test_list_as_json(place):
    found = json.loads(attnscope("runs", "list", "attnscope-runs", "--json", cwd=place).stdout)
    one = next(run for run in found if run["run"] == "attnscope-runs/one")
    assert (one["command"], one["windows"], one["complete"], one["damage"]) == ("scan", 5, True, None)
    assert len(one["signature"]) == 8
    (damaged,) = (run for run in json.loads(attnscope("runs", "list", "--json", cwd=place).stdout) if run["damage"])
    assert (damaged["run"], damaged["command"]) == ("damaged", None)


def test_list_without_runs_and_without_a_folder(tmp_path, refused):
    assert attnscope("runs", "list", cwd=tmp_path).stdout == "no runs in attnscope-runs and the current folder\n"
    assert json.loads(attnscope("runs", "list", "--json", cwd=tmp_path).stdout) == []
    refused("runs", "list", "absent", says="there is no folder absent")


@pytest.mark.parametrize("width", [80, 120])
def test_show_describes_a_run(width, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    scan_run(tmp_path / "run")
    found = attnscope("runs", "show", "run", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert lines[0].startswith("run: scan, all 5 windows, ")
    for part in (
        "Head labels: previous: 3.",
        "model name 小さな[bold]模型",
        "setting limit not set",
        "windows measured 2 files",
        "window: 5, layer: 2, head: 3",
        "entropy Entropy [nats]",
    ):
        assert any(part in line for line in lines), part
    others = [line for line in found.stdout.splitlines() if "to cite" not in line and not line.startswith("run: ")]
    assert max(map(cell_len, others)) <= width
    json_ = json.loads(attnscope("runs", "show", "run", "--json", "--verify", cwd=tmp_path).stdout)
    assert (json_["says"], json_["damaged"]) == (["Head labels: previous: 3."], [])
    entropy = next(one for one in json_["variables"] if one["name"] == "entropy")
    assert (entropy["sizes"], entropy["units"]) == ({"window": 5, "layer": 2, "head": 3}, "nats")


def test_show_names_damaged_files_and_ends_with_2(tmp_path, refused):
    (scan_run(tmp_path / "run") / "summary.npz").unlink()
    (tmp_path / "run" / "run.json").write_text("{}")
    without = attnscope("runs", "show", "run", cwd=tmp_path)
    assert without.returncode == 2
    assert "summary.npz is gone. Give the command" in " ".join(without.stdout.split())
    found = attnscope("runs", "show", "run", "--verify", cwd=tmp_path)
    assert found.returncode == 2
    for name in ("summary.npz", "run.json"):
        assert f"{name} is gone, or is not what was written" in found.stdout
    refused("runs", "show", ".", says="contains no run of attnscope")


def test_export_writes_tables_and_netcdf_under_the_name_of_the_run(tmp_path):
    scan_run(tmp_path / "runs" / "one")
    found = attnscope("runs", "export", "runs/one", "--to", "parquet", "--variables", "entropy, label", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("one-parquet: 2 files, ")
    assert len(pd.read_parquet(tmp_path / "one-parquet" / "window_layer_head.parquet")) == 30
    assert attnscope("runs", "export", "runs/one", "--to", "nc", cwd=tmp_path).stdout.startswith("one.nc: 1 file, ")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "one.nc"), open_run(tmp_path / "runs" / "one"))
    assert attnscope("runs", "export", "runs/one", cwd=tmp_path).returncode == 2  # no format


def test_merge_puts_parts_together_and_draws_the_page(refused, tmp_path):
    with OwnedFolder(tmp_path / "model", "train") as folder:
        folder.write({"log.jsonl": b"{}"})
    says = "model is a run of train, which has no parts; expected a run with --task"
    refused("runs", "merge", "model", says=says)
    part_of(tmp_path / "run", 1, 2)
    refused("runs", "merge", "run", says="2 of 4 units are missing (2, 4): give the command of --task 2/2 again")
    part_of(tmp_path / "run", 2, 2)
    refused("runs", "merge", "nothing", says="nothing.tasks contains no parts of a run")
    found = attnscope("runs", "merge", "run", "--figures", "none", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == ["run: 14 texts of 2 tasks", "report:  run/report.html"]
    assert (tmp_path / "run" / "report.html").is_file()
    assert attnscope("runs", "merge", "run", cwd=tmp_path).stdout.startswith("run: 14 texts, whole before\n")
