"""Workers that are Ray's actors: on this machine alone, and gone when all is done."""

import os
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.report.registry import load_file
from attnscope.store.workers import Cluster, Crew, RayEngine

# --- what is no cluster is refused, before anything is started ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ray": "nonsense"}, "ray .--ray. is 'nonsense'; expected local, auto or HOST:PORT"),
        ({"ray": ""}, "expected local, auto or HOST:PORT"),
        ({"workers": 0}, "workers .--workers. is 0; expected a whole number of 1 or more"),
        ({"ray_gpus": -1.0}, "ray_gpus .--ray-gpus. is -1.0"),
        ({"ray_gpus": 1.5}, "expected a part of one GPU, or a whole number"),
    ],
)
def test_what_is_none_is_rejected(given, said):
    with pytest.raises(AttnscopeError, match=said):
        attnscope.scan(**{"ray": "local"} | given)


@pytest.mark.parametrize(
    ("machine", "wanted", "room"),
    [((8.0, 0.0), 0.0, 8), ((8.0, 2.0), 1.0, 2), ((8.0, 2.0), 0.1, 8), ((64.0, 2.0), 1 / 3, 6), ((8.0, 3.0), 2.0, 1)],
)
def test_workers_share_a_gpu_and_never_parts_of_two(machine, wanted, room):
    assert Cluster().room(*machine, wanted) == room


# --- workers that are Ray's actors: on this machine alone, and gone when all is done ---


def test_without_ray_it_is_reported_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AttnscopeError, match=r"needs the package ray.*pip install 'attnscope\[ray\]'"):
        RayEngine(Cluster(), begin).__enter__()


def begin():
    return os.getpid(), "ready"


def work(number, pid):
    assert pid == os.getpid()
    time.sleep(0.02)
    return None if number >= 60 else (number, pid)


def refuse(_):
    raise AttnscopeError("it is no good")


def processes_of_ray():
    """Those below this process, but for zombies."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if one.status() != psutil.STATUS_ZOMBIE and "ray" in " ".join(one.cmdline())]


@pytest.fixture
def temporary(monkeypatch):
    """Where temporary folders are made, of this test alone; with a short name, below which Ray's sockets fit."""
    with tempfile.TemporaryDirectory(prefix="ray") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place)


def test_killed_actors_are_replaced_and_nothing_is_left(temporary):
    pytest.importorskip("ray")
    pids, killed = set(), 0
    others = processes_of_ray()  # of tests before, or with an interpreter that lies below such a name
    with RayEngine(Cluster(workers=2), begin) as engine:
        crew = Crew(engine, engine.size)
        assert len(list(crew.hand_out(lambda number: partial(work, number), 1))) == 1
        listening = [
            one.laddr.ip
            for process in (psutil.Process(), *processes_of_ray())
            for one in process.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
        found = []
        for number, pid in crew.hand_out(lambda number: partial(work, number)):
            found.append(number)
            pids.add(pid)
            if len(found) % 12 == 0:
                os.kill(pid, signal.SIGKILL)
                killed += 1
        assert [one.name.startswith("attnray-") for one in temporary.iterdir()] == [True]
        assert sorted(found) == list(range(60))
        assert killed == 5
        assert len(pids) >= 5
        with pytest.raises(AttnscopeError, match="no good"):
            list(crew.hand_out(lambda _: refuse, 1))
    assert set(processes_of_ray()) <= set(others)
    assert not [*temporary.iterdir()]


def test_what_cannot_be_reached_or_sent_is_rejected(monkeypatch):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(AttnscopeError, match=rf"Ray cannot be reached or started \({address}\): .*refused"):
        RayEngine(Cluster(address), begin).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", address)  # as a cluster that was stopped leaves it
    with pytest.raises(AttnscopeError, match=r"\(auto\): .*refused"):
        RayEngine(Cluster("auto"), begin).__enter__()
    monkeypatch.delenv("RAY_ADDRESS")
    with socket.socket() as open_, pytest.raises(AttnscopeError, match="cannot be sent to workers"):
        RayEngine(Cluster(workers=1), partial(refuse, open_)).__enter__()


def test_a_function_of_a_file_goes_to_workers_that_cannot_import_it(temporary):
    pytest.importorskip("ray")
    file = temporary / "of_a_file.py"
    file.write_text("FACTOR = 3\n\n\ndef times(state, number):\n    return FACTOR * number if number < 4 else None\n")
    times = load_file("--metric", file).times
    try:
        with RayEngine(Cluster(workers=1), begin) as engine:
            crew = Crew(engine, engine.size)
            assert sorted(crew.hand_out(lambda number: partial(times, number=number))) == [0, 3, 6, 9]
    finally:
        sys.modules.pop("of_a_file")
