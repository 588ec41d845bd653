"""README.md's lines of Python run, the Japanese README has the same lines, and what both name is there."""

import ast
import doctest
import pkgutil
import re
from pathlib import Path

import pytest

import attnscope

ROOT = Path(__file__).parents[1]
ENGLISH, JAPANESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ja.md"))


def blocks(text, language):
    """The blocks of code of a language, and the number of the line before each."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in found]


def examples(text):
    """What Python is asked in a README and what it answers, block after block, with the lines of the file."""
    for above, block in blocks(text, "python"):
        for example in doctest.DocTestParser().get_examples(block):
            example.lineno += above
            yield example


def run(text):
    """Run the Python of a README as one session; what failed and what was tried."""
    session = doctest.DocTest(list(examples(text)), {}, "README.md", str(ROOT / "README.md"), 0, text)
    return doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(session)


def bare(line):
    """A line without the comment behind it, which is in the language of its README."""
    return re.sub(r"(^|\s+)# .*", "", line).rstrip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_lines_of_python_give_what_is_printed_below_them(folder):
    failed, tried = run(ENGLISH)
    assert tried > 30
    assert not failed


@pytest.mark.parametrize(
    "wrong", [">>> 2 + 2\n5\n", ">>> import attnscope\n>>> attnscope.scam\n", ">>> 'no answer below'\n"]
)
def test_a_wrong_line_fails(wrong, folder):
    assert run(f"Text.\n\n```python\n{wrong}```\n").failed == 1


def test_every_line_of_python_runs():
    for _, block in blocks(ENGLISH, "python"):
        assert block.startswith(">>> ")


@pytest.mark.parametrize("language", ["python", "bash"])
def test_both_have_the_same_lines(language):
    english, japanese = (
        [[bare(line) for line in block.splitlines()] for _, block in blocks(text, language)]
        for text in (ENGLISH, JAPANESE)
    )
    assert len(english) > 5
    assert japanese == english


def outline(text):
    """Headings, list items, rows, blocks and images in order; of rows the numbers that are no words elsewhere."""
    for line in text.splitlines():
        if mark := re.match(r"#+ |\* |```\w*|!\[|\|", line):
            yield mark[0], sorted(re.findall(r"\d{2,}", line)) if mark[0] == "|" else []


def test_both_have_the_same_outline_and_the_same_large_numbers_in_their_tables():
    assert len(list(outline(ENGLISH))) > 150
    assert list(outline(JAPANESE)) == list(outline(ENGLISH))


def test_what_the_documents_name_can_be_imported():
    pages = [ENGLISH, JAPANESE, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))]
    outside = [re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE) for page in pages]
    named = {name for page in outside for name in re.findall(r"`(attnscope\.\w[\w.]*\w)", page)}
    assert len(named) > 25
    for name in named - {"attnscope.analyses"}:  # the name of an entry point
        pkgutil.resolve_name(name)


def test_every_command_that_is_a_function_is_called():
    """But for those that train, or need a model that the package does not bring."""
    called = {
        node.attr
        for example in examples(ENGLISH)
        for node in ast.walk(ast.parse(example.source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "attnscope"
    }
    functions = {name for name in attnscope.__all__ if callable(getattr(attnscope, name)) and name[0].islower()}
    elsewhere = {"align", "compare", "contrasts", "generate", "received", "score", "train", "translate"}
    assert functions - called <= elsewhere
