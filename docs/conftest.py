"""The lines of Python in these pages run as tests, each page in an empty folder."""

import pytest

# tests/test_texts.py runs the lines of the last two
collect_ignore = ["conf.py", "generate.py", "start/from-the-texts.md", "start/from-the-texts.ja.md"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
