"""One scan by Ray's actors, which are killed, as is the command: the arrays of one process."""

import json
import os
import signal

import psutil
import pytest

import attnscope
from attnscope import open_run
from attnscope.bundled import TEXT
from attnscope.store.runs import is_finished
from tests.command_processes import Started, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
GIVEN = {"window": 32, "batch_size": 1, "limit": 150, "device": "cpu"}


def scan(**more):
    return attnscope.scan("bundled", TEXT, **GIVEN, **more)


def actors(process=None):
    below = (process or psutil.Process()).children(recursive=True)
    return [one for one in below if "_Holder" in " ".join(one.cmdline())]


def test_actors_that_are_killed_change_no_number(tmp_path):
    killed = []

    def kill(progress):
        windows = progress.details.get("texts", 0)
        if len(killed) < 3 and windows > 30 * (len(killed) + 1):
            killed.append(actors()[0].pid)
            os.kill(killed[-1], signal.SIGKILL)

    whole = scan(out=tmp_path / "whole", show=[], pool=5)
    found = scan(out=tmp_path / "run", show=[], pool=5, ray="local", workers=2, progress=kill)
    assert len({*killed}) == 3
    assert found.identical(whole)
    short, again = (open_run(tmp_path / one, part="windows") for one in ("whole", "run"))
    assert short.identical(again)


def test_a_command_that_was_killed_resumes(tmp_path):
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
