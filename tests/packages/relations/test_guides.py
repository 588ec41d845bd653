"""Commands of the documents about relations print what stands below them."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.command import attnscope

ROOT = Path(__file__).parents[3]
PAGES = ("docs/guides/treebanks.md", "docs/guides/treebanks.ja.md", "docs/questions/relations.md")
SHOWN = re.compile(r"^(attnscope relations [^\n]*)\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CASES = [(page, *shown) for page in PAGES for shown in SHOWN.findall((ROOT / page).read_text(encoding="utf-8"))]


def is_real(command):
    return "MiniLM" in command


def test_every_page_shows_a_command():
    assert {page for page, *_ in CASES} == {*PAGES}
    assert {is_real(command) for _, command, _ in CASES} == {False, True}


def missing(command, block, folder, monkeypatch):
    """Lines of a block that the command does not print."""
    monkeypatch.setenv("COLUMNS", "100")
    for file in (ROOT / "tests/data/relations").iterdir():
        shutil.copy(file, folder)
    done = attnscope(*shlex.split(command)[1:], "--no-report", cwd=folder)
    assert not done.returncode, done.stderr
    printed = " ".join(done.stdout.split())  # a sentence may be on several lines
    return [line for line in block.splitlines() if " ".join(line.split()) not in printed]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "block"), [case for case in CASES if not is_real(case[1])])
def test_the_bundled_model_prints_what_a_page_shows(page, command, block, tmp_path, monkeypatch):
    assert not missing(command, block, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("page", "command", "block"), [case for case in CASES if is_real(case[1])])
def test_a_trained_model_prints_what_a_page_shows(page, command, block, tmp_path, monkeypatch):
    folder = os.environ.get("ATTNSCOPE_REAL_MODELS")
    if folder is None:
        pytest.skip("set ATTNSCOPE_REAL_MODELS to the folder that scripts/real_models.py made")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(Path(folder) / "all-MiniLM-L6-v2")
    assert not missing(command, block, tmp_path, monkeypatch)
