"""`attnscope walk`: parse, call, print."""

import os
from pathlib import Path
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import argument, option
from attnscope.cli.output import emit_to, new_console, print_written, progress_bar
from attnscope.report.language import language
from attnscope.support.errors import AttnscopeError


@options.takes(
    "model", "text", *options.LOADING,
    text=argument(
        list[str] | None, None,
        "Sentence to follow, in quotes; of several, the shortest, with the padding of their batch. Or a file of an "
        "image or sound.", show_default="one about a tired animal",
    ),
    own={
        "target": option(
            str | None, None, "Sentence that the decoder of an encoder-decoder says, in quotes.",
            show_default="the model's own translation",
        ),
        "layer": option(int | None, None, "Layer, counted from 0.", show_default="0; of the bundled models 1"),
        "head": option(int, 0, "Head, counted from 0."),
        "query_token": option(
            str | None, None, "Token whose row is followed: a position, or a piece of the text.",
            show_default="the last; of the default sentence 'it'",
        ),
        "toy": option(bool, False, "Example without a model: one head with planted weights.", "--toy"),
        "causal": option(bool, False, "Mask later tokens, with --toy.", "--causal"),
        "padding": option(bool, False, "Show a sentence with padding, and its mask, with --toy.", "--padding"),
        "forms": option(bool, False, "Compare with sparse and linear forms of attention.", "--forms"),
        "markdown": option(Path | None, None, "File for Markdown with LaTeX; - prints it."),
        "page": option(Path | None, None, "HTML file with one step a screen."),
        "seed": option(int | None, None, "Seed of the numbers of --toy.", show_default="0"),
    },
)  # fmt: skip
def walk(arguments: dict[str, Any], _: options.Output) -> None:
    """Follow one head over one sentence, every step in numbers.

    With a recurrent translator: context vectors, teacher forcing next to autoregressive generation, cross-entropy.
    """
    toy, markdown, page, seed, *masks = map(arguments.pop, ("toy", "markdown", "page", "seed", "causal", "padding"))
    given, target = arguments.pop("texts") or [], arguments.pop("target")
    text = given if len(given) > 1 else next((Path(one) if os.path.isfile(one) else one for one in given), None)  # noqa: PTH113 of any length
    model, layer, head = (arguments[name] for name in ("model", "layer", "head"))
    conflicts = {
        "the sentence and --target": (text, target) != (None, None),
        "the model, --layer and --head": (model, layer, head) != (options.BUNDLED, None, 0),
        "--device, --dtype, --tokenizer, --revision and --trust-remote-code": any(map(arguments.get, options.LOADING)),
    }
    for flags, given in conflicts.items():
        if toy and given:
            raise AttnscopeError(f"--toy has its own model and numbers: leave out {flags}, or --toy")
    if not toy and (seed is not None or any(masks)):
        raise AttnscopeError("--seed, --causal and --padding are for --toy: add --toy, or leave them out")
    from attnscope.lineage.steps import markdown as as_markdown
    from attnscope.lineage.steps import terminal
    from attnscope.lineage.walk import walk as run_walk
    from attnscope.lineage.walk import walk_toy, with_forms

    with progress_bar("walk") as show:
        if toy:
            token, (causal, padding) = arguments["query_token"] or "it", masks
            steps = walk_toy(seed=seed or 0, token=token, causal=causal, padding=padding)
            steps = with_forms(steps) if arguments["forms"] else steps
        else:
            steps = run_walk(texts=text, targets=target, progress=show, **arguments)
    if page is not None:
        from attnscope.results.page.walk import write

        print_written(write(steps, page))
    if markdown is None and page is None:
        console = new_console()
        console.print(terminal(steps, language(), width=console.width))
    elif markdown is not None:
        emit_to(None if str(markdown) == "-" else markdown, as_markdown(steps, language()), "--markdown")
