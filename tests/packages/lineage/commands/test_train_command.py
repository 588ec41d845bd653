"""`attnscope train` says what a folder holds and how far it goes on."""

import re

import pytest

from attnscope_lineage.config import TrainConfig, settings_for
from tests.cli.command import attnscope

SMALL = (
    *("--task-pairs", "100", "--vocabulary", "320", "--encoder-width", "4", "--decoder-width", "8", "--warmup", "0"),
    *("--schedule", "constant", "--average", "1", "--log-every", "1", "--device", "cpu", "--out", "model"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("train")
    found = attnscope("train", *SMALL, "--updates", "2", cwd=place)
    assert found.returncode == 0, found.stderr
    return place


def test_one_that_resumes_says_to_where(finished):
    again = attnscope("train", *SMALL, "--updates", "2", cwd=finished)
    assert "model has a finished training of 2 updates\n" in again.stderr
    further = attnscope("train", *SMALL, "--updates", "4", cwd=finished)
    assert further.returncode == 0, further.stderr
    assert "model has a finished training of 2 updates, and continues to 4\n" in further.stderr


def test_without_data_it_says_what_it_trains(tmp_path):
    words = ("--model", "transformer", "--width", "8", "--heads", "2", "--layers", "1", "--updates", "1")
    small = [word for word in SMALL if word not in {"--encoder-width", "4", "--decoder-width", "8"}]
    found = attnscope("train", *small, *words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "no data: a generated task, and a small transformer model (width=8, heads=2" in found.stderr
    assert "positions=rope" in found.stderr


def test_its_help_shows_the_defaults_that_it_has(monkeypatch, tmp_path):
    """With data and without, for every setting."""
    monkeypatch.setenv("COLUMNS", "400")
    said = attnscope("train", "--help", cwd=tmp_path).stdout
    for name, field in TrainConfig.model_fields.items():
        flag = rf"\n +--{name.replace('_', '-')}\b.*?(?=\n +--|\Z)"
        line = " ".join(re.search(flag, said, re.DOTALL)[0].split())
        alone = settings_for(None)
        if name in alone.settings() and getattr(alone, name) != field.default:
            assert f"without data and config {getattr(alone, name)}" in line
        elif field.default is not None:
            assert f"{field.default}" in line
