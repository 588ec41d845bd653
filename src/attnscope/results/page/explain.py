"""The page of an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.explanation.catalogue import analyses_of, known_analyses
from attnscope.explanation.ranking import best_heads, rank_explanations
from attnscope.explanation.words import (
    HEADINGS,
    column_notes,
    defined_columns,
    findings,
    independence_note,
    layer_numbers,
    mask_note,
    order_note,
    said_of,
    skipped_by_reason,
)
from attnscope.results.figures.explain import explain_figures
from attnscope.results.page.parts import Picture, cells, minus, parsed, picture, write_page
from attnscope.results.page.scan import pieces_note
from attnscope.results.render import Cell, Column
from attnscope.support.arguments import reads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.explanation.study import Section


@reads("explain")
def write_explain_report(
    tree: xr.DataTree,
    path: Path | str,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> Path:
    """Write an explanation as one HTML page that needs no network, no server and no other file."""
    chosen = best_heads(tree) if heads is None else list(heads)
    drawn = dict(explain_figures(tree, chosen)) if figures is None else figures
    shown, (keys, rows) = sections(tree, drawn), table(tree)
    if not shown and not rows:
        raise AttnscopeError("The explanation holds no analysis that a page could show.")
    signature = parsed(tree.attrs.get("signature", "{}"))
    settings: Any = signature.get("settings") if isinstance(signature, dict) else None
    told = isinstance(settings, dict) and all(
        isinstance(settings.get(name), int) for name in ("windows", "window")
    )
    return write_page(
        path,
        "explain",
        scripts=("sort.js",),
        signature=signature,
        model=str(tree.attrs.get("model", "the model")),
        settings=settings if told else {},
        decoder=" ".join(filter(None, [str(tree.attrs.get("decoder", "")), layer_numbers(tree)])),
        findings=findings(tree),
        method=mask_note(tree),
        heads=[f"{layer}.{head}" for layer, head in chosen],
        sections=shown,
        tables=text_tables(tree, shown),
        columns=[COLUMNS[key] for key in keys],
        rows=rows,
        hints=hints(tree),
        there={*map(str, tree.children), *keys},
        skipped=skipped(tree),
        forms=forms(tree),
        form_columns=[Column(name, kind="left") for name in ("Layer", "Form", "Error", "Remark")],
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


#: Columns that a first click sorts with the least first.
_ASCENDING = {"layer", "attention", "head", "chance"}
_ORDER = (  # of the columns of the table
    "layer", "attention", "head", "offset_of_weights", "offset_of_spectrum", "offset_of_correlation", "agree", "chance",
    "offset_of_kernel", "kernel_agrees", "kernel_chance", "position_share", "kernel_share", "peak_weight", "prefers",
    "coherence",
)  # fmt: skip
COLUMNS = {
    key: Column(HEADINGS[key].capitalize(), "ascending" if key in _ASCENDING else "descending")
    for key in _ORDER
}
_WHOLE = {"layer", "head"}
_SIGNED = {"offset_of_spectrum", "offset_of_correlation"}


def sections(tree: xr.DataTree, figures: Mapping[str, Figure]) -> list[PageSection]:
    """The sections that there are figures for, in the order of the catalogue."""
    shown: dict[Section, list[Picture]] = {}
    for analysis in known_analyses().values():
        for one in analysis.pictures:
            if not (one.on_page and one.name in figures and analysis.section is not None):
                continue
            reading, figure = said_of(one.reading, tree), figures[one.name]
            if one.with_tokens:
                labels = (label.get_text() for axes in figure.axes for label in axes.get_yticklabels())
                reading = f"{reading} {pieces_note(labels)}".rstrip()
            shown.setdefault(analysis.section, []).append(picture(figure, one.name, one.title, reading))
    return [
        PageSection(section.name, section.title, _reading(section, tree), pictures)
        for section, pictures in shown.items()
    ]


def _reading(section: Section, tree: xr.DataTree) -> str:
    reading = said_of(section.says, tree)
    if section.name == "content" and "position_content" in tree.children:
        texts = tree["position_content"].attrs.get("texts", "few")
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
            [
                (f"figure-{picture.same_as}", picture.title)
                for picture in analysis.pictures
                if picture.same_as in there
            ],
        )
        for analysis in analyses_of(tree)
        if analysis.table is not None and analysis.section is not None
    ]


def table(tree: xr.DataTree) -> tuple[list[str], list[list[Cell]]]:
    """Names of the columns that have values, and the cells of each head."""
    rows = rank_explanations(tree)
    known = defined_columns(rows)
    keys = [key for key in COLUMNS if key in known]
    values = [[(key, getattr(row, key)) for key in keys] for row in rows]
    return keys, [[Cell(_shown(key, value), _sorted_by(value)) for key, value in line] for line in values]


def hints(tree: xr.DataTree) -> list[str]:
    """How the columns of the table are read, in sentences: those of the terminal, by the names that the page has."""
    rows = rank_explanations(tree)
    names = {key: f"“{column.heading}”" for key, column in COLUMNS.items()}
    notes = column_notes(tree, rows, names, "an empty cell")
    return [*notes, *filter(None, [independence_note(rows)]), order_note(rows)]


def forms(tree: xr.DataTree) -> list[list[Cell]]:
    """For each layer: its number, the form of its scores, how well they are reproduced, and what is amiss."""
    if "forms" not in tree.children:
        return []
    of = tree["forms"].to_dataset()
    errors = [minus(f"{error:.1e}").replace("nan", "") for error in of["error"].values.tolist()]
    layers = [str(layer) for layer in of["layer"].values.tolist()]
    return [
        cells(*row)
        for row in zip(
            layers, map(str, of["form"].values), errors, map(str, of["reason"].values), strict=True
        )
    ]


def skipped(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Analyses that are not defined here, and why, those of one reason together."""
    try:
        return skipped_by_reason(tree)
    except (TypeError, ValueError):
        return []


def _shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key in _WHOLE or isinstance(value, str):
        return str(value)
    if key in {"offset_of_weights", "offset_of_kernel"}:
        text = f"{value:+.0f}"
    elif key in _SIGNED:
        text = f"{value:+.2f}"
    else:
        text = f"{value:.3f}"
    return minus({"+0": "0", "+0.00": "0.00", "-0.00": "0.00", "-0.000": "0.000"}.get(text, text))


def _sorted_by(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{float(value):.6g}"
