"""One scan by Ray's actors, which are killed, on machines, which are taken away: the arrays of one process."""

import json
import os
import signal

import psutil
import pytest

import attnscope
from attnscope import open_run
from attnscope.bundled import TEXT
from attnscope.store.runs import is_finished
from tests.process import Started, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
GIVEN = {"window": 32, "batch_size": 1, "limit": 150, "device": "cpu"}


def scan(**more):
    return attnscope.scan("bundled", TEXT, **GIVEN, **more)


def actors(process=None):
    below = (process or psutil.Process()).children(recursive=True)
    return [one for one in below if "_Holder" in " ".join(one.cmdline())]


@pytest.mark.parametrize("more", [{}, {"pool": 5}], ids=["windows", "pools"])
def test_actors_that_are_killed_change_no_number(more, tmp_path):
    killed = []

    def kill(progress):
        windows = progress.details.get("texts", 0)
        if len(killed) < 3 and windows > 30 * (len(killed) + 1):
            killed.append(actors()[0].pid)
            os.kill(killed[-1], signal.SIGKILL)

    whole = scan(out=tmp_path / "whole", show=[], **more)
    found = scan(out=tmp_path / "run", show=[], ray="local", workers=2, progress=kill, **more)
    assert len({*killed}) == 3
    assert found.identical(whole)
    if more:
        short, again = (open_run(tmp_path / one, part="windows") for one in ("whole", "run"))
        assert short.identical(again)


def test_a_machine_that_is_taken_away_changes_no_number(tmp_path):
    """Two nodes of Ray on this machine, each with a worker; one goes, and its work is done by the other."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second, seen = cluster.add_node(num_cpus=1), []
    try:

        def remove(progress):
            workers = progress.details.get("workers", 0)
            if workers == 2 and 2 not in seen:
                cluster.remove_node(second)
            seen.append(workers)

        assert scan(ray=cluster.address, pool=2, progress=remove).identical(scan(pool=2))
        assert 2 in seen
        assert seen[seen.index(2) :].count(1)
    finally:
        cluster.shutdown()


def test_a_command_that_was_killed_goes_on(tmp_path):
    out = tmp_path / "run"
    sizes = [part for name, value in GIVEN.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = ["scan", "bundled", str(TEXT), *sizes, "--pool", "2", "--no-report", "--out", str(out)]
    command += ["--ray", "local", "--workers", "2"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        process = Started(*command, cwd=tmp_path, ATTNSCOPE_FLUSH_SECONDS="0")
        pieces = len([*out.glob("pieces/*")])
        wait_until(lambda: len([*out.glob("pieces/*")]) > pieces, process)  # noqa: B023 it waits here
        measuring = actors(psutil.Process(process._process.pid))
        assert measuring
        process.send_signal(number)
        said = process.communicate()[1]
        assert process.returncode == code
        assert "SIGTERM" not in said  # Ray's own handler aborts
        assert not is_finished(out)
        assert not psutil.wait_procs(measuring, timeout=30)[1]
    process = Started(*command, "--json", cwd=tmp_path)
    wait_until(lambda: len(actors(psutil.Process(process._process.pid))) == 2, process)
    actors(psutil.Process(process._process.pid))[0].kill()
    assert json.loads(process.communicate()[0])["tables"]["heads"]  # pools; nothing of Ray's before it
    assert process.returncode == 0
    assert open_run(out).drop_attrs().identical(scan(pool=2).drop_attrs())
