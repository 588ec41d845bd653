"""The command as a user types it: its table, its formats, its page, and what it says to bad input."""

import csv
import io
import json
import signal

import pytest
import xarray as xr

from attnscope import open_run
from attnscope.store.runs import RunFolder
from tests.cli.command import attnscope
from tests.process import Started, wait_until

FEW = ("--limit", "8", "--window", "48", "--steps", "1", "--out", "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The bundled default on few windows, with its page."""
    place = tmp_path_factory.mktemp("intervene")
    found = attnscope("intervene", *FEW, cwd=place)
    assert found.returncode == 0, found.stderr
    return place, found.stdout


def test_the_table_says_where_why_and_whether(finished):
    place, said = finished
    assert "12 heads taken out over 8 windows" in said
    first = next(line for line in said.splitlines() if line.count("*") == 4)
    assert "next" in first or "previous" in first
    assert {"report.html", "heads.npz", "why.npz", "trust.npz"} <= {path.name for path in (place / "run").iterdir()}


def test_the_page_holds_every_head_and_figure(finished):
    place, _ = finished
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 12
    for figure in ("effect-intervals", "effect-maps", "weight-against-effect", "estimates"):
        assert f'id="{figure}"' in page
        assert (place / "run" / "figures" / f"{figure}.svg").exists()


def test_formats_are_of_the_finished_run(finished):
    place, _ = finished
    printed = attnscope("intervene", *FEW, "--json", cwd=place)
    found = json.loads(printed.stdout)
    assert set(found) == {"signature", "finding", "notes", "tables", "run"}
    assert [0, 1] in found["finding"]["heads"]
    heads = found["tables"]["heads"]
    assert len(heads) == 12
    assert heads[0]["zero_mean"] > 0.1
    rows = list(csv.DictReader(io.StringIO(attnscope("intervene", *FEW, "--csv", cwd=place).stdout)))
    assert list(rows[0]) == [*heads[0], "signature"]
    assert float(rows[0]["zero_mean"]) == pytest.approx(heads[0]["zero_mean"], rel=1e-5)


@pytest.fixture(scope="module")
def untested(tmp_path_factory):
    """Too few windows for any test: the table, the CSV, the JSON and the page."""
    place = tmp_path_factory.mktemp("untested")
    few = ("intervene", "--limit", "4", "--window", "48", "--steps", "0", "--together", "0.1,0.3")
    few = (*few, "--forbid-first", "--ablations", "zero,mean", "--out", "run")
    said, table, values = (attnscope(*few, *words, cwd=place) for words in ((), ("--csv",), ("--json",)))
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    return said.stdout, list(csv.DictReader(io.StringIO(table.stdout))), json.loads(values.stdout), page


def test_what_was_not_tested_is_not_called_not_shown(untested):
    said, rows, values, _ = untested
    told = ("matters", "zero_shown", "mean_shown", "shuffled_shown", "forbidden_shown")
    assert {row[name] for row in rows for name in told} == {""}
    assert {row[name] for row in values["tables"]["heads"] for name in told} == {None}
    assert [(row["shown"], row["between_shown"]) for row in values["tables"]["together"]] == [(None, None)] * 2
    assert values["finding"]["certainty"] == "not tested"
    assert "significant" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ablations", "half"), "expected one or more of zero, mean, resample"),
        (("--json", "--csv"), "choose one"),
        (("--steps", "-1"), "steps"),
        (("--seed", "-1"), "seed"),
        (("--figures", "gif"), "svg, pdf, png"),
        (("--no-report", "--figures", "png"), "--figures is of the report"),
        (("--no-renormalise",), "is of what is forbidden: give forbid_offsets"),
        (("--window", "4000"), "does not fit"),
        (("none.txt",), "none.txt"),
        (("--forbid-token", "harbours"), "expected one"),
        (("--forbid-offset", "9999", "--window", "32", "--limit", "2"), "nothing is forbidden"),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, words, says):
    given = ("bundled", *words) if words[0].endswith(".txt") else words
    found = attnscope("intervene", *given, cwd=tmp_path)
    assert found.returncode == 2
    assert says in found.stderr
    assert len(found.stderr.splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def started(cwd):
    words = ("--limit", "24", "--window", "32", "--batch-size", "2", "--ablations", "zero", "--steps", "0", "--no-why")
    return Started("intervene", *words, "--variants", "1", "--no-report", "--out", "run", cwd=cwd)


def ended(process):
    _, said = process.communicate()
    assert process.returncode == 0, said


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(tmp_path):
    (tmp_path / "whole").mkdir()
    ended(started(tmp_path / "whole"))

    def done():
        return RunFolder(tmp_path / "run", {"command": "intervene"}).look().texts

    for enough in (1, 10):
        process = started(tmp_path)
        wait_until(lambda enough=enough: done() >= enough, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert 10 <= done() < 24
    ended(started(tmp_path))
    whole, gone_on = (open_run(place / "run") for place in (tmp_path / "whole", tmp_path))
    for name, node in whole.children.items():
        xr.testing.assert_identical(gone_on[name].to_dataset(), node.to_dataset())
