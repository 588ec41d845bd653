"""The lines of Python in these pages run as tests, each page in an empty folder."""

import pytest

collect_ignore = ["conf.py", "generate.py"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
