"""`attnscope runs show` says what a run is and holds."""

import json

import pytest
from rich.cells import cell_len

from tests.cli.command import attnscope
from tests.results.planted import scan_run


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_run_is(width, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    scan_run(tmp_path / "run")
    found = attnscope("runs", "show", "run", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert lines[0].startswith("run: scan, all 5 windows, ")
    for said in (
        "Head labels: previous: 3.",
        "model name 小さな[bold]模型",
        "setting limit not set",
        "windows measured 2 files",
        "window: 5, layer: 2, head: 3",
        "entropy Entropy [nats]",
    ):
        assert any(said in line for line in lines), said
    cited = [line for line in found.stdout.splitlines() if "to cite" in line or line.startswith("run: ")]
    others = [line for line in found.stdout.splitlines() if line not in cited]
    assert max(map(cell_len, others)) <= width


def test_json_holds_the_same(tmp_path):
    scan_run(tmp_path / "run")
    found = json.loads(attnscope("runs", "show", "run", "--json", "--verify", cwd=tmp_path).stdout)
    assert found["says"] == ["Head labels: previous: 3."]
    assert found["signature"]["settings"]["window"] == 8
    assert found["damaged"] == []
    assert "all 4 files are as they were written" in attnscope("runs", "show", "run", "--verify", cwd=tmp_path).stdout
    entropy = next(one for one in found["variables"] if one["name"] == "entropy")
    assert (entropy["sizes"], entropy["units"]) == ({"window": 5, "layer": 2, "head": 3}, "nats")


def test_damaged_files_are_named_and_end_with_2(tmp_path):
    (scan_run(tmp_path / "run") / "summary.npz").unlink()
    (tmp_path / "run" / "run.json").write_text("{}")
    without = attnscope("runs", "show", "run", cwd=tmp_path)
    assert without.returncode == 2
    assert "summary.npz is gone. Give the command" in " ".join(without.stdout.split())
    found = attnscope("runs", "show", "run", "--verify", cwd=tmp_path)
    assert found.returncode == 2
    for name in ("summary.npz", "run.json"):
        assert f"{name} is gone, or is not what was written" in found.stdout


def test_what_is_no_run_is_refused(refused):
    refused("runs", "show", ".", says="contains no run of attnscope")
