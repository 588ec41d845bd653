"""Which report, figures and page the result of each verb has."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.results.render import page_table
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnscope.results.schema import Report

#: By command: the module with its `report`, and that with its `figures` and their `captions`.
REPORTS = {
    "scan": ("attnscope.results.scan_report", "attnscope.results.figures.scan"),
    "generate": ("attnscope.comparison.generated", ""),
    "examples": ("attnscope.detection.example_report", ""),
    "find": ("attnscope.detection.find_report", ""),
    "explain": ("attnscope.explanation.report", "attnscope.results.figures.explain"),
    "align": ("attnscope.lineage.align", "attnscope.results.figures.alignment"),
    "compare": ("attnscope.lineage.score", "attnscope.results.figures.comparison"),
    "intervene": ("attnscope.intervention.verdicts", "attnscope.results.figures.intervene"),
    "patch": ("attnscope.intervention.patch_findings", "attnscope.results.figures.patch"),
    "diff": ("attnscope.comparison.diff", "attnscope.results.figures.diff"),
    "roles": ("attnscope.detection.report", "attnscope.results.figures.roles"),
}

#: By command: the module with its `write`, where its page draws by itself.
PAGES = {"scan": "attnscope.results.page.scan", "generate": "attnscope.results.page.generation"}


def report_of(command: str, result: Any, *, data: bool = False) -> Report:
    """All that a result has to show; its rows are computed here, once. With `data`, also what no table shows."""
    return import_module(REPORTS[command][0]).report(result, **({"data": data} if command == "scan" else {}))


def figures_of(report: Report) -> dict[str, Figure]:
    """Every figure that a result has values for, by name."""
    return dict(_drawing(report).figures(report)) if REPORTS[report.command][1] else {}


def grid_of(report: Report) -> Figure | None:
    """The figure of all heads, as a notebook shows it."""
    return _drawing(report).grid(report) if REPORTS[report.command][1] else None


def write_page(report: Report, path: Path | str, figures: Mapping[str, Figure] | None = None) -> Path:
    """Write a result as one HTML page that needs no network and no other file."""
    if report.command in PAGES:
        return import_module(PAGES[report.command]).write(report, path)
    from attnscope.results.page import parts

    sections: list[Any] = []
    if REPORTS[report.command][1]:
        drawn, drawing = figures_of(report) if figures is None else figures, _drawing(report)
        own = getattr(drawing, "sections", None)  # where one has several figures, or tables of text
        sections = parts.sections(drawn, drawing.captions(report)) if own is None else own(report, drawn)
    tables = [page_table(table) for table in report.tables if table.page and table.rows]
    if not sections and not tables:
        raise AttnscopeError(f"the result of {report.command} holds nothing that a page could show")
    return parts.write_page(
        path,
        "report",
        scripts=("sort.js",),
        signature=report.signature,
        report=report,
        sections=sections,
        tables=tables,
    )


def _drawing(report: Report) -> Any:
    return import_module(REPORTS[report.command][1])
