"""`attnscope translate`: parse, call, print."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, json_text, print_note, print_path, progress_bar

if TYPE_CHECKING:
    from attnscope.lineage.translate import Translations

_Model = Annotated[str, typer.Argument(help="Model: a folder of `attnscope train`, another model folder or a hub id.")]
_Text = Annotated[Path, typer.Argument(help="Sentences, one a line (UTF-8); - is standard input.")]
_Out = Annotated[Path | None, typer.Option(help="File of the translations.", show_default="standard output")]
_Beams = Annotated[int, typer.Option(min=1, help="Beam size: translations followed at a time; 1 is greedy.")]
_Penalty = Annotated[float, typer.Option(help="Power of the length that log-probabilities are divided by.")]
_NBest = Annotated[int, typer.Option(min=1, help="Number of translations of each line, the best first.")]
_Sample = Annotated[bool, typer.Option("--sample", help="Sampling: words are drawn instead of searched for.")]
_Temperature = Annotated[
    float, typer.Option(min=0.01, help="Temperature of --sample; below 1, unlikely words become rarer.")
]
_Overlong = Annotated[
    Literal["refuse", "split", "cut"], typer.Option(help="Treatment of lines longer than the model was trained for.")
]
_BatchTokens = Annotated[int, typer.Option(min=1, help="Source tokens times beams at a time.")]
_Json = Annotated[bool, typer.Option("--json", help="JSON on standard output: translations with their scores.")]


@options.takes("model", *options.LOADING, "target_language", "seed", model=(_Model, inspect.Parameter.empty))
def translate(
    text: _Text = Path("-"),
    out: _Out = None,
    beams: _Beams = 5,
    length_penalty: _Penalty = 1.0,
    n_best: _NBest = 1,
    sample: _Sample = False,
    temperature: _Temperature = 1.0,
    overlong: _Overlong = "refuse",
    batch_tokens: _BatchTokens = 4096,
    as_json: _Json = False,
    *,
    reading: options.Reading,
) -> None:
    """Translate: one translation a line, in the order of the text; empty lines stay empty.

    With --n-best above 1, every translation has its own line, as Moses writes it: number of the source line, from 0
    ||| translation ||| score.
    """
    from attnscope.lineage.translate import translate as run
    from attnscope.store.files import explained, write_output

    with progress_bar("translate") as show:
        translations = run(
            **reading,
            texts=text,
            beams=beams,
            length_penalty=length_penalty,
            n_best=n_best,
            sample=sample,
            temperature=temperature,
            overlong=overlong,  # pyright: ignore[reportArgumentType] checked there
            batch_tokens=batch_tokens,
            scores=as_json or n_best > 1,
            progress=show,
        )
    _note_cuts(translations)
    if as_json:
        from attnscope.lineage.translate import report
        from attnscope.results import render

        written = json_text(render.as_json(report(translations), "")) + "\n"
    else:
        written = "".join(f"{line}\n" for line in _lines(translations, n_best=n_best))
    if out is None:
        emit(written)
        return
    with explained(f"write {out}", "Choose another file with --out"):
        write_output(out, written)
    print_path(out)


def _note_cuts(translations: Translations) -> None:
    """What --overlong cut left out, on standard error."""
    for number, left_out in enumerate(translations.left_out, start=1):
        if left_out:
            print_note(f"line {number}: {left_out} tokens at its end were cut off")


def _lines(translations: Translations, *, n_best: int) -> list[str]:
    if n_best == 1:
        return translations.texts
    return [
        f"{number} ||| {translation.text} ||| {math.nan if translation.score is None else translation.score:.4f}"
        for number, several in enumerate(translations)
        for translation in several
    ]
