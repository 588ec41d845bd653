"""`attnscope explain`: parse, call, print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console
from attnscope.cli.place import run

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.results.schema import Report

_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


_Frequencies = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH", help="Frequencies, in cycles per window, that shifts are read off.", show_default="from 3"
    ),
]
_Completion = Annotated[
    str, typer.Option(help="Completion of the rotation in the phase maps: minimal, lapack, haar or thin.")
]
_Interventions = Annotated[
    bool, typer.Option("--interventions", help="Interventions too: words and positions are changed, and heads watched.")
]
_Analyses = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=SETTING]",
        help="Analyses that an installed package adds, such as yamamoto2023, the numbers of a paper; may be repeated.",
    ),
]
_Also = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Model whose position table is shown beside this one's; may be repeated."),
]
_Layer = Annotated[int | None, typer.Option(help="Layer, counted from 0, of the heads in the figures of single heads.")]
_Head = Annotated[int | None, typer.Option(help="Head, counted from 0, to show in the figures of single heads.")]


@options.takes(
    *options.READING,
    "target",
    "window",
    "limit",
    "band",
    "seed",
    *options.UNITS,
    "repair",
    *options.WRITING,
    limit=100,
    window=options.varied("window", show_default="the model's length"),
    target=options.varied("target", help="Text for the decoder, cut like the text; may be repeated."),
    examples=(
        ("attnscope explain", "the bundled model on the bundled text"),
        ("attnscope explain gpt2 corpus.txt --limit 20", "a model of the hub on a file"),
        ("attnscope explain ./my-model corpus/ --interventions", "with words and positions changed"),
    ),
)
def explain(
    frequencies: _Frequencies = None,
    completion: _Completion = "minimal",
    interventions: _Interventions = False,
    analyses: _Analyses = None,
    also: _Also = None,
    layer: _Layer = None,
    head: _Head = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Explain why every head attends there: take queries and keys apart into positions, content and waves."""
    from attnscope.explanation.catalogue import requested_analyses

    more = requested_analyses(analyses or [])
    run(
        "explain",
        output,
        parts=[f"{one.name}.npz" for one in more if not one.needs],
        page_heads=lambda report: _heads_to_show(report, layer, head),
        first=_print_text_tables,
        **reading,
        layer=layer,
        head=head,
        completion=completion,
        interventions=interventions,
        frequencies=_frequencies(frequencies),
        analyses=more,
        also=also or [],
    )


def _heads_to_show(report: Report, layer: int | None, head: int | None) -> list[tuple[int, int]]:
    from attnscope.explanation.analyses.verdict import best_heads

    number = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
    return best_heads(report.rows, layer=layer, head=head, count=number)


def _frequencies(given: str | None) -> tuple[int, int] | None:
    from attnscope.support.errors import AttnscopeError

    if given is None:
        return None
    low, _, high = given.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(f"--frequencies is {given!r}: give two whole numbers, the smaller first, as in 3:60")
    return int(low), int(high)


def _print_text_tables(tree: xr.DataTree) -> None:
    """Tables of text that analyses have, such as published numbers beside ours."""
    if not json.loads(tree.attrs.get("more", "[]")):  # the analyses of explain itself have figures alone
        return
    from rich.table import Table
    from rich.text import Text

    from attnscope.explanation.catalogue import analyses_of

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
