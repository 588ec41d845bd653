"""Runs are told from their manifests alone."""

import json
import shutil
import subprocess
import sys

import pytest

from attnscope import AttnscopeError
from attnscope.results.open import run_at, runs
from attnscope.store.files import MANIFEST
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from attnscope.store.units import Task
from tests.results.planted import SIGNATURE, explained_run, piece, scan_run


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
def test_tasks_are_told_as_the_run_that_they_are_parts_of(command, unit, tmp_path):
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
    for command, record in (("align", {"signature": SIGNATURE}), ("compare", {"systems": {"one": {}}})):
        with OwnedFolder(tmp_path / command, command) as folder:
            folder.write({"words.txt": b""})
            assert not run_at(tmp_path / command).complete
            folder.write({"run.json": json.dumps(record).encode()})
    assert {(run.command, run.model, run.complete) for run in runs(tmp_path)} == {
        ("align", "小さな[bold]模型", True),
        ("compare", "one", True),
    }


def test_a_damaged_manifest_is_reported_and_hides_no_other_run(tmp_path):
    scan_run(tmp_path / "whole")
    damaged = scan_run(tmp_path / "damaged") / MANIFEST
    damaged.write_bytes(damaged.read_bytes().replace(b'"complete": true', b'"complete": null'))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / MANIFEST).write_text("{}")
    found = {run.path.name: run.progress for run in runs(tmp_path)}
    assert found == {"whole": "all 5 windows", "damaged": "damaged"}


@pytest.mark.parametrize("odd", [{"pieces/one": b""}, {}])
def test_a_manifest_of_another_version_is_reported(odd, tmp_path):
    with OwnedFolder(tmp_path / "run", "scan") as folder:
        folder.write(odd, signature=None if odd else {"command": "scan", "models": ["one"]})
    (run,) = runs(tmp_path)
    assert "version of attnscope" in run.damage


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
