"""`attnscope patch`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import progress_bar
from attnscope.cli.place import OutputFolder, present, usual_folder

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
    str | None,
    typer.Option(help="Path patching: layer.head of the later head through which alone the effect goes on."),
]
_Steps = Annotated[int, typer.Option(help="Gradients of the EAP-IG estimate; 0 leaves out all estimates.")]
_BatchSize = Annotated[
    int | None, typer.Option(help="Pairs at a time.", show_default="about 1,024 tokens' worth")
]
_AsCsv = Annotated[
    bool, typer.Option("--csv", help="CSV on standard output instead of a table: one line for each place.")
]


def patch(
    model: options.Model = options.BUNDLED,
    pairs: _Pairs = None,
    answer: _Answer = None,
    wrong: _Wrong = None,
    what: _What = "heads",
    by_position: _ByPosition = False,
    direction: _Direction = None,
    receiver: _Receiver = None,
    out: options.Out = None,
    repair: options.Repair = False,
    task: options.Task = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    ray_gpus: options.RayGpus = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    batch_size: _BatchSize = None,
    variants: options.Variants = None,
    steps: _Steps = 5,
    seed: options.Seed = 0,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: _AsCsv = False,
) -> None:
    """What carries the difference? Put activations of a clean run into a corrupted one; see the answer come back."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    place = OutputFolder(out, usual_folder("patch"))
    from attnscope.intervention.patch import patch as run_patch

    with progress_bar("patch") as show:
        tree = run_patch(
            model,
            pairs or None,
            answer=answer,
            wrong=wrong,
            out=place,
            repair=repair,
            task=task,
            ray=ray,
            workers=workers,
            ray_gpus=ray_gpus,
            tokenizer=tokenizer,
            what=what,  # pyright: ignore[reportArgumentType] checked there
            by_position=by_position,
            direction=direction,  # pyright: ignore[reportArgumentType]
            receiver=receiver,
            steps=steps,
            batch_size=batch_size,
            variants=variants,
            seed=seed,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    present(tree, "patch", place, formats if report else None, as_json=as_json, as_csv=as_csv)
