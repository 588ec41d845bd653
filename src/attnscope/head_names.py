"""Heads as people name them, in every verb: ``4.2``, ``(4, 2)``, lists, sets, a role of a run, a table or a file."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError

Head: TypeAlias = tuple[int, int]

#: ``4.2``, ``L4H2``, ``a4.h2`` (EAP-IG), ``4-2`` (QRHead)
_NAME = re.compile(r"\b[La]?(\d{1,6})\s*[-.H]\s*[hH]?(\d{1,6})\b")
_FORMS = (
    "expected heads as layer.head, with commas between, as in 3.6,10.5, or a role of a run, as in RUN:induction, or a "
    "file"
)


def heads_of(option: str, value: Any) -> list[Head]:
    """Heads in the order in which they are named, each once."""
    entries = _entries(option, value)
    joined = next((entry for entry in entries if isinstance(entry, list)), None)
    if joined is not None:
        raise AttnscopeError(
            f"{option} has a set of heads ({joined[0][0]}.{joined[0][1]} and others); expected heads one by one. Sets "
            "are for intervene, and for together (--together) of patch"
        )
    return [entry for entry in entries if isinstance(entry, tuple)]


def sets_of(option: str, value: Any) -> list[list[Head]]:
    """Sets of heads; a head alone is a set of one."""
    return [entry if isinstance(entry, list) else [entry] for entry in _entries(option, value)]


def heads_or_sets(option: str, value: Any) -> list[Head | list[Head]]:
    """Heads, and sets of heads, which are joined by + or are lists of their own."""
    return _entries(option, value)


def head_of(option: str, value: Any) -> Head:
    """One head."""
    heads = heads_of(option, value)
    if len(heads) != 1:
        raise AttnscopeError(f"{option} is {shortly(value)}; expected one head as layer.head, as in 3.6")
    return heads[0]


def checked_choice(heads: Any) -> Sequence[Head] | None:
    """Chosen heads, at least one; None: all."""
    if heads is not None and not heads:
        raise AttnscopeError("found no heads (--heads); expected at least one, such as 3.6")
    return heads


def heads_setting(heads: Any) -> dict[str, list[str]]:
    """Chosen heads, as a signature has them; nothing without a choice."""
    return {} if heads is None else {"heads": [f"{layer}.{head}" for layer, head in heads]}


def shown_component(name: str) -> str:
    """Names of components as they are shown.

    >>> shown_component("1.3, m2"), shown_component("mlp 0")
    ('1.3, MLP 2', 'MLP 0')
    """
    return re.sub(r"\b(?:m|mlp )(\d+)\b", r"MLP \1", name)


def named_in(text: str) -> list[Head]:
    """The heads that a text names."""
    return [(int(layer), int(head)) for layer, head in _NAME.findall(text)]


def _entries(option: str, value: Any) -> list[Any]:
    """Heads as tuples, and sets of them as lists, each once."""
    if isinstance(value, str):
        entries = _typed(option, value)
    elif isinstance(value, Path):
        entries = _of_file(option, value)
    elif _is_head(value):
        entries = [(index(value[0]), index(value[1]))]
    elif hasattr(value, "columns"):  # a data frame
        if not {"layer", "head"} <= {*value.columns}:
            raise AttnscopeError(f"{option} is a data frame; expected the columns layer and head, or a Series")
        entries = heads_of(option, value[["layer", "head"]].to_numpy().tolist())
    elif hasattr(value, "to_series") or hasattr(value, "nlargest"):
        entries = _of_table(option, value)
    elif isinstance(value, Iterable) and not isinstance(value, Mapping):
        array: Any = value
        items: Any = array.tolist() if hasattr(value, "tolist") else value
        items = sorted(items, key=str) if isinstance(items, AbstractSet) else items
        entries = [one for item in items for one in _entry(option, item)]
    else:
        raise AttnscopeError(f"{option} is {shortly(value)}; {_FORMS}")
    return [
        [*one] if is_set else one for one, is_set in dict.fromkeys((tuple(e), isinstance(e, list)) for e in entries)
    ]


def _is_head(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2  # noqa: PLR2004
        and all(hasattr(number, "__index__") and not isinstance(number, bool) for number in value)
    )


def _entry(option: str, item: Any) -> list[Any]:
    """An entry of a list: a head, a name, or heads that form a set."""
    if isinstance(item, str) or _is_head(item):
        return _entries(option, item)
    return [heads_of(option, item)]


def _typed(option: str, text: str) -> list[Any]:
    """What is typed: names with commas between, those of a set with +; a role of a run; or a file."""
    if text in {"", "none"}:
        return []
    folder, colon, role = text.partition(":")
    if colon and Path(folder).is_dir():
        return _of_role(option, folder, role)
    matches = [[_NAME.fullmatch(name.strip()) for name in entry.split("+")] for entry in text.split(",")]
    if all(all(names) for names in matches):
        sets = [[(int(name[1]), int(name[2])) for name in names if name] for names in matches]
        return [heads if len(heads) > 1 else heads[0] for heads in sets]
    if Path(text).exists():
        return _of_file(option, Path(text))
    if colon:
        raise AttnscopeError(f"{option} is {text!r}, and there is no folder {folder}; {_FORMS}")
    raise AttnscopeError(f"{option} is {text!r}; {_FORMS}")


def _of_role(option: str, folder: str, role: str) -> list[Head]:
    """The heads of a run of roles or card at the threshold of a role, or as many as it names; the best first."""
    import attnscope

    module: Any = import_module("attnscope.detection.role")  # which imports options, and so this module
    results, (name, _, most) = attnscope.open_run(folder), role.partition(":")
    roles = results.coords["role"].values.tolist() if "role" in getattr(results, "coords", {}) else []
    if name not in roles:
        raise AttnscopeError(
            f"{option} is {folder}:{role}; expected a run of attnscope roles or card, and one of its roles: "
            f"{', '.join(roles) or 'it has none'}"
        )
    part = results.sel(role=name)
    if most.isdecimal():
        ranked = _of_table(option, part.score)
        if int(most) > len(ranked):
            raise AttnscopeError(f"{option} is {folder}:{role}, and {len(ranked)} heads have a score: name fewer")
        return ranked[: int(most)]
    if most or module.ROLES[name].threshold is None:
        raise AttnscopeError(f"{option} is {folder}:{role}; {name} needs a number of heads, as in {folder}:{name}:10")
    return _of_table(option, part.score.where(module.ROLES[name].reached(part.score.values, part.equal.values)))


def _of_table(option: str, values: Any) -> list[Head]:
    """Heads of a pandas Series or a DataArray: those that are True, or all with a number, the largest first."""
    if hasattr(values, "to_series"):
        values = values.squeeze(drop=True)
        if {*values.dims} != {"layer", "head"}:
            raise AttnscopeError(
                f"{option} has the dimensions {', '.join(map(str, values.dims))}; expected layer, head"
            )
        values = values.transpose("layer", "head").to_series()
    kind = values.dtype.kind
    if kind not in "bfiu":  # names
        return heads_of(option, values.tolist())
    names = [*values.index.names]
    if {*names} == {"layer", "head"}:
        values = values.reorder_levels(["layer", "head"])
    elif names != [None, None] and not all(isinstance(name, str) for name in values.index):
        over = ", ".join(map(str, names))
        raise AttnscopeError(f"{option} is a Series over {over}; expected an index of layer and head, or heads by name")
    ranked = values.dropna().sort_values(ascending=False, kind="stable")
    return heads_of(option, (values[values] if kind == "b" else ranked).index.tolist())


def _of_file(option: str, path: Path) -> list[Any]:
    """Heads of a file: JSON of attnscope or a list, or a text that names them."""
    if path.is_dir():
        raise AttnscopeError(f"{option} is the folder {path}; expected one of its roles, as in {path}:induction")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise AttnscopeError(f"{option}: cannot read heads in {path}: {error}") from error
    if path.suffix != ".json":
        heads = named_in(text)
    else:
        try:
            listed = json.loads(text)
            listed = listed.get("alignment_heads") or listed["finding"]["heads"] if isinstance(listed, dict) else listed
        except (ValueError, KeyError, TypeError) as error:
            raise AttnscopeError(
                f"{option}: {path} lists no heads ({error}); expected a list, or the JSON of a command"
            ) from error
        heads = _entries(option, listed)
    if not heads:
        raise AttnscopeError(f"{option}: {path} names no heads; expected names such as 3.6 or L3H6")
    return heads
