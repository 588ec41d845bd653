"""`examples`, `explain`, `align`, `intervene` and `patch` by several processes: the results of one, bit for bit."""

import pytest

from attnscope import AttnscopeError, open_run
from attnscope.detection.examples import ExampleReader
from attnscope.intervention import intervene
from attnscope.results.merge import merge
from attnscope.store.runs import is_finished
from attnscope.store.units import Share, parts_of
from attnscope_lineage import alignment
from tests.store.tasks.verbs_in_units import OPTIONS, same

#: What each does once all of its units are measured.
ENDS = {
    "examples": (ExampleReader, "summarise"),
    "align": (alignment.Work, "summarise"),
    "intervene": (intervene.Effects, "summarise"),
}


@pytest.fixture
def measured(monkeypatch):
    """The first text of each batch that is measured."""
    begun, own = [], Share.__call__

    def called(share, texts):
        skipped = own(share, texts)
        begun.extend([] if skipped else [texts.start])
        return skipped

    monkeypatch.setattr(Share, "__call__", called)
    return begun


@pytest.mark.parametrize("verb", OPTIONS)
def test_tasks_give_what_one_process_gives_and_measure_each_batch_once(verb, call, whole, measured, tmp_path):
    expected = whole(verb)
    out = tmp_path / "run"
    measured.clear()
    for number in (3, 2):
        waits = call(verb, out, task=f"{number}/3")
        assert f"Task {number} of 3 is done" in waits.attrs["task"]
        assert not is_finished(out)
    assert same(call(verb, out, task="1/3"), expected)
    assert len(measured) == len({*measured}) >= 3
    assert not parts_of(out).exists()
    done = [*measured]
    assert same(call(verb, out, task="1/2"), expected)
    assert same(open_run(out), expected)
    assert measured == done


@pytest.mark.parametrize("verb", ["examples", "align"])
def test_a_task_that_was_stopped_resumes(verb, call, whole, measured, tmp_path):
    expected = whole(verb)
    out = tmp_path / "run"
    measured.clear()

    def stop(_):
        if len(measured) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(verb, out, task="1/2", progress=stop)
    assert len(measured) == 2
    call(verb, out, task="1/2")
    assert measured.count(measured[0]) == 1
    assert same(call(verb, out, task="2/2"), expected)


@pytest.mark.parametrize("verb", ENDS)
def test_parts_are_found_missing_merged_and_completed_without_task(verb, call, whole, measured, tmp_path, monkeypatch):
    expected = whole(verb)
    out = tmp_path / "run"
    call(verb, out, task="2/2")
    with pytest.raises(AttnscopeError, match=r"units are missing .*: .* --task 1/2 again"):
        merge(out)
    with monkeypatch.context() as patched:
        patched.setattr(*ENDS[verb], lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            call(verb, out, task="1/2")
    merged = merge(out)
    assert (merged.tasks, merged.complete) == (2, False)
    measured.clear()
    assert same(call(verb, out), expected)
    assert not measured
    assert not parts_of(out).exists()


@pytest.mark.parametrize("verb", OPTIONS)
def test_a_task_is_of_a_run_folder(verb, call, tmp_path):
    with pytest.raises(AttnscopeError, match="is a part of a run folder: name it with out"):
        call(verb, None, task="1/2")
    if verb == "explain":
        with pytest.raises(AttnscopeError, match="there is no layer 99 "):
            call(verb, tmp_path / "run", task="2/2", layer=99)
