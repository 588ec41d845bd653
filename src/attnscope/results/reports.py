"""The report, figures and page of the result of each verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope.catalogue import verb_of
from attnscope.report.render import page_table
from attnscope.report.schema import Report
from attnscope.statistics.units import original
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report_of(command: str, result: Any, *, data: bool = False) -> Report:
    """All that a result has to show: findings in sentences, tables, notes and caveats.

    Parameters
    ----------
    command
        Name of the command that returned the result, such as ``"scan"``.
    result
        The result (a Dataset or DataTree), from memory or from `attnscope.open_run`.
    data
        For a scan, whether to add the tables that only ``--json`` and ``--csv`` have.

    Returns
    -------
    attnscope.report.schema.Report
        ``finding.sentences`` are the findings; ``rows`` those of the first table, a dictionary for each head.

    Examples
    --------
    >>> import attnscope
    >>> report = report_of("scan", attnscope.scan(limit=4, window=64))
    >>> report.read
    '3 layers x 4 heads over 4 windows (256 tokens in all)'
    """
    report = import_module(verb_of(command).report).report(result, **({"data": data} if command == "scan" else {}))
    model = report.model or str(result.attrs.get("model", "the model"))
    mixers = [result.attrs["mixers"]] if "mixers" in result.attrs else []
    notes = [*_repetition_notes(result), *mixers, *report.notes]
    return replace(report, command=command, model=model, notes=notes)


def _repetition_notes(result: Any) -> list[str]:
    """The number of texts, or pairs of texts, that equal an earlier one, as a note; empty without any."""
    parts = list(result.subtree) if isinstance(result, xr.DataTree) else [result]
    parts = [part for part in parts if isinstance(part, xr.DataTree | xr.Dataset)]
    names = next((part.coords["source"].values.ravel().tolist() for part in parts if "source" in part.coords), [])
    texts = {name: original(name) for name in names}
    repeated = sum(name != first for name, first in texts.items())
    if repeated:
        return [_counted_once(repeated, len(texts), str(result.attrs.get("reads", "texts")))]
    both = ("clean_text", "corrupted_text")
    sides = next(([part.coords[one].values.tolist() for one in both] for part in parts if both[0] in part.coords), [])
    pairs = list(zip(*sides, strict=True))
    repeated = len(pairs) - len(set(pairs))
    return [_counted_once(repeated, len(pairs), "pairs")] if repeated else []


def _counted_once(repeated: int, count: int, called: str) -> str:
    return f"{repeated} of {count} {called} repeat an earlier one: intervals and tests count them once."


def figures_of(report: Report) -> dict[str, Figure]:
    """Every figure that a result has values for, by name."""
    drawing = _drawing(report)
    return {} if drawing is None else dict(drawing.figures(report))


def grid_of(report: Report) -> Figure | None:
    """The figure of all heads, as a notebook shows it."""
    drawing = _drawing(report)
    return None if drawing is None else drawing.grid(report)


def write_page(
    report: Report, path: Path | str, figures: Mapping[str, Figure] | None = None, run: Path | None = None
) -> Path:
    """Write a result as one HTML page that needs no network and no other file; `run` is the folder of its run."""
    page, drawing = verb_of(report.command).page, _drawing(report)
    if page and not report.drawing:
        return import_module(page).write(report, path, run)
    from attnscope.results.page import heads, parts

    sections: list[Any] = []
    if drawing is not None:
        drawn = figures_of(report) if figures is None else figures
        sections_of = getattr(drawing, "sections", None)  # where one has several figures, or tables of text
        captions: Any = getattr(drawing, "captions", {})  # fixed, or made from the result
        captions = captions if isinstance(captions, dict) else captions(report)
        sections = parts.sections(drawn, captions) if sections_of is None else sections_of(report, drawn)
    tables = [page_table(table) for table in report.tables if table.page and table.rows]
    if not sections and not tables:
        raise AttnscopeError(f"the result of {report.command} holds nothing that a page could show")
    data = heads.of_report(report)
    tabs = [] if data is None else [heads.numbers_tab(report.command), *heads.profile_tab(data)]
    scripts = ["profile.js"] * bool(tabs)
    panel = getattr(drawing, "panel", "")  # the script that draws above the numbers of a head
    if panel and data is not None:
        data_of: Any = getattr(drawing, "panel_data", None)
        data["own"] = None if data_of is None else data_of(report)
        tabs[0] = replace(tabs[0], panel="own_panel")
        scripts.append(panel)
    return parts.write_page(
        path,
        "report",
        report,
        heads=data,
        tabs=tabs,
        scripts=scripts,
        run=run,
        sections=sections,
        first=getattr(drawing, "first", ("heads",)),
        tables=tables,
    )


def _drawing(report: Report) -> Any:
    """The module that draws the figures of a report; None without any."""
    module = report.drawing or verb_of(report.command).figures
    return import_module(module) if module else None
