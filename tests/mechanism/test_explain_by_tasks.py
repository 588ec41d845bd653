"""`explain` by several processes: the tree of one, bit for bit."""

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.explanation import evidence as _gather
from attnscope.explanation import explain as _explain
from attnscope.explanation import inputs as _tokens
from attnscope.explanation.catalogue import known_analyses
from attnscope.results.merge import merge
from attnscope.store.runs import is_finished
from attnscope.store.units import parts_of
from tests.translation.small_translators import small_model, small_tokenizer

TEXT = " ".join(np.random.default_rng(0).choice(list("abcdefgh"), 80))
SIZES = {"limit": 5, "window": 12, "band": 4}


@pytest.fixture(scope="module", autouse=True)
def small_units():
    """Two windows each, in two batches; the last has one. Of the analyses, some that take all that is summed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_tokens, "TOKENS_AT_ONCE", 12)
        patched.setattr(_gather, "UNIT", 2)
        patched.setattr(
            _explain, "ANALYSES", [known_analyses()[name] for name in ("forms", "verdict", "position_cca", "spectra")]
        )
        yield


def explain(out, task=None, kind="bart", **more):
    given = {"tokenizer": small_tokenizer(), "out": out, "task": task}
    return attnscope.explain(small_model(kind), [TEXT], **given, **SIZES | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return explain(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def units(monkeypatch):
    """The first text of every unit that is read."""
    begun, own = [], _gather.Gathering.read

    def read(self, texts, *more):
        if more:  # not the first batch alone
            begun.append(texts.start)
        return own(self, texts, *more)

    monkeypatch.setattr(_gather.Gathering, "read", read)
    return begun


def same(tree, whole):
    """But for the folder's name."""
    tree, whole = tree.copy(), whole.copy()
    for each in (tree, whole):
        del each.attrs["run"]
    return tree.identical(whole)


@pytest.mark.parametrize("kind", ["bart", "t5"])  # tables of positions, and a bias
def test_as_many_as_there_are_give_the_same_tree(kind, tmp_path, units):
    whole = explain(tmp_path / "whole", kind=kind)
    assert units == [0, 2, 4]
    out = tmp_path / "run"
    for number in (1, 2):  # the last to finish has not read the first text
        assert f"Task {number} of 3 is done" in explain(out, f"{number}/3", kind).attrs["task"]
        assert not is_finished(out)
    assert same(explain(out, "3/3", kind), whole)
    assert {"forms", "verdict", "spectra"} <= {*whole.children}
    assert same(open_run(out), whole)
    assert same(explain(out, "1/2", kind), whole)
    assert units == [0, 2, 4] * 2
    assert not parts_of(out).exists()
    with pytest.raises(AttnscopeError, match="holds another run"):
        explain(out, kind=kind, limit=4)


def test_a_task_that_was_stopped_goes_on(whole, tmp_path, units):
    def stop(progress):
        if progress.name == "reading the texts" and progress.share == pytest.approx(0.6):
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        explain(out, "1/2", progress=stop)
    assert units == [0, 4]
    explain(out, "1/2")
    assert same(explain(out, "2/2"), whole)
    assert units == [0, 4, 4, 2]


def test_parts_are_found_missing_and_taken_up_by_the_command_without_task(whole, tmp_path, units, monkeypatch):
    out = tmp_path / "run"
    explain(out, "2/2")
    with pytest.raises(AttnscopeError, match=r"2 of 3 units are missing \(1, 3\): .* --task 1/2 again"):
        merge(out)
    with monkeypatch.context() as patched:
        patched.setattr(_explain, "_made", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            explain(out, "1/2")
    merged = merge(out)
    assert (merged.texts, merged.tasks, merged.complete) == (5, 2, False)
    del units[:]
    assert same(explain(out), whole)
    assert units == []
    assert not parts_of(out).exists()


def test_what_does_not_exist_is_refused_by_every_task_at_once(tmp_path, units):
    with pytest.raises(AttnscopeError, match="there is no self-attention layer 99"):
        explain(tmp_path / "run", "2/2", layer=99)
    assert units == [2]
    with pytest.raises(AttnscopeError, match="is a part of a run folder: name it with out"):
        explain(None, "1/2")
