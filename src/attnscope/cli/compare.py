"""`attnscope compare`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnscope.cli import options
from attnscope.cli.output import progress_bar
from attnscope.cli.place import PAGE, finish

_Systems = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Systems: YAML files of settings, to be trained, and folders of `attnscope train`. The first is the "
        "baseline.",
        show_default="three that learn a generated task in minutes",
    ),
]
_Out = Annotated[
    Path,
    typer.Option(
        parser=options.run_folder, help="Folder of trainings, translations, page and figures; given again, it goes on."
    ),
]
_Text = Annotated[
    Path | None,
    typer.Option(help="Sentences to translate, one a line.", show_default="what the systems were validated on"),
]
_Target = Annotated[Path | None, typer.Option(help="Right translations of the text, line by line.")]
_Join = Annotated[
    int | None,
    typer.Option(
        help="Largest number of neighbouring sentences joined into one (from 1 to so many, at random).",
        show_default="as in training; a text that is given stays as it is",
    ),
]
_ByLength = Annotated[
    str | None,
    typer.Option(
        help="Upper limits of source length, with commas between, such as 10,20,30.", show_default="from the text"
    ),
]
_LengthIn = Annotated[
    Literal["words", "characters"] | None, typer.Option(help="Unit of length.", show_default="from the text")
]
_Line = Annotated[
    int | None,
    typer.Option(help="Sentence pair whose alignments are shown, from 1.", show_default="one of at most 24 words"),
]
_Tokenize = Annotated[
    str | None, typer.Option(help="Tokenizer of BLEU, as in `attnscope score`.", show_default="as in training")
]
_Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase/--cased", "-lc", help="Case in BLEU: ignored or kept.", show_default="as in training"),
]
_Resamples = Annotated[int, typer.Option(help="Number of resamples of the bootstrap; 0 for no intervals.")]


@options.takes(
    "device",
    "report",
    "figures",
    "as_json",
    "as_csv",
    as_csv=options.varied("as_csv", False, help="CSV on standard output: one line for each system."),
)
def compare(
    systems: _Systems = None,
    out: _Out = Path("attnscope-comparison"),
    text: _Text = None,
    target: _Target = None,
    join: _Join = None,
    by_length: _ByLength = None,
    length_in: _LengthIn = None,
    line: _Line = None,
    beams: Annotated[int, typer.Option(min=1, help="Beam size: translations followed at a time; 1 is greedy.")] = 5,
    tokenize: _Tokenize = None,
    lowercase: _Lowercase = None,
    resamples: _Resamples = 1000,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads for training and translating.", show_default="the processors there are"),
    ] = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Which system translates best, how fast, up to which length? Trains what is not trained; one table, one page."""
    from attnscope.cli.score import length_limits
    from attnscope.lineage.compare import compare as run

    limits = None if by_length is None else length_limits(by_length)
    with progress_bar("compare", lines=True) as bar:
        tree = run(
            systems or None,
            text,
            targets=target,
            out=out,
            join=join,
            by_length=limits,
            length_in=length_in,  # pyright: ignore[reportArgumentType] checked there
            line=line,
            beams=beams,
            tokenize=tokenize,
            lowercase=lowercase,
            resamples=resamples,
            threads=threads,
            **reading,
            progress=bar,
        )
    from attnscope.results.reports import report_of
    from attnscope.store.folder import OwnedFolder

    folder = OwnedFolder(out, "compare").look()
    results = sorted(one.sha256 for name, one in folder.files.items() if "/" not in name and name != PAGE)
    finish(report_of("compare", tree), output, folder, key=results)
