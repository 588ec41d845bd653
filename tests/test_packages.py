"""Imports point downwards: what stands above may use what stands below, never the other way round."""

import ast
import importlib
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import metadata
from itertools import chain

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.catalogue import GROUP, IN_PACKAGES, function_of, where_to_find
from attnscope.catalogue import verbs as joined
from attnscope_cards import catalogue as cards
from attnscope_circuits import catalogue as circuits
from attnscope_lineage import catalogue as lineage
from attnscope_relations import catalogue as relations
from attnscope_yamamoto2023 import analyses as yamamoto2023
from attnscope_yamamoto2023 import relearn
from tests.test_docstrings import SOURCE, nodes, trees

#: From the top to the bottom; what stands on one line may not import each other.
ORDER = (
    {"__main__"},
    {"cli"},
    {"session"},
    {"verbs"},  # what users import
    {"testing", "figures"},
    {"results"},
    {"comparison", "detection"},
    {"intervention"},
    {"explanation"},
    {"measure"},
    {"opened"},
    {"plan"},
    {"capture"},
    {"options"},
    {"head_names", "model_names"},
    {"store"},
    {"read"},
    {"models"},
    {"kernels"},
    {"statistics"},
    {"report"},  # what verbs report with
    {"catalogue"},  # names of modules
    {"bundled", "support"},
)
FLOORS = {package: floor for floor, packages in enumerate(ORDER) for package in packages}


def package_of(module):
    """The entry of `ORDER` that a module belongs to."""
    parts = module.removeprefix("attnscope").strip(".").split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in FLOORS), None)


def imports_of(path, *, at_once=False):
    """Modules of ours that a file imports, but for types alone; with `at_once`, only those at its top."""
    for_types = {
        inner
        for node in nodes()[path]
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in trees()[path].body if at_once else nodes()[path]:
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("attnscope"))


def name_of(path):
    return ".".join(("attnscope", *path.relative_to(SOURCE).with_suffix("").parts))


MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent != SOURCE or path.stem != "__init__"]


def test_a_module_imports_only_what_stands_below():
    above = {
        f"{path.relative_to(SOURCE)} imports {package}"
        for path in MODULES
        for own in [package_of(name_of(path))]
        for package in map(package_of, imports_of(path))
        if package not in {None, own} and FLOORS[package] <= FLOORS[own]
    }
    assert not above


#: Packages that see other people's models.
SEE_MODELS = ("capture", "measure", "explanation", "intervention", "detection")


def names_compared(path):
    """Comparisons with the name of a class, ``type(...).__name__``, in a file."""
    for node in nodes()[path]:
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


def test_the_table_of_verbs_names_what_is_there():
    for name, verb in joined().items():
        parts = [
            (verb.command, name),
            (verb.report, "report"),
            (verb.figures, "figures"),
            (verb.page, "write"),
            verb.load.split(":") if verb.load else ("", ""),
        ]
        assert callable(function_of(name))
        for module, function in parts:
            assert not module or callable(getattr(importlib.import_module(module), function))


def test_verbs_of_packages_are_known_where_the_package_is_absent():
    assert IN_PACKAGES.keys() == {
        *cards.VERBS,
        *circuits.VERBS,
        *lineage.VERBS,
        *relations.VERBS,
        *(record.name for record in (*yamamoto2023.ANALYSES, *relearn.ANALYSES)),
        "yamamoto2023",
        "attnscope-recurrent",
        "attnscope-transformer",
        "HeadMonitor",
    }
    with pytest.raises(AttributeError, match=r"train is in attnscope-lineage: in a copy of the repository, pip"):
        _ = attnscope.train
    with pytest.raises(AttributeError, match=r"relations is in attnscope-relations: in a copy of the repository, pip"):
        _ = attnscope.relations
    with pytest.raises(AttributeError, match="scam"):
        _ = attnscope.scam
    assert not where_to_find("scam")
    with pytest.raises(AttnscopeError, match="found no command 'scam': install the package that adds it"):
        function_of("scam")


def test_what_is_installed_by_folder_has_all_packages_that_it_needs():
    """One that is not on an index is found by its folder alone; so say documents, and the errors of core commands."""
    root = SOURCE.parents[1]
    needs = {
        path.parent.name: {
            name for name in tomllib.loads(path.read_text())["project"]["dependencies"] if name.startswith("attnscope-")
        }
        for path in root.glob("packages/*/pyproject.toml")
    }
    assert {"attnscope-lineage"} in needs.values()
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("packages/*/README.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if "pip install" in line]
    for line in [*lines, *map(where_to_find, IN_PACKAGES)]:
        named = {*re.findall(r"packages/(attnscope-\w+)", line)}
        assert set().union(*(needs[name] for name in named)) <= named, line


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("attnscope.catalogue:VERBS", "adds a command 'scan', but that name is taken"),
        ("absent_package:VERBS", "absent_package:VERBS, which adds commands, cannot be imported: No module named"),
        ("attnscope.catalogue:NONE", "which adds commands, cannot be imported"),
    ],
)
def test_a_package_whose_verbs_cannot_be_added_is_named(address, says, monkeypatch):
    entry = metadata.EntryPoint("mine", address, GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] * (group == GROUP))
    with pytest.raises(AttnscopeError, match=says):
        joined.__wrapped__()


def test_modules_import_at_their_top_only_what_the_base_install_brings():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = {re.split(r"\W", line.lower().replace("-", "_"))[0] for line in project["dependencies"]}
    with_them = {"fontTools", "huggingface_hub", "llvmlite", "markupsafe", "yaml"}  # what these depend on
    brought = base | with_them | {"attnscope", *sys.stdlib_module_names}
    names = {
        (str(path.relative_to(SOURCE)), name.partition(".")[0])
        for path in MODULES
        if not path.stem.startswith("_triton")
        for node in trees()[path].body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not [(path, name) for path, name in sorted(names) if name not in brought]


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("sklearn", "sklearn", lambda: attnscope.scan(clusters=3)),
        ("sklearn", "sklearn", lambda: attnscope.intervene(search=True)),
    ],
)
def test_a_missing_optional_package_is_named_with_its_extra(package, extra, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AttnscopeError, match=rf"needs {package}, .*: pip install 'attnscope\[{extra}\]'"):
        call()
