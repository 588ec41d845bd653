"""`attnscope patch`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.place import run

_Pairs = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Pairs of a clean and a corrupted text: one file of JSON Lines with clean, corrupted, answer and wrong in "
        "each line; or two text files, line i beside line i; or four, with the answers and the wrong ones.",
        show_default="those of the bundled model",
    ),
]
_Answer = Annotated[str | None, typer.Option(help="Right answer, of all pairs that have none of their own.")]
_Wrong = Annotated[str | None, typer.Option(help="Wrong answer, of all pairs that have none of their own.")]
_What = Annotated[
    str, typer.Option(help="Activations that are patched: heads, or residual (the stream after each block).")
]
_ByPosition = Annotated[bool, typer.Option("--by-position", help="Heads at one position at a time.")]
_Direction = Annotated[
    str | None,
    typer.Option(
        help="Direction: denoising puts clean activations into the corrupted run, noising does the opposite.",
        show_default="denoising; noising with --receiver",
    ),
]
_Receiver = Annotated[
    str | None, typer.Option(help="Path patching: layer.head of the later head through which alone the effect goes on.")
]
_Steps = Annotated[int, typer.Option(help="Gradients of the EAP-IG estimate; 0 leaves out all estimates.")]


@options.takes(
    "model",
    *options.LOADING,
    "seed",
    *options.UNITS,
    "batch_size",
    "variants",
    "repair",
    *options.WRITING,
    batch_size=options.varied("batch_size", help="Pairs at a time."),
    as_csv=options.varied("as_csv", False, help="CSV on standard output: one line for each position."),
    examples=(
        ("attnscope patch", "the bundled model on its pairs"),
        ("attnscope patch gpt2 pairs.jsonl", "pairs with clean, corrupted, answer and wrong"),
        ("attnscope patch gpt2 pairs.jsonl --what residual", "the stream after each block"),
    ),
)
def patch(
    pairs: _Pairs = None,
    answer: _Answer = None,
    wrong: _Wrong = None,
    what: _What = "heads",
    by_position: _ByPosition = False,
    direction: _Direction = None,
    receiver: _Receiver = None,
    steps: _Steps = 5,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Find what carries a difference: put activations of a clean run into a corrupted one."""
    run(
        "patch",
        output,
        **reading,
        pairs=pairs or None,
        answer=answer,
        wrong=wrong,
        what=what,
        by_position=by_position,
        direction=direction,
        receiver=receiver,
        steps=steps,
    )
