"""What a docstring or a page quotes as a name is there."""

import ast
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import attnscope

SOURCE = Path(attnscope.__file__).parent


@cache
def trees():
    """Every file of the package, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def nodes():
    """All that is in each of them, from the top down."""
    return {path: [*ast.walk(tree)] for path, tree in trees().items()}


#: In our text: names of the environment, and of an exception of another package.
ELSEWHERE = {
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "ConflictError",
    "RayJob",
    "LanguageModel",
    "TransformerBridge",
    "PeftModel",
    "SentenceTransformer",
    "HookedTransformer",
    "HuggingFaceTB",
    "SmolLM2",
}
#: Letters of a formula, an entry point, and a class of another package.
PLAIN_WORDS = {"dr", "dc", "attnscope.analyses", "fugashi.Tagger"}
QUOTED = re.compile(r"(?<![:`])``([^`]+)``|(?<![:`])`([^`\n]+)`(?!`)")
CAMEL = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b")


def without_code(text):
    """Text without its examples and its blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^ *(>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)


def texts_with_names():
    """Every docstring, and every page for readers; pages made by a program name models alone."""
    for path, every in nodes().items():
        for node in every:
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (said := ast.get_docstring(node)):
                yield f"{path.relative_to(SOURCE)} {getattr(node, 'name', '')}", without_code(said)
    root = Path(__file__).parents[1]
    for page in (*root.glob("*.md"), *(root / "docs").rglob("*.md")):
        if page.name not in {"CHANGELOG.md", "families.md", "other-tools.md"}:
            yield page.name, without_code(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def known():
    """Every name that our code defines or uses, and the classes of transformers."""
    import transformers

    names = {*ELSEWHERE, *transformers.__all__}
    packages = Path(__file__).parents[1].glob("packages/*/src/**/*.py")
    theirs = {path: ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for path in packages}
    for path, every in (nodes() | theirs).items():
        names |= set(path.with_suffix("").parts)
        for node in every:
            for field in ("name", "arg", "id", "attr"):
                value = getattr(node, field, None)
                names |= set(value.split(".")) if isinstance(value, str) else set()
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                names.add(node.value)
    return names


def is_there(name, known):
    """Whether something has that name: an address within our package must lead there by import."""
    if name in PLAIN_WORDS:
        return True
    if not name.startswith("attnscope.") and all(part in known for part in name.split(".")):
        return True
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError, ValueError):
        return False
    return True


def names_in(text, *, in_docstring):
    """The names that a text quotes: in docstrings all of them; on pages, where files are quoted too, those of code."""
    for double, single in QUOTED.findall(text):
        quoted = double or single
        yield from CAMEL.findall(quoted)
        yield from re.findall(r"(?<![\w./-])attnscope(?:\.\w+)+", quoted)
        yield from re.findall(r"(?<![\w.\\])([A-Za-z_]\w*(?:\.\w+)*)\(", "" if in_docstring else quoted)
        if in_docstring and re.fullmatch(r"[A-Za-z_][\w.]*", single):
            yield single


def test_what_a_text_quotes_as_a_name_is_there(known):
    gone = {}
    for where, text in texts_with_names():
        in_docstring = not where.endswith(".md")
        for name in names_in(re.sub(r":math:`[^`]*`", "", text), in_docstring=in_docstring):
            if not is_there(name, known):
                gone.setdefault(where, []).append(name)
    assert not gone
