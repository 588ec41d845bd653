"""Docstrings: a parameter is named by a noun, and a public function says what it takes and what it refuses."""

import ast
import re
from pathlib import Path

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
