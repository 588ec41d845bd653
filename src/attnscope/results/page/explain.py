"""The page of an explanation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnscope.explanation.catalogue import analyses_of, known_analyses
from attnscope.explanation.report import report as report_of
from attnscope.results.figures.explain import explain_figures
from attnscope.results.page.parts import Picture, cells, picture, write_page
from attnscope.results.page.scan import pieces_note
from attnscope.results.render import Cell, Column, page_table
from attnscope.support.arguments import reads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.explanation.study import Section, Words
    from attnscope.results.schema import Report


@reads("explain")
def write_explain_report(
    tree: xr.DataTree,
    path: Path | str,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> Path:
    """Write an explanation as one HTML page that needs no network, no server and no other file."""
    made = report_of(tree)
    made = made if heads is None else replace(made, heads=list(heads))
    return write(made, path, figures or dict(explain_figures(tree, made.heads)))


def write(report: Report, path: Path | str, figures: Mapping[str, Figure]) -> Path:
    """Write the page of a report."""
    tree: Any = report.result
    shown = sections(report, figures)
    made = [page_table(table) for table in report.tables]
    first, *others = [table | {"name": f"{table['name']}-table"} for table in made]  # sections have such names too
    if not shown and not first["rows"]:
        raise AttnscopeError("The explanation holds no analysis that a page could show.")
    return write_page(
        path,
        "explain",
        scripts=("sort.js",),
        signature=tree.attrs.get("signature", "{}"),
        report=report,
        heads=[f"{layer}.{head}" for layer, head in report.heads or ()],
        sections=shown,
        text_tables=text_tables(tree, shown),
        verdicts=[first] if first["rows"] else [],
        tables=[table for table in others if table["rows"]],
    )


@dataclass(frozen=True)
class PageSection:
    """An analysis, or several that belong together."""

    name: str
    title: str
    reading: str
    pictures: list[Picture]


@dataclass(frozen=True)
class PageTable:
    """A table of text within a section, and links to its analyses' figures that other sections show."""

    section: str
    title: str
    key: str
    columns: list[Column]
    rows: list[list[Cell]]
    elsewhere: list[tuple[str, str]]  # address on the page, name


def sections(report: Report, figures: Mapping[str, Figure]) -> list[PageSection]:
    """The sections that there are figures for, in the order of the catalogue."""
    shown: dict[Section, list[Picture]] = {}
    for analysis in known_analyses().values():
        for one in analysis.pictures:
            if not (one.on_page and not one.same_as and one.name in figures and analysis.section is not None):
                continue
            reading, figure = words(one.reading, report), figures[one.name]
            if one.with_tokens:
                labels = (label.get_text() for axes in figure.axes for label in axes.get_yticklabels())
                reading = f"{reading} {pieces_note(labels)}".rstrip()
            shown.setdefault(analysis.section, []).append(picture(figure, one.name, one.title, reading))
    return [
        PageSection(section.name, section.title, _reading(section, report), pictures)
        for section, pictures in shown.items()
    ]


def words(text: Words, report: Report) -> str:
    """The words of a `Section` or a `Picture` on an explanation: themselves, or those made of it."""
    return text if isinstance(text, str) else text(report.result, report.rows)


def _reading(section: Section, report: Report) -> str:
    reading = words(section.says, report)
    if section.name == "content" and "position_content" in report.result.children:
        texts = report.result["position_content"].attrs.get("texts", "few")
        return f"{reading} From the first {texts} windows."
    return reading


def text_tables(tree: xr.DataTree, shown: Sequence[PageSection]) -> list[PageTable]:
    """Tables of text that analyses have, each beneath its section."""
    there = {picture.name for section in shown for picture in section.pictures}
    return [
        PageTable(
            analysis.section.name,
            analysis.table.title,
            analysis.table.key,
            [Column(heading, kind="left") for heading in analysis.table.columns],
            [cells(*line) for line in analysis.table.lines(tree[analysis.name].to_dataset())],
            [(f"figure-{picture.same_as}", picture.title) for picture in analysis.pictures if picture.same_as in there],
        )
        for analysis in analyses_of(tree)
        if analysis.table is not None and analysis.section is not None
    ]
