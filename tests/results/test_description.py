"""What is said of a run: finished, unfinished, in parts, damaged."""

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.results.describe import describe
from attnscope.results.reports import report_of
from attnscope.store.files import MANIFEST
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from attnscope.store.units import Task
from tests.results.planted import SIGNATURE, piece, scan_run


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


def test_an_explanation_says_what_the_command_says(tmp_path):
    text = "The tide comes in twice a day, and twice a day it goes out again. " * 30
    tree = attnscope.explain(texts=[text], window=64, limit=2, device="cpu", out=tmp_path / "run")
    told = describe(tmp_path / "run")
    assert told.headline[:2] == report_of("explain", tree).finding.sentences[:2]
    assert {one.node for one in told.variables} == {name for name in tree.children if tree[name].data_vars}
    assert any(note.startswith("Skipped: scheme kernel (") for note in told.notes)


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


def test_parts_of_tasks_are_told_before_there_is_a_run(tmp_path):
    with RunFolder(Task(2, 3).folder(tmp_path / "run"), {"command": "scan", **SIGNATURE}) as part:
        part.append(piece(0, 4), 0)
    told = describe(tmp_path / "run")
    assert [part.path.name for part in told.parts] == ["2-of-3"]
    assert told.run.progress == "0 of 3 tasks, 4 windows"


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
