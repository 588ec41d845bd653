"""Records of a caller's own (statistics, roles, ablations, readers): registered by name, identified by their code.

A record is identified by the qualified name of its function, its compiled code, and the values that the code uses:
defaults, closures, and the globals that it names. Functions, classes and modules of the caller's own count by their
code, those of installed packages by their name, since a signature has the versions that matter.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from attnscope.support.errors import AttnscopeError, reason_of

GROUP = "attnscope.records"  # of entry points: modules of packages that register records when they are imported
CODE = "code"  # of a signature's settings: what identifies each record


class Record(NamedTuple):
    """A registered record: where its function is, and all that decides what it does."""

    address: str  # module and qualified name
    parts: tuple[object, ...]

    @property
    def module(self) -> str:
        """The module that registers it."""
        return self.address.partition(":")[0]


_RECORDS: dict[tuple[str, str], Record] = {}  # by kind and name


def register(kind: str, name: str, taken: Mapping[str, Any], function: Any, *parts: object) -> None:
    """Register a record under a name that no other has; the same module may replace its own."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise AttnscopeError(f"the {kind} {name!r:.60} needs a name of small letters, digits and _, such as sharp_rows")
    function = getattr(function, "func", function)  # of functools.partial
    record = Record(f"{function.__module__}:{getattr(function, '__qualname__', name)}", (function, *parts))
    known = _RECORDS.get((kind, name))
    if known is None and name in taken:
        raise AttnscopeError(f"there is a {kind} {name!r} of attnscope: choose another name")
    if known is not None and known.module != record.module:
        raise AttnscopeError(f"there is a {kind} {name!r} in {known.module}: choose another name in {record.module}")
    _RECORDS[kind, name] = record


def registered(kind: str) -> list[str]:
    """The names of the registered records of a kind."""
    return [name for of, name in _RECORDS if of == kind]


@cache
def load_records() -> None:
    """Import what installed packages register, once."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except (ImportError, AttributeError) as error:
            raise AttnscopeError(
                f"{entry.value}, which adds statistics or other records, cannot be imported: {reason_of(error)}. "
                "Reinstall the package, or uninstall it"
            ) from error


def signed(kind: str, names: Sequence[str]) -> dict[str, Any]:
    """The entry of a signature's settings that identifies the registered records among names; empty without any."""
    own = {name: _RECORDS[kind, name] for name in names if (kind, name) in _RECORDS}
    return {CODE: {f"{kind} {name}": f"{code_of(*of.parts)} {of.address}" for name, of in own.items()}} if own else {}


def check_registered(settings: Mapping[str, Any] | None, where: object) -> None:
    """Reject a run with records that are not registered here."""
    load_records()
    for record, text in ((settings or {}).get(CODE) or {}).items():
        kind, _, name = record.partition(" ")
        module = str(text).partition(" ")[2].partition(":")[0]
        if (kind, name) not in _RECORDS:
            do = "run the script or the cell that defines it" if module == "__main__" else f"import {module}"
            raise AttnscopeError(
                f"{where} was written with the {kind} {name!r}, which is not registered here: first {do}, or install "
                "the package that adds it"
            )


def code_of(*parts: object) -> str:
    """Sixteen hexadecimal digits that identify functions and values, the same in every process."""
    module = getattr(getattr(parts[0], "func", parts[0]), "__module__", None) or ""
    return _Identity(module.partition(".")[0]).of(parts).hex()[:16]


_SETS = (set, frozenset)
_PLAIN = (type(None), bool, int, float, complex, str, type(...), slice, range)
_FIELDS = ("co_code", "co_consts", "co_names", "co_varnames", "co_freevars", "co_argcount", "co_kwonlyargcount")
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__firstlineno__", "__static_attributes__"}


class _Identity:
    """Hashes of functions and values: of those of one package and of the caller's files, by all they consist of."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.depth = 0
        self.known: dict[int, tuple[bytes, object]] = {}  # by address in memory, which nothing else has meanwhile

    def of(self, value: Any) -> bytes:
        """The hash of a value; of one inside itself, how deep it was met before."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}".encode()
        if isinstance(value, bytes):
            return hashlib.sha256(value).digest()
        if id(value) not in self.known:
            self.known[id(value)] = f"at {self.depth}".encode(), value
            self.depth += 1
            parts = [self.of(part) for part in self._parts(value)]
            self.depth -= 1
            whole = [type(value).__qualname__.encode(), *(sorted(parts) if isinstance(value, _SETS) else parts)]
            self.known[id(value)] = hashlib.sha256(b"".join(b"%d:%b" % (len(it), it) for it in whole)).digest(), value
        return self.known[id(value)][0]

    def _parts(self, value: Any) -> Iterable[object]:
        """What a value consists of."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            array = value.detach().cpu().contiguous()
            return str(array.dtype), tuple(array.shape), array.flatten().view(torch.uint8).numpy().tobytes()
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
            return str(value.dtype), value.shape, value.tobytes()
        if isinstance(value, (tuple, list, *_SETS)):
            return value  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, Mapping):
            return [part for item in value.items() for part in item]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(value, CodeType):
            return [getattr(value, name) for name in _FIELDS]
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            return value.__func__, getattr(value, "__self__", None)  # pyright: ignore[reportUnknownMemberType]
        if isinstance(value, property):
            return value.fget, value.fset
        if isinstance(value, ModuleType):
            file = str(value.__file__) if self._is_own(value.__name__) else ""
            return value.__name__, Path(file).read_bytes() if file else None
        is_named = isinstance(value, (FunctionType, BuiltinFunctionType, type)) or inspect.isroutine(value)
        return self._of_named(value) if is_named or inspect.isdatadescriptor(value) else self._of_object(value)

    def _of_named(self, value: Any) -> Iterator[object]:
        """A function or a class: its name, and if it is the caller's, its code and all that this uses."""
        yield value.__qualname__
        module = getattr(value, "__module__", None)
        if not self._is_own(module):
            yield module
        elif isinstance(value, FunctionType):
            yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
            yield from (cell.cell_contents for cell in value.__closure__ or ())
            names = sorted(_globals(value.__code__) & value.__globals__.keys())
            yield from (part for name in names for part in (name, value.__globals__[name]))
        elif isinstance(value, type):
            yield from (value.__bases__, {name: part for name, part in vars(value).items() if name not in _NO_CODE})

    def _of_object(self, value: Any) -> Iterator[object]:
        """An object by what a copy of it is made of."""
        try:
            make, arguments, *state = value.__reduce_ex__(4)
        except Exception as error:
            raise AttnscopeError(
                f"a {type(value).__name__} in a function of yours cannot be identified ({reason_of(error)}), so no run "
                "could be told from another: use numbers, strings, arrays or functions"
            ) from error
        yield from (make, arguments)
        yield from (part if part is None or hasattr(part, "__len__") else [*part] for part in state)

    def _is_own(self, module: str | None) -> bool:
        """Whether a module is the caller's: of the package of the record, or of no installed package."""
        name = (module or "").partition(".")[0]
        if name in {self.package, "__main__"}:
            return True
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        if file is None or name == "attnscope" or name in sys.stdlib_module_names:
            return False
        return not any(Path(file).is_relative_to(sysconfig.get_path(path)) for path in ("purelib", "platlib"))


def _globals(code: CodeType) -> set[str]:
    """Names of globals in a function, and in the functions inside it."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    return names.union(*(_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
