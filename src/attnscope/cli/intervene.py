"""`attnscope intervene`: parse, call, print."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import progress_bar
from attnscope.cli.place import OutputFolder, present, usual_folder

_Window = Annotated[
    int | None, typer.Option(help="Tokens of a window.", show_default="the model's length, at most 512")
]
_Target = Annotated[
    list[options.PathOrUrl] | None,
    typer.Option(parser=options.path_or_url, help=options.TARGET + "Line i beside line i of the text."),
]
_Ablations = Annotated[
    str, typer.Option(help="Stand-ins for a head's output, with commas between: zero, mean, resample.")
]
_Steps = Annotated[int, typer.Option(help="Points of the integrated gradients; 0 leaves out all estimates.")]
_Search = Annotated[
    bool,
    typer.Option("--search", help="Search too: random sets of heads taken out, and a sparse regression."),
]
_Curves = Annotated[
    bool, typer.Option("--curves", help="Curves too: more and more heads taken out, in several orders.")
]
_ForbidOffset = Annotated[
    list[int] | None,
    typer.Option(
        help="Offset (key minus query) at which heads may not look: -1 is the token before; may be repeated."
    ),
]
_ForbidFirst = Annotated[bool, typer.Option("--forbid-first", help="First token: heads may not look at it.")]
_ForbidToken = Annotated[
    list[str] | None, typer.Option(help="Token at which heads may not look, by its text; may be repeated.")
]
_Renormalise = Annotated[
    bool, typer.Option(help="Rows scaled to their sum before, where something in them is forbidden.")
]
_Together = Annotated[
    list[str] | None,
    typer.Option(help="Heads taken out together, beside each alone, as in 0.1,0.3; may be given again."),
]
_Why = Annotated[bool, typer.Option(help="Causes beside the effects, as explain finds them.")]


def intervene(
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
    batch_size: Annotated[
        int | None, typer.Option(help="Windows at a time.", show_default="about 1,024 tokens' worth")
    ] = None,
    variants: options.Variants = None,
    ablations: _Ablations = "zero,mean,resample",
    steps: _Steps = 5,
    search: _Search = False,
    curves: _Curves = False,
    together: _Together = None,
    forbid_offset: _ForbidOffset = None,
    forbid_first: _ForbidFirst = False,
    forbid_token: _ForbidToken = None,
    renormalise: _Renormalise = True,
    why: _Why = True,
    band: options.Band = 10,
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
    """Does a head matter? Take every head out, one at a time, and measure what the predictions lose."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats, place = options.formats_of(figures, report=report), OutputFolder(out, usual_folder("intervene"))
    from attnscope.intervention.intervene import intervene as run_intervene

    given: dict[str, Any] = {"task": task, "ray": ray, "workers": workers, "ray_gpus": ray_gpus}
    given |= {"field": field, "by_line": by_line, "device": device, "dtype": dtype, "seed": seed}
    with progress_bar("intervene") as show:
        tree = run_intervene(
            model,
            text or None,
            targets=target or None,
            out=place,
            repair=repair,
            **given,
            tokenizer=tokenizer,
            window=window,
            limit=limit,
            batch_size=batch_size,
            variants=variants,
            ablations=[name.strip() for name in ablations.split(",")],
            steps=steps,
            search=search,
            curves=curves,
            together=[options.heads_of("--together", names) for names in together or ()],
            forbid_offsets=forbid_offset or (),
            forbid_first=forbid_first,
            forbid_tokens=forbid_token or (),
            renormalise=renormalise,
            why=why,
            band=band,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    present(tree, "intervene", place, formats if report else None, as_json=as_json, as_csv=as_csv)
