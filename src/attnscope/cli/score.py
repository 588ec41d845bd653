"""`attnscope score`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attnscope.cli.output import progress_bar


def score(
    hypotheses: Annotated[
        list[Path],
        typer.Argument(help="Translations, one sentence a line; - is standard input. The first is the baseline."),
    ],
    target: Annotated[
        list[Path], typer.Option(help="Reference translations; given again for a second one of each sentence.")
    ],
    tokenize: Annotated[
        Literal["13a", "intl", "zh", "ja-mecab", "char", "none", "moses"] | None,
        typer.Option(
            help="Tokenizer of BLEU; none is for tokenised text.",
            show_default="ja-mecab and zh for their languages, else 13a",
        ),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", "-lc", help="Case-insensitive scores, as in older papers with moses or none.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Language of the targets, such as ja; for moses en by default.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Sentences that were translated, for --by-length.")] = None,
    by_length: Annotated[
        str | None, typer.Option(help="Upper limits of source length, with commas between, such as 10,20,30.")
    ] = None,
    length_in: Annotated[Literal["words", "characters"], typer.Option(help="Unit of length.")] = "words",
    resamples: Annotated[int, typer.Option(help="Number of resamples of the bootstrap; 0 for no intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 12345,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output instead of a table.")] = False,
) -> None:
    """How good are the translations? BLEU and chrF with signatures, intervals and paired tests."""
    from attnscope.lineage.score import score as run_score
    from attnscope.support.errors import AttnscopeError

    files = [*hypotheses, *target, *([text] if text else [])]
    if sum(str(file) == "-" for file in files) > 1:
        raise AttnscopeError("standard input (-) can be only one of the files")
    if text and not by_length:
        raise AttnscopeError("--text is for BLEU by its length: give limits too, such as --by-length 10,20,30")
    with progress_bar("score") as bar:
        result = run_score(
            list(hypotheses),
            list(target),
            texts=text,
            by_length=length_limits(by_length) if by_length else [],
            length_in=length_in,  # pyright: ignore[reportArgumentType] checked there
            tokenize=tokenize,  # pyright: ignore[reportArgumentType] checked there
            lowercase=lowercase,
            language=language,
            resamples=resamples,
            seed=seed,
            progress=bar,
        )
    from attnscope.cli.place import OutputFolder, show
    from attnscope.lineage.score import score_report

    place = OutputFolder(None, lambda _: Path())
    show(score_report(result), place, None, None, as_json=as_json, as_csv=False)


def length_limits(text: str) -> list[int]:
    """Upper limits of length from what the user typed."""
    from attnscope.support.errors import AttnscopeError

    try:
        return [int(limit) for limit in text.split(",")]
    except ValueError as error:
        raise AttnscopeError(f"--by-length {text!r}: expected whole numbers such as 10,20,30") from error
