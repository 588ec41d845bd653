"""Imports point downwards: what stands above may use what stands below, never the other way round."""

import ast
import importlib
import inspect
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

import pytest

import attnscope
from attnscope import mechanism

SOURCE = Path(attnscope.__file__).parent
#: From the top to the bottom; what stands on one line may not import each other.
ORDER = (
    {"__main__"},
    {"cli"},
    {"_expect", "_notebook"},
    {"results"},
    {"reproduction"},
    {"report"},
    {"figures"},
    {"comparison", "difference", "_group_pairs", "_named_spans", "_turning"},
    {"training"},
    {"walkthrough"},
    {"faithfulness", "detection"},
    {"mechanism"},
    {"statistics"},
    {"translation.alignment", "translation.evaluation"},
    {"translation"},
    {"capture"},
    {"tasks"},
    {"corpus"},
    {"store"},
    {"zoo"},
    {"models"},
    {"attention"},
    {"workers"},
    {"_arguments", "_returned"},
    {
        "bundled",
        "progress",
        "checks",
        "array_checks",
        "_caller",
        "_documents",
        "_nulls",
        "_numbers",
        "_stopping",
        "remote",
    },
    {"errors", "_paths"},
)
FLOORS = {package: floor for floor, packages in enumerate(ORDER) for package in packages}


def package_of(module):
    """The entry of `ORDER` that a module belongs to."""
    parts = module.removeprefix("attnscope").strip(".").split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in FLOORS), None)


def imports_of(path, *, at_once=False, for_types_too=False):
    """Modules of ours that a file imports, by default but for types alone; with `at_once`, only those at its top."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    nodes = tree.body if at_once else ast.walk(tree)
    for node in nodes:
        if id(node) in for_types and not for_types_too:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("attnscope"))


def name_of(path):
    return ".".join(("attnscope", *path.relative_to(SOURCE).with_suffix("").parts))


MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE or path.stem != "__init__"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_stands_below(path):
    own = package_of(name_of(path))
    if path == SOURCE / "__init__.py":
        return  # names what stands in all of them
    above = {
        f"{own} imports {package}"
        for package in map(package_of, imports_of(path))
        if package not in {None, own} and FLOORS[package] <= FLOORS[own]
    }
    assert not above


def private_package(module):
    """The package that alone may import this: the parent of its first private part; None where it is public."""
    parts = module.split(".")
    private = next((place for place, part in enumerate(parts) if part.startswith("_")), None)
    return None if private is None else parts[:private]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_private_module_is_imported_only_within_its_package(path):
    own = name_of(path).split(".")
    reached = {
        module
        for module in imports_of(path, for_types_too=True)
        if (package := private_package(module)) is not None and own[: len(package)] != package
    }
    assert not reached


#: Packages that see other people's models.
SEE_MODELS = ("capture", "statistics", "mechanism", "faithfulness", "detection", "walkthrough")


def names_compared(path):
    """Comparisons with the name of a class, ``type(...).__name__``, in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if isinstance(side, ast.Attribute) and side.attr == "__name__":
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def test_what_a_class_is_called_is_looked_at_in_one_file():
    guesses = {
        str(path.relative_to(SOURCE)): found
        for path in MODULES
        if path.relative_to(SOURCE).parts[0] in SEE_MODELS and path.stem != "_heuristics"
        if (found := list(names_compared(path)))
    }
    assert not guesses


def public_functions(path):
    module = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in module.body if not getattr(node, "name", "_").startswith("_")]
    methods = [inner for node in nodes if isinstance(node, ast.ClassDef) for inner in node.body]
    functions = [node for node in (*nodes, *methods) if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if not node.name.startswith("_")]


def test_public_signatures_of_the_analyses_say_what_they_take_and_give():
    untyped = {
        f"{path.stem}.{node.name}"
        for path in MODULES
        if path.is_relative_to(SOURCE / "mechanism")
        for node in public_functions(path)
        for part in (node.args, node.returns or ast.Pass())
        for name in ast.walk(part)
        if isinstance(name, ast.Name) and name.id == "Any"
    }
    assert not untyped


#: A study makes analyses, and an analysis computes from a study: one of them names the other for types alone.
MUTUAL = {"attnscope.mechanism._study": "attnscope.mechanism._analysis"}


def test_modules_of_a_package_import_each_other_without_a_circle():
    known = {name_of(path): path for path in MODULES if path.stem != "__init__"}
    graph = {
        name: {other.rpartition(".")[0] for other in imports_of(path, for_types_too=True)}
        & known.keys() - {name, MUTUAL.get(name)}
        for name, path in known.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(set(chain(known, *graph.values())))


def test_no_two_classes_have_one_name():
    files = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def test_files_and_functions_stay_short():
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    lines = [source.count("\n") for source in sources.values()]
    assert median(lines) <= 150
    assert quantiles(lines, n=10)[-1] <= 300
    functions = [
        (path, node)
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]
    assert [
        f"{path.relative_to(SOURCE)}: {node.name}" for path, node in functions if own_lines(node) > 80
    ] == []


def own_lines(function):
    """Lines of a function without its docstring and its decorators."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    said = 0 if docstring is None else docstring.end_lineno - docstring.lineno + 1
    return function.end_lineno - function.lineno + 1 - said


#: Names of one thing in several packages: an analysis of a model, of arrays and as a figure; what a run comes to, by
#: its kind; files that cannot be read.
SAME = {*mechanism.__all__, "explained", "headline", "removal_curves", "texts_of"}


def test_a_public_function_shares_its_name_with_no_other():
    homes = {}
    for path in SOURCE.rglob("__init__.py"):
        package = importlib.import_module(name_of(path).removesuffix(".__init__"))
        for name in getattr(package, "__all__", ()):
            if inspect.isfunction(function := getattr(package, name)):
                homes.setdefault(name, set()).add(function)
    assert {name for name, functions in homes.items() if len(functions) > 1} <= SAME


def test_what_a_package_exports_is_there():
    for path in SOURCE.rglob("__init__.py"):
        package = importlib.import_module(name_of(path).removesuffix(".__init__"))
        assert [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)] == []
