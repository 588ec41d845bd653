"""Docstrings: what a parameter is begins with a noun, and a public function says what its parameters are."""

import ast
import re
from pathlib import Path

import attnscope

SOURCE = Path(attnscope.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
#: Packages in which every exported function of two or more parameters says what they are, and what it refuses.
TOLD = ("attention", "mechanism/analyses", "mechanism/arrays")
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


def of_told():
    for path, function in exported():
        if str(path.relative_to(SOURCE)).startswith(tuple(f"{package}/" for package in TOLD)):
            yield f"{path.relative_to(SOURCE)} {function.name}", function


def test_what_a_parameter_is_opens_with_a_noun():
    bare = [
        f"{path.relative_to(SOURCE)} {node.name}: {told}"
        for path, node, sections in documented()
        for name in ("Parameters", "Attributes")
        for told in re.findall(r"^\S.*\n    (Of .*)", sections.get(name, ""), re.MULTILINE)
    ]
    assert not bare


def test_exported_functions_say_what_their_parameters_are():
    functions = dict(of_told())
    assert len(functions) > 60
    silent = [
        name
        for name, function in functions.items()
        if len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]) > 1
        and "Parameters" not in sections_of(function)
    ]
    assert not silent


def test_every_analysis_says_what_it_gives_and_what_it_refuses():
    analyses = {name: function for name, function in of_told() if name.startswith("mechanism/analyses/")}
    assert len(analyses) > 14
    assert not [
        name
        for name, function in analyses.items()
        if not {"Returns", "Raises"} <= sections_of(function).keys()
    ]


def test_exported_functions_that_refuse_say_when():
    silent = [
        f"{path.relative_to(SOURCE)} {function.name}"
        for path, function in exported()
        if any(isinstance(node, ast.Raise) for node in ast.walk(function))
        and "Raises" not in sections_of(function)
    ]
    assert not silent
