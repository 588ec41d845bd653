"""All analyses, in the order of the page. To add one: a record in a file of `analyses`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain

import xarray as xr

from attnscope.catalogue import where_to_find
from attnscope.explanation import analyses
from attnscope.explanation.study import Analysis
from attnscope.report.reads import reads
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError, nearest

GROUP = "attnscope.analyses"  # of entry points: how other packages add theirs

#: Files of `analyses` in the order of the page; others follow. Each defines records.
_PAGE = ["verdict", "shift", "position_content", "position_scheme"]


def _records() -> Iterator[Analysis]:
    files = sorted(module.name for module in pkgutil.iter_modules(analyses.__path__))
    for file in sorted(files, key=lambda file: _PAGE.index(file) if file in _PAGE else len(_PAGE)):
        address = f"{analyses.__name__}.{file}"
        records = (value for value in vars(import_module(address)).values() if isinstance(value, Analysis))
        yield from (one for one in records if one.alone.__module__ == address)


ANALYSES: tuple[Analysis, ...] = tuple(_records())


@cache
def added_analyses() -> Mapping[str, tuple[Analysis, ...]]:
    """Analyses that installed packages add under `GROUP`, by the name of the entry point."""
    taken = {analysis.name for analysis in ANALYSES}
    added: dict[str, tuple[Analysis, ...]] = {}
    for entry in entry_points(group=GROUP):
        added[entry.name] = tuple(entry.load())
        for analysis in added[entry.name]:
            if analysis.name in taken:
                raise AttnscopeError(
                    f"{entry.value} adds an analysis {analysis.name!r}, but that name is taken: uninstall the package, "
                    "or tell its authors"
                )
            taken.add(analysis.name)
    return added


def known_analyses() -> Mapping[str, Analysis]:
    """Every analysis by name: those of `explain`, and those that installed packages add."""
    return {analysis.name: analysis for analysis in chain(ANALYSES, *added_analyses().values())}


def requested_analyses(requested: Iterable[str | Analysis]) -> list[Analysis]:
    """Analyses from records or names: of a package, which has several, or of one analysis.

    In ``name=setting`` the setting goes to the analysis, or to the last of the package that takes one.
    """
    chosen: dict[str, Analysis] = {}
    for one in requested:
        if isinstance(one, Analysis):
            chosen[one.name] = one
            continue
        name, _, setting = one.partition("=")
        added = added_analyses()
        records = added.get(name) or [record for record in chain(*added.values()) if record.name == name]
        if not records:
            names = ", ".join([*added, *(record.name for record in chain(*added.values()) if record.name not in added)])
            expected = f"expected one of {names}" if names else "no installed package adds analyses"
            expected += nearest(name, names.split(", "))
            raise AttnscopeError(f"analyses (--analyses) has {shortly(name)}; {where_to_find(name) or expected}")
        chosen |= {record.name: record for record in records}
        if setting:
            configured = [record.configured for record in records if record.configured]
            if not configured:
                raise AttnscopeError(
                    f"analyses (--analyses) is {shortly(one)}, but {name} has no setting: leave it out"
                )
            record = configured[-1](setting)
            chosen[record.name] = record
    return list(chosen.values())


@reads("explain")
def analyses_of(tree: xr.DataTree) -> list[Analysis]:
    """The known analyses of a tree, in the order of the page."""
    return [analysis for name, analysis in known_analyses().items() if name in tree.children]
