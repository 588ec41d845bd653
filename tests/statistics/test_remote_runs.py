"""Scans whose corpus and run folder lie in a store that fails: the same arrays as here."""

import json
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.remote import Objects, Url, _calls, _lease
from attnscope.results import export
from attnscope.statistics import _measurement
from attnscope.store import is_finished, staged
from attnscope.tasks import Parts
from tests.cli.command import attnscope as command
from tests.process import Started
from tests.translation.alignment.test_align_by_tasks import SOURCES, TARGETS
from tests.translation.small_translators import small_model, small_tokenizer

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")
RUN, CORPUS = "s3://bucket/run", "s3://bucket/corpus"
SIZES = {"window": 32, "batch_size": 4, "limit": 24}
FLAGS = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]
SCAN = ["scan", "bundled", CORPUS, *FLAGS, "--device", "cpu"]


def words(number):
    return " ".join(f"The tide of day {number * place % 97} is out." for place in range(120)).encode()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    for number in range(3):
        (place / f"{number}.txt").write_bytes(words(number + 1))
    return place


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    return attnscope.scan(
        "bundled", corpus, **SIZES, device="cpu", out=tmp_path_factory.mktemp("whole") / "run"
    )


@pytest.fixture
def proxy(corpus):
    from tests.objects import s3

    with s3() as found:
        for file in corpus.iterdir():
            Objects(Url(CORPUS)).write(file.name, file.read_bytes())
        found.seen.clear()
        yield found


def environment(proxy):
    names = {"ENDPOINT_URL": proxy.endpoint, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    named = {f"AWS_{name}": value for name, value in (names | {"DEFAULT_REGION": "us-east-1"}).items()}
    return named | {"ATTNSCOPE_FLUSH_SECONDS": "0", "ATTNSCOPE_LEASE_SECONDS": "4"}


def scan(**more):
    return attnscope.scan("bundled", CORPUS, **SIZES, device="cpu", out=RUN, **more)


@pytest.mark.parametrize("faults", [["500"], ["cut"], ["slow", None, None]])
def test_faults_change_nothing(faults, proxy, whole, monkeypatch):
    chance = random.Random(0)
    monkeypatch.setattr(_calls, "WAITS", (0.05, 0.1, 0.2, 0.4))
    monkeypatch.setattr("attnscope.statistics._keep.FLUSH_SECONDS", 0)
    proxy.fault = lambda *_: chance.choice(faults) if chance.random() < 0.3 else None
    found = scan()
    proxy.fault = lambda *_: None
    assert proxy.faults > 3
    assert found.identical(whole)
    assert found.encoding["source"] == RUN
    assert open_run(RUN).identical(whole)
    assert scan().identical(whole)  # it is there already
    left = [name for name in Objects(Url(RUN)).names() if name.startswith(".attnscope")]
    assert left == []


def test_an_upload_that_never_ends_is_told_and_what_was_sent_stays(proxy, whole, monkeypatch):
    monkeypatch.setattr(_calls, "WAITS", (0,))
    monkeypatch.setattr("attnscope.statistics._keep.FLUSH_SECONDS", 0)
    pieces = []

    def fault(method, path, _):
        if method == "PUT" and "/pieces/" in path:
            pieces.append(path)
            return "cut" if len(pieces) > 2 else None
        return None

    proxy.fault = fault
    with pytest.raises(
        AttnscopeError, match=r"s3://bucket/run/pieces/.* cannot be written .* check the network"
    ):
        scan()
    proxy.fault = lambda *_: None
    kept = [name for name in Objects(Url(RUN)).names() if name.startswith("pieces/")]
    assert len(kept) == 2
    proxy.seen.clear()
    assert scan().identical(whole)
    assert not [path for method, path in proxy.seen if method == "PUT" and any(name in path for name in kept)]


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [(None,), ("1/2", "2/2")])
def test_kills_at_any_moment_lose_nothing(tasks, proxy, whole, tmp_path):
    chance, kills = random.Random(len(tasks)), 0
    while True:
        with staged(RUN) as path:
            if is_finished(path):
                break
        workers = [
            Started(
                *SCAN,
                "--no-report",
                "--out",
                RUN,
                *(["--task", task] if task else []),
                cwd=tmp_path,
                **environment(proxy),
            )
            for task in tasks
        ]
        if kills < 4:
            time.sleep(chance.uniform(2, 6))
            kills += sum(worker.poll() is None for worker in workers)
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
        for worker in workers:
            worker.communicate()
    assert kills
    assert open_run(RUN).drop_attrs().identical(whole.drop_attrs())
    assert [*Objects(Url(f"{RUN}.tasks")).names()] == []


def test_tasks_meet_in_the_store(proxy, whole, monkeypatch):
    monkeypatch.setattr(_measurement, "UNIT", 3)
    for task in ("3/3", "1/3"):
        found = scan(task=task)
        assert not found.data_vars
        assert found.encoding["source"] == RUN
    assert Objects(Url(f"{RUN}.tasks")).names()
    assert scan(task="2/3").identical(whole)
    assert Objects(Url(f"{RUN}.tasks")).names() == []
    assert open_run(RUN).identical(whole)


def test_merge_ends_what_the_last_task_could_not(proxy, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(_measurement, "UNIT", 3)
    scan(task="1/2")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Parts, "gather", stop)
        with pytest.raises(KeyboardInterrupt):
            scan(task="2/2")
    merged = command("merge", RUN, cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr
    assert open_run(RUN).identical(whole)
    shown = command("show", RUN, "--verify", "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (told["run"], told["complete"], told["damaged"]) == (RUN, True, [])
    for place in (RUN, "s3://bucket"):
        assert [run.place for run in attnscope.runs(place)] == [RUN]
    made = export(RUN, "nc", out=tmp_path / "run.nc")
    assert xr.load_dataset(made).entropy.identical(open_run(RUN).entropy)


def test_what_was_aligned_is_as_here(proxy, tmp_path):
    model, out = small_model("bart"), "s3://bucket/runs/aligned"
    given = {"tokenizer": small_tokenizer(), "batch_size": 2}
    here = attnscope.align(model, SOURCES, TARGETS, **given, out=tmp_path / "here")
    for task in ("1/2", "2/2"):
        there = attnscope.align(model, SOURCES, TARGETS, **given, out=out, task=task)
    assert there.links == open_run(out).links == here.links
    for name in ("links.txt", "run.json"):
        assert Objects(Url(out)).read(name) == (tmp_path / "here" / name).read_bytes()
    assert json.loads(command("show", out, "--json", cwd=tmp_path).stdout)["command"] == "align"
    for place in ("s3://bucket/runs", "s3://bucket/runs/aligned"):
        (listed,) = json.loads(command("ls", place, "--json", cwd=tmp_path).stdout)
    assert (listed["run"], listed["command"], listed["complete"]) == (out, "align", True)


def test_another_that_writes_is_left_in_peace(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(_lease, "LEASE", 4)
    lease = _lease.Lease(Objects(Url(RUN)))
    lease.take()
    refused = command(*SCAN, "--out", RUN, cwd=tmp_path)
    lease.give_back()
    assert refused.returncode == 2
    assert f"another command is writing to {RUN}" in refused.stderr


def test_the_command_names_the_url_and_leaves_nothing_here(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    first = command(*SCAN, "--out", RUN, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert f"results: {RUN}\nreport:  {RUN}/report.html" in first.stdout
    assert {"report.html", "figures/profiles.svg"} & {*Objects(Url(RUN)).names()}
    again = command(*SCAN, "--out", RUN, "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["run"] == RUN
    stored = b"".join(
        Objects(Url(RUN)).read(name) or b"" for name in ("manifest.json", "run.json", "report.html")
    )
    for private in (b"secret", str(tmp_path).encode(), proxy.endpoint.encode()):
        assert private not in stored
    assert not [*(tmp_path / "temporary").glob("attnscope-*")]
    assert not (tmp_path / "attnscope-runs").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([CORPUS, "--out", "s3://nobody/run"], "s3://nobody/run"),
        (["s3://nobody/corpus"], "s3://nobody/corpus: nothing is there"),
        ([f"{CORPUS}/none.txt"], "nothing is there"),
        ([CORPUS, "--out", "sftp://host/run"], "no place for a run folder"),
        (["gopher://host/corpus"], "nothing here reads"),
        ([f"http://me:pa55word@127.0.0.1:9/a.txt?key={40 * 'pa55word'}"], "9/a.txt?...: cannot be read"),
    ],
)
def test_what_is_not_there_is_one_line(given, says, proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(_calls, "WAITS", (0.1,))
    refused = command("scan", "bundled", *given, *FLAGS, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert says in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert not refused.stdout
    assert "pa55word" not in refused.stderr
    assert not [*Path(tmp_path).iterdir()]
