"""`attnscope explain`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console, print_note, progress_bar
from attnscope.cli.place import PAGE, OutputFolder, draw_views, show, usual_folder

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.results.schema import Report

_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


_Window = Annotated[
    int | None,
    typer.Option(help="Tokens of a window; shorter ones are left out.", show_default="the model's length"),
]
_Target = Annotated[
    list[options.PathOrUrl] | None,
    typer.Option(
        parser=options.path_or_url,
        help=options.TARGET + "Cut like the text; they need not be parallel.",
    ),
]
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


def explain(
    model: options.Model = options.BUNDLED,
    text: options.Texts = None,
    target: _Target = None,
    out: options.Out = None,
    repair: options.Repair = False,
    task: options.Task = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    ray_gpus: options.RayGpus = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    window: _Window = None,
    limit: Annotated[int, typer.Option(help="Largest number of windows.")] = 100,
    band: options.Band = 10,
    frequencies: _Frequencies = None,
    completion: _Completion = "minimal",
    interventions: _Interventions = False,
    paper: _Paper = False,
    published_as: _PublishedAs = None,
    relearn: _Relearn = None,
    also: _Also = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, counted from 0, of the heads in the figures of single heads.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head, counted from 0, to show in the figures of single heads.")
    ] = None,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Why does every head look there? Take queries and keys apart into positions, content and waves."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    place = OutputFolder(out, usual_folder("explain"), ("paper.npz",) if paper else ())
    tree = _analysed(
        model,
        text or None,
        targets=target or None,
        out=place,
        repair=repair,
        layer=layer,
        head=head,
        relearn=relearn,
        revision=revision,
        trust_remote_code=trust_remote_code,
        task=task,
        ray=ray,
        workers=workers,
        ray_gpus=ray_gpus,
        tokenizer=tokenizer,
        window=window,
        limit=limit,
        band=band,
        completion=completion,
        interventions=interventions,
        paper=paper,
        seed=seed,
        frequencies=_frequencies(frequencies),
        also=also or [],
        published_as=published_as,
        field=field,
        by_line=by_line,
        device=device,
        dtype=dtype,
    )
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    from attnscope.explanation.report import report as report_of

    folder = Path(tree.attrs["run"])
    if "relearned" in tree.children:
        _print_relearned(tree["relearned"].to_dataset(), folder)
    with place.reading(folder):
        found = report_of(tree)
        page = _draw(found, folder, _heads_to_show(tree, layer, head), formats) if report else None
        if not (as_json or as_csv):
            _print_text_tables(tree)
        show(found, place, folder, page, as_json=as_json, as_csv=as_csv)


def _analysed(
    model: str,
    text: list[options.PathOrUrl] | None,
    *,
    paper: bool,
    published_as: str | None,
    relearn: int | None,
    **settings: Any,
) -> xr.DataTree:
    from attnscope.explanation.explain import explain as run_explain
    from attnscope.reproduction.yamamoto2023.analyses import LONGEST, analyses
    from attnscope.reproduction.yamamoto2023.models import check_published
    from attnscope.reproduction.yamamoto2023.relearned_analysis import relearned as yamamoto2023_relearned

    more = [] if relearn is None else [yamamoto2023_relearned(relearn)]
    check_published(published_as)
    if paper:
        more += analyses(published_as=published_as)
    longest = LONGEST if paper else None
    with progress_bar("explain") as bar:
        return run_explain(model, text, more=more, longest=longest, progress=bar, **settings)


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


def _draw(found: Report, folder: Path, heads: list[tuple[int, int]], formats: tuple[str, ...]) -> Path | None:
    from attnscope.store.runs import RunFolder

    tree: Any = found.result

    def draw(place: Path) -> None:
        from attnscope.results.figures.explain import explain_figures, write_explain_figures
        from attnscope.results.page.explain import write

        figures = dict(explain_figures(tree, heads))
        write_explain_figures(tree, place / "figures", heads, figures, formats)
        write(found, place / PAGE, figures, heads)

    with RunFolder(folder, found.signature) as run:
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
