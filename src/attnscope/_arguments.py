"""Arguments of public functions, held against their signatures before anything is done.

pydantic's ``validate_call`` would convert what it is given, and neither it nor beartype knows names that are imported
for type checkers alone.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np

from attnscope.checks import is_a, unexpected

P = ParamSpec("P")
R = TypeVar("R")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function refuse, by name, arguments of a type that its signature does not have.

    Types of the language are checked, and what lists of them hold; so are classes that the signature has beside them or
    by the name of their package, such as ``xr.Dataset``. A name that may stand for several types, such as ``Sources``,
    is left to the function. So is ``model``, whose loader says what measures what is not one.

    Examples
    --------
    >>> @typed
    ... def head_of(layer: int, band: tuple[int, int] | None = None) -> int:
    ...     return layer
    >>> head_of(2, (3, 10))
    2
    >>> head_of("2")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: layer is '2' (str); expected a whole number
    >>> head_of(2, band=3)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: band is 3 (int); expected two whole numbers or None
    """
    signature = inspect.signature(function)
    expected = {
        name: _expected(
            f"Sequence[{parameter.annotation}]"
            if parameter.kind is parameter.VAR_POSITIONAL
            else parameter.annotation
        )
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.annotation, str)
        and parameter.kind is not parameter.VAR_KEYWORD
        and name != _LEFT
    }

    @wraps(function)
    def checking(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError:  # Python's own words say which argument is missing or not known
            return function(*arguments, **named)
        for name, value in given.items():
            if name in expected and not expected[name].takes(value):
                raise unexpected(expected[name].words, value, name)
        return function(*arguments, **named)

    return checking


@dataclass(frozen=True)
class _Expected:
    """Whether a value is of some type, and the words for one and for several of it."""

    takes: Callable[[Any], bool]
    words: str
    plural: str


def _reader(what: str) -> _Expected:
    """What reads for a model, or where it lies; a tokenizer is called with a text, a processor with an image."""
    return _Expected(
        lambda value: value is None or callable(value) or isinstance(value, str | os.PathLike),
        f"{what}, a folder or a hub id",
        f"{what}s, folders or hub ids",
    )


#: Types of the language, and what is given often.
_PLAIN = {
    "int": _Expected(lambda value: is_a(Integral, value), "a whole number", "whole numbers"),
    "float": _Expected(lambda value: is_a(Real, value), "a number", "numbers"),
    "str": _Expected(lambda value: isinstance(value, str), "a string", "strings"),
    "bool": _Expected(lambda value: isinstance(value, bool | np.bool_), "True or False", "True or False"),
    "Path": _Expected(lambda value: isinstance(value, os.PathLike), "a path", "paths"),
    "None": _Expected(lambda value: value is None, "None", "None"),
    "Tell": _Expected(callable, "a function", "functions"),
    "Tokenizer": _reader("a tokenizer"),
    "Processor": _reader("a tokenizer, a processor"),
    "np.ndarray": _Expected(lambda value: hasattr(value, "__array__"), "an array", "arrays"),
}
_SCALARS = {"int", "float", "str", "bool", "Path"}  # beside these, a name stands for a class
_LEFT = "model"
_UNKNOWN = _Expected(lambda _: True, "", "")
_COUNTS = ("no", "one", "two", "three")


@cache
def _expected(annotation: str) -> _Expected:
    return _of(ast.parse(annotation, mode="eval").body)


def _of(node: ast.expr) -> _Expected:
    """What an annotation stands for."""
    parts = {ast.unparse(part): _one(part) for part in _alternatives(node)}
    if None in parts.values() and not parts.keys() & _SCALARS:
        return _UNKNOWN  # the name may stand for several types
    known = [_class(name) if part is None else part for name, part in parts.items()]
    return _Expected(
        lambda value: any(part.takes(value) for part in known),
        " or ".join(part.words for part in known),
        " or ".join(part.plural for part in known),
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
    """What one alternative of an annotation takes; None where that is not known."""
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
        case "Sequence" | "Iterable" | "list":
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
        if isinstance(value, list | tuple):
            return all(map(item.takes, value))
        return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)

    of = f" of {item.plural}" if item.plural else ""
    return _Expected(takes, f"a list{of}", f"lists{of}")


def _row(items: Sequence[_Expected]) -> _Expected:
    """A tuple of so many entries; a list of as many is as good."""

    def takes(value: Any) -> bool:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            return False
        entries = list(value)
        return len(entries) == len(items) and all(
            item.takes(entry) for item, entry in zip(items, entries, strict=True)
        )

    count = _COUNTS[len(items)] if len(items) < len(_COUNTS) else str(len(items))
    kinds = {item.plural for item in items}
    words = f"{count} {kinds.pop()}" if len(kinds) == 1 and "" not in kinds else f"{count} entries"
    return _Expected(takes, words, f"entries that are {words}")
