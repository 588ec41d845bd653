"""The lines of Python in these pages run as tests, each page in a folder of its own."""

import shutil
from pathlib import Path

import pytest

_DATA = "tests/data/relations"

# tests/test_texts.py runs the lines of two, tests/packages/relations/test_speech.py those of the last
collect_ignore = [
    "conf.py",
    "generate.py",
    "start/from-the-texts.md",
    "start/from-the-texts.ja.md",
    "start/whisper-words.md",
]


@pytest.fixture(autouse=True)
def folder(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if f"cp {_DATA}/" in request.path.read_text(encoding="utf-8"):
        shutil.copytree(Path(__file__).parents[1] / _DATA, tmp_path, dirs_exist_ok=True)
