"""Results given back to us: a function that reads what a verb returned refuses all else, and tells what to pass."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr

P = ParamSpec("P")
R = TypeVar("R")


class _Kind(NamedTuple):
    """What a verb returns: a tree or a dataset, and the nodes, variables or dimensions that it always has."""

    tree: bool
    holds: tuple[str, ...] = ()


_KINDS = {
    "scan": _Kind(tree=False, holds=("text", "head")),
    "generate": _Kind(tree=False, holds=("span_weight",)),
    "roles": _Kind(tree=False, holds=("role",)),
    "diff": _Kind(tree=False, holds=("statistic",)),
    "contrasts": _Kind(tree=False, holds=("p",)),
    "explain": _Kind(tree=True),
    "intervene": _Kind(tree=True, holds=("heads", "where")),
    "patch": _Kind(tree=True, holds=("patched",)),
    "compare": _Kind(tree=True, holds=("scores",)),
}


def reads(verb: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function whose first argument is what a verb returned refuse everything else.

    That is what another verb returned, one node of a tree in the place of all of it, and a dataset in the place of a
    tree or a tree in that of a dataset.

    Examples
    --------
    >>> import xarray as xr
    >>> @reads("explain")
    ... def analyses(tree: xr.DataTree) -> list[str]:
    ...     return list(tree.children)
    >>> tree = xr.DataTree.from_dict({"verdict": xr.Dataset({"agree": 1})})
    >>> analyses(tree)
    ['verdict']
    >>> analyses(tree["verdict"])
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: tree is the node 'verdict' alone; expected all that attnscope.explain returns
    """

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
    """What was given in the place of what a verb returns; empty where it may be that."""
    import xarray as xr

    kind = _KINDS[verb]
    if not isinstance(given, xr.DataTree | xr.Dataset):
        return f"of type {type(given).__name__}"
    made_by = _made_by(given)
    if made_by in _KINDS and made_by != verb:
        return f"what attnscope.{made_by} returns"
    if isinstance(given, xr.DataTree):
        if given.parent is not None:
            return f"the node {given.name!r} alone"
        if not kind.tree or given.data_vars:
            return "a tree (DataTree)" if not kind.tree else "a tree with variables of its own"
    elif kind.tree:
        return "a Dataset"
    lacking = [name for name in kind.holds if not _has(given, name)]
    return f"a {type(given).__name__} without {lacking[0]}" if lacking else ""


def _has(given: xr.DataTree | xr.Dataset, name: str) -> bool:
    return name in given or name in given.dims


def _made_by(given: xr.DataTree | xr.Dataset) -> str:
    """The command of its signature; empty where it has none."""
    try:
        return str(json.loads(given.attrs["signature"])["command"])
    except (KeyError, TypeError, ValueError):
        return ""
