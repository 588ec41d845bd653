"""The Python of README.md runs, README.ja.md has the same code, and documents name commands that exist."""

import ast
import doctest
import itertools
import pkgutil
import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main

from attnscope.catalogue import verbs
from attnscope.cli import app

ROOT = Path(__file__).parents[1]
ENGLISH, JAPANESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ja.md"))
GENERATED = re.compile(r"docs/reference/(commands|python|statistics|role-def|card\.schema)")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md" and not GENERATED.search(path.as_posix())
}


def blocks(text, language):
    """Blocks of code of a language, each with the number of the line before it."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in found]


def examples(text):
    """Python examples of a page, with their line numbers in the file."""
    for above, block in blocks(text, "python"):
        for example in doctest.DocTestParser().get_examples(block):
            example.lineno += above
            yield example


def run(text):
    """Run the Python of a page as one session; the number of failures and of examples."""
    session = doctest.DocTest(list(examples(text)), {}, "README.md", str(ROOT / "README.md"), 0, text)
    return doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(session)


def bare(line):
    """A line without its comment, which is in the language of its README."""
    return re.sub(r"(^|\s+)# .*", "", line).rstrip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_python_of_the_readme_gives_what_it_shows(folder):
    failed, tried = run(ENGLISH)
    assert tried >= 7
    assert not failed


def test_every_block_of_python_is_a_session_that_runs():
    assert not [
        name for name, page in PAGES.items() for _, block in blocks(page, "python") if not block.startswith(">>> ")
    ]


@pytest.mark.parametrize("language", ["python", "bash"])
def test_both_readmes_have_the_same_code(language):
    english, japanese = (
        [[bare(line) for line in block.splitlines()] for _, block in blocks(text, language)]
        for text in (ENGLISH, JAPANESE)
    )
    assert english
    assert japanese == english


def outline(text):
    """Headings, list items, rows, blocks and images in order, and the links of each line."""
    for line in text.splitlines():
        if mark := re.match(r"#+ |\* |```\w*|!\[|\|", line):
            yield mark[0], re.findall(r"\]\((.*?)\)", line.replace(".ja.md", ".md")) if mark[0] != "* " else []


def test_both_readmes_have_the_same_outline_and_length():
    assert list(outline(JAPANESE.replace(".ja.png", ".png"))) == list(outline(ENGLISH))
    assert len(ENGLISH.splitlines()) <= 150


def test_every_picture_is_shown_and_a_command_draws_it():
    """CONTRIBUTING.md names the command of each picture, and a page shows it."""
    (line,) = re.findall(
        r"^\* Commands draw every picture.*?(?=^\*)", PAGES["CONTRIBUTING.md"], re.DOTALL | re.MULTILINE
    )
    names = re.findall(r"`([\w*./-]+\.(?:png|svg))`", line)
    images = ROOT / "docs" / "images"
    pictures = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
    assert pictures == {
        path.relative_to(images).as_posix() for name in names for path in images.glob(name.removeprefix("docs/images/"))
    }
    assert {*filter(lambda name: not any(f"images/{name}" in page for page in PAGES.values()), pictures)} == set()


def anchors(page):
    """Anchors of the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    bare_words = [re.sub(r"\[(.*?)\]\(.*?\)|`", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w -]", "", words).replace(" ", "-") for words in bare_words}


def test_pages_read_on_github():
    """Every relative link leads to a file of the repository and its heading; no page has a directive of Sphinx."""
    wrong = []
    for name, page in PAGES.items():
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page, flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            is_file = target.exists() and not GENERATED.search(target.resolve().as_posix())
            if not is_file or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                wrong.append((name, link))
        if re.search(r"^(```\{|:::)", page, re.MULTILINE):
            wrong.append((name, "a directive"))
    assert not wrong


def test_functions_that_documents_name_can_be_imported():
    outside = [re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE) for page in PAGES.values()]
    named = {name for page in outside for name in re.findall(r"`(attnscope\.\w[\w.]*\w)", page)}
    assert len(named) > 15
    for name in named - {"attnscope.analyses", "attnscope.records", "attnscope.verbs"}:  # names of entry points
        pkgutil.resolve_name(name)


def test_every_function_has_an_example():
    """Except those that train, or need a model that the package does not bring."""
    called = {
        node.attr
        for page in PAGES.values()
        for example in examples(page)
        for node in ast.walk(ast.parse(example.source))
        if isinstance(node, ast.Attribute)
        and getattr(node.value, "id", "")
        in {"attnscope", "attnscope_cards", "attnscope_circuits", "attnscope_lineage", "attnscope_relations"}
    }
    assert verbs().keys() - called <= {"align", "compare", "score", "train", "translate"}


def commands(page):
    """Command lines of attnscope in a page, as a shell splits them."""
    for _, block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").replace("$(which attnscope)", "attnscope").splitlines():
            split = shlex.shlex(line, posix=True, punctuation_chars=True)
            for operator, words in itertools.groupby(split, lambda word: set(word) <= set("|;&<>()")):
                if not operator and (found := list(words)).count("attnscope") == 1 and "pip" not in found:
                    yield found[found.index("attnscope") + 1 :]


def test_every_command_line_has_options_that_exist():
    """Lines are parsed, not run: most name models and texts that are not here."""
    group, wrong, tried = typer.main.get_command(app), [], 0
    for name, page in PAGES.items():
        for words in commands(page):
            command, rest = group, words
            while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                command, rest = command.commands.get(rest[0]), rest[1:]
            tried += 1
            try:
                command.make_parser(click.Context(command)).parse_args(list(rest))
            except (AttributeError, click.UsageError) as error:
                wrong.append((name, words, error))
    assert tried > 100
    assert not wrong


@pytest.mark.parametrize(
    "wrong", [">>> 2 + 2\n5\n", ">>> import attnscope\n>>> attnscope.scam\n", ">>> 'no answer below'\n"]
)
def test_a_wrong_line_fails(wrong, folder):
    assert run(f"Text.\n\n```python\n{wrong}```\n").failed == 1
