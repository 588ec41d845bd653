"""`attnscope walk`: it prints the steps, or writes them to a file or a page."""

import os
from pathlib import Path
from typing import Annotated, Any

from attnscope.cli.output import new_console, print_written, progress_bar
from attnscope.options import ModelOptions
from attnscope.report.language import language
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.commands import emit_to


def walk(
    arguments: dict[str, Any],
    *,
    toy: Annotated[bool, "Follow an example without a model: one head with planted weights."] = False,
    causal: Annotated[bool, "Mask later tokens, with --toy."] = False,
    padding: Annotated[bool, "Show a sentence with padding, and its mask, with --toy."] = False,
    markdown: Annotated[Path | None, "Write Markdown with LaTeX to this file; - prints it."] = None,
    page: Annotated[Path | None, "Write an HTML file with one step a screen."] = None,
    seed: Annotated[int | None, "Seed the numbers of --toy. By default 0."] = None,
) -> None:
    """Run the command."""
    texts = arguments.pop("texts", [])
    text = texts if len(texts) > 1 else next((Path(one) if os.path.isfile(one) else one for one in texts), None)  # noqa: PTH113 of any length
    conflicts = {
        "the sentence and --target": text is not None or "targets" in arguments,
        "the model, --layer and --head": bool({"model", "layer", "head"} & arguments.keys()),
        "--device, --dtype, --tokenizer, --revision and --trust-remote-code": bool(
            {"tokenizer", *ModelOptions.__annotations__} & arguments.keys()
        ),
    }
    for flags, given in conflicts.items():
        if toy and given:
            raise AttnscopeError(f"--toy has its own model and numbers: leave out {flags}, or --toy")
    if not toy and (seed is not None or causal or padding):
        raise AttnscopeError("--seed, --causal and --padding are for --toy: add --toy, or leave them out")
    import attnscope_lineage
    from attnscope_lineage.head_walk import walk_toy, with_forms
    from attnscope_lineage.steps import markdown as as_markdown
    from attnscope_lineage.steps import terminal

    with progress_bar("walk") as show:
        if toy:
            token = arguments.get("query_token", "it")
            steps = walk_toy(seed=seed or 0, token=token, causal=causal, padding=padding)
            steps = with_forms(steps) if arguments.get("forms") else steps
        else:
            steps = attnscope_lineage.walk(texts=text, progress=show, **arguments)
    if page is not None:
        from attnscope_lineage.page.walk import write

        print_written(write(steps, page))
    if markdown is None and page is None:
        console = new_console()
        console.print(terminal(steps, language(), width=console.width))
    elif markdown is not None:
        emit_to(None if str(markdown) == "-" else markdown, as_markdown(steps, language()), "--markdown")
