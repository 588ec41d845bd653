"""What `attnscope explain` prints: tables, CSV, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnscope.cli.change_tables import changed_columns, changes_of_heads, print_changes
from attnscope.cli.output import TABLE_ROWS, emit_rows, new_console

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope.mechanism import HeadExplanation


def _print_text_tables(tree: xr.DataTree) -> None:
    """Tables of text that analyses have, such as published numbers beside ours."""
    if not json.loads(tree.attrs.get("more", "[]")):  # the analyses of explain itself have figures alone
        return
    from rich.table import Table
    from rich.text import Text

    from attnscope.mechanism import analyses_of

    console = new_console()
    for analysis in analyses_of(tree):
        if analysis.table is None:
            continue
        shown = Table.grid(padding=(0, 2, 0, 0))  # below each other: seven columns would cut words
        for number, quantity, *cells in analysis.table.lines(tree[analysis.name].to_dataset()):
            shown.add_row(Text(number), Text(quantity, style="bold"))
            for heading, cell in zip(analysis.table.columns[2:], cells, strict=True):
                if cell:
                    shown.add_row("", Text(f"{heading}: {cell}"))
            shown.add_row()
        console.print(shown)
        for said in (analysis.table.key, analysis.table.remark(tree)):
            if said:
                console.print(said, style="dim", highlight=False)


def as_dict(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.mechanism import rank_explanations
    from attnscope.mechanism.words import headline
    from attnscope.results import explanation_notes
    from attnscope.store import skipped_of

    return {
        "signature": json.loads(tree.attrs["signature"]),
        "says": headline(tree),
        "notes": explanation_notes(tree),
        "heads": [asdict(row) for row in rank_explanations(tree)],
        "interventions": changes_of_heads(tree),
        "skipped": skipped_of(tree),
        "run": str(folder),
    }


def print_csv(tree: xr.DataTree) -> None:
    """One line for each head, with the signature that names the run's folder."""
    from attnscope.mechanism import rank_explanations
    from attnscope.store import Signature

    heads = sorted(rank_explanations(tree), key=lambda row: (row.layer, row.head))
    changes = changed_columns(tree, heads)
    signature = {"signature": Signature.from_json(tree.attrs["signature"]).short}
    emit_rows([asdict(row) | more | signature for row, more in zip(heads, changes, strict=True)])


def print_tables(tree: xr.DataTree) -> None:
    """The headline, a table of heads, and how to read it."""
    from attnscope.mechanism import rank_explanations
    from attnscope.mechanism.words import (
        HEADINGS,
        column_notes,
        findings,
        mask_note,
        skipped_by_reason,
    )
    from attnscope.results import account_of, explanation_notes

    console = new_console()
    _print_text_tables(tree)
    rows = rank_explanations(tree)
    account = account_of("explain", tree)
    console.print(f"{tree.attrs['model']}: {account.read}", highlight=False, markup=False)
    for note in explanation_notes(tree).values():
        console.print(note, style="dim", highlight=False, markup=False)
    for sentence in findings(tree):
        console.print(sentence, style="bold", highlight=False)
    for table in tables_of_heads(rows[:TABLE_ROWS], console):
        console.print(table)
    if len(rows) > TABLE_ROWS:
        console.print(f"and {len(rows) - TABLE_ROWS} more heads: --csv lists all", highlight=False)
    print_changes(tree, rows, console)
    for names, reason in skipped_by_reason(tree):
        console.print(f"no {names}: {reason}", style="dim", highlight=False, markup=False)
    names = {key: HEADINGS[key].removeprefix("offset: ") for key, _ in _COLUMNS}
    columns = column_notes(tree, rows[:TABLE_ROWS], names, "–")
    for note in filter(None, (mask_note(tree), *columns)):
        console.print(note, style="dim", highlight=False)
    if _works_against(tree, rows):
        console.print(
            "A share of position below 0, with all of its interval: position alone works against that head's profile "
            "of scores.",
            style="dim",
            highlight=False,
        )
    for caution in account.care:
        console.print(caution, style="dim", highlight=False)


def _works_against(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> bool:
    """Whether the share of position of some head of the table lies below 0 with its interval."""
    if "position_content" not in tree.children:
        return False
    high = tree["position_content"].to_dataset()["position_share_high"]
    shared = [row for row in rows if row.position_share is not None]
    return any(float(high.sel(layer=row.layer, head=row.head)) < 0 for row in shared)


def tables_of_heads(rows: Sequence[HeadExplanation], console: Console) -> list[Table]:
    """The columns that some head has a value for: in one table, or in several where the terminal is too narrow."""
    from attnscope.mechanism.words import known_columns

    known = known_columns(rows)
    tables: list[Table] = []
    shown: list[str] = []
    room = console.options.update(max_width=1000)  # or no table is said to be wider than the terminal
    for group in _TOGETHER:
        more = [key for key in group if key in known]
        wider = _table_of_heads(rows, [*shown, *more], known)
        if shown and more and console.measure(wider, options=room).maximum > console.width:
            tables.append(_table_of_heads(rows, shown, known))
            shown = []
        shown += more
    return [*tables, _table_of_heads(rows, shown, known)]


def _table_of_heads(rows: Sequence[HeadExplanation], shown: Sequence[str], known: set[str]) -> Table:
    """These columns, after those that name the head."""
    from rich import box
    from rich.table import Table

    from attnscope.mechanism.words import HEADINGS

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    wanted = {*shown, *(_NAMING & known)}
    columns = [column for column in _COLUMNS if column[0] in wanted]
    for key, _ in columns:
        left = key in {"attention", "agree", "kernel_agrees"}
        table.add_column(_in_lines(HEADINGS[key]), justify="left" if left else "right")
    for row in rows:
        table.add_row(*(_cell(row, key, form) for key, form in columns))
    return table


def _cell(row: HeadExplanation, key: str, form: Callable[[Any], str]) -> str:
    value = getattr(row, key)
    if value is None:
        return "–" if key.startswith("offset") or key.endswith("_share") else ""
    return form(value)


def _in_lines(heading: str) -> str:
    return "\n".join(wrap(heading, max(_NARROW, *map(len, heading.split()))))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _number(value: float | None, form: str) -> str:
    text = "" if value is None else format(value, form)
    return text if not text or float(text) else text.lstrip("+-")


_NARROW = 8  # characters of a heading on one line, if no word of it is longer
_COLUMNS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("layer", str),
    ("attention", str),
    ("head", str),
    ("peak_weight", partial(_number, form=".3f")),
    ("offset_of_weights", partial(_number, form="+.0f")),
    ("offset_of_spectrum", partial(_number, form="+.2f")),
    ("offset_of_correlation", partial(_number, form="+.2f")),
    ("agree", _yes),
    ("chance", partial(_number, form=".2f")),
    ("offset_of_kernel", partial(_number, form="+.0f")),
    ("kernel_agrees", _yes),
    ("kernel_chance", partial(_number, form=".2f")),
    ("position_share", partial(_number, form=".2f")),
    ("kernel_share", partial(_number, form=".2f")),
)
_NAMING = {"layer", "attention", "head"}


#: Columns that are of no use without each other.
_TOGETHER = (
    ("peak_weight", "offset_of_weights"),
    ("offset_of_spectrum", "offset_of_correlation", "agree", "chance"),
    ("offset_of_kernel", "kernel_agrees", "kernel_chance"),
    ("position_share", "kernel_share"),
)
