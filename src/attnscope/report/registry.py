"""Records of a caller's own (statistics, roles, ablations, readers): registered by name, signed by their identity."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from attnscope.report.identity import identity_of
from attnscope.support.errors import AttnscopeError, reason_of

GROUP = "attnscope.records"  # of entry points: modules of packages that register records when they are imported
CODE = "code"  # of a signature's settings: what identifies each record


class Registered(NamedTuple):
    """A registered record: the module that registers it, all that decides what it does, and the table that it is in."""

    module: str
    parts: partial[Any]
    table: MutableMapping[str, Any]


_RECORDS: dict[tuple[str, str], Registered] = {}  # by kind and name


def register(
    kind: str, name: str, record: object, table: MutableMapping[str, Any], *parts: Any, taken: Collection[str] = ()
) -> None:
    """Put a record into a table, by a name that no other has; the same module may replace its own.

    `parts` are its function and everything else that decides what it does.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise AttnscopeError(f"the {kind} {name!r:.60} needs a name of small letters, digits and _, such as sharp_rows")
    module = getattr(parts[0], "func", parts[0]).__module__ or "__main__"  # a function of C has none
    earlier = _RECORDS.get((kind, name))
    if earlier is None and (name in table or name in taken):
        raise AttnscopeError(f"the {kind} {name!r} is one of attnscope: choose another name")
    if earlier is not None and earlier.module != module:
        raise AttnscopeError(f"the {kind} {name!r} is one of {earlier.module}: choose another name in {module}")
    _RECORDS[kind, name] = Registered(module, partial(*parts), table)
    table[name] = record


def forget(names: Collection[tuple[str, str]] | None = None) -> None:
    """Remove records by kind and name, by default all."""
    for kind, name in [*_RECORDS] if names is None else names:
        _RECORDS.pop((kind, name)).table.pop(name)


def registered(kind: str) -> list[str]:
    """The names of the registered records of a kind, in the order of the alphabet."""
    return sorted(name for of, name in _RECORDS if of == kind)


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
    each = {f"{kind} {name}": identity_of(one.parts, f"the {kind}") for name, one in records.items()}
    return {CODE: {name: one | {"module": records[name.partition(" ")[2]].module} for name, one in each.items()}}


def check_registered(settings: Mapping[str, Any] | None, where: object) -> None:
    """Reject a run with records that are not registered here."""
    load_records()
    for record, one in ((settings or {}).get(CODE) or {}).items():
        kind, _, name = record.partition(" ")
        module = one["module"]
        if (kind, name) not in _RECORDS:
            do = "run the script or the cell that defines it" if module == "__main__" else f"import {module}"
            raise AttnscopeError(
                f"{where} was written with the {kind} {name!r}, which is not registered here: first {do}, or install "
                "the package that adds it"
            )
