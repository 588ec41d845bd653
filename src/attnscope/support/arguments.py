"""Arguments of public functions, held against their signatures before anything is done.

pydantic's ``validate_call`` would convert what it is given, and neither it nor beartype knows names that are imported
for type checkers alone.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, is_typeddict, overload

import numpy as np

from attnscope.support.checks import DRAWS, SEEDS, check_whole, is_a, unexpected
from attnscope.support.errors import AttnscopeError
from attnscope.verbs import VERBS

if TYPE_CHECKING:
    import xarray as xr

#: Whole numbers of a verb's signature, with their bounds.
Count = Annotated[int, "1 or more"]
Natural = Annotated[int, "0 or more"]
Draws = Annotated[int, "1 to 10,000"]
Seed = Annotated[int, "0 to 2^32 - 1"]
_BOUNDS = {"Count": (1, None), "Natural": (0, None), "Draws": (1, DRAWS), "Seed": (0, SEEDS - 1)}

_USUAL = {"bool": False, "Seed": 0}  # what stands for an option that is left out, if not None

P = ParamSpec("P")
R = TypeVar("R")


@overload
def validated(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def validated(
    *, enter: Callable[[dict[str, Any]], AbstractContextManager[None]] = ..., **defaults: object
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def validated(
    function: Callable[..., Any] | None = None,
    /,
    *,
    enter: Callable[[dict[str, Any]], AbstractContextManager[None]] = lambda _: nullcontext(),
    **defaults: object,
) -> Any:
    """Let a public function reject, by name, arguments of a type that its signature does not have.

    Parameters that it shares with others (``**reading: Unpack[...]``) become part of its signature and its docstring;
    those that a caller leaves out reach it with their defaults: None, False, 0 for a seed, or one of `defaults`.
    The function runs within ``enter(arguments)``, which may change the arguments.
    """
    if function is None:
        return partial(_validated, enter=enter, defaults=defaults)
    return _validated(function, enter, defaults)


def _validated(
    function: Callable[P, R],
    enter: Callable[[dict[str, Any]], AbstractContextManager[None]],
    defaults: Mapping[str, object],
) -> Callable[P, R]:
    signature, filled = inspect.signature(function), dict[str, object]()
    annotations = [parameter.annotation for parameter in signature.parameters.values()]
    if not all(isinstance(annotation, str) or annotation is inspect.Parameter.empty for annotation in annotations):
        raise TypeError(f"{function.__module__} lacks `from __future__ import annotations`, which @validated reads")
    *own, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD and str(last.annotation).startswith("Unpack["):
        options = inspect.unwrap(function).__globals__[last.annotation.removeprefix("Unpack[").removesuffix("]")]
        types = option_types(options)
        filled = {name: _USUAL.get(annotation) for name, annotation in types.items()} | dict(defaults)
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=filled[name], annotation=annotation)
            for name, annotation in types.items()
        ]
        signature = signature.replace(parameters=[*own, *shared])
        function.__doc__ = _with_shared(inspect.getdoc(function) or "", options)
    expected = {
        name: _expected(
            f"Sequence[{parameter.annotation}]" if parameter.kind is parameter.VAR_POSITIONAL else parameter.annotation
        )
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.annotation, str) and parameter.kind is not parameter.VAR_KEYWORD and name != _LEFT
    }

    @wraps(function)
    def checking(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None
        for name, value in bound.arguments.items():
            if (kind := expected.get(name)) is None:
                continue
            if not kind.takes(value):
                raise unexpected(kind.words, value, name)
            if kind.bounds is not None:
                check_whole(*kind.bounds, **{name: value})
            if kind.is_plain:
                bound.arguments[name] = _plain(value)
        bound.arguments = filled | bound.arguments
        with _state(), enter(bound.arguments):
            return function(*bound.args, **bound.kwargs)

    checking.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return checking


def _with_shared(doc: str, options: type) -> str:
    """The docstring of a verb with the parameters that it shares behind its own."""
    head, mark, tail = doc.partition("\n\nReturns\n")
    own = {name for line in re.findall(r"^[\w, ]+$", head, re.MULTILINE) for name in line.split(", ")}
    shared = {name: text for name, text in shared_docs(options).items() if name not in own}
    return head + "".join(f"\n{name}\n{text}" for name, text in shared.items()) + mark + tail


def option_types(options: type) -> dict[str, str]:
    """The annotations of a TypedDict, as text."""
    return {name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}


def shared_docs(options: type) -> dict[str, str]:
    """Descriptions of parameters from the docstrings of a TypedDict and of its bases in the same module."""
    docs: dict[str, str] = {}
    for part in vars(sys.modules[options.__module__]).values():
        if is_typeddict(part) and part.__annotations__.keys() <= options.__annotations__.keys():
            _, _, own = (inspect.getdoc(part) or "").partition("Parameters\n----------\n")
            docs |= {name: text.rstrip() for name, text in re.findall(r"^(\w+)\n((?:[ ].*\n?)+)", own, re.MULTILINE)}
    return {name: docs[name] for name in options.__annotations__ if name in docs}


def _state() -> AbstractContextManager[None]:
    if "torch" not in sys.modules:  # nobody has set its modes, and to read results does not need it
        return nullcontext()
    from attnscope.support.state import own_state

    return own_state()


@dataclass(frozen=True)
class _Expected:
    """Test of a value's type, words for one and for several, and whether NumPy's values count as Python's."""

    takes: Callable[[Any], bool]
    words: str
    plural: str
    is_plain: bool = False
    bounds: tuple[int, int | None] | None = None


def _reader(what: str) -> _Expected:
    """A tokenizer (called with a text) or processor (called with an image), or its location."""
    return _Expected(
        lambda value: value is None or callable(value) or isinstance(value, str | os.PathLike),
        f"{what}, a folder or a hub id",
        f"{what}s, folders or hub ids",
    )


#: Types of the language, and frequent arguments.
_PLAIN = {
    "int": _Expected(lambda value: is_a(Integral, value), "a whole number", "whole numbers", True),
    **{
        name: _Expected(lambda value: is_a(Integral, value), "a whole number", "whole numbers", True, bounds)
        for name, bounds in _BOUNDS.items()
    },
    "float": _Expected(lambda value: is_a(Real, value), "a number", "numbers", True),
    "str": _Expected(lambda value: isinstance(value, str), "a string", "strings", True),
    "bool": _Expected(lambda value: isinstance(value, bool | np.bool_), "True or False", "True or False", True),
    "Path": _Expected(lambda value: isinstance(value, os.PathLike), "a path", "paths"),
    "None": _Expected(lambda value: value is None, "None", "None"),
    "Tell": _Expected(callable, "a function", "functions"),
    "Tokenizer": _reader("a tokenizer"),
    "Processor": _reader("a tokenizer, a processor"),
    "np.ndarray": _Expected(lambda value: hasattr(value, "__array__"), "an array", "arrays"),
}
#: Beside these, a name stands for a class.
_SCALARS = {"int", "Count", "Natural", "Draws", "Seed", "float", "str", "bool", "Path"}
_LEFT = "model"
_UNKNOWN = _Expected(lambda _: True, "", "")
_COUNTS = ("no", "one", "two", "three")


@cache
def _expected(annotation: str) -> _Expected:
    return _of(ast.parse(annotation, mode="eval").body)


def _of(node: ast.expr) -> _Expected:
    """The check for an annotation."""
    parts = {ast.unparse(part): _one(part) for part in _alternatives(node)}
    if None in parts.values() and not parts.keys() & _SCALARS:
        return _UNKNOWN  # the name may stand for several types
    known = [_class(name) if part is None else part for name, part in parts.items()]
    return _Expected(
        lambda value: any(part.takes(value) for part in known),
        " or ".join(part.words for part in known),
        " or ".join(part.plural for part in known),
        any(part.is_plain for part in known) and not parts.keys() & {"np.ndarray", "Tensor"},
        next((part.bounds for part in known if part.bounds), None),
    )


def _class(name: str) -> _Expected:
    """A class and those derived from it, by name: it may be imported for type checkers alone."""
    own = name.rpartition(".")[2]
    return _Expected(lambda value: any(base.__name__ == own for base in type(value).__mro__), name, name)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _one(node: ast.expr) -> _Expected | None:
    """The check for one alternative of an annotation; None if unknown."""
    if isinstance(node, ast.Constant):
        return _PLAIN.get(str(node.value))
    if isinstance(node, ast.Name):
        return _PLAIN.get(node.id)
    if isinstance(node, ast.Attribute):  # a class of another package, such as xr.Dataset
        name = ast.unparse(node)
        return _PLAIN.get(name) or _class(name)
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return None
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    match node.value.id:
        case "Sequence" | "list":
            return _several(_of(inner[0]))
        case "Iterable":  # a generator gives its entries only once
            several = _several(_of(inner[0]))
            return replace(several, takes=lambda value: isinstance(value, Iterator) or several.takes(value))
        case "tuple" if isinstance(inner[-1], ast.Constant) and inner[-1].value is ...:
            return _several(_of(inner[0]))
        case "tuple":
            return _row([_of(part) for part in inner])
        case "Literal":
            values = [ast.literal_eval(part) for part in inner]
            words = " or ".join(map(repr, values))
            return _Expected(lambda value: is_a(str, value) and value in values, words, words)
        case "Mapping":
            return _Expected(lambda value: isinstance(value, Mapping), "a mapping", "mappings")
        case "Callable":
            return _Expected(callable, "a function", "functions")
        case _:
            return None


def _several(item: _Expected) -> _Expected:
    def takes(value: Any) -> bool:
        entries = _entries(value)
        return entries is not None and all(map(item.takes, entries))

    of = f" of {item.plural}" if item.plural else ""
    return _Expected(takes, f"a list{of}", f"lists{of}", item.is_plain)


def _entries(value: Any) -> Sequence[Any] | None:
    """Entries of a list, an array or a column of a table; None without entries that can be read twice."""
    if isinstance(value, str | bytes | bytearray | Mapping) or not hasattr(value, "__getitem__"):
        return None
    try:
        return value if isinstance(value, list | tuple) else list(value)
    except TypeError:  # an array of no dimension
        return None


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers and arrays to Python's, for signatures."""
    if type(value) in {list, tuple}:
        return type(value)(map(_plain, value))
    return value.tolist() if hasattr(value, "tolist") else value


def _row(items: Sequence[_Expected]) -> _Expected:
    """A tuple with these entries, or a list."""

    def takes(value: Any) -> bool:
        entries = _entries(value)
        return (
            entries is not None
            and len(entries) == len(items)
            and all(item.takes(entry) for item, entry in zip(items, entries, strict=True))
        )

    count = _COUNTS[len(items)] if len(items) < len(_COUNTS) else str(len(items))
    kinds = {item.plural for item in items}
    words = f"{count} {kinds.pop()}" if len(kinds) == 1 and "" not in kinds else f"{count} entries"
    return _Expected(takes, words, f"entries that are {words}", any(item.is_plain for item in items))


def reads(verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check that the first argument of a function is a result of this verb."""

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        first = next(iter(inspect.signature(function).parameters))

        @wraps(function)
        def checking(*arguments: P.args, **named: P.kwargs) -> R:
            given = arguments[0] if arguments else named.get(first)
            if (arguments or first in named) and (found := _other_than(verb, given)):
                raise AttnscopeError(f"{first} is {found}; expected all that attnscope.{verb} returns")
            return function(*arguments, **named)

        return checking

    return guarded


def _other_than(verb: str, given: object) -> str:
    """Description of an argument that is not a result of the verb; empty if it may be one."""
    import xarray as xr

    is_tree = VERBS[verb].result == "DataTree"
    if not isinstance(given, xr.DataTree | xr.Dataset):
        return f"of type {type(given).__name__}"
    made_by = str(signed(given).get("command"))
    if made_by in VERBS and made_by != verb:
        return f"what attnscope.{made_by} returns"
    if isinstance(given, xr.DataTree):
        if given.parent is not None:
            return f"the node {given.name!r} alone"
        if not is_tree or given.data_vars:
            return "a tree (DataTree)" if not is_tree else "a tree with variables of its own"
    elif is_tree:
        return "a Dataset"
    lacking = [name for name in VERBS[verb].contains if not _has(given, name)]
    return f"a {type(given).__name__} without {lacking[0]}" if lacking else ""


def _has(given: xr.DataTree | xr.Dataset, name: str) -> bool:
    return name in given or name in given.dims


def signed(given: xr.DataTree | xr.Dataset) -> dict[str, Any]:
    """The parts of a result's signature; empty where it has none, or one of another form."""
    try:
        return dict(json.loads(given.attrs["signature"]))
    except (KeyError, TypeError, ValueError):
        return {}
