"""Docstrings: a parameter is named by a noun, and a function says what it takes and refuses; what is named is there."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import attnscope

SOURCE = Path(attnscope.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
#: The heading of a section, its line, and all that stands below until the next one.
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n(.*?)(?=^\w[\w ]*\n-{3,}\n|\Z)", re.DOTALL | re.MULTILINE)


def documented():
    """Every class and function with a docstring, and its sections by name."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (said := ast.get_docstring(node)):
                yield path, node, dict(SECTION.findall(said))


def exported():
    """Every function that a package of ours exports: its file, and the function."""
    for package in (*SOURCE.rglob("__init__.pyi"), SOURCE / "attention" / "__init__.py"):
        for line in ast.parse(package.read_text(encoding="utf-8")).body:
            if not isinstance(line, ast.ImportFrom) or line.module is None:
                continue
            home = package.parent if line.level else SOURCE.parent
            path = home.joinpath(*line.module.split(".")).with_suffix(".py")
            names = {alias.name for alias in line.names}
            for node in TREES[path].body if path in TREES else ():
                if isinstance(node, ast.FunctionDef) and node.name in names:
                    yield path, node


def sections_of(function: ast.FunctionDef):
    return dict(SECTION.findall(ast.get_docstring(function) or ""))


def test_no_parameter_is_only_said_to_be_of_something():
    bare = [
        f"{path.relative_to(SOURCE)} {node.name}: {told}"
        for path, node, sections in documented()
        for name in ("Parameters", "Attributes")
        for told in re.findall(r"^\S.*\n    (Of .*)", sections.get(name, ""), re.MULTILINE)
    ]
    assert not bare


def test_exported_functions_say_what_their_parameters_are():
    functions = {f"{path.relative_to(SOURCE)} {function.name}": function for path, function in exported()}
    assert len(functions) > 500
    silent = [
        name
        for name, function in functions.items()
        if len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]) > 1
        and "Parameters" not in sections_of(function)
    ]
    assert not silent


def test_exported_functions_that_refuse_say_when():
    silent = [
        f"{path.relative_to(SOURCE)} {function.name}"
        for path, function in exported()
        if any(isinstance(node, ast.Raise) for node in ast.walk(function))
        and "Raises" not in sections_of(function)
    ]
    assert not silent


def test_every_analysis_says_what_it_gives_and_what_it_refuses():
    analyses = [function for path, function in exported() if path.parent.name == "analyses"]
    assert len(analyses) > 14
    assert not [
        function.name for function in analyses if not {"Returns", "Raises"} <= sections_of(function).keys()
    ]


def test_exported_functions_tell_of_the_parameters_that_they_have():
    strange = []
    for path, function in exported():
        told = sections_of(function).get("Parameters")
        if told is not None:
            # a type may stand behind a colon
            lines = re.findall(r"^([^\s:,]+(?:, [^\s:,]+)*)", told, re.MULTILINE)
            names = {name.lstrip("*") for line in lines for name in line.split(", ")}
            own = {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}
            if names ^ {name for name in own if not name.startswith("_")}:
                strange.append(f"{path.relative_to(SOURCE)} {function.name}")
    assert not strange


def test_returns_names_the_classes_that_the_signature_names():
    other = {}
    for path, node, sections in documented():
        if "Returns" in sections and isinstance(node, ast.FunctionDef) and node.returns is not None:
            told = set(re.findall(r"\b[A-Z]\w+", sections["Returns"].splitlines()[0])) - {"What", "None"}
            if told - set(re.findall(r"\w+", ast.unparse(node.returns))):
                other[f"{path.relative_to(SOURCE)} {node.name}"] = told
    assert not other


#: In our text: names of the environment, and of an exception of another package.
ELSEWHERE = {
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "ConflictError",
    "RayJob",
    "LanguageModel",
    "TransformerBridge",
}
#: Letters of a formula, and an entry point.
PLAIN_WORDS = {"dr", "dc", "attnscope.analyses"}
QUOTED = re.compile(r"(?<![:`])``([^`]+)``|(?<![:`])`([^`\n]+)`(?!`)")
CAMEL = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b")


def without_code(text):
    """Text without its examples and its blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^ *(>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)


def texts_with_names():
    """Every docstring, and every page for readers; pages made by a program name models alone."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
                said := ast.get_docstring(node)
            ):
                yield f"{path.relative_to(SOURCE)} {getattr(node, 'name', '')}", without_code(said)
    root = Path(__file__).parents[1]
    for page in (*root.glob("*.md"), *(root / "docs").glob("*.md")):
        if page.name not in {"CHANGELOG.md", "families.md"}:
            yield page.name, without_code(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def known():
    """Every name that our code defines or uses, and the classes of transformers."""
    import transformers

    names = {*ELSEWHERE, *transformers.__all__}
    for path, tree in TREES.items():
        names |= set(path.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(tree):
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


@pytest.mark.parametrize(
    "text",
    ["see `HeadVerdikt`", "see `attnscope.scam`", "`scam` says", "call `scam()`", "``attnscope.scam()``"],
)
def test_a_name_that_is_not_there_is_found(text, known):
    found = {name for kind in (True, False) for name in names_in(text, in_docstring=kind)}
    assert any(not is_there(name, known) for name in found)
