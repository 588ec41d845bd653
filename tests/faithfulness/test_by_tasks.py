"""`intervene` and `patch` by several processes: the trees of one, bit for bit."""

import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.bundled import PAIRS
from attnscope.intervention import intervene as _intervene_job
from attnscope.intervention.pairs import pairs_of_input
from attnscope.results.merge import merge
from attnscope.store.runs import is_finished
from attnscope.store.units import parts_of

SIZES = {"limit": 7, "window": 16, "batch_size": 2, "steps": 1, "why": False, "device": "cpu"}


def intervene(out, task=None, **more):
    return attnscope.intervene("bundled", out=out, task=task, **SIZES | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return intervene(tmp_path_factory.mktemp("whole") / "run")


def same(found, whole):
    """But for the folder's name."""
    found, whole = found.copy(), whole.copy()
    for tree in (found, whole):
        del tree.attrs["run"]
    return found.identical(whole)


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_as_there_are_give_the_same_tree(count, whole, tmp_path):
    out = tmp_path / "run"
    for number in range(count, 1, -1):
        found = intervene(out, f"{number}/{count}")
        assert f"Task {number} of {count} is done" in found.attrs["task"]
        assert not is_finished(out)
    assert same(intervene(out, f"1/{count}"), whole)
    assert same(open_run(out), whole)
    assert not parts_of(out).exists()


def test_what_was_measured_before_a_stop_is_not_measured_again(whole, tmp_path, monkeypatch):
    def stop(progress):
        if progress.details.get("windows", 0) >= 2:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        intervene(out, "1/2", progress=stop)
    measured = []
    own = _intervene_job.effects

    def noted(*given, **more):
        for part in own(*given, **more):
            measured.extend([] if part is None else [int(part.window[0])])
            yield part

    monkeypatch.setattr(_intervene_job, "effects", noted)
    intervene(out, "1/2")
    assert same(intervene(out, "2/2"), whole)
    assert sorted(measured) == [2, 4]  # batches begin at 0, 2, 4; the last has three texts


def test_merged_by_hand_it_is_ended_by_the_command(whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    intervene(out, "1/2")
    with monkeypatch.context() as patched:
        patched.setattr(_intervene_job, "heads_of", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            intervene(out, "2/2")
    merged = merge(out)
    assert (merged.texts, merged.complete) == (7, False)
    monkeypatch.setattr("attnscope.intervention.ablation._of_batch", lambda *_: 1 / 0)
    assert same(intervene(out), whole)


def test_pairs_that_are_patched_by_tasks(tmp_path):
    given = {"pairs": pairs_of_input(PAIRS)[:4], "batch_size": 2, "steps": 1, "device": "cpu"}
    whole = attnscope.patch("bundled", out=tmp_path / "whole", **given)
    assert "task" in attnscope.patch("bundled", out=tmp_path / "run", task="1/2", **given).attrs
    assert same(attnscope.patch("bundled", out=tmp_path / "run", task="2/2", **given), whole)


@pytest.mark.parametrize("verb", [attnscope.intervene, attnscope.patch])
def test_a_task_is_of_a_folder(verb):
    with pytest.raises(AttnscopeError, match="is a part of a run folder: name it with out"):
        verb("bundled", task="1/2")
