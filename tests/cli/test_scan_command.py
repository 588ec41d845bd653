"""The command as a user types it: real processes, real signals, a real full disk."""

import csv
import io
import json
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnscope import open_run
from attnscope.measure.stored import SUMMARY
from attnscope.store.runs import RunFolder
from tests.cli.command import attnscope
from tests.command_processes import Started, wait_until
from tests.undrawn_figures import sketched


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The bundled default, with its report."""
    place = tmp_path_factory.mktemp("scan")
    return place, attnscope("scan", "--limit", "6", cwd=place)


@pytest.fixture(autouse=True)
def others_are_sketched(finished):
    """The figures of the default alone are drawn."""
    with sketched():
        yield


def test_the_default_does_everything(finished):
    place, found = finished
    assert found.returncode == 0, found.stderr
    assert "have 30% or more of their weight at one offset" in found.stdout
    assert re.search(r"0\.3 +previous +-1 +0\.9\d", found.stdout)
    assert "no fixed pattern" in found.stdout
    assert "Next (why): attnscope explain" in found.stdout
    assert "mixing coefficient" in found.stdout
    assert "3 layers x 4 heads over 6 windows" in found.stdout
    assert not found.stderr
    (run,) = (place / "attnscope-runs").iterdir()
    assert run.name.startswith("small-mlm-")
    assert {"run.json", "pieces", "summary.npz", "report.html", "figures"} <= {path.name for path in run.iterdir()}
    assert {path.suffix for path in (run / "figures").iterdir()} == {".svg"}


def test_documents_show_what_the_first_scan_prints(tmp_path):
    pages = {"en": ("README.md", "docs/start/first-scan.md"), "ja": ("README.ja.md", "docs/start/first-scan.ja.md")}
    for language, page in [(language, page) for language, those in pages.items() for page in those]:
        found = attnscope("--lang", language, "scan", "--no-report", "--out", "run", cwd=tmp_path)
        printed = "".join(found.stdout.split())  # Japanese wraps within words
        text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
        (block,) = [one for one in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "134" in one]
        lines = ["".join(line.split()) for line in block.splitlines()]
        assert len(lines) > 10
        assert not [line for line in lines if line.strip("─.") and line not in printed]


def test_asked_again_it_answers_from_what_it_has(finished):
    place, _ = finished
    (run,) = (place / "attnscope-runs").iterdir()
    before = stamps(run)
    found = attnscope("scan", "--limit", "6", "--json", "--no-report", cwd=place)
    answer = json.loads(found.stdout)
    assert answer["tables"]["ranked"][0]["positional"] > 0.5
    assert len(answer["tables"]["heads"]) == 12
    assert answer["signature"]["settings"]["limit"] == 6
    assert not found.stderr  # which is for the reader of a table
    found = attnscope("scan", "--limit", "6", "--no-report", cwd=place)
    assert f"already finished in attnscope-runs/{run.name}: delete it or give another --out" in found.stderr
    assert stamps(run) == before
    attnscope("scan", "--limit", "6", cwd=place)
    assert stamps(run) == before  # neither page nor figures are drawn again


def test_csv_has_a_line_for_each_head(finished):
    place, _ = finished
    found = attnscope("scan", "--limit", "6", "--csv", "--no-report", cwd=place)
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    assert len(rows) == 12
    assert 0 <= float(rows[0]["entropy"]) <= np.log(128)
    assert rows[0]["label"]
    assert all(-10 <= int(row["peak_offset"]) <= 10 for row in rows)
    assert all(0 < float(row["peak_weight"]) < 1 - float(row["outside"]) + 1e-6 for row in rows)
    (run,) = (place / "attnscope-runs").iterdir()
    assert {row["signature"] for row in rows} == {run.name.rpartition("-")[2]}


def test_text_comes_from_standard_input_and_json_lines(tmp_path):
    found = attnscope("scan", "bundled", "-", "--json", "--no-report", cwd=tmp_path, stdin="潮は一日に二度満ちる。")
    assert open_run(tmp_path / json.loads(found.stdout)["run"]).sizes["window"] == 1
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n{"body": "Two."}\n')
    found = attnscope("scan", "bundled", "a.jsonl", "--field", "body", "--json", "--no-report", cwd=tmp_path)
    assert open_run(tmp_path / json.loads(found.stdout)["run"]).sizes["window"] == 2


def test_groups_come_in_the_table_as_json_and_csv_and_on_the_page(tmp_path):
    (tmp_path / "rules.jsonl").write_text('{"group": "the", "tokens": ["the"]}\n')
    asked = ("scan", "--limit", "2", "--groups", "rules.jsonl", "--figures", "none")
    found = attnscope(*asked, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "groups of tokens: for each pair, the head furthest above both controls" in found.stdout
    (run,) = (tmp_path / "attnscope-runs").iterdir()
    assert 'id="groups"' in (run / "report.html").read_text()
    again = attnscope(*asked, "--json", cwd=tmp_path)
    answer = json.loads(again.stdout)
    assert answer["signature"]["settings"]["groups"].startswith("rules:")
    groups = answer["tables"]["group_weights"]
    assert groups[0]["groups"] == ["the", "other"]
    weight = np.array([row["weight"] for row in groups])
    np.testing.assert_allclose(weight.sum(-1), 1, rtol=1e-3)  # both groups are in all windows
    (row, *_) = csv.DictReader(io.StringIO(attnscope(*asked, "--csv", cwd=tmp_path).stdout))
    assert float(row["group_weight the > other"]) == pytest.approx(weight[0, 0, 1], rel=1e-4)
    assert {"equal_group_weight the > other", "position_group_weight the > other"} <= row.keys()
    (tmp_path / "rules.jsonl").write_text('{"group": "the", "tokens": ["a"]}\n')
    attnscope(*asked, "--no-report", cwd=tmp_path)
    assert len(list((tmp_path / "attnscope-runs").iterdir())) == 2  # other rules, other numbers


def test_what_is_requested_is_in_the_table_in_json_and_on_the_page(tmp_path):
    words = ("scan", "--limit", "3", "--statistics", "block_recall,offset_sum", "--out", "run")
    found = attnscope(*words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "No page" not in found.stderr
    assert "Weight in the best 5, 10, 25% of the blocks" in (tmp_path / "run" / "report.html").read_text(
        encoding="utf-8"
    )
    assert (tmp_path / "run" / "figures" / "block-recall.svg").exists()
    run = open_run(tmp_path / "run")
    recall = run.block_recall.sel(kept=10).mean("window").values
    (line,) = (line for line in found.stdout.splitlines() if "block_recall_10" in line)
    numbers = line.split()[1:]
    equal = run.equal_block_recall.sel(kept=10).mean().item()
    ends = recall.min(), recall.mean(), recall.max(), equal
    assert [numbers[place] for place in (0, 2, 3, 5)] == [f"{number:.3g}" for number in ends]
    assert recall[tuple(map(int, numbers[4].split(".")))] == recall.max()
    assert "not in a table: offset_sum. See the page" in " ".join(found.stdout.split())
    told = json.loads(attnscope(*words, "--json", cwd=tmp_path).stdout)["tables"]["heads"]
    np.testing.assert_allclose([row["block_recall_10"] for row in told], recall.ravel())
    assert {"block_recall_5", "block_recall_10", "block_recall_25"} <= told[0].keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rows", "128"), "rows (--rows) is 128, but windows have only 128 tokens"),
        (("--observation", "9"), "--observation needs a statistic recent_..."),
        (("--show", "0.99"), "there is no head 0.99 (show, --show): layers go from 0 to 2, heads from 0 to 3"),
        (("--show", "2.1", "--no-report"), "--show names heads of the page, and --no-report makes none"),
    ],
)
def test_what_cannot_be_is_rejected_before_texts_are_read(words, says, refused, tmp_path):
    refused("scan", "--limit", "3", *words, says=says)
    assert not (tmp_path / "attnscope-runs").exists()


def test_chats_are_known_by_their_first_line(tmp_path):
    chat = [{"role": "user", "content": "Is the tide out?"}, {"role": "assistant", "content": "Not yet."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat}))
    (tmp_path / "a.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    asked = ("scan", "bundled", "a.jsonl", "--chat-template", "a.jinja", "--no-report", "--json")
    found = attnscope(*asked, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    weights = answer["tables"]["group_weights"]
    assert weights[0]["groups"] == ["system", "user", "assistant", "tool", "template"]
    assert weights[0]["weight"][0] == [None] * 5  # no token is of the system
    (row, *_) = csv.DictReader(io.StringIO(attnscope(*asked[:-1], "--csv", cwd=tmp_path).stdout))
    assert "group_weight user > assistant" in row
    assert "group_weight user > system" not in row
    piped = attnscope("scan", "bundled", "-", *asked[3:], "--chat", cwd=tmp_path, stdin=json.dumps({"messages": chat}))
    assert json.loads(piped.stdout)["tables"]["group_weights"] == weights


def test_statistics_are_listed(tmp_path, finished):
    found = attnscope("scan", "--statistics", "list", cwd=tmp_path)
    assert "Entropy of a row [nats]" in found.stdout
    listed = {name.strip(",") for line in found.stdout.splitlines() for name in line[:26].split()}
    place, _ = finished
    (run,) = (place / "attnscope-runs").iterdir()
    with opened(run) as known:
        measured = {*known.results().data_vars, *known.load(SUMMARY).data_vars}
    assert measured - {"length"} <= listed


def test_bad_input(refused, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "Is the tide out?"}]}')
    (tmp_path / "a.txt").write_text("The tide is out.")
    (tmp_path / "empty.txt").write_text("\n \n")
    refused("scan", "bundled", "", says="found an empty text")  # which is no name of this folder
    refused("scan", "bundled", "a.txt", "--chat", says="a.txt: chats must be JSON Lines")
    refused("scan", "bundled", "a.txt", "--groups", "a.txt", says="a.txt, line 1: not JSON")
    refused("scan", "a.txt", says="To scan it with the bundled model: attnscope scan bundled a.txt")
    refused("scan", "absent.txt", says="absent.txt does not exist. The first argument is the model")
    refused("scan", "-", says="To scan it with the bundled model: attnscope scan bundled -")
    refused("scan", "bundled", "empty.txt", says="found only white space")
    refused("scan", "bundled", "-", says="found only white space", stdin="")
    assert not (tmp_path / "attnscope-runs").exists()
    refused("scan", "--out", "/proc/attnscope", says="cannot use /proc/attnscope")
    refused("scan", "--json", "--csv", says="choose one")


def started(cwd, out, *more):
    """A scan that takes a while, window after window, and writes as it goes."""
    words = ("scan", "--out", out, "--batch-size", "1", "--limit", "80", "--stride", "30", "--no-report", *more)
    return Started(*words, cwd=cwd, ATTNSCOPE_FLUSH_SECONDS="0.1")


def ends_well(process):
    _, said = process.communicate()
    assert process.returncode == 0, said


def texts_done(run):
    return RunFolder(run, {"command": "scan"}).look().texts


def wait_for_texts(process, run, count):
    wait_until(lambda: texts_done(run) >= count, process)


def arrays(run):
    """What is safe in a run folder, whatever it was left like."""
    with opened(run) as known:
        return known.results()


def opened(run):
    return RunFolder(run, json.loads((run / "run.json").read_text()))


def stamps(run):
    return {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    place = tmp_path_factory.mktemp("unbroken")
    process = started(place, "run")
    ends_well(process)
    return arrays(place / "run")


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_the_same(tmp_path, unbroken):
    process = started(tmp_path, "run")
    wait_for_texts(process, tmp_path / "run", 20)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 0 < texts_done(tmp_path / "run") < unbroken.sizes["window"]
    process = started(tmp_path, "run")
    ends_well(process)
    xr.testing.assert_identical(arrays(tmp_path / "run"), unbroken)


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_it_has(tmp_path):
    process = started(tmp_path, "run", "--limit", "2000", "--stride", "5")  # long enough on a busy machine
    wait_for_texts(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.endswith("attnscope: stopped\n")
    assert "Traceback" not in said
    assert texts_done(tmp_path / "run") >= 5
    assert arrays(tmp_path / "run").sizes["window"] == texts_done(tmp_path / "run")


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path, unbroken):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        process = started(tmp_path, "disk/run")
        _, said = process.communicate(timeout=300)
        assert process.returncode == 2, said
        assert "no space left on device" in said
        assert len(said.strip().splitlines()) <= 2
        done = texts_done(disk / "run")
        assert 0 < done < unbroken.sizes["window"]
        xr.testing.assert_identical(arrays(disk / "run"), unbroken.isel(window=slice(0, done)))
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        process = started(tmp_path, "disk/run")
        ends_well(process)
        xr.testing.assert_identical(arrays(disk / "run"), unbroken)
    finally:
        subprocess.run(["umount", str(disk)], check=False)
