"""Imports point downwards: what stands above may use what stands below, never the other way round."""

import ast
import importlib
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

import attnscope

SOURCE = Path(attnscope.__file__).parent
#: From the top to the bottom; what stands on one line may not import each other.
ORDER = (
    {"__main__"},
    {"cli"},
    {"testing", "figures"},
    {"results"},
    {"session"},
    {"comparison", "detection"},
    {"intervention"},
    {"lineage"},
    {"explanation"},
    {"measure"},
    {"capture"},
    {"store"},
    {"read"},
    {"models"},
    {"kernels"},
    {"results.schema"},  # what verbs report with
    {"bundled", "support"},
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


#: Packages that see other people's models.
SEE_MODELS = ("capture", "measure", "explanation", "intervention", "detection", "lineage")


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
        if path.relative_to(SOURCE).parts[0] in SEE_MODELS and path.stem != "families"
        if (found := list(names_compared(path)))
    }
    assert not guesses


def test_modules_of_a_package_import_each_other_without_a_circle():
    known = {name_of(path): path for path in MODULES if path.stem != "__init__"}
    graph = {
        name: {other.rpartition(".")[0] for other in imports_of(path, at_once=True)} & known.keys() - {name}
        for name, path in known.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(set(chain(known, *graph.values())))


def test_what_a_package_exports_is_there():
    for path in SOURCE.rglob("__init__.py"):
        package = importlib.import_module(name_of(path).removesuffix(".__init__"))
        assert [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)] == []
