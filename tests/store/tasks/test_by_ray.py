"""`explain`, `align`, `intervene` and `patch` by workers that are lost: the results of one process, bit for bit."""

import importlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from attnscope import AttnscopeError
from attnscope.catalogue import function_of
from attnscope.report.signature import Signature
from attnscope.store import units as _units
from attnscope.store.runs import is_finished
from attnscope.store.units import parts_of
from attnscope.store.workers import RayEngine
from attnscope_lineage import alignment as _work
from tests.packages.lineage.translation.small_translators import small_tokenizer
from tests.store.tasks.verbs_in_units import LINES, OPTIONS, same
from tests.store.workers.simulated_workers import Simulated

#: Verbs that always have a run folder, to which each worker's units are written as they come.
IN_UNITS = [verb for verb in OPTIONS if verb != "examples"]


@pytest.fixture
def here(monkeypatch):
    """In place of Ray, workers in this process that die, and what they measured."""
    measured, engines = [], []
    own = _units.WorkerUnits.measure

    def noted(units, number, held):
        unit = own(units, number, held)
        measured.extend((number, first) for first, _ in (unit[0] if unit else ()))
        return unit

    class Engine(Simulated):
        def __init__(self, cluster, begin):
            super().__init__(begin, seed=cluster.workers, deaths=2, size=cluster.workers)
            engines.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(_units, "RayEngine", Engine)
    monkeypatch.setattr(_units.WorkerUnits, "measure", noted)
    return measured, engines


@pytest.mark.parametrize("verb", OPTIONS)
def test_workers_that_are_lost_change_nothing(verb, call, whole, here, tmp_path):
    expected, out = whole(verb), tmp_path / "run"
    measured, engines = here
    measured.clear()
    told = []
    found = call(verb, out, ray="local", workers=3, progress=told.append)
    assert same(found, expected)
    assert engines[0].died == 2
    assert len({*measured}) >= 3  # units, of which none was passed over
    assert not parts_of(out).exists()
    shares = [one.share for one in told]
    assert shares == sorted(shares)
    again = call(verb, out, ray="local")  # finished: nobody is started
    assert len(engines) == 1
    assert same(again, expected)


@pytest.mark.parametrize("verb", ["align", "intervene"])
def test_a_command_that_was_stopped_resumes(verb, call, whole, here, tmp_path):
    def stop(progress):
        if progress.details.get("texts", 0) >= 4:
            raise KeyboardInterrupt

    expected, out = whole(verb), tmp_path / "run"
    measured, _ = here
    with pytest.raises(KeyboardInterrupt):
        call(verb, out, ray="local", workers=2, progress=stop)
    assert not is_finished(out)
    kept = {int(piece.name.split("-")[0]) for piece in parts_of(out).glob("*/pieces/*")}
    assert kept
    measured.clear()
    assert same(call(verb, out, ray="local", workers=2), expected)
    assert measured
    assert not kept & {first for _, first in measured}


def test_workers_that_read_other_texts_are_rejected():
    agreed = _units.agreed_on(Signature("align", text={"source_sha256": "a"}))
    agreed(Signature("align", text={"source_sha256": "a"}))
    with pytest.raises(AttnscopeError, match=r"workers do not agree: with one of them text\.source_sha256 is"):
        agreed(Signature("align", text={"source_sha256": "b"}))


@pytest.mark.parametrize("verb", IN_UNITS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ray": "nonsense"}, "ray .--ray. is 'nonsense'; expected local"),
        ({"workers": 2}, "workers .--workers. and ray_gpus .--ray-gpus. are of Ray"),
        ({"ray": "local", "task": "1/2"}, r"task \(--task\) does not go with ray"),
        ({"ray": "local", "out": None}, r"is kept in a run folder: name it with out \(--out\)"),
        ({"ray": "local", "device": "cuda:1"}, "Ray says which GPU a worker has: give cuda"),
        ({"ray": "local", "tokenizer": small_tokenizer()}, "the tokenizer is an object in this process"),
        ({"ray": "local", "texts": Path("-")}, "- is read once, and each worker"),
    ],
)
def test_what_does_not_go_with_ray_is_rejected(verb, given, said, tmp_path):
    given = {"model": "bundled", "texts": LINES, "out": tmp_path / "run"} | OPTIONS[verb] | given
    if verb == "patch":
        texts = given.pop("texts")
        pair = {"clean": LINES[0], "corrupted": LINES[1], "answer": "a", "wrong": "b"}
        given["pairs"] = texts if isinstance(texts, Path) else [pair]
    with pytest.raises(AttnscopeError, match=said):
        function_of(verb)(**given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", OPTIONS)
def test_without_ray_it_is_reported_how_to_get_it(verb, call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AttnscopeError, match=r"needs the package ray.*pip install 'attnscope\[ray\]'"):
        call(verb, tmp_path / "run", ray="local")


@pytest.fixture
def small_units_by_two(monkeypatch, tmp_path):
    """Workers of Ray have small units too, and measure nothing before two of them are ready."""
    ready = tmp_path / "ready"
    ready.mkdir()

    def engine(cluster, begin):
        def begin_small():  # made here, its code goes to the workers as it is
            for name in ("attnscope.explanation.evidence.UNIT", "attnscope_lineage.alignment.UNIT"):
                module, constant = name.rsplit(".", 1)
                setattr(importlib.import_module(module), constant, 1)
            importlib.import_module("attnscope.explanation.inputs").TOKENS_AT_ONCE = 24
            begun = begin()
            (ready / str(os.getpid())).touch()
            end = time.monotonic() + 100
            while len([*ready.iterdir()]) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            return begun

        return RayEngine(cluster, begin_small)

    monkeypatch.setattr(_work, "UNIT", 1)
    monkeypatch.setattr(_units, "RayEngine", engine)


@pytest.mark.slow
def test_actors_that_are_killed_change_nothing(call, small_units_by_two, tmp_path):
    pytest.importorskip("ray")
    killed = []

    def kill(progress):
        if progress.details.get("workers") and not killed:
            actors = [one for one in psutil.Process().children(recursive=True) if "_Holder" in _line(one)]
            killed.append(actors[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    folders = tmp_path / "whole", tmp_path / "run"
    whole = call("patch", folders[0])
    found = call("patch", folders[1], ray="local", workers=2, progress=kill)
    assert killed
    assert same(found, whole)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["explain", "align", "intervene"])
def test_a_machine_that_is_taken_away_changes_nothing(verb, call, small_units_by_two, tmp_path):
    """Two nodes of Ray on this machine, each with a worker; one goes, and its work is done by the other."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second, workers = cluster.add_node(num_cpus=1), []

    def remove(progress):
        ready = progress.details.get("workers")
        if ready == 2 and 2 not in workers:
            cluster.remove_node(second)
        workers.extend([ready] if ready else [])

    folders = tmp_path / "whole", tmp_path / "run"
    run = partial(call, verb, **{} if verb == "align" else {"limit": 12})
    whole = run(folders[0])
    try:
        found = run(folders[1], ray=cluster.address, progress=remove)
    finally:
        cluster.shutdown()
    assert 2 in workers
    assert workers[-1] == 1
    assert same(found, whole)


def _line(process):
    return " ".join(process.cmdline())
