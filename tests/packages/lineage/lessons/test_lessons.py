"""Lessons: their prose in both languages, their exercises, their notebooks, and the command."""

import json
import re
from functools import cache
from itertools import chain

import numpy as np
import pytest

from attnscope import AttnscopeError
from attnscope_lineage import lesson
from attnscope_lineage.lessons import HERE, LESSONS, exercises_of
from attnscope_lineage.lessons.write import code_of, notebook
from tests.cli.command import attnscope

LANGUAGES = ("en", "ja")
EXERCISES = [(name, exercise) for name in LESSONS for exercise in exercises_of(name)]


@cache
def prose(name, language):
    return (HERE / name / f"{language}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LESSONS)
def test_the_prose_of_both_languages_has_the_same_parts(name):
    parts = r'<section id="[\w-]+"|data-(?:exercise|draw|for|choice)="[\w-]+"'
    assert re.findall(parts, prose(name, "en")) == re.findall(parts, prose(name, "ja"))
    assert len(exercises_of(name)) >= 1
    sections = re.findall(r'<section id="([\w-]+)"', prose(name, "en"))
    assert {*code_of(name)} <= {*sections}


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_each_mistake_has_a_sentence_and_an_answer_of_its_own(name, exercise):
    record = exercises_of(name)[exercise]
    section = re.search(rf'data-exercise="{exercise}">(.*?)</section>', prose(name, "en"), re.DOTALL)[1]
    assert {*re.findall(r'data-for="([\w-]+)"', section)} == {"right", "wrong", *record.mistakes}
    answers = [record.answer, *record.mistakes.values()]
    if isinstance(record.answer, str):
        assert {*answers} == {*re.findall(r'data-choice="([\w-]+)"', section)}
        return
    numbers = np.array([np.ravel(answer) for answer in answers])
    gaps = np.abs(numbers[:, None] - numbers[None]).max(-1)
    assert gaps[np.triu_indices(len(answers), 1)].min() > 2 * 10**-record.decimals  # no answer is two at once


@pytest.mark.parametrize("name", LESSONS)
def test_the_cells_of_a_lesson_run_in_order(name, tmp_path, capsys):
    cells = json.loads(notebook(name, tmp_path / "lesson.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [*code_of(name).values()]
    assert not [cell for cell in cells if "data-draw" in "".join(cell["source"])]
    assert len({cell["id"] for cell in cells}) == len(cells)
    namespace = {}
    for source in code:
        exec(source, namespace)  # noqa: S102
    assert capsys.readouterr().out


def test_all_lessons_are_written_into_a_folder(tmp_path):
    written = lesson("all", page=tmp_path / "pages", notebook=tmp_path / "notebooks")
    names = [[f"lesson-{name}.html", f"lesson-{name}.ipynb"] for name in LESSONS]
    assert [path.name for path in written] == [*chain(*names)]
    assert all(path.is_file() for path in written)
    with pytest.raises(AttnscopeError, match=r"found no lesson 'score'; expected all, or one of scores"):
        lesson("score")
    with pytest.raises(AttnscopeError, match=r"name a lesson: all, or one of scores"):
        lesson()


def test_the_command_lists_the_lessons_whole_in_both_languages(tmp_path):
    printed = attnscope("lesson", cwd=tmp_path)
    assert printed.returncode == 0
    assert [line.split()[0] for line in printed.stdout.split("\n") if line[:1].strip()][:-1] == [*LESSONS]
    japanese = attnscope("lesson", "--lang", "ja", cwd=tmp_path).stdout
    assert "…" not in japanese
    assert "レッスン" not in printed.stdout
