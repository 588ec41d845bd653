"""The report, figures and page of the result of each verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope.report.render import page_table
from attnscope.report.schema import Report
from attnscope.statistics.units import original
from attnscope.support.errors import AttnscopeError
from attnscope.verbs import VERBS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report_of(command: str, result: Any, *, data: bool = False) -> Report:
    """All that a result has to show; its rows are computed here, once. With `data`, also what no table shows."""
    made = _module(VERBS[command].report).report(result, **({"data": data} if command == "scan" else {}))
    model = made.model or str(result.attrs.get("model", "the model"))
    return replace(made, command=command, model=model, notes=[*_repeated(result), *made.notes])


def _repeated(result: Any) -> list[str]:
    """How many texts, or pairs of texts, of a result equal an earlier one."""
    parts = list(result.subtree) if isinstance(result, xr.DataTree) else [result]
    parts = [part for part in parts if isinstance(part, xr.DataTree | xr.Dataset)]
    names = next((part.coords["source"].values.ravel().tolist() for part in parts if "source" in part.coords), [])
    texts = {name: original(name) for name in names}
    if again := sum(name != first for name, first in texts.items()):
        return [_counted_once(again, len(texts), str(result.attrs.get("reads", "texts")))]
    both = ("clean_text", "corrupted_text")
    sides = next(([part.coords[one].values.tolist() for one in both] for part in parts if both[0] in part.coords), [])
    pairs = list(zip(*sides, strict=True))
    if again := len(pairs) - len(set(pairs)):
        return [_counted_once(again, len(pairs), "pairs")]
    return []


def _counted_once(again: int, whole: int, called: str) -> str:
    return f"{again} of {whole} {called} repeat an earlier one: intervals and tests count them once."


def figures_of(report: Report) -> dict[str, Figure]:
    """Every figure that a result has values for, by name."""
    return dict(_drawing(report).figures(report)) if VERBS[report.command].figures else {}


def grid_of(report: Report) -> Figure | None:
    """The figure of all heads, as a notebook shows it."""
    return _drawing(report).grid(report) if VERBS[report.command].figures else None


def write_page(
    report: Report, path: Path | str, figures: Mapping[str, Figure] | None = None, run: Path | None = None
) -> Path:
    """Write a result as one HTML page that needs no network and no other file; `run` is the folder of its run."""
    if own := VERBS[report.command].page:
        return _module(own).write(report, path, run)
    from attnscope.results.page import heads, parts

    sections: list[Any] = []
    if VERBS[report.command].figures:
        drawn, drawing = figures_of(report) if figures is None else figures, _drawing(report)
        own = getattr(drawing, "sections", None)  # where one has several figures, or tables of text
        named: Any = getattr(drawing, "captions", {})  # fixed, or made from the result
        named = named if isinstance(named, dict) else named(report)
        sections = parts.sections(drawn, named) if own is None else own(report, drawn)
    tables = [page_table(table) for table in report.tables if table.page and table.rows]
    if not sections and not tables:
        raise AttnscopeError(f"the result of {report.command} holds nothing that a page could show")
    known = heads.of_report(report)
    return parts.write_page(
        path,
        "report",
        report,
        heads=known,
        tabs=[] if known is None else [heads.numbers_tab(report.command), *heads.profile_tab(known)],
        scripts=[] if known is None else ["profile.js"],
        run=run,
        sections=sections,
        tables=tables,
    )


def _drawing(report: Report) -> Any:
    return _module(VERBS[report.command].figures)


def _module(name: str) -> Any:
    return import_module(f"attnscope.{name}")
