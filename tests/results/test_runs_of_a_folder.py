"""What is known of the runs in a folder: their list, a description of each, and the nodes that are exported."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError, open_run, runs
from attnscope.results.describe import describe
from attnscope.results.export import export
from attnscope.results.open import chosen, nodes_of, run_at
from attnscope.store.files import MANIFEST
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from attnscope.store.units import Task
from tests.results.planted_runs import SIGNATURE, explained_run, piece, scan_run

# --- runs are told from their manifests alone ---


def test_runs_one_level_below_and_the_folder_itself_are_found(tmp_path):
    scan_run(tmp_path / "a 猫")
    explained_run(tmp_path / "b")
    scan_run(tmp_path / "deeper" / "c")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    assert {run.path.name for run in runs(tmp_path)} == {"a 猫", "b"}
    assert [run.path.name for run in runs(tmp_path / "b")] == ["b"]
    assert len(runs(tmp_path, tmp_path / "b", str(tmp_path / "deeper"))) == 3


def test_what_a_run_says_of_itself(tmp_path):
    run = run_at(scan_run(tmp_path / "run"))
    files = [path for path in (tmp_path / "run").rglob("*") if path.suffix in {".npz", ".json"}]
    assert run.bytes == sum(path.stat().st_size for path in files if path.name != MANIFEST)
    assert (run.command, run.complete, run.windows, run.progress) == ("scan", True, 5, "all 5 windows")
    assert run.model == "小さな[bold]模型"
    assert run.corpus == "01234567"
    assert run.signature.short == RunFolder(tmp_path / "run", {"command": "scan", **SIGNATURE}).signature.short


@pytest.mark.parametrize(("command", "unit"), [("scan", "windows"), ("align", "pairs")])
def test_tasks_are_reported_as_the_run_that_they_are_parts_of(command, unit, tmp_path):
    for number, done in ((1, True), (2, False)):
        with RunFolder(Task(number, 3).folder(tmp_path / "run"), {"command": command, **SIGNATURE}) as part:
            part.append(piece(4 * number, 4), 4 * number)
            if done:
                part.finish()
    (run,) = runs(tmp_path)
    assert (run.path, run.tasks, run.progress) == (tmp_path / "run", (1, 3), f"1 of 3 tasks, 8 {unit}")
    assert run.bytes == sum(part.bytes for part in runs(tmp_path / "run.tasks"))
    scan_run(tmp_path / "run")
    assert [run.progress for run in runs(tmp_path)] == ["all 5 windows"]


def test_commands_that_write_at_once_are_complete_with_their_record(tmp_path):
    with OwnedFolder(tmp_path / "compare", "compare") as folder:
        folder.write({"words.txt": b""})
        assert not run_at(tmp_path / "compare").complete
        folder.write({"run.json": json.dumps({"systems": {"one": {}}}).encode()})
    assert [(run.command, run.model, run.complete) for run in runs(tmp_path)] == [("compare", "one", True)]


def test_a_damaged_manifest_is_reported_and_hides_no_other_run(tmp_path):
    scan_run(tmp_path / "whole")
    damaged = scan_run(tmp_path / "damaged") / MANIFEST
    damaged.write_bytes(damaged.read_bytes().replace(b'"complete": true', b'"complete": null'))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / MANIFEST).write_text("{}")
    found = {run.path.name: run.progress for run in runs(tmp_path)}
    assert found == {"whole": "all 5 windows", "damaged": "damaged"}


@pytest.mark.parametrize("given", ["nowhere", 3])
def test_what_is_no_folder_is_rejected(given, tmp_path, no_types):
    with pytest.raises(AttnscopeError, match=r"no folder|expected a list of strings or paths"):
        runs(tmp_path / given if isinstance(given, str) else given)


def test_neither_torch_nor_transformers_is_loaded(tmp_path):
    scan_run(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    code = (
        "import sys; from attnscope.results.open import runs; assert len(runs(sys.argv[1])) == 2;"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"


# --- what is said of a run: finished, unfinished, in parts, damaged ---


def test_a_finished_scan(tmp_path):
    told = describe(scan_run(tmp_path / "run"))
    assert told.headline == ["Head labels: previous: 3."]
    assert told.notes == [
        "Windows are measured one at a time.",
        "Only layers with attention are numbered: 0 is encoder.0, 1 is encoder.3.",
    ]
    assert {kind: number for kind, (number, _) in told.files.items()} == {
        "windows measured": 2,
        "signature": 1,
        "arrays": 1,
    }
    entropy = next(one for one in told.variables if one.name == "entropy")
    assert entropy.sizes == {"window": 5, "layer": 2, "head": 3}
    assert (entropy.long_name, entropy.units, entropy.coordinate) == ("Entropy", "nats", False)
    labels = [one.name for one in told.variables if one.coordinate]
    assert labels == ["cluster", "layer", "offset", "window", "layer_name", "source"]
    assert (told.page, told.damaged, told.unread) == (None, None, "")


def test_an_unfinished_run_shows_what_is_there(tmp_path):
    told = describe(scan_run(tmp_path / "run", (2, 2), finish=False))
    assert {one.name: one.sizes["window"] for one in told.variables if "head" in one.sizes} == {
        "band_sum": 4,
        "entropy": 4,
    }
    assert not told.headline
    with OwnedFolder(tmp_path / "train", "train") as folder:
        folder.write({"checkpoints/1/model": b"12", "config.json": b"1"})
    assert describe(tmp_path / "train").files == {"checkpoints": (1, 2), "config.json": (1, 1)}


def test_damage_is_looked_for_only_where_it_is_requested(tmp_path):
    run = scan_run(tmp_path / "run")
    *_, last = sorted((run / "pieces").iterdir())
    last.write_bytes(b"0")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert describe(run).damaged is None
    assert describe(run, verify=True).damaged == [f"pieces/{last.name}"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_folders_without_a_run_and_damaged_manifests_are_rejected(tmp_path):
    with pytest.raises(AttnscopeError, match="contains no run of attnscope"):
        describe(tmp_path)
    manifest = scan_run(tmp_path / "run") / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b"scan", b"scam"))
    with pytest.raises(AttnscopeError, match=r"is damaged, so nothing in .* can be trusted"):
        describe(tmp_path / "run")


# --- a run read part by part is the run opened at once ---


def test_windows_of_pools_are_a_node_whose_pieces_are_the_part_that_opens(tmp_path):
    with RunFolder(tmp_path / "run", {"command": "scan", **SIGNATURE}) as run:
        for first in (0, 2):
            numbers = np.arange(3) + 2 * first
            windows = xr.Dataset({"window_length": ("pooled_window", [8, 7, 6])}, {"pooled_window": numbers})
            run.append(piece(first, 2), first, windows=windows)
        run.finish(attributes={})
    _, node = nodes_of(run_at(tmp_path / "run"))
    assert (node.name, node.along) == ("windows", "pooled_window")
    whole = xr.concat(list(node.pieces()), "pooled_window")
    xr.testing.assert_identical(whole, open_run(tmp_path / "run", part="windows"))
    made = export(tmp_path / "run", "csv", out=tmp_path / "tables", variables=["window_length"])
    assert (
        made / "windows" / "pooled_window.csv"
    ).read_text() == "pooled_window,window_length\n0,8\n1,7\n2,6\n4,8\n5,7\n6,6\n"


def test_a_tree_has_a_node_for_each_dataset(tmp_path):
    nodes = nodes_of(run_at(explained_run(tmp_path / "run")))
    assert [node.name for node in nodes] == ["verdict", "also/0"]
    assert [node.name for node in chosen(nodes, ["agree"])] == ["verdict"]
    assert [list(next(node.pieces()).data_vars) for node in chosen(nodes, ["form"])] == [["form"], ["form"]]
    with pytest.raises(AttnscopeError, match=r"no variable 'entropy': choose from agree, chance, form, share, swapped"):
        chosen(nodes, ["form", "entropy"])


def test_the_latest_is_the_first(tmp_path):
    for name, when in (("old", 1e9), ("new", 1.2e9), ("middle", 1.1e9)):
        scan_run(tmp_path / name)
        os.utime(tmp_path / name / MANIFEST, (when, when))
    assert [run.path.name for run in attnscope.runs(tmp_path)] == ["new", "middle", "old"]


def test_without_folders_the_usual_ones_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runs() == []
    scan_run(tmp_path / "attnscope-runs" / "one")
    scan_run(tmp_path / "two")
    assert sorted(str(run.path) for run in runs()) == ["attnscope-runs/one", "two"]
