"""`attnscope intervene`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.place import run

_Ablations = Annotated[
    str, typer.Option(help="Stand-ins for a head's output, with commas between: zero, mean, resample.")
]
_Steps = Annotated[int, typer.Option(help="Points of the integrated gradients; 0 leaves out all estimates.")]
_Search = Annotated[
    bool, typer.Option("--search", help="Search too: random sets of heads taken out, and a sparse regression.")
]
_Curves = Annotated[
    bool, typer.Option("--curves", help="Curves too: more and more heads taken out, in several orders.")
]
_ForbidOffset = Annotated[
    list[int] | None,
    typer.Option(help="Offset (key minus query) at which heads may not look: -1 is the token before; may be repeated."),
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


@options.takes(
    *options.READING,
    "target",
    "window",
    "limit",
    "band",
    "seed",
    *options.UNITS,
    "batch_size",
    "variants",
    "repair",
    *options.WRITING,
    limit=100,
    examples=(
        ("attnscope intervene", "the bundled model on the bundled text"),
        ("attnscope intervene gpt2 corpus.txt --ablations zero", "one ablation of every head"),
        ("attnscope intervene --together 0.1,0.3 --forbid-offset -1", "a set of heads; an offset forbidden"),
    ),
)
def intervene(
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
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Test whether a head matters: ablate every head, one at a time, and measure the loss."""
    run(
        "intervene",
        output,
        **reading,
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
    )
