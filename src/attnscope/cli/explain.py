"""`attnscope explain`: it chooses the heads of the figures, and prints the tables of analyses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnscope.cli.output import new_console, run

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.cli.options import Output
    from attnscope.report.schema import Report

_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


def explain(arguments: dict[str, Any], output: Output) -> None:
    """Run the command."""
    from attnscope.explanation.catalogue import requested_analyses

    more, layer, head = requested_analyses(arguments.pop("analyses", [])), *map(arguments.get, ("layer", "head"))

    def heads_to_show(report: Report) -> list[tuple[int, int]]:
        from attnscope.explanation.analyses.verdict import best_heads

        number = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
        return best_heads(report.rows, layer=layer, head=head, count=number)

    parts = [f"{one.name}.npz" for one in more if not one.needs]
    run("explain", output, parts=parts, page_heads=heads_to_show, first=_print_text_tables, analyses=more, **arguments)


def _print_text_tables(tree: xr.DataTree) -> None:
    """Text tables of analyses, such as a comparison with published numbers."""
    if not json.loads(tree.attrs.get("more", "[]")):  # the analyses of explain itself have figures alone
        return
    from rich.table import Table
    from rich.text import Text

    from attnscope.explanation.catalogue import analyses_of

    console = new_console()
    for analysis in analyses_of(tree):
        if analysis.table is None:
            continue
        columns = Table.grid(padding=(0, 2, 0, 0))  # below each other: seven columns would cut words
        for number, quantity, *cells in analysis.table.lines(tree[analysis.name].to_dataset()):
            columns.add_row(Text(number), Text(quantity, style="bold"))
            for heading, cell in zip(analysis.table.columns[2:], cells, strict=True):
                if cell:
                    columns.add_row("", Text(f"{heading}: {cell}"))
            columns.add_row()
        console.print(columns)
        for remark in (analysis.table.key, analysis.table.remark(tree)):
            if remark:
                console.print(remark, style="dim")
