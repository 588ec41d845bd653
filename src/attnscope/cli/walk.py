"""`attnscope walk`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import emit, new_console, progress_bar


def walk(
    sentence: Annotated[
        str | None,
        typer.Argument(help="A sentence, in quotes.", show_default="one about a tired animal"),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="A model folder or hub id; 'bundled' is the small model that attnscope brings."),
    ] = "bundled",
    target: Annotated[
        str | None,
        typer.Option(
            help="What the decoder of an encoder-decoder says, in quotes.",
            show_default="the model's own translation",
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, counted from 0.", show_default="0; of the bundled model 1")
    ] = None,
    head: Annotated[int, typer.Option(help="Head, counted from 0.")] = 0,
    query_token: Annotated[
        str | None,
        typer.Option(
            help="Whose row is followed: a position, or a piece of the text.",
            show_default="the last; of the default sentence 'it'",
        ),
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy", help="No model: one head over random numbers, as in a first lesson.")
    ] = False,
    language: Annotated[str, typer.Option("--lang", help="en or ja.")] = "en",
    markdown: Annotated[
        Path | None, typer.Option(help="Write Markdown with LaTeX to this file; - prints it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the toy's numbers.", show_default="0")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """How does a head compute what it does? One sentence, every step, in numbers."""
    from attnscope.errors import AttnscopeError
    from attnscope.walkthrough import markdown as as_markdown
    from attnscope.walkthrough import terminal, walk_toy
    from attnscope.walkthrough import walk as run_walk

    if toy and (sentence, target) != (None, None):
        raise AttnscopeError("--toy has numbers of its own: leave the sentence and --target out, or --toy")
    if toy and (model, layer, head) != ("bundled", None, 0):
        raise AttnscopeError("--toy has one head of its own: leave --model, --layer and --head out, or --toy")
    if seed is not None and not toy:
        raise AttnscopeError("--seed is of the toy's numbers: give --toy too, or leave it out")
    with progress_bar("walk") as show:
        if toy:
            steps = walk_toy(seed=seed or 0, token=_number(query_token))
        else:
            steps = run_walk(
                sentence,
                model,
                target=target,
                layer=layer,
                head=head,
                query_token=query_token,
                device=device,
                dtype=dtype,
                tokenizer=tokenizer,
                revision=revision,
                trust_remote_code=trust_remote_code,
                progress=show,
            )
    if markdown is None:
        console = new_console()
        console.print(terminal(steps, language, width=console.width), highlight=False)
    elif str(markdown) == "-":
        emit(as_markdown(steps, language))
    else:
        _write(markdown, as_markdown(steps, language))


def _number(token: str | None) -> int:
    from attnscope.errors import AttnscopeError

    if token is not None and not token.isdecimal():
        raise AttnscopeError(f"--query-token is {token!r}: the toy's tokens go by position, from 0 to 3")
    return int(token or 0)


def _write(path: Path, text: str) -> None:
    from attnscope.store import explained, write_output

    with explained(f"write {path}", "Choose another file with --markdown"):
        write_output(path, text)
