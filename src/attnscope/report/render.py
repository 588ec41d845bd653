"""Reports on a terminal, as JSON, as CSV and as tables of a page, for every command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.report.language import language, translate
from attnscope.report.schema import NO_NUMBERS, Quantity, Report, Row, Table, hyphen_minus, text_of, with_marked_spaces
from attnscope.report.signature import Signature
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_HIGH = 26  # pixels of a small profile
_HEADS = 10_000  # more than any layer has: heads are sorted by layer, then by head
_FIRST = 2  # sentences of a finding that a terminal prints above the tables
_KEPT = 12  # columns of a terminal: longest word in a cell that is never divided
_NARROW = 8  # columns of a terminal: lines of a Japanese heading, which has no spaces to break at
_PHRASES = re.compile(r"[一-龠々]+[ぁ-ん]*|[ァ-ー]+|[ぁ-ん]+|[!-~]+ ?|\S")
_MARKS = {True: "*", False: " ", None: " "}
_CLASSES = {True: "shown", False: "open", None: ""}


def as_json(report: Report, folder: Path | str) -> dict[str, Any]:
    """The JSON form of every report."""
    finding = report.finding
    return {
        "signature": report.signature,
        "finding": {
            "text": hyphen_minus(" ".join(finding.sentences)),
            "certainty": finding.certainty,
            "heads": [list(head) for head in finding.leading],
        },
        "notes": [*map(hyphen_minus, report.notes)],
        "tables": {
            table.name: [with_nulls({name: row.get(name) for name in table.columns}) for row in table.rows]
            for table in report.tables
        },
        "run": str(folder),
    }


def as_csv(report: Report) -> list[Row]:
    """The rows of the first table and those of sets of heads, each with the short signature of the run."""
    signature = {"signature": Signature.of(report.signature).short}
    tables = [report.tables[0], *(table for table in report.tables[1:] if table.name == "together")]
    names = dict.fromkeys(name for table in tables for name in table.columns)
    return [{name: row.get(name) for name in names} | signature for table in tables for row in table.rows]


_PLAIN = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "→": r"$\to$"}
    | {"Σ": r"$\Sigma$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$"}
    | {
        "␣": r"\textvisiblespace{}",
        "×": r"$\times$",
        "…": r"\ldots{}",
        "<": "$<$",
        ">": "$>$",
        "|": r"\textbar\allowbreak{}",
    }
)


def as_latex(report: Report) -> str:
    """The tables of the terminal for a paper, as floats of LaTeX with rules by booktabs."""
    floats = [_float(report, table) for table in report.tables if table.terminal and table.rows]
    if not floats:
        floats = [f"% {latex_text(translate(report.finding.headline))}"]
    return "\n".join(["% In the preamble: \\usepackage{booktabs,graphicx}", *floats])


def latex_text(text: str) -> str:
    """A text with the special characters of LaTeX escaped; a hyphen before a digit is a minus."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", "$-$", text.translate(_PLAIN))


def _float(report: Report, table: Table) -> str:
    quantities = table.shown("table")
    by_name = {one.name: one for one in table.quantities}
    rows = (table.best or table.rows)[: table.terminal]

    def cell(one: Quantity, row: Row) -> str:
        text, interval = text_of(one, row, by_name.get(one.like))
        text = latex_text(_marked(one, text)) + "*" * bool(one.significant and row.get(one.significant))
        return f"{text} ({latex_text(translate(interval))})" if interval else text

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    title = translate(table.title)
    caption = [f"{title[:1].upper()}{title[1:]}: {translate(report.model)}, {translate(report.read)}."]
    if len(rows) < len(table.rows):
        caption.append(translate(f"{len(rows)} of {count(len(table.rows), 'row')}."))
    if any(row.get(one.low) is not None for one in quantities for row in rows):
        caption.append(translate("95% intervals in parentheses."))
    if table.corrected and table.tested(quantities):
        caption.append(translate(f"* significant: p < {table.level:g}, corrected {table.corrected}") + ".")
    caption += [f"{names}: {translate(meaning)}." for names, meaning in legend_of(quantities)]
    sides = "".join("l" if one.unit in NO_NUMBERS - {"head"} else "r" for one in quantities)
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(' '.join(caption))}}}",
            rf"  \label{{tab:{report.command}-{table.name}}}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"  \begin{{tabular}}{{{sides}}}",
            r"    \toprule",
            "    " + line([latex_text(translate(one.title)) for one in quantities]),
            r"    \midrule",
            *("    " + line([cell(one, row) for one in quantities]) for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}}",
            r"\end{table}",
        ]
    )


def print_report(report: Report, console: Console, *, legend: bool = False, page: bool = False) -> None:
    """Print the findings, the tables and the notes; with `legend`, also the meaning of each column and all caveats.

    `page` is whether the run has a page, which has the legend too.
    """

    def line(text: str, style: str = "") -> None:
        console.print(hyphen_minus(translate(text)), style=style, highlight=False, markup=False)

    line(f"{report.model}: {translate(report.read)}")
    first, below = report.finding.sentences[:_FIRST], report.finding.sentences[_FIRST:]
    for sentence in first:
        line(sentence, "bold")
    explained: list[str] = []
    for number, table in enumerate(report.tables):
        quantities = table.shown("table")
        if not (table.terminal and table.rows and quantities):
            continue
        if number:
            line(table.title)
        for part in _fitting(table, quantities, console):
            console.print(part)
        if len(table.rows) > table.terminal:
            others = " that stand out less" * bool(table.best)
            left = len(table.rows) - table.terminal
            line(f"and {left} more{others}: --{'json' if number else 'csv'} lists all")
        for group in dict.fromkeys(one.group for one in quantities if one.significant and one.group):
            if not group.endswith("?"):  # a question of the page
                titles = ", ".join(one.title for one in quantities if one.group == group)
                line(f"{titles}: {group[:1].lower()}{group[1:]}", "dim")
        explained += [f"{names}: {translate(meaning + '.')}" for names, meaning in legend_of(quantities)]
        if table.corrected and table.tested(quantities):
            line(f"* significant: p < {table.level:g}, corrected {table.corrected}", "dim")
    for sentence in below:
        line(sentence)
    caveats = [f"{claim} {why}".strip() for claim, why in report.care.items()]
    for note in (*report.notes, *([*dict.fromkeys(explained), *caveats] if legend else [*report.care][:1])):
        line(note, "dim")
    if not legend and (explained or caveats):
        line(f"Legend: add --legend{' or open the report' if page else ''}.", "dim")


def legend_of(quantities: Sequence[Quantity]) -> Iterator[tuple[str, str]]:
    """Headings and their meaning; headings with the same meaning are listed together."""
    for meaning in dict.fromkeys(one.meaning for one in quantities if one.meaning):
        yield translate(", ".join(one.title for one in quantities if one.meaning == meaning)), meaning


_WIDEST = 10_000  # columns of a terminal


def _fitting(table: Table, quantities: Sequence[Quantity], console: Console) -> list[RichTable]:
    """A table as wide as the console has room for; where no layout fits, its columns go to several tables."""
    from rich.cells import cell_len

    room = console.options.update(width=_WIDEST)
    wide = _rich_table(table, quantities)
    if console.measure(wide, options=room).maximum <= console.width:
        return [wide]

    def fits(columns: Sequence[Quantity], narrow: int) -> bool:
        layout = _rich_table(table, columns, narrow=narrow)
        return console.measure(layout, options=room).minimum <= console.width

    def settled(layout: RichTable) -> RichTable:
        """Give columns of words what is left of the width: rich would narrow them below their longest word."""
        left = console.width - console.measure(layout, options=room).minimum
        for column in (one for one in layout.columns if not one.no_wrap):
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
            least = column.min_width or 1
            column.width = max(least, min(max(map(cell_len, lines)), least + left))
            left -= column.width - least
        return layout

    for narrow in (1, 2):
        if fits(quantities, narrow):
            return [settled(_rich_table(table, quantities, narrow=narrow))]
    labels = [*takewhile(lambda one: one.unit in NO_NUMBERS - {"text"}, quantities)] or [
        quantities[0]
    ]  # of rows, in each part
    parts: list[list[Quantity]] = []
    for one in quantities[len(labels) :]:
        if not parts or not fits([*labels, *parts[-1], one], 2):
            parts.append([])
        parts[-1].append(one)
    return [settled(_rich_table(table, [*labels, *part], narrow=2)) for part in parts or [[]]]


def _rich_table(table: Table, quantities: Sequence[Quantity], *, narrow: int = 0) -> RichTable:
    """A table of the terminal; if narrow, headings of numbers have one word a line; with 2, intervals are below."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    by_name = {one.name: one for one in table.quantities}
    rows = (table.best or table.rows)[: table.terminal]
    layout = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    columns: list[list[str]] = []

    def add(title: str, cells: list[str], *, words: bool = False, whole: bool = False) -> None:
        """A column; if whole, none of its lines is divided, else no word of a usual length."""
        if whole:
            least = [line for cell in (title, *cells) for line in cell.split("\n")]
        else:
            least = [*title.split(), *(word for cell in cells for word in cell.split() if cell_len(word) <= _KEPT)]
        least = max(map(cell_len, least), default=0)
        justify = "left" if words else "right"
        layout.add_column(title, justify=justify, overflow="fold", no_wrap=whole, min_width=least)
        columns.append(cells)

    for one in quantities:
        words, title = one.unit in NO_NUMBERS - {"head"}, _heading(translate(one.title))
        texts = [text_of(one, row, by_name.get(one.like)) for row in rows]
        cells = [
            _marked(one, text) + (_MARKS[row.get(one.significant)] if one.significant and text else "")
            for row, (text, _) in zip(rows, texts, strict=True)
        ]
        whole = bool(one.significant) or (narrow > 0 and not words)
        if not (one.interval and any(row.get(one.low) is not None for row in table.rows)):
            add("\n".join(title.split(" ")) if narrow and not words else title, cells, words=words, whole=whole)
            continue
        ends = [translate(interval) for _, interval in texts]
        name = translate("95% interval")
        if narrow > 1:
            title = f"{title} ({_heading(name)})"
            cells = [f"{cell}\n{interval}" for cell, interval in zip(cells, ends, strict=True)]
            add("\n".join(title.split(" ")), cells, words=words)
        else:
            add("\n".join(title.split(" ")) if narrow and not words else title, cells, words=words, whole=whole)
            add(_heading(name), ends, whole=narrow > 0)
    for cells in zip(*columns, strict=True):
        layout.add_row(*map(Text, cells))
    return layout


def _heading(title: str) -> str:
    """A heading; a long one in Japanese in several lines."""
    from rich.cells import cell_len

    if language() == "en":
        return title
    lines = [""]
    for phrase in _PHRASES.findall(title):
        if lines[-1] and cell_len(lines[-1] + phrase.rstrip()) > _NARROW:
            lines.append("")
        lines[-1] += phrase
    return "\n".join(lines)


def _marked(quantity: Quantity, text: str) -> str:
    if quantity.unit == "name":
        return text
    return with_marked_spaces(text).replace("\n", "⏎") if quantity.unit == "token" else translate(text)


@dataclass(frozen=True)
class Column:
    """A column of a page's table; `first` is the order after the first click, empty if it cannot be sorted."""

    heading: str
    first: str = ""
    kind: str = "number"
    group: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a page: text, sort key, class, second line, and a small profile."""

    text: str
    value: float | str = ""
    kind: str = ""  # by default the class of its column
    below: str = ""
    fixed: bool = False  # whether it is data, in no language
    profile: Sequence[tuple[float, float, bool]] = ()
    pieces: Sequence[tuple[str, str]] = ()  # of a text with marked tokens


def page_table(table: Table) -> dict[str, Any]:
    quantities = table.shown("table", "page", "drawn")
    by_name = {one.name: one for one in table.quantities}
    columns = [_column(one) for one in quantities]
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    rows = table.rows[: table.page]
    return {
        "name": table.name,
        "title": table.title,
        "reading": table.reading,
        "columns": columns,
        "starts": [not number or column.group != columns[number - 1].group for number, column in enumerate(columns)],
        "groups": groups if len(groups) > 1 else [],
        "rows": [[_cell(one, row, by_name.get(one.like)) for one in quantities] for row in rows],
        "count": f"{len(rows)} of {len(table.rows)}" if len(rows) < len(table.rows) else str(len(rows)),
        "legend": list(legend_of(quantities)),
        "tested": table.tested(quantities),
        "corrected": table.corrected,
        "level": f"{table.level:g}",
        "least": table.least,
    }


def _column(quantity: Quantity) -> Column:
    words = quantity.unit in NO_NUMBERS
    kind = "number" if not words or quantity.unit == "head" else "text" if quantity.unit == "text" else "left"
    title = re.sub(r"^[a-z]{2,}\b", lambda first: first[0].capitalize(), quantity.title)  # not of p, chrF
    first = "" if quantity.unit == "profile" else "ascending" if words else "descending"
    return Column(title, first, kind, quantity.group, quantity.meaning)


def _cell(quantity: Quantity, row: Row, like: Quantity | None) -> Cell:
    value, kind = row.get(quantity.name), _column(quantity).kind
    if quantity.unit == "profile":
        profile: Any = value or ()
        top = max((weight for _, weight in profile), default=0.0) or 1.0
        bars = [(float(n), round(_HIGH * weight / top, 1), at == 0) for n, (at, weight) in enumerate(profile)]
        return Cell("", "", kind, profile=bars)
    text, interval = text_of(quantity, row, like)
    if value is None:
        return Cell("", "", kind)
    if quantity.unit == "head":
        return Cell(text, float(row["layer"] * _HEADS + value), kind)
    if isinstance(value, str):
        return Cell(
            _marked(quantity, text),
            value,
            kind,
            fixed=quantity.unit in {"token", "name"},
            pieces=getattr(value, "pieces", ()),
        )
    tested = _CLASSES[row.get(quantity.significant)]
    return Cell(text.replace("-", "−"), float(value), f"{kind} {tested}".strip(), interval.replace("-", "−"))
