"""Which report, figures and page the result of each verb has."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.results.render import write_report

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.results.schema import Report

#: By command: the module with its `report`, and that with its `figures` and their `captions`.
REPORTS = {
    "scan": ("attnscope.results.scan_report", "attnscope.results.figures.scan"),
    "generate": ("attnscope.comparison.generated", ""),
    "explain": ("attnscope.explanation.report", "attnscope.results.figures.explain"),
    "compare": ("attnscope.lineage.reports", "attnscope.results.figures.comparison"),
    "intervene": ("attnscope.intervention.verdicts", "attnscope.results.figures.intervene"),
    "patch": ("attnscope.intervention.patch_findings", "attnscope.results.figures.patch"),
    "diff": ("attnscope.comparison.findings", "attnscope.results.figures.diff"),
    "roles": ("attnscope.detection.report", "attnscope.results.figures.roles"),
}

#: By command: the module with its `write`, where its page has more than tables and figures.
PAGES = {
    "scan": "attnscope.results.page.scan",
    "compare": "attnscope.results.page.comparison",
    "generate": "attnscope.results.page.generation",
    "explain": "attnscope.results.page.explain",
}


def report_of(command: str, result: xr.Dataset | xr.DataTree, *, data: bool = False) -> Report:
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
    drawn = {} if report.command == "scan" else figures_of(report) if figures is None else figures
    if report.command in PAGES:
        return import_module(PAGES[report.command]).write(report, path, drawn)
    return write_report(report, path, drawn, _drawing(report).captions(report))


def _drawing(report: Report) -> Any:
    return import_module(REPORTS[report.command][1])
