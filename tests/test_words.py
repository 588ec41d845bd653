"""Sentences use the words of the field: habits of private language that a pattern can find do not come back."""

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

from tests.test_docstrings import nodes

ROOT = Path(__file__).parents[1]
#: Each habit, and a sentence that has it.
HABITS = {
    r"(^|[.:;!?]\s+)Of (a|an|the|all|each|every|its|no|this|these|two|\w+s)\b": "Of each head the weight is shown.",
    r"\btold (from|apart)\b|\b(is|are) (told|said|asked|refused)\b": "The effect is told from 0.",
    r"\bknows? nothing\b": "Weights that know nothing of the text.",
    r"\b(stands?|lies?) (beside|apart|side by side|at|in|on|within|outside|above|below|between)\b": "It lies at -1.",
    r"\bbeside\b": "The number beside it.",
    r"\b(look|looks|looked|looking) at (keys?|tokens?|offsets?|positions?|nothing)\b": "The head looks at keys.",
    r"\b(anew|foretells?|nowhere|somebody else|so many|equal weights)\b": "It is done anew.",
    r"\bgoes on\b": "The run goes on.",
    r"(^|[.!?]\s+)What (?!is|are|do|does|did|can|should|if)\w+ [^.?]*\.(\s|$)": "What a head reads is shown.",
}
#: Generated from docstrings and help, which are checked themselves.
GENERATED = re.compile(r"reference/(commands|python|statistics|role-def|families)")


def sentences_of_python(path):
    """Strings with spaces, docstrings among them, with their lines."""
    for node in nodes().get(path) or ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"(?ms)^\s*(>>>|\.\.\.) .*?$", "", node.value)


def sentences_of_document(path):
    """Paragraphs outside code, with their lines."""
    text = re.sub(r"(?ms)^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8"))
    start = 1
    for paragraph in re.split(r"\n(?=\s*\n|\s*[*|#-])", text):
        yield start, paragraph.strip(" \n*|#-")
        start += paragraph.count("\n") + 1


def found(sentence):
    """The habits in a sentence."""
    return [match[0].strip() for habit in HABITS if (match := re.search(habit, sentence))]


@pytest.mark.parametrize("habit", HABITS)
def test_a_sentence_with_a_habit_is_found(habit):
    assert re.search(habit, HABITS[habit])


def test_sentences_are_free_of_habits():
    python = chain(
        (ROOT / "src").rglob("*.py"), (ROOT / "packages").rglob("*/src/**/*.py"), (ROOT / "docs").glob("*.py")
    )
    documents = [
        path for path in chain(ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md")) if path.name != "CHANGELOG.md"
    ]
    written = [path for path in documents if not GENERATED.search(path.as_posix())]
    sentences = chain(
        ((path, *one) for path in python for one in sentences_of_python(path)),
        ((path, *one) for path in written for one in sentences_of_document(path)),
    )
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {habit}" for path, line, sentence in sentences for habit in found(sentence)
    ]
