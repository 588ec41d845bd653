"""One scan by several processes: the same arrays, whatever is killed."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.bundled import TEXT
from attnscope.measure import texts as _texts
from attnscope.measure.texts import TextReader
from attnscope.results.merge import merge
from attnscope.store import run as _run
from attnscope.store import units as _parts
from attnscope.store.arrays import unpacked
from attnscope.store.runs import RunFolder, is_finished
from attnscope.store.units import Parts, Task, parts_of, task_of
from tests.command_processes import Started

SIZES = {"window": 32, "batch_size": 2, "limit": 15}


def scan(out, task=None, **more):
    return attnscope.scan("bundled", TEXT, **SIZES, out=out, task=task, device="cpu", **{"show": False} | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return scan(folder, show=[])


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    return scan(tmp_path_factory.mktemp("pooled") / "run", pool=4)


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(_texts, "UNIT", 2)


def raising(error):
    def stop(*_):
        raise error

    return stop


def sample(folder):
    return unpacked((folder / "sample.npz").read_bytes())


def windows_of(out):
    return open_run(out, part="windows")


def test_as_many_as_there_are_give_the_same_arrays(whole, tmp_path):
    out = tmp_path / "run"
    for number in (3, 2):
        found = scan(out, f"{number}/3", show=[])
        assert not found.data_vars
        assert f"Task {number} of 3 is done" in found.attrs["task"]
        assert not out.exists()
    last = scan(out, "1/3", show=[])
    assert last.identical(whole)
    assert open_run(out).identical(whole)
    assert sample(out).identical(sample(Path(whole.encoding["source"])))
    assert not parts_of(out).exists()
    assert scan(out, "1/3", show=[]).identical(whole)  # given again, it is there already


def test_one_that_was_stopped_resumes(whole, tmp_path, monkeypatch):
    def stop(progress):
        if progress.details["windows"] > 8:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        scan(out, "1/2", progress=stop)
    part = RunFolder(Task(1, 2).folder(out), json.loads(whole.attrs["signature"])).look()
    held = [text for piece in part.pieces for text in piece]
    assert held
    scan(out, "2/2")
    assert not out.exists()
    measured = []
    measure = TextReader.measure_batch

    def noted(self, batch, numbers):
        measured.extend(numbers)
        return measure(self, batch, numbers)

    monkeypatch.setattr(TextReader, "measure_batch", noted)
    assert scan(out, "1/2").identical(whole)
    assert measured
    assert not set(measured) & set(held)


def test_a_unit_that_was_stopped_in_its_middle_is_completed_by_another_count(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(_run, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(_run, "FLUSH_SHARE", 0.0)

    def stop(progress):
        if progress.details["windows"] > 8:  # units are of 4 windows
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        scan(out, "1/2", progress=stop)
    for number in (1, 2):
        scan(out, f"{number}/3")
    assert scan(out, "3/3").identical(whole)


@pytest.mark.parametrize(("room", "more"), [(1, {"pool": 4}), (1 << 30, {})])
def test_units_are_put_together_to_pieces_as_large_as_may_be(room, more, whole, pooled, tmp_path, monkeypatch):
    monkeypatch.setattr(_parts, "PIECE_BYTES", room)
    for task in ("1/2", "2/2"):
        results = scan(tmp_path / "run", task, **more)
    assert results.identical(pooled if more else whole)
    if more:
        assert windows_of(tmp_path / "run").identical(windows_of(pooled.encoding["source"]))
    pieces = list((tmp_path / "run" / "pieces").iterdir())
    assert (len(pieces) == 1) == (room > 1)


@pytest.mark.parametrize(
    ("more", "end"), [({}, merge), ({"pool": 4}, lambda out: scan(out, "2/2", pool=4))], ids=["merge", "again"]
)
def test_merge_or_a_task_again_ends_what_others_measured(more, end, whole, pooled, tmp_path, monkeypatch):
    out = tmp_path / "run"
    scan(out, "1/2", **more)
    with monkeypatch.context() as patched:
        patched.setattr(Parts, "gather", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scan(out, "2/2", **more)
    assert not is_finished(out)
    end(out)
    assert open_run(out).identical(pooled if more else whole)
    if more:
        assert "Windows are in pools of 4" in pooled.attrs["pool"]
        assert windows_of(out).identical(windows_of(pooled.encoding["source"]))


def test_who_is_late_by_a_moment_leaves_it_to_the_other(whole, tmp_path):
    out = tmp_path / "run"
    scan(out, "1/2")
    with RunFolder(out, json.loads(whole.attrs["signature"])) as run:
        run.lock()
        assert "Task 2 of 2 is done" in scan(out, "2/2").attrs["task"]
    assert scan(out, "2/2").identical(whole)


def test_kills_at_any_moment_lose_nothing(whole, tmp_path):
    """Both workers are killed again and again, and started anew."""
    out, chance = tmp_path / "run", random.Random(0)
    sizes = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = ["scan", "bundled", str(TEXT), *sizes, "--device", "cpu", "--no-report", "--out", str(out)]
    kills = 0
    while not is_finished(out):
        tasks = ("1/2", "2/2")
        workers = [Started(*command, "--task", task, cwd=tmp_path, ATTNSCOPE_FLUSH_SECONDS="0") for task in tasks]
        if kills < 3:
            time.sleep(chance.uniform(0.02, 0.3))
            kills += sum(worker.poll() is None for worker in workers)
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
        for worker in workers:
            worker.communicate()
    assert kills
    assert open_run(out).drop_attrs().identical(whole.drop_attrs())


@pytest.mark.parametrize(
    ("environment", "task"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4"}, Task(2, 4)),
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}, Task(3, 4)),
        ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, Task(1, 4)),
    ],
)
def test_the_environment_names_the_task(environment, task, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert task_of("env") == task


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "0/2"}, "task .--task. is '0/2'; expected I/N"),
        ({"task": "3/2"}, "expected I/N"),
        ({"task": "half"}, "expected I/N"),
        ({"task": "env"}, "the environment names no task"),
        ({"task": "1/2", "out": None}, "a task .--task. is a part of a run folder"),
    ],
)
def test_what_is_no_task_is_rejected(given, message, tmp_path):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan("bundled", TEXT, **{"out": tmp_path / "run", **given})
    assert not list(tmp_path.iterdir())


def test_parts_of_another_run_are_rejected(tmp_path):
    out = tmp_path / "run"
    scan(out, "1/2")
    with pytest.raises(AttnscopeError, match=r"part of another run: its settings\.band"):
        scan(out, "2/2", band=2)
