"""Writing the page of an explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from attnscope.results.page.parts import STYLES, write_page
from attnscope.results.page.parts import picture as embedded_picture
from attnscope.results.page.scan import parsed, pieces_note
from attnscope.support.arguments import reads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.explanation.study import Picture, Section


@reads("explain")
def write_explain_report(
    tree: xr.DataTree,
    path: Path | str,
    heads: Sequence[tuple[int, int]] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> Path:
    """Write an explanation as one HTML page that needs no network, no server and no other file."""
    chosen = best_heads(tree) if heads is None else list(heads)
    shown = sections(tree, chosen, figures)
    columns, rows = table(tree)
    if not shown and not rows:
        raise AttnscopeError("The explanation holds no analysis that a page could show.")
    signature = parsed(tree.attrs.get("signature", "{}"))
    return write_page(
        Path(path),
        "explain.html.j2",
        styles=STYLES,
        scripts=("sort.js",),
        signature=signature,
        model=str(tree.attrs.get("model", "the model")),
        settings=_settings(signature),
        decoder=" ".join(filter(None, [str(tree.attrs.get("decoder", "")), layer_numbers(tree)])),
        findings=findings(tree),
        method=mask_note(tree),
        heads=[f"{layer}.{head}" for layer, head in chosen],
        sections=shown,
        tables=text_tables(tree, shown),
        columns=columns,
        rows=rows,
        hints=hints(tree),
        there={*map(str, tree.children), *(key for key, _, _ in columns)},
        skipped=skipped(tree),
        forms=forms(tree),
    )


def _settings(signature: Any) -> dict[str, int]:
    """How many windows of how many tokens, where the signature tells."""
    settings: Any = signature.get("settings") if isinstance(signature, dict) else None
    if not isinstance(settings, dict):
        return {}
    return {name: settings[name] for name in ("windows", "window") if isinstance(settings.get(name), int)}


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page."""

    name: str
    title: str
    reading: str
    source: str  # data: address
    width: int  # pixels at its own size


@dataclass(frozen=True)
class PageSection:
    """An analysis, or several that belong together."""

    name: str
    title: str
    says: str
    pictures: list[PageFigure]


@dataclass(frozen=True)
class PageTable:
    """A table of text within a section, and links to its analyses' figures that other sections show."""

    section: str
    title: str
    key: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]
    elsewhere: list[tuple[str, str]]  # address on the page, name


#: Columns that a first click sorts with the least first.
_ASCENDING = {"layer", "attention", "head", "chance"}
_ORDER = (  # of the columns of the table
    "layer", "attention", "head", "offset_of_weights", "offset_of_spectrum", "offset_of_correlation", "agree", "chance",
    "offset_of_kernel", "kernel_agrees", "kernel_chance", "position_share", "kernel_share", "peak_weight", "prefers",
    "coherence",
)  # fmt: skip
COLUMNS = tuple(
    (key, HEADINGS[key].capitalize(), "ascending" if key in _ASCENDING else "descending") for key in _ORDER
)
_WHOLE = {"layer", "head"}
_SIGNED = {"offset_of_spectrum", "offset_of_correlation"}


def sections(
    tree: xr.DataTree,
    heads: Sequence[tuple[int, int]] | None,
    figures: Mapping[str, Figure] | None = None,
) -> list[PageSection]:
    """The sections that the tree has figures for, in the order of the catalogue."""
    drawn = dict(explain_figures(tree, heads) if figures is None else figures.items())
    shown: dict[Section, list[PageFigure]] = {}
    for analysis in known_analyses().values():
        for picture in analysis.pictures:
            if picture.on_page and picture.name in drawn and analysis.section is not None:
                shown.setdefault(analysis.section, []).append(
                    _shown_picture(picture, drawn[picture.name], tree)
                )
    return [
        PageSection(section.name, section.title, _says(section, tree), pictures)
        for section, pictures in shown.items()
    ]


def _says(section: Section, tree: xr.DataTree) -> str:
    says = said_of(section.says, tree)
    if section.name == "content" and "position_content" in tree.children:
        texts = tree["position_content"].attrs.get("texts", "few")
        return f"{says} From the first {texts} windows."
    return says


def text_tables(tree: xr.DataTree, shown: Sequence[PageSection]) -> list[PageTable]:
    """Tables of text that analyses have, each beneath its section."""
    there = {picture.name for section in shown for picture in section.pictures}
    made: list[PageTable] = []
    for analysis in analyses_of(tree):
        if analysis.table is None or analysis.section is None:
            continue
        second = {picture.same_as: picture.title for picture in analysis.pictures if picture.same_as in there}
        elsewhere = [(f"figure-{name}", title) for name, title in second.items()]
        lines = analysis.table.lines(tree[analysis.name].to_dataset())
        asked = analysis.table
        made.append(PageTable(analysis.section.name, asked.title, asked.key, asked.columns, lines, elsewhere))
    return made


def table(tree: xr.DataTree) -> tuple[list[tuple[str, str, str]], list[list[tuple[str, str]]]]:
    """Columns that have values, and for each head its cells: what is shown and what is sorted by."""
    rows = rank_explanations(tree)
    known = defined_columns(rows)
    columns = [column for column in COLUMNS if column[0] in known]
    values = [[(key, getattr(row, key)) for key, _, _ in columns] for row in rows]
    return columns, [[(_shown(key, value), _sorted_by(value)) for key, value in line] for line in values]


def hints(tree: xr.DataTree) -> list[str]:
    """How the columns of the table are read, in sentences: those of the terminal, by the names that the page has."""
    rows = rank_explanations(tree)
    names = {key: f"“{heading}”" for key, heading, _ in COLUMNS}
    notes = column_notes(tree, rows, names, "an empty cell")
    return [*notes, *filter(None, [independence_note(rows)]), order_note(rows)]


def forms(tree: xr.DataTree) -> list[tuple[str, str, str, str]]:
    """For each layer: its number, the form of its scores, how well they are reproduced, and what is amiss."""
    if "forms" not in tree.children:
        return []
    forms_of = tree["forms"].to_dataset()
    return [
        (
            str(int(layer)),
            str(forms_of["form"].values[row]),
            f"{float(forms_of['error'].values[row]):.1e}".replace("-", "−").replace("nan", ""),
            str(forms_of["reason"].values[row]),
        )
        for row, layer in enumerate(forms_of["layer"].values)
    ]


def skipped(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Analyses that are not defined here, and why, those of one reason together."""
    try:
        return skipped_by_reason(tree)
    except (TypeError, ValueError):
        return []


def _shown_picture(picture: Picture, figure: Figure, tree: xr.DataTree) -> PageFigure:
    reading = said_of(picture.reading, tree)
    if picture.with_tokens:
        labels = (label.get_text() for axes in figure.axes for label in axes.get_yticklabels())
        reading = f"{reading} {pieces_note(labels)}".rstrip()
    return PageFigure(picture.name, picture.title, reading, *embedded_picture(figure))


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
    return {"+0": "0", "+0.00": "0.00", "-0.00": "0.00", "-0.000": "0.000"}.get(text, text).replace("-", "−")


def _sorted_by(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{float(value):.6g}"
