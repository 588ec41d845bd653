"""`attnscope align`: parse, call, print."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Literal

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, print_note, progress_bar
from attnscope.cli.place import finish

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
    "target_language",
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
    from attnscope.lineage.align import MOST_WORDS
    from attnscope.lineage.align import align as run_align
    from attnscope.lineage.links import pharaoh
    from attnscope.results.reports import report_of
    from attnscope.store.folder import OwnedFolder
    from attnscope.support.errors import AttnscopeError

    if str(text) == str(target) == "-":
        raise AttnscopeError("standard input (-) can be only one of the files")
    if shown is not None and output.out is None:
        raise AttnscopeError("--shown draws sentence pairs into --out: give --out too, or leave --shown out")
    drawn = 0 if output.out is None else _DRAWN if shown is None else shown
    with progress_bar("align") as show:
        aligned = run_align(
            **reading,
            texts=text,
            targets=target,
            gold=gold,
            gold_first=gold_first,
            out=output.out,
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
    if output.out is None and gold is None and not output.as_json:
        emit("".join(f"{pharaoh(links)}\n" for links in aligned.links))
        return
    page = aligned.score is not None or bool(aligned.pairs)
    if output.out is not None and not page:
        why = f"no pair has between 1 and {MOST_WORDS} words on both sides" if drawn else "--shown is 0"
        print_note(f"no report.html: {why}")
    finish(report_of("align", aligned), output, None if output.out is None else OwnedFolder(output.out, "align"), page)
