"""`align` by several processes: the files of one, byte for byte."""

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.lineage import align as _kept
from attnscope.lineage import align as _work
from attnscope.lineage.align import LINKS, RECORD
from attnscope.lineage.links import Forcing, Gold
from attnscope.results.merge import merge
from attnscope.store.units import parts_of
from tests.translation.small_translators import small_model, small_tokenizer

PAIRS = 5  # with batches of two, three units


def sentences(seed):
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(list("abcdefgh"), draws.integers(1, 6))) for _ in range(PAIRS)]


SOURCES, TARGETS = sentences(0), sentences(1)
SURE = [frozenset({(0, 0)})] * PAIRS
ASKED = {
    "judged": {"gold": Gold(SURE, SURE), "shown": 3},
    "one head": {"layer": 1, "head": 0, "rule": "threshold"},
    "a layer": {"gold": Gold(SURE, SURE), "layer": 2, "end": "null"},
}


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(_work, "UNIT", 1)


@pytest.fixture(scope="module")
def model():
    return small_model("bart")


@pytest.fixture(scope="module")
def align(model):
    def aligned(out, task=None, **asked):
        given = {"tokenizer": small_tokenizer(), "batch_size": 2, "out": out, "task": task}
        return attnscope.align(model, SOURCES, TARGETS, **given, **asked)

    return aligned


def files(out):
    return [(out / name).read_bytes() for name in (LINKS, RECORD)]


@pytest.fixture
def lines(monkeypatch):
    """The first line of every unit that is aligned."""
    begun, own = [], Forcing.pairs

    def pairs(self, lines, *more):
        if self.count == PAIRS:  # not those that are only shown
            begun.append(lines.start)
        return own(self, lines, *more)

    monkeypatch.setattr(Forcing, "pairs", pairs)
    return begun


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_as_many_as_there_are_write_the_same_files(align, asked, tmp_path, lines):
    whole = align(tmp_path / "whole", **asked)
    assert len({*whole.links}) > 3
    bare = align(None, **asked)
    assert (whole.links, whole.signature) == (bare.links, bare.signature)
    for count in (1, 2, 3):
        out = tmp_path / f"{count}"
        for number in range(count, 1, -1):
            waits = align(out, f"{number}/{count}", **asked)
            assert f"Task {number} of {count} is done" in waits.task
            assert not waits.links
            assert not (out / LINKS).exists()
        assert align(out, f"1/{count}", **asked).links == whole.links
        assert files(out) == files(tmp_path / "whole")
        assert not parts_of(out).exists()
    assert lines[:3] == [0, 2, 4]
    del lines[:]
    assert align(out, "2/3", **asked).links == align(out, **asked).links == whole.links
    assert lines == []
    assert open_run(out).links == whole.links


def test_parts_are_found_missing_and_taken_up_by_the_command_without_task(align, tmp_path, lines, monkeypatch):
    out = tmp_path / "run"
    align(out, "1/2", shown=2)
    with pytest.raises(AttnscopeError, match=r"1 of 3 units is missing \(2\): .* --task 2/2 again"):
        merge(out)
    with monkeypatch.context() as patched:
        patched.setattr(_kept, "write_alignment", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            align(out, "2/2", shown=2)
    merged = merge(out)
    assert (merged.texts, merged.tasks, merged.complete) == (PAIRS, 2, False)
    del lines[:]
    taken = align(out, shown=2)
    assert lines == []
    assert not parts_of(out).exists()
    assert taken.links == align(None, shown=2).links
