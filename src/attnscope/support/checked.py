"""Arguments of what users import, held against its signature before anything is done.

pydantic checks them in strict mode; the message is one line: the name, what was found, what was expected. NumPy's
numbers and arrays are taken for Python's numbers and lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial, wraps
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, overload

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema


@dataclass(frozen=True)
class Bounds:
    """The least and the largest number; real numbers have bounds with a point."""

    least: float
    most: float | None = None


@dataclass(frozen=True)
class Kind:
    """A type of values that is not imported here: a test, and the words for one value and for several."""

    takes: Callable[[Any], bool]
    words: str
    plural: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Test a value, for pydantic."""
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any) -> Any:
            if not self.takes(value):
                raise PydanticCustomError("kind", "{words}", {"words": self.words})
            return value

        return core_schema.no_info_plain_validator_function(check)


@dataclass(frozen=True)
class Reads:
    """How a value of several forms is read into one, from the name of the argument and the value."""

    parse: Callable[[str, Any], Any]


P = ParamSpec("P")
R = TypeVar("R")
#: Surrounds each call of a function; called with its name and its checked arguments, which it may change.
Around = Callable[[str, dict[str, Any]], AbstractContextManager[Any]]
_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("True or False", "True or False"),
    Path: ("a path", "paths"),
    NoneType: ("None", "None"),
}
_SPOKEN = 3  # choices that are joined by "or"; more are a list
_COUNTS = ("no", "one", "two", "three")
#: Arguments that a newcomer tries first, and the ones that have their value: of several, the first that a function has.
_TRIED = {
    ("corpus", "data", "dataset", "files", "prompts", "sentence", "sentences", "text"): (
        ("texts", "text", "pairs", "prompt", "runs")
    ),
    ("model_id", "model_name", "model_path", "name"): ("model",),
    ("clean", "corrupted", "text", "texts"): ("pairs",),
    ("head", "layer", "layers"): ("heads", "layer", "head"),
    ("heads",): ("head",),
    ("max_length", "seq_len"): ("window",),
    ("max_samples", "n", "num_samples"): ("limit",),
    ("folder", "out_dir", "output", "output_dir", "path"): ("out",),
    ("cuda", "gpu"): ("device",),
}


@overload
def checked(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def checked(*, around: Around = ..., **defaults: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def checked(
    function: Callable[..., Any] | None = None, /, *, around: Around = lambda *_: nullcontext(), **defaults: object
) -> Any:
    """Let a function reject, by name, arguments of a type that its signature does not have.

    Options that it shares with others (``**reading: Unpack[...]``) become part of its signature. Those that a caller
    leaves out reach it with their defaults: one of `defaults`, else None, False, or 0. It runs inside `around`.
    """
    if function is None:
        return partial(_checked, defaults=defaults, around=around)
    return _checked(function, defaults, around)


def _checked(function: Callable[P, R], defaults: Mapping[str, object], around: Around) -> Callable[P, R]:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    takes_more = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    shared = _shared(parameters[-1].annotation, function) if takes_more else {}
    if shared:
        parameters[-1:] = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(name, _usual(kind))
            )
            for name, kind in shared.items()
        ]
        signature = signature.replace(parameters=parameters)

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[-1]
        strange = [one for one in named if one not in signature.parameters]
        if strange and (shared or not takes_more):
            raise TypeError(f"{name}() has no argument {strange[0]!r}{_advice(strange[0], list(signature.parameters))}")
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.kind is not parameter.VAR_KEYWORD:
                kind = _resolved(parameter.annotation, function)
                several = parameter.kind is parameter.VAR_POSITIONAL
                bound.arguments[name] = _taken(name, value, Sequence[kind] if several else kind)
        left_out = {name: signature.parameters[name].default for name in shared}
        bound.arguments = left_out | bound.arguments
        with around(function.__name__, bound.arguments):
            return function(*bound.args, **bound.kwargs)

    listed = [one.replace(annotation=_shown(one.annotation)) for one in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=listed)  # pyright: ignore[reportAttributeAccessIssue]
    call.declaration = signature  # pyright: ignore[reportAttributeAccessIssue]
    return call


def _advice(tried: str, names: list[str]) -> str:
    """The argument to use in place of one that there is none of."""
    others = [other for tries, others in _TRIED.items() if tried in tries for other in others if other in names]
    others += get_close_matches(tried, names, n=1)
    if others:
        return f": use {others[0]}"
    if tried in {"head", "heads", "layer", "layers"}:
        return ", since it measures all heads: select from the result, as in result.sel(layer=0, head=3)"
    return f". Its arguments: {', '.join(names)}"


def declaration(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function that checks them, each with all that is declared of it."""
    return getattr(function, "declaration", inspect.signature(function)).parameters


def _shown(kind: Any) -> Any:
    """A type as a reader sees it in a signature; nothing where it has many forms."""
    if isinstance(kind, str):
        return kind
    name = _name(kind)
    return name if "Any" not in name.split(" | ") else inspect.Parameter.empty


def _name(kind: Any) -> str:
    if _is_union(bare(kind)):
        return " | ".join(map(_name, alternatives(kind)))
    for described in marked(kind, Kind):
        return described.words if described.words.isidentifier() else "Any"
    kind = bare(kind)
    if kind in {Any, NoneType, inspect.Parameter.empty}:
        return "None" if kind is NoneType else "Any"
    parts = get_args(kind)
    inside = map(repr, parts) if get_origin(kind) is Literal else (_name(part) for part in parts if part is not ...)
    name = getattr(kind, "__name__", str(kind))
    return f"{name}[{', '.join(inside)}]" if parts and get_origin(kind) is not Callable else name


def _shared(annotation: Any, function: Callable[..., object]) -> dict[str, Any]:
    """The options of a TypedDict, from ``Unpack[...]``."""
    (options,) = get_args(_resolved(annotation, function)) or (None,)
    if options is None:
        return {}
    # text, in a module whose annotations are not evaluated
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in options.__annotations__.items()}
    return {name: _resolved(kind, function) for name, kind in kinds.items()}


def _resolved(annotation: Any, function: Callable[..., object]) -> Any:
    """A type; Any where it is missing, or names something that is imported for type checkers alone."""
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        kind = eval(annotation, inspect.unwrap(function).__globals__)  # noqa: S307 our own source
        return Any if isinstance(kind, str) else kind
    except (NameError, AttributeError, TypeError):
        return Any


def bare(kind: Any) -> Any:
    """A type without what is annotated."""
    return bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def alternatives(kind: Any) -> list[Any]:
    """The types of a union, each with its annotations."""
    inner = bare(kind)
    return [one for part in get_args(inner) for one in alternatives(part)] if _is_union(inner) else [kind]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, UnionType}


def marked(kind: Any, mark: type[R]) -> list[R]:
    """The annotations of one class, outer ones first, of a type and of the types of its union."""
    if get_origin(kind) is Annotated:
        marks = [one for one in reversed(kind.__metadata__) if isinstance(one, mark)]
        return marks + marked(kind.__origin__, mark)
    return [one for part in get_args(kind) for one in marked(part, mark)] if _is_union(kind) else []


def left_out(options: type) -> dict[str, Any]:
    """The defaults of all options of a TypedDict."""
    return {name: _usual(kind) for name, kind in options.__annotations__.items()}


def _usual(kind: Any) -> Any:
    """The default of a shared option."""
    return {bool: False, int: 0}.get(bare(kind))


def _taken(name: str, value: Any, kind: Any) -> Any:
    """The value as a function gets it, or the error for one that is not of its type."""
    from attnscope.support.checks import check_real, check_whole, unexpected

    taken = _plain(value) if _is_plain(kind) else value
    if not _fits(taken, kind):
        literals = (get_args(bare(one)) for one in alternatives(kind) if get_origin(bare(one)) is Literal)
        raise unexpected(_words(kind)[0], value, name, [*map(str, chain(*literals))])
    for bounds in marked(kind, Bounds):
        check: Any = check_real if isinstance(bounds.least, float) else check_whole
        if isinstance(taken, int | float):
            check(bounds.least, bounds.most, **{name: taken})
    for one in marked(kind, Reads):
        is_other = isinstance(taken, bool | None) and type(taken) in map(bare, alternatives(kind))
        taken = taken if is_other else one.parse(name, taken)
    return taken


def _fits(value: Any, kind: Any) -> bool:
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(_for_pydantic(kind), config=ConfigDict(strict=True, arbitrary_types_allowed=True))


class _List:
    """A list, where a tuple is expected, is taken."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: tuple(value) if isinstance(value, list) else value, handler(source)
        )


def _for_pydantic(kind: Any) -> Any:
    """The type as pydantic checks it: with lists for tuples, and instances of classes."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[_for_pydantic(parts[0]), *parts[1:]]
    if _is_union(kind):
        return Union[tuple(map(_for_pydantic, parts))]  # noqa: UP007 of as many as there are
    if origin is tuple:
        return Annotated[tuple[tuple(part if part is ... else _for_pydantic(part) for part in parts)], _List]
    if origin in {Sequence, list}:
        return Sequence[_for_pydantic(parts[0])]
    if isinstance(kind, type) and kind is not Any and kind not in _WORDS:  # an array checks its shape where it is used
        name = kind.__name__
        is_array = kind.__module__ in {"numpy", "jaxtyping"}
        return Any if is_array else Annotated[Any, Kind(lambda value: isinstance(value, kind), name, name)]
    return Mapping if origin is Mapping else kind  # whose entries are checked where they are read


def _words(kind: Any) -> tuple[str, str]:
    """The words for one value of a type, and for several."""
    for described in marked(kind, Kind) if not _is_union(bare(kind)) else ():
        return described.words, described.plural
    kind = bare(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if _is_union(kind):
        singular, plural = zip(*(_words(part) for part in alternatives(kind)), strict=True)
        return " or ".join(singular), " or ".join(plural)
    if origin is tuple and parts[-1] is not ...:
        plurals = {_words(part)[1] for part in parts}
        count = _COUNTS[len(parts)] if len(parts) < len(_COUNTS) else str(len(parts))
        words = f"{count} {plurals.pop()}" if len(plurals) == 1 else f"{count} entries"
        return words, f"entries that are {words}"
    if origin in {Sequence, list, tuple}:
        plural = _words(parts[0])[1]
        return f"a list of {plural}".removesuffix(" of "), f"lists of {plural}".removesuffix(" of ")
    if origin is Literal:
        choices = ", ".join(map(repr, parts)) if len(parts) > _SPOKEN else " or ".join(map(repr, parts))
        choices = f"one of {choices}" if len(parts) > _SPOKEN else choices
        return choices, choices
    if kind is Any:
        return "", ""
    words_of = {Mapping: ("a mapping", "mappings"), Callable: ("a function", "functions")} | _WORDS
    name = getattr(kind, "__name__", str(kind))
    return words_of.get(origin or kind, (name, name))


def _is_plain(kind: Any) -> bool:
    """Whether NumPy's values count as Python's: where numbers, strings or lists of them are expected, and no array."""
    words = [marked(part, Kind) for part in alternatives(kind)]
    return not any(described.words in {"an array", "Tensor"} for part in words for described in part) and any(
        _holds_scalars(part) for part in alternatives(kind)
    )


def _holds_scalars(kind: Any) -> bool:
    inner = bare(kind)
    if get_origin(inner) in {Sequence, list, tuple}:
        return any(_holds_scalars(one) for part in get_args(inner) for one in alternatives(part))
    return inner in {int, float, str, bool}


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays, and ranges, as Python's numbers and lists."""
    if type(value) in {list, tuple}:
        return type(value)(map(_plain, value))
    if isinstance(value, range):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value
