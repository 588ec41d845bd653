"""`attnscope align`: parse, call, print."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, json_text, new_console, print_note, progress_bar
from attnscope.cli.place import PAGE, draw_views
from attnscope.support.numbers import count, percent

if TYPE_CHECKING:
    from attnscope.lineage.align import Aligned

_DRAWN = 12  # sentence pairs, where there is a folder for them

_Model = Annotated[str, typer.Argument(help="Encoder-decoder: the folder of a trained system, or a hub id.")]
_Text = Annotated[Path, typer.Argument(help="Sentences, one a line, words between spaces; - is standard input.")]
_Gold = Annotated[
    Path | None, typer.Option(help="File of people's alignments: 1-2 is a sure link, 1p2 a possible one.")
]
_Layer = Annotated[
    int | None,
    typer.Option(help="Decoder layer, counted from 0.", show_default="the mean of all, or with --gold the best head"),
]
_Head = Annotated[int | None, typer.Option(help="Head, counted from 0.", show_default="the mean of the layer")]
_End = Annotated[
    Literal["drop", "keep", "null"],
    typer.Option(help="Treatment of the weight on </s>: drop, keep, or null (a word that prefers </s> has no link)."),
]
_Step = Annotated[
    Literal["predicts", "reads"],
    typer.Option(
        help="Decoder step whose row is a word's: predicts (the step that predicts it) or reads (that reads it)."
    ),
]
_Words = Annotated[
    Literal["space", "piece"], typer.Option(help="Unit of alignment: space (words between spaces) or piece (a token).")
]
_Rule = Annotated[Literal["argmax", "intersection", "threshold"], typer.Option(help="Rule that makes links.")]
_Out = Annotated[
    Path | None,
    typer.Option(
        parser=options.run_folder,
        rich_help_panel=options.OUTPUT,
        help="Folder for links.txt, run.json, report.html and figures.",
        show_default="links on standard output",
    ),
]
_Shown = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=50,
        help="Number of sentence pairs to keep in --out and draw there; those with more than 40 words on a side are "
        "passed over.",
        show_default=f"{_DRAWN} with --out",
    ),
]
_AsJson = Annotated[
    bool,
    typer.Option("--json", help="JSON on standard output instead of links or tables.", rich_help_panel=options.OUTPUT),
]


@options.takes(
    "model",
    *options.LOADING,
    *options.UNITS,
    "batch_size",
    "out",
    "figures",
    "as_json",
    model=(_Model, inspect.Parameter.empty),
    batch_size=options.varied("batch_size", 16, help="Sentence pairs at a time.", show_default=True),
    out=(_Out, None),
    as_json=(_AsJson, False),
)
def align(
    text: _Text,
    target: Annotated[Path, typer.Option(help="Translations of the text, line by line.")],
    gold: _Gold = None,
    gold_first: Annotated[int, typer.Option(help="Number of the first word in the gold file: 1 or 0.")] = 1,
    layer: _Layer = None,
    head: _Head = None,
    end: _End = "drop",
    step: _Step = "predicts",
    words: _Words = "space",
    rule: _Rule = "argmax",
    threshold: Annotated[
        float | None, typer.Option(help="Least weight of a link under --rule threshold.", show_default="0.2")
    ] = None,
    shown: _Shown = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Align words by attention: links in Pharaoh's format, and error rates against human alignments."""
    from attnscope.lineage.align import align as run_align
    from attnscope.lineage.links import pharaoh
    from attnscope.support.errors import AttnscopeError

    out = output.out
    if str(text) == str(target) == "-":
        raise AttnscopeError("standard input (-) can be only one of the files")
    if shown is not None and out is None:
        raise AttnscopeError("--shown draws sentence pairs into --out: give --out too, or leave --shown out")
    drawn = 0 if out is None else _DRAWN if shown is None else shown
    with progress_bar("align") as show:
        aligned = run_align(
            **reading,
            texts=text,
            targets=target,
            gold=gold,
            gold_first=gold_first,
            out=out,
            layer=layer,
            head=head,
            end=end,  # pyright: ignore[reportArgumentType] checked there
            step=step,  # pyright: ignore[reportArgumentType] checked there
            words=words,  # pyright: ignore[reportArgumentType] checked there
            rule=rule,  # pyright: ignore[reportArgumentType] checked there
            threshold=threshold,
            shown=drawn,
            progress=show,
        )
    if aligned.task:  # another process keeps and prints the results
        print_note(aligned.task)
        return
    if out is not None:
        _draw(aligned, out, output.formats)
        _note_missing_pictures(aligned, asked=drawn > 0)
    if output.as_json:
        from attnscope.lineage.reports import alignment_report
        from attnscope.results import render

        emit(json_text(render.as_json(alignment_report(aligned), out or "")) + "\n")
    elif gold is None and out is None:
        emit("".join(f"{pharaoh(links)}\n" for links in aligned.links))
    else:
        _print_table(aligned, out)


def _draw(aligned: Aligned, out: Path, formats: tuple[str, ...]) -> None:
    from attnscope.results.figures.alignment import error_rate_grid, pair_map
    from attnscope.results.figures.style import save_figure
    from attnscope.results.page.alignment import compared_heads, write_alignment_report
    from attnscope.store.folder import OwnedFolder

    def draw(new: Path) -> None:
        heads = compared_heads(aligned)
        if aligned.score is not None or aligned.pairs:
            write_alignment_report(aligned, new / PAGE)
        if heads is not None:
            chosen = None if aligned.layer is None or aligned.head is None else (aligned.layer, aligned.head)
            save_figure(error_rate_grid(heads, chosen), new / "figures" / "heads", formats)
        for pair in aligned.pairs:
            figure = pair_map(pair, f"Line {pair.line}")
            save_figure(figure, new / "figures" / f"pair-{pair.line}", formats)

    with OwnedFolder(out, "align") as folder:
        draw_views(folder, [formats], draw)


def _note_missing_pictures(aligned: Aligned, *, asked: bool) -> None:
    """Why there are no pictures, or how many sentence pairs are too long for them, on standard error."""
    from attnscope.lineage.align import MOST_WORDS

    if aligned.pairs or (aligned.score is not None and not asked):
        if asked and aligned.passed_over:
            pairs = count(aligned.passed_over, "sentence pair")
            print_note(f"{pairs} passed over for pictures: a side has no word, or more than {MOST_WORDS}")
        return
    what = "no report.html" if aligned.score is None else "no sentence pairs in report.html"
    why = f"no pair has between 1 and {MOST_WORDS} words on both sides" if asked else "--shown is 0"
    print_note(f"{what}: {why}")


def _print_table(aligned: Aligned, out: Path | None) -> None:
    from rich.table import Table

    from attnscope.results.page.alignment import compared_heads, whose
    from attnscope.store.signature import Signature

    console = new_console()
    heads = compared_heads(aligned)
    if heads is not None:
        table = Table(title="alignment error rate, %", title_justify="left")
        table.add_column("layer", justify="right")
        for head in heads["head"].values:
            table.add_column(f"head {head}", justify="right")
        for layer, row in enumerate(heads["error_rate"].values):
            best = aligned.head if layer == aligned.layer else None
            shown = (percent(rate).removesuffix("%") for rate in row)
            cells = (f"[bold]{rate}*[/bold]" if best == head else f"{rate} " for head, rate in enumerate(shown))
            table.add_row(str(layer), *cells)
        console.print(table)
    console.print(f"{count(len(aligned.links), 'sentence pair')}, {whose(aligned)}", highlight=False)
    if aligned.score is not None:
        score = aligned.score
        interval = "" if aligned.baselines is None else aligned.baselines.interval()
        console.print(
            f"error rate {percent(score.error_rate)}{interval}, precision {percent(score.precision)}, "
            f"recall {percent(score.recall)}, {count(score.links, 'link')}",
            style="bold",
            highlight=False,
        )
    if aligned.score is not None and aligned.baselines is not None:
        beside = aligned.baselines.in_words(aligned.score.error_rate)
        console.print(f"to compare: {beside}", highlight=False)
    if aligned.outside:
        point = "points past the end of its" if aligned.outside == 1 else "point past the end of their"
        console.print(f"{count(aligned.outside, 'gold link')} {point} sentence", highlight=False)
    if aligned.chosen_on_gold and heads is not None:
        console.print("* the lowest, chosen on these very sentences", style="dim", highlight=False)
    console.print("Attention was not trained to align.", style="dim", highlight=False)
    cited = Signature.from_json(aligned.signature).format()
    console.print(f"signature: {cited}", highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        console.print(f"results: {out}", highlight=False, markup=False, soft_wrap=True)
        if aligned.score is not None or aligned.pairs:
            console.print(f"report:  {out}/{PAGE}", highlight=False, markup=False, soft_wrap=True)
