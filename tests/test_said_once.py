"""What is said once: no two files hold one function, or one constant of one meaning."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import attnscope

SOURCE = Path(attnscope.__file__).parent
TREES = {
    str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(SOURCE.rglob("*.py"))
}
#: Constants of one name and one value by accident: what they count is not the same.
BY_ACCIDENT = {
    "BLOCK",  # bytes that are read, bytes that are unpacked
    "CLEAR",  # deviations of white noise, of a smoothed spectrum
    "COLUMNS",  # of waves, of what a random head does; panels side by side
    "DARK",  # of a weight, of a scale of colours
    "DRAWS",  # of documents, of signs
    "FOUR",  # dimensions of weights, of queries
    "HALF",  # of a change, of an amplitude
    "HEADS",  # in maps, in controls
    "LEVEL",  # of intervals, of a null
    "MOST",  # groups, spans, panels
    "ROWS",  # of a mask, of weights, of a table in a file
    "SURE",  # of an order, of a match
    "TOKENS",  # of a published figure, of ours
    "UNIT",  # of work: batches that are aligned, whose sums are kept
    "log",
}


class _Renamed(ast.NodeTransformer):
    """Locals by the order in which they come, so that what they are called does not matter; without types."""

    def __init__(self, function):
        stored = (
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        given = (node.arg for node in ast.walk(function) if isinstance(node, ast.arg))
        self.locals, self.names = {*stored, *given}, {}

    def _renamed(self, name):
        return self.names.setdefault(name, f"_{len(self.names)}") if name in self.locals else name

    def visit_Name(self, node):
        return ast.Name(self._renamed(node.id), node.ctx)

    def visit_arg(self, node):
        return ast.arg(self._renamed(node.arg))


def body_of(function):
    """What a function does, without its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def said_by(function):
    """What a function does, in words that do not hang on its names and types."""
    bare = ast.FunctionDef("_", function.args, body_of(function), [], type_params=[])
    return ast.unparse(ast.fix_missing_locations(_Renamed(function).visit(bare)))


def across_files(holders):
    return [held for held in holders.values() if len({path for path, _ in held}) > 1]


def test_no_two_files_hold_one_function():
    shapes = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                shape = tuple(type(inner) for part in body_of(node) for inner in ast.walk(part))
                if len(shape) >= 20:  # of less there is little to say
                    shapes[shape].append((path, node))
    said = defaultdict(list)
    for path, node in (one for alike in across_files(shapes) for one in alike):
        said[said_by(node)].append((path, node.name))
    assert not across_files(said)


def constants_of(tree):
    """Names and values of constants, but for those that stand for types."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = ast.unparse(node.value)
            if not value.startswith(("TypeVar(", "ParamSpec(")):
                yield node.targets[0].id, value


def test_no_two_files_hold_one_constant():
    holders = defaultdict(set)
    for path, tree in TREES.items():
        for name, value in constants_of(tree):
            if not name.startswith("__") and name.strip("_") not in BY_ACCIDENT:
                holders[name.strip("_"), value].add(path)
    assert not {name: sorted(files) for (name, _), files in holders.items() if len(files) > 1}


def test_no_two_packages_export_one_name_for_two_numbers():
    """A threshold of one package is not read for that of another."""
    numbers = defaultdict(dict)
    for stub in SOURCE.rglob("__init__.pyi"):
        package = ".".join((attnscope.__name__, *stub.parent.relative_to(SOURCE).parts))
        face = importlib.import_module(package)
        for name in filter(str.isupper, face.__all__):
            if isinstance(value := getattr(face, name), int | float):
                numbers[name][package] = value
    assert len(numbers) > 10
    assert not {name: held for name, held in numbers.items() if len({*held.values()}) > 1}
