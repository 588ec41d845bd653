"""What `attnscope scan --by` prints of texts that are held apart: table and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnscope._numbers import change_texts

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

_SHOWN = 12  # differences that the table shows


def contrasts_dict(results: xr.Dataset) -> dict[str, Any]:
    """What ``--json`` says of them."""
    from attnscope.difference import contrast_rows, contrasts, contrasts_said, field_of
    from attnscope.results import apart_said

    field = field_of(results)
    if len(set(results.by.values)) == 1:
        return {"field": field, "says": apart_said(results), "differences": []}
    tested = contrasts(results)
    return {"field": field, "says": contrasts_said(tested), "differences": contrast_rows(tested)}


def print_contrasts(results: xr.Dataset, console: Console) -> None:
    """The largest differences that are told from 0."""
    from rich import box
    from rich.table import Table

    from attnscope.difference import contrast_rows, contrasts, contrasts_said, field_of
    from attnscope.results import apart_said

    if len(set(results.by.values)) == 1:
        for sentence in apart_said(results):
            console.print(f"\n{sentence}", style="bold", highlight=False, markup=False)
        return
    tested = contrasts(results)
    first, *others = contrasts_said(tested)
    console.print(f"\n{first}", style="bold", highlight=False, markup=False)
    for sentence in others:
        console.print(sentence, highlight=False, markup=False)
    rows = [row for row in contrast_rows(tested) if row["differs"]]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("layer", "head"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("statistic", field_of(results)):
        table.add_column(escape(heading), overflow="fold")
    for heading in ("mean", "others", "difference", "95% interval"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows[:_SHOWN]:
        names = [str(row[name]) for name in ("layer", "head", "statistic", "by")]
        numbers = [float(str(row[name])) for name in ("mean", "others", "difference", "low", "high")]
        table.add_row(*map(escape, names), *change_texts(*numbers))
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} more: --json lists all", highlight=False)
