"""Each row of "Check textbook claims about attention" shows what it states, in English and in Japanese."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from attnscope_lineage.head_walk import walk_toy
from tests.cli.command import attnscope

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from from_the_texts import PAGES, rows, session  # noqa: E402

sys.path.pop(0)
ENGLISH, JAPANESE = rows("en"), rows("ja")
COMMANDS = sorted({row.code for row in ENGLISH if row.language == "bash" and not row.comment})


def test_every_statement_is_a_row_and_both_languages_have_the_same_ones():
    for language, found in (("en", ENGLISH), ("ja", JAPANESE)):
        page = PAGES[language].read_text(encoding="utf-8")
        assert len(found) == len(re.findall(r"^(?:### \d|\| \d+ \| (?!`tests/))", page, re.MULTILINE)) > 45
        assert [row.number for row in found] == [*range(1, len(found) + 1)]
    assert [row[2:] for row in ENGLISH] == [row[2:] for row in JAPANESE]


def test_the_tests_that_rows_name_exist():
    for row in ENGLISH:
        path, _, name = row.test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), row.title


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("code", COMMANDS)
def test_a_command_shows_what_its_rows_name(code, language, tmp_path):
    output = ""
    for line in code.splitlines():
        words = shlex.split(line)[1:]
        page = ["--no-report"] if words[0] in ("scan", "relations") else []
        done = attnscope(*words, *page, "--lang", language, cwd=tmp_path)
        assert not done.returncode, done.stderr
        output += done.stdout
    for row in {"en": ENGLISH, "ja": JAPANESE}[language]:
        assert row.code != code or (row.see and not row.missing(output)), row.title


def test_the_lines_of_python_give_what_they_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    assert not [row.title for row in ENGLISH if row.language == "python" and session(row, names)]


def test_a_row_that_shows_something_else_fails():
    row = next(row for row in ENGLISH if "0.815" in row.code or any("0.815" in text for text in row.see))
    assert row.missing("0.816 0.045 0.058 0.082")
    assert not row.missing("│ 0.815 │\n0.045 0.058 0.082".replace("│", ""))


def test_the_numbers_of_the_toy_follow_from_its_arrays():
    toy = walk_toy()
    query, key, value = (torch.from_numpy(toy[name]) for name in "QKV")
    scores = query @ key.T / 8**0.5
    output, exchanged = scores.softmax(-1)[2] @ value, scores.softmax(-1)[2] @ value.flip(0)
    change = (exchanged - output).norm() / output.norm()
    wrong = scores.softmax(-2)[2].sum()
    assert {f"{number:.3f}" for number in (change, wrong)} <= {text for row in ENGLISH for text in row.see}


def test_the_gradient_of_softmax_is_what_the_widths_show():
    torch.manual_seed(0)
    for width, bare, divided in ((4, 0.33, 0.34), (64, 0.15, 0.35), (512, 0.06, 0.35)):
        for scale, expected in ((1, bare), (width**0.5, divided)):
            scores = (torch.randn(400, 1, width) @ torch.randn(400, width, 10)).squeeze(1) / scale
            jacobians = [torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row) for row in scores]
            assert abs(torch.stack(jacobians).norm(dim=(1, 2)).mean() - expected) < 0.04
