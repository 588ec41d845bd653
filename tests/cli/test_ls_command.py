"""`attnscope runs list` lists runs so that they can be read at any width, and loads nothing for it."""

import json

import pytest
from rich.cells import cell_len

from attnscope.store.files import MANIFEST
from tests.cli.command import attnscope
from tests.results.planted import scan_run

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
def test_every_run_is_there_at_every_width(width, place, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    found = attnscope("runs", "list", cwd=place)
    assert (found.returncode, found.stderr) == (0, "")
    assert max(map(cell_len, found.stdout.splitlines())) <= width
    together = found.stdout.replace("\n", "")
    for said in ("one", "二つ目", LONG, "[red]odd", "小さな", "unfinished", "all 5 windows", "01234567", "is damaged"):
        assert said in together, said


def test_json_holds_the_same(place):
    found = json.loads(attnscope("runs", "list", "attnscope-runs", "--json", cwd=place).stdout)
    one = next(run for run in found if run["run"] == "attnscope-runs/one")
    assert one["written"].startswith("20")
    assert len(one["signature"]) == 8
    assert {key: one[key] for key in ("command", "windows", "complete", "damage", "tasks")} == {
        "command": "scan",
        "windows": 5,
        "complete": True,
        "damage": None,
        "tasks": None,
    }
    (damaged,) = (run for run in json.loads(attnscope("runs", "list", "--json", cwd=place).stdout) if run["damage"])
    assert (damaged["run"], damaged["command"]) == ("damaged", None)


def test_where_there_are_none_it_says_so(tmp_path):
    assert attnscope("runs", "list", cwd=tmp_path).stdout == "no runs in attnscope-runs and the current folder\n"
    assert json.loads(attnscope("runs", "list", "--json", cwd=tmp_path).stdout) == []


def test_a_folder_that_is_not_there_is_refused(refused):
    refused("runs", "list", "nowhere", says="there is no folder nowhere")
