"""`explain` given again: the same answer as if everything were loaded, and nothing is loaded."""

import shutil
import subprocess
import sys

import pytest

from attnscope.bundled import MODEL
from attnscope.cli.again import Question
from attnscope.errors import AttnscopeError
from attnscope.mechanism import _explain
from tests.cli.command import attnscope
from tests.cli.test_again import HEAVY

EXPLAIN = ("explain", "model", "texts", "--limit", "3", "--window", "32", "--out", "run", "--no-report")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A model, texts and a finished explanation."""
    place = tmp_path_factory.mktemp("again")
    shutil.copytree(MODEL, place / "model")
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text("The tide comes in twice a day. The boats lie on the mud. " * 9)
    made = attnscope(*EXPLAIN, cwd=place)
    assert made.returncode == 0, made.stderr
    return place


@pytest.fixture
def is_loaded(here, monkeypatch):
    """Whether a command loads the model; it ends there."""

    def refuse(*_, **__):
        raise AttnscopeError("here a model would be loaded")

    def ask(*words):
        with monkeypatch.context() as patch:
            patch.setattr(_explain, "load_model", refuse)
            return "here a model would be loaded" in attnscope(*EXPLAIN, *words, cwd=here).stderr

    return ask


@pytest.mark.parametrize("more", [(), ("--json",), ("--csv",), ("--layer", "2", "--head", "1")])
def test_what_was_explained_is_not_loaded_again(here, is_loaded, monkeypatch, more):
    said = attnscope(*EXPLAIN, *more, cwd=here)
    assert said.returncode == 0
    assert not is_loaded(*more)
    monkeypatch.setattr(Question, "found", lambda *_: None)
    ordinary = attnscope(*EXPLAIN, *more, cwd=here)
    assert (said.stdout, said.stderr) == (ordinary.stdout, ordinary.stderr)


@pytest.mark.parametrize(
    "more",
    [
        ("--limit", "2"),
        ("--window", "31"),
        ("--band", "4"),
        ("--frequencies", "4:9"),
        ("--completion", "haar"),
        ("--seed", "1"),
        ("--interventions",),
        ("--paper",),
        ("--relearn", "3"),
        ("--also", "model"),
        ("--target", "texts"),
        ("--repair",),
        ("--dtype", "float64"),
        ("--layer", "9"),
        ("--head", "9"),
    ],
)
def test_another_question_is_asked_of_the_model(is_loaded, more):
    assert is_loaded(*more)


def test_what_others_added_to_the_run_is_no_answer(here, is_loaded):
    shutil.copytree(here / "run", here / "kept")
    assert attnscope(*EXPLAIN, "--also", "model", cwd=here).returncode == 0
    assert is_loaded()
    shutil.rmtree(here / "run")
    (here / "kept").rename(here / "run")
    assert not is_loaded()


def test_texts_that_changed_are_read(here, is_loaded):
    text = here / "texts" / "a.txt"
    before = text.read_text()
    text.write_text(before.replace("mud", "sea", 1))
    assert is_loaded()
    text.write_text(before)
    assert not is_loaded()


def test_pytorch_is_not_even_imported(here):
    report = f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    program = f"import atexit, sys; atexit.register(lambda: {report}); from attnscope.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", program, *EXPLAIN], cwd=here, capture_output=True, text=True, check=True
    )
    assert said.stderr.splitlines()[-1] == "[]"
