"""The command as a user types it: its table, its formats, its page, and what it says to bad input."""

import csv
import io
import json
import re

import pytest

from tests.cli.command import attnscope

FEW = ("--limit", "16", "--window", "48", "--steps", "1", "--out", "run")


def test_the_table_says_where_why_and_whether_and_other_formats_are_of_the_finished_run(tmp_path):
    place = tmp_path
    done = attnscope("intervene", *FEW, cwd=place)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "12 heads ablated over 16 windows" in said
    first = next(line for line in said.splitlines() if line.count("*") == 4)
    assert "next" in first or "previous" in first
    assert re.search("^zero, .*: change of the loss without it, nats$", said, re.MULTILINE)
    assert {"report.html", "heads.npz", "why.npz", "trust.npz"} <= {path.name for path in (place / "run").iterdir()}
    page = (place / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 12
    for figure in ("effect-intervals", "effect-maps", "weight-against-effect", "estimates"):
        assert f'id="{figure}"' in page
        assert (place / "run" / "figures" / f"{figure}.svg").exists()
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


def test_what_was_not_tested_is_not_called_not_shown(tmp_path):
    """Too few windows for any test: the table, the CSV, and the JSON."""
    few = ("intervene", "--limit", "4", "--window", "48", "--steps", "0", "--together", "0.1,0.3")
    few = (*few, "--forbid-first", "--ablations", "zero,mean", "--out", "run")
    said, table, values = (attnscope(*few, *words, cwd=tmp_path).stdout for words in ((), ("--csv",), ("--json",)))
    rows, values = list(csv.DictReader(io.StringIO(table))), json.loads(values)
    told = ("matters", "zero_shown", "mean_shown", "shuffled_shown", "forbidden_shown")
    assert {row[name] for row in rows for name in told} == {""}
    assert {row[name] for row in values["tables"]["heads"] for name in told} == {None}
    assert [(row["shown"], row["between_shown"]) for row in values["tables"]["together"]] == [(None, None)] * 2
    assert values["finding"]["certainty"] == "not tested"
    assert "significant" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ablations", "half"), "expected one or more of 'zero', 'mean', 'resample'"),
        (("--no-report", "--figures", "png"), "--figures is of the report"),
        (("--no-renormalise",), "applies only to a rule"),
        (("--forbid-offset", "9999", "--window", "32", "--limit", "2"), "forbid nothing"),
    ],
)
def test_bad_input_is_reported_in_a_line(tmp_path, words, says, refused):
    refused("intervene", *words, says=says)
    assert not list(tmp_path.iterdir())
