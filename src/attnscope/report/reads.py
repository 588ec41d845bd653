"""Results of verbs as arguments: `reads` checks which verb has made one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from attnscope.catalogue import address_of, verbs
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

P = ParamSpec("P")
R = TypeVar("R")


def reads(verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check that the first argument of a function is a result of this verb."""

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        first = next(iter(inspect.signature(function).parameters))

        @wraps(function)
        def checking(*arguments: P.args, **named: P.kwargs) -> R:
            given = arguments[0] if arguments else named.get(first)
            if (arguments or first in named) and (found := _other_than(verb, given)):
                raise AttnscopeError(f"{first} is {found}; expected all that {address_of(verb)} returns")
            return function(*arguments, **named)

        return checking

    return guarded


def _other_than(verb: str, given: object) -> str:
    """Description of an argument that is not a result of the verb; empty if it may be one."""
    import xarray as xr

    is_tree = verbs()[verb].result == "DataTree"
    if not isinstance(given, xr.DataTree | xr.Dataset):
        return f"of type {type(given).__name__}"
    made_by = str(signed(given).get("command"))
    if made_by in verbs() and made_by != verb:
        return f"what {address_of(made_by)} returns"
    if isinstance(given, xr.DataTree):
        if given.parent is not None:
            return f"the node {given.name!r} alone"
        if not is_tree or given.data_vars:
            return "a tree (DataTree)" if not is_tree else "a tree with variables of its own"
    elif is_tree:
        return "a Dataset"
    lacking = [name for name in verbs()[verb].contains if name not in given and name not in given.dims]
    return f"a {type(given).__name__} without {lacking[0]}" if lacking else ""


def signed(given: xr.DataTree | xr.Dataset) -> dict[str, Any]:
    """The parts of a result's signature; empty where it has none, or one of another form."""
    try:
        return dict(json.loads(given.attrs["signature"]))
    except (KeyError, TypeError, ValueError):
        return {}
