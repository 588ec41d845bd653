"""`attnscope explain`: parse, call, print."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import TABLE_ROWS, emit_rows, new_console, print_note, progress_bar
from attnscope.cli.place import PAGE, Forms, OutputFolder, draw_views, usual_folder
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope.explanation.ranking import HeadExplanation

_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


_Frequencies = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH",
        help="Frequencies, in cycles per window, that shifts are read off.",
        show_default="from 3",
    ),
]
_Completion = Annotated[
    str, typer.Option(help="Completion of the rotation in the phase maps: minimal, lapack, haar or thin.")
]
_Interventions = Annotated[
    bool,
    typer.Option(
        "--interventions", help="Interventions too: words and positions are changed, and heads watched."
    ),
]
_Paper = Annotated[
    bool, typer.Option("--paper", help="Settings of the papers, and their published numbers beside ours.")
]
_PublishedAs = Annotated[
    str | None,
    typer.Option(
        help="Name of the published model whose weights these are, where a folder cannot tell: roberta-base or gpt2."
    ),
]
_Relearn = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Steps of learning the position table anew with unknown tokens between, such as 1000.",
    ),
]
_Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL", help="Model whose position table is shown beside this one's; may be repeated."
    ),
]
_Layer = Annotated[
    int | None, typer.Option(help="Layer, counted from 0, of the heads in the figures of single heads.")
]
_Head = Annotated[
    int | None, typer.Option(help="Head, counted from 0, to show in the figures of single heads.")
]


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
    paper: _Paper = False,
    published_as: _PublishedAs = None,
    relearn: _Relearn = None,
    also: _Also = None,
    layer: _Layer = None,
    head: _Head = None,
    *,
    reading: dict[str, Any],
    output: options.Output,
) -> None:
    """Explain why every head attends there: take queries and keys apart into positions, content and waves."""
    place = OutputFolder(output.out, usual_folder("explain"), ("paper.npz",) if paper else ())
    tree = _analysed(
        paper=paper,
        published_as=published_as,
        relearn=relearn,
        **reading,
        layer=layer,
        head=head,
        completion=completion,
        interventions=interventions,
        frequencies=_frequencies(frequencies),
        also=also or [],
        out=place,
    )
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    page = _draw(tree, _heads_to_show(tree, layer, head), output.formats, with_page=output.report)
    forms, folder = Forms(as_dict, print_csv, print_tables), Path(tree.attrs["run"])
    forms.show(tree, place, folder, page, as_json=output.as_json, as_csv=output.as_csv)


def _analysed(*, paper: bool, published_as: str | None, relearn: int | None, **settings: Any) -> xr.DataTree:
    from attnscope.explanation.explain import explain as run_explain
    from attnscope.reproduction.yamamoto2023.analyses import LONGEST, analyses
    from attnscope.reproduction.yamamoto2023.models import check_published
    from attnscope.reproduction.yamamoto2023.relearned_analysis import relearned as yamamoto2023_relearned

    more = [] if relearn is None else [yamamoto2023_relearned(relearn)]
    check_published(published_as)
    if paper:
        more += analyses(published_as=published_as)
    longest = LONGEST if paper else None
    with progress_bar("explain") as show:
        return run_explain(**settings, more=more, longest=longest, progress=show)


def _heads_to_show(tree: xr.DataTree, layer: int | None, head: int | None) -> list[tuple[int, int]]:
    from attnscope.explanation.ranking import best_heads

    number = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
    return best_heads(tree, layer=layer, head=head, count=number)


def _print_relearned(relearned: xr.Dataset, folder: Path) -> None:
    """How far the loss fell, on standard error."""
    losses, kept = relearned.loss.values, folder / "relearned"
    said = f"relearned positions: loss {losses[0]:.3f} -> {losses[-1]:.3f}; model kept in {kept}"
    new_console(errors=True).print(said, highlight=False, markup=False, soft_wrap=True)


def _frequencies(given: str | None) -> tuple[int, int] | None:
    from attnscope.support.errors import AttnscopeError

    if given is None:
        return None
    low, _, high = given.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(
            f"--frequencies is {given!r}: give two whole numbers, the smaller first, as in 3:60"
        )
    return int(low), int(high)


def _draw(
    tree: xr.DataTree, heads: list[tuple[int, int]], formats: tuple[str, ...], *, with_page: bool
) -> Path | None:
    """The page, where it is wanted; before that it is said what was relearned."""
    from attnscope.store.runs import RunFolder

    folder = Path(tree.attrs["run"])
    if "relearned" in tree.children:
        _print_relearned(tree["relearned"].to_dataset(), folder)
    if not with_page:
        return None

    def draw(place: Path) -> None:
        from attnscope.results.figures.explain import explain_figures, write_explain_figures
        from attnscope.results.page.explain import write_explain_report

        figures = dict(explain_figures(tree, heads))
        write_explain_figures(tree, place / "figures", heads, figures, formats)
        write_explain_report(tree, place / PAGE, heads, figures)

    with RunFolder(folder, json.loads(tree.attrs["signature"])) as run:
        also = (
            [str(node.attrs["identity"]) for node in tree["also"].children.values()] if "also" in tree else []
        )
        return draw_views(run, [[list(head) for head in heads], sorted(tree.children), also, formats], draw)


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


def as_dict(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.explanation.ranking import rank_explanations
    from attnscope.explanation.words import headline
    from attnscope.results.account import explanation_notes
    from attnscope.store.runs import skipped_of

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
    from attnscope.explanation.ranking import rank_explanations
    from attnscope.store.signature import Signature

    heads = sorted(rank_explanations(tree), key=lambda row: (row.layer, row.head))
    changes = changed_columns(tree, heads)
    signature = {"signature": Signature.from_json(tree.attrs["signature"]).short}
    emit_rows([asdict(row) | more | signature for row, more in zip(heads, changes, strict=True)])


def print_tables(tree: xr.DataTree) -> None:
    """The headline, a table of heads, and how to read it."""
    from attnscope.explanation.ranking import rank_explanations
    from attnscope.explanation.words import HEADINGS, column_notes, findings, mask_note, skipped_by_reason
    from attnscope.results.account import account_of, explanation_notes

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
    from attnscope.explanation.words import defined_columns

    known = defined_columns(rows)
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

    from attnscope.explanation.words import HEADINGS

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


_CHANGED = 6  # heads that fit on a terminal of 80 columns
_NODE = "interventions"


def changes_of_heads(tree: xr.DataTree) -> list[dict[str, Any]] | None:
    """For ``--json``: the weight at a head's offset by change, of heads that prefer one; None if none was asked for."""
    if _NODE not in tree.children:
        return None
    content = tree[_NODE].to_dataset()
    return with_nulls(
        [
            {"layer": layer, "head": head, "change": str(change)}
            | {
                name: content[variable].sel(at, drop=True).item()
                for name, variable, at in _measured(layer, head, change)
            }
            for layer in content.layer.values.tolist()
            for head in content["head"].values.tolist()
            if math.isfinite(content.target.sel(layer=layer, head=head))
            for change in content.change.values
        ]
    )


def _measured(layer: int, head: int, change: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What is told of a head and a change: its name, its variable, and where it stands there."""
    of_head: dict[str, Any] = {"layer": layer, "head": head}
    of_change = of_head | {"change": change}
    return [
        ("offset", "target", of_head),
        ("weight_before", "mass_before", of_head),
        ("weight_after", "mass_after", of_change),
        ("weight_change", "mass_change", of_change),
        ("weight_change_low", "mass_change_low", of_change),
        ("weight_change_high", "mass_change_high", of_change),
    ]


def changed_columns(
    tree: xr.DataTree, rows: Sequence[HeadExplanation]
) -> list[dict[str, int | float | None]]:
    """For ``--csv``: more columns of each head, the weight at its offset before and after each change."""
    if _NODE not in tree.children:
        return [{} for _ in rows]
    content = tree[_NODE].to_dataset()
    columns: list[dict[str, int | float | None]] = []
    for row in rows:
        values = content.sel(layer=row.layer, head=row.head)
        after = {
            f"{name}_weight": values.mass_after.sel(change=name).item() for name in content.change.values
        }
        before = {"changed_offset": values.target.item(), "before_weight": values.mass_before.item()}
        columns.append(with_nulls(before | after))
    return columns


def print_changes(tree: xr.DataTree, rows: Sequence[HeadExplanation], console: Console) -> None:
    """The weight at their offsets of the first heads that prefer one, before and after every change of their input."""
    if _NODE not in tree.children:
        return
    from rich.table import Table

    from attnscope.explanation.passes.cause import CHANGES

    content = tree[_NODE].to_dataset()
    rows = [row for row in rows if row.prefers]
    if not rows:
        console.print("No head prefers an offset: there is no weight at one that a change could move.")
        return
    heads = [content.sel(layer=row.layer, head=row.head) for row in rows[:_CHANGED]]
    table = Table(title="weight at the offset t*, before and after a change", title_justify="left")
    table.add_column("layer.head\nt*")
    for row, values in zip(rows, heads, strict=False):
        table.add_column(f"{row.layer}.{row.head}\n{_offset(float(values.target))}", justify="right")
    table.add_row("before", *(_weight(values.mass_before) for values in heads), end_section=True)
    names = [str(name) for name in content.change.values]
    for name in names:
        table.add_row(name, *(_weight(values.mass_after.sel(change=name)) for values in heads))
    console.print(table)
    if len(rows) > _CHANGED:
        more = count(len(rows) - _CHANGED, "more head")
        console.print(f"and {more}: --csv lists all, --json with 95% intervals", highlight=False)
    console.print(
        "t*: the offset where the head's mean profile is highest; of heads that prefer an offset.",
        style="dim",
        highlight=False,
    )
    for name in names:
        if name in CHANGES:
            console.print(f"{name}: {CHANGES[name]}.", style="dim", highlight=False)


def _weight(value: xr.DataArray) -> str:
    return "–" if math.isnan(value.item()) else f"{value.item():.3f}"


def _offset(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.0f}" if value else "0"
