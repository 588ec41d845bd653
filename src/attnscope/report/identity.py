"""The identity of a caller's function, as a signature records it: its name, and a hash of all that it computes with."""

import copyreg
import dis
import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from attnscope.report.signature import tokenizer_sha256
from attnscope.support.errors import AttnscopeError

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
#: Members of a class that decide what its methods do.
_MEMBERS = (*_PLAIN, FunctionType, staticmethod, classmethod, property, tuple, list, dict, AbstractSet)
_INSTALLED = ("/site-packages/", "/dist-packages/", sysconfig.get_paths()["stdlib"])


def identity_of(function: Callable[..., Any], what: str) -> dict[str, str]:
    """Name and hash of a caller's function; `what` names it in errors, such as "metric".

    Hashed are its code without comments and layout, its defaults, and the values that it closes over or finds in its
    module, with the functions and classes among them. Those of other installed packages count by name: a signature has
    versions. Modules count by name too, those that are not installed also by their file.

    >>> def scaled(factor):
    ...     return lambda number: factor * number
    >>> first, same, other = (identity_of(scaled(factor), "metric") for factor in (2, 2, 3))
    >>> first == same, first == other
    (True, False)
    """
    named: Any = function
    while isinstance(named, partial):
        named = named.func
    name = getattr(named, "__qualname__", type(named).__qualname__)
    parts = _Parts(f"{what} {name}", str(named.__module__).partition(".")[0]).of(function)
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return {"name": f"{named.__module__}.{name}", "sha256": digest}


class _Parts:
    """All that a value consists of, as JSON that is the same in every process."""

    def __init__(self, owner: str, package: str) -> None:
        self.owner, self.package = owner, package
        self.numbers = dict[int, int]()  # of values so far, by `id`
        self.values = list[Any]()  # keeps them alive, so that no other gets the same `id`

    def of(self, value: Any, name: str = "") -> Any:
        """The parts of a value that a function calls by this name."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, ModuleType):
            file = getattr(value, "__file__", None)
            if file is None or self._is_installed(value.__name__, file):
                return [value.__name__]
            return [value.__name__, hashlib.sha256(Path(file).read_bytes()).hexdigest()]
        if isinstance(value, BuiltinFunctionType) or (isinstance(value, type) and self._is_installed_class(value)):
            return [getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)]
        if id(value) in self.numbers:
            return self.numbers[id(value)]
        self.numbers[id(value)] = len(self.values)
        self.values.append(value)
        return [type(value).__qualname__, *(self.of(*part) for part in self._inside(value, name))]

    def _inside(self, value: Any, name: str) -> Iterator[tuple[Any, str]]:
        """The parts of a value one level down, each with a name."""
        if isinstance(value, FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield f"{value.__module__}.{value.__qualname__}", name
            yield value.__bases__, name
            yield from ((one, key) for key, one in _members(value))
        elif isinstance(value, CodeType):
            yield value.co_code, name
            yield from ((one, name) for one in (value.co_names, value.co_consts))
        elif isinstance(value, partial):
            yield from ((one, name) for one in (value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            yield from ((one, name) for one in (value.__func__, value.__self__))
        elif isinstance(value, CellType):
            yield from [(value.cell_contents, name)] if value != CellType() else ()
        elif isinstance(value, Mapping):
            yield from ((entry, name) for entry in value.items())
        elif isinstance(value, list | tuple):
            yield from ((entry, name) for entry in value)
        elif isinstance(value, AbstractSet):
            yield from ((entry, name) for entry in sorted(value, key=repr))
        elif hasattr(value, "detach"):  # a tensor; NumPy has no bfloat16
            array = value.detach().cpu()
            yield str(value.dtype), name
            yield from self._inside((array.double() if array.is_floating_point() else array).numpy(), name)
        elif hasattr(value, "tobytes") and hasattr(value, "shape"):
            yield from (
                (one, name) for one in (str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).digest())
            )
        elif hasattr(value, "state_dict"):
            yield value.state_dict(), name
        elif hasattr(value, "save_vocabulary"):
            yield tokenizer_sha256(value), name
        elif hasattr(value, "__wrapped__"):  # a function with a cache
            yield value.__wrapped__, name
        elif callable(value) and hasattr(value, "__name__"):  # a function or method of C
            yield getattr(value, "__qualname__", value.__name__), name
        elif hasattr(value, "__dict__"):
            yield from ((one, name) for one in (type(value), vars(value)))
        else:
            yield from ((one, name) for one in self._reduced(value, name))

    def _reduced(self, value: Any, name: str) -> Iterator[Any]:
        """The parts by which pickle would write a value."""
        registered: Any = copyreg.dispatch_table.get(type(value))
        try:
            parts = value.__reduce_ex__(2) if registered is None else registered(value)
        except TypeError as error:
            raise AttnscopeError(
                f"{self.owner} uses {name or 'a value'} of type {type(value).__name__}, which a signature cannot "
                "record. Use numbers, texts, arrays and functions in it"
            ) from error
        yield vars(type(value)).get("__call__")
        yield from (
            [parts] if isinstance(parts, str) else (list(one) if isinstance(one, Iterator) else one for one in parts)
        )

    def _of_function(self, function: FunctionType) -> Iterator[tuple[Any, str]]:
        """Its name if it is installed, else its code, defaults and all values that it uses."""
        if self._is_installed(function.__module__, function.__code__.co_filename):
            yield f"{function.__module__}.{function.__qualname__}", ""
            return
        yield function.__code__, ""
        yield from ((one, "a default") for one in (function.__defaults__, function.__kwdefaults__))
        yield from zip(function.__closure__ or (), function.__code__.co_freevars, strict=False)
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                yield function.__globals__[name], name

    def _is_installed_class(self, value: type) -> bool:
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        return self._is_installed(value.__module__, file)

    def _is_installed(self, module: str, file: str | None) -> bool:
        """Whether a module is of a package with a version, and not of the function's own."""
        name = module.partition(".")[0]
        if name in {self.package, "__main__"}:
            return False
        return file is None or name == "attnscope" or any(part in file for part in _INSTALLED)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Methods and plain values of a class, without those that Python and dataclasses write."""
    for key, member in vars(value).items():
        one = getattr(member, "__func__", getattr(member, "fget", member))
        is_written = isinstance(one, FunctionType) and one.__code__.co_filename == "<string>"
        if isinstance(member, _MEMBERS) and not is_written and (isinstance(one, FunctionType) or key[:2] != "__"):
            yield key, one


def _globals_of(code: CodeType) -> set[str]:
    """Names that a function, or one inside it, looks up in its module."""
    here = {one.argval for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    return here.union(*(_globals_of(one) for one in code.co_consts if isinstance(one, CodeType)))
