"""Records of a caller's own (statistics, roles, ablations, readers): registered by name, signed by their identity.

A run stores what a report needs of them, so that it can be shown where they are not registered.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from functools import cache, partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from attnscope.report.identity import identity_of
from attnscope.support.errors import AttnscopeError, explaining, reason_of

GROUP = "attnscope.records"  # of entry points: modules of packages that register records when they are imported
CODE = "code"  # of a signature's settings: what identifies each record


class Registered(NamedTuple):
    """A registered record: the module that registers it, all that decides what it does, and the table that it is in."""

    module: str
    parts: partial[Any]
    table: MutableMapping[str, Any]
    words: Mapping[str, Any]  # for reports, as JSON


_OF_A_RUN = ""  # in place of a module: a record whose function is not here, only what a run stores of it
#: Functions that give such a record, of what a run stores, and its table; by kind.
_STORED = {
    "statistic": "attnscope.measure.quantities:stored_statistic",
    "role": "attnscope.detection.role:stored_role",
    "ablation": "attnscope.intervention.replacements:stored_ablation",
}
_RECORDS: dict[tuple[str, str], Registered] = {}  # by kind and name
_NAME = "[a-z][a-z0-9_]*"


def register(
    kind: str,
    name: str,
    record: object,
    table: MutableMapping[str, Any],
    *parts: Any,
    taken: Collection[str] = (),
    words: Mapping[str, Any] | None = None,
) -> None:
    """Put a record into a table, by a name that no other has; the same module may replace its own.

    `parts` are its function and everything else that decides what it does, `words` are for reports.
    """
    if not re.fullmatch(_NAME, name):
        raise AttnscopeError(f"the {kind} {name!r:.60} needs a name of small letters, digits and _, such as sharp_rows")
    module = getattr(parts[0], "func", parts[0]).__module__ or "__main__"  # a function of C has none
    earlier = _RECORDS.get((kind, name))
    if earlier is None and (name in table or name in taken):
        raise AttnscopeError(f"the {kind} {name!r} is one of attnscope: choose another name")
    if earlier is not None and earlier.module not in {_OF_A_RUN, module}:
        raise AttnscopeError(f"the {kind} {name!r} is one of {earlier.module}: choose another name in {module}")
    _RECORDS[kind, name] = Registered(module, partial(*parts), table, words or {})
    table[name] = record


def forget(names: Collection[tuple[str, str]] | None = None) -> None:
    """Remove records by kind and name, by default all."""
    for kind, name in [*_RECORDS] if names is None else names:
        _RECORDS.pop((kind, name)).table.pop(name)


def registered(kind: str) -> list[str]:
    """The names of the registered records of a kind, in the order of the alphabet."""
    return sorted(name for (of, name), one in _RECORDS.items() if of == kind and one.module != _OF_A_RUN)


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
    records = {name: _RECORDS[kind, name] for name in names if (kind, name) in _RECORDS}
    if not records:
        return {}
    for name, one in records.items():
        if one.module == _OF_A_RUN:
            raise AttnscopeError(
                f"the {kind} {name!r} is known from a run alone: first import the module that defines it"
            )
    each = {f"{kind} {name}": identity_of(one.parts, f"the {kind}") for name, one in records.items()}
    return {CODE: {name: one | {"module": records[name.partition(" ")[2]].module} for name, one in each.items()}}


def words_of(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The words of registered records that a run stores, by kind and name."""
    names = {record: record.partition(" ")[::2] for record in (settings or {}).get(CODE) or {}}
    return {record: dict(_RECORDS[kind, name].words) for record, (kind, name) in names.items()}


def check_registered(settings: Mapping[str, Any] | None, words: Mapping[str, Any], where: object) -> None:
    """Take records that are not registered here from what a run stores; reject a run that stores nothing of them."""
    load_records()
    for record, one in ((settings or {}).get(CODE) or {}).items():
        kind, _, name = record.partition(" ")
        module = one["module"]
        if (kind, name) in _RECORDS:
            continue
        if record not in words:
            do = "run the script or the cell that defines it" if module == "__main__" else f"import {module}"
            raise AttnscopeError(
                f"{where} was written with the {kind} {name!r}, which is not registered here: first {do}, or install "
                "the package that adds it"
            )
        try:
            table, stored = _stored(kind, name, words[record])
        except (AttnscopeError, TypeError) as error:  # TypeError: other names of arguments
            raise AttnscopeError(
                f"{where} stores a {kind} {name!r:.60} that no run has ({error}): restore it from a copy"
            ) from error
        _RECORDS[kind, name] = Registered(_OF_A_RUN, partial(dict), table, words[record])
        table[name] = stored


def _stored(kind: str, name: str, words: Mapping[str, Any]) -> tuple[MutableMapping[str, Any], Any]:
    """The table of a record and the record, of what a run stores; what attnscope does not store is an error."""
    if kind not in _STORED or not re.fullmatch(_NAME, name):
        raise AttnscopeError(f"{kind} is none of {', '.join(_STORED)}, or its name is not of small letters")
    table, record = pkgutil.resolve_name(_STORED[kind])(name, **words)
    if name in table:
        raise AttnscopeError("attnscope has one of this name")
    return table, record


_FILES: set[str] = set()  # names of modules that were loaded from files


def modules_of_files() -> list[ModuleType]:
    """The modules that were loaded from files, which other processes cannot import by name."""
    return [sys.modules[name] for name in sorted(_FILES) if name in sys.modules]


def load_file(option: str, path: Path) -> ModuleType:
    """Run a Python file, once, under the name that importing it would give it."""
    name, file = path.stem, path.resolve()
    if not file.is_file() or file.suffix != ".py" or not name.isidentifier():
        raise AttnscopeError(f"{option} is {path}; expected a Python file that is there, such as mine.py")
    spec = find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
    if spec is not None and (spec.origin is None or Path(spec.origin).resolve() != file):
        raise AttnscopeError(f"{option} is {path}, but there is another module {name}: rename the file")
    if name not in sys.modules:
        _FILES.add(name)
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise AttnscopeError(f"{option} is {path}, which Python cannot import")
        sys.modules[name] = module_from_spec(spec)
        try:
            with explaining(f"{option}: {path} failed", "Correct the file"):
                spec.loader.exec_module(sys.modules[name])
        except AttnscopeError:
            del sys.modules[name]
            raise
    return sys.modules[name]
