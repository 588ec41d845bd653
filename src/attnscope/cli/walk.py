"""`attnscope walk`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.cli import options
from attnscope.cli.options import argument, option
from attnscope.cli.output import emit, new_console, print_path, progress_bar
from attnscope.support.errors import AttnscopeError


@options.takes(
    "model",
    *options.LOADING,
    own={
        "text": argument(
            str | None, None, "Sentence to follow, in quotes.", show_default="one about a tired animal"
        ),
        "target": option(
            str | None, None, "Sentence that the decoder of an encoder-decoder says, in quotes.",
            show_default="the model's own translation",
        ),
        "layer": option(
            int | None, None, "Layer, counted from 0.", show_default="0; of the bundled model 1"
        ),
        "head": option(int, 0, "Head, counted from 0."),
        "query_token": option(
            str | None, None, "Token whose row is followed: a position, or a piece of the text.",
            show_default="the last; of the default sentence 'it'",
        ),
        "toy": option(bool, False, "Example without a model: one head over random numbers.", "--toy"),
        "language": option(str, "en", "Language of the explanation: en or ja.", "--lang"),
        "markdown": option(Path | None, None, "File for Markdown with LaTeX; - prints it."),
        "seed": option(int | None, None, "Seed of the numbers of --toy.", show_default="0"),
    },
)  # fmt: skip
def walk(arguments: dict[str, Any], _: options.Output) -> None:
    """Follow one head over one sentence, every step in numbers."""
    toy, language, markdown, seed = (arguments.pop(name) for name in ("toy", "language", "markdown", "seed"))
    text, target = arguments.pop("text"), arguments.pop("target")
    model, layer, head = (arguments[name] for name in ("model", "layer", "head"))
    _check(
        toy=toy,
        has_text=(text, target) != (None, None),
        has_head=(model, layer, head) != (options.BUNDLED, None, 0),
        has_loading=any(arguments[name] for name in options.LOADING),
        has_seed=seed is not None,
    )
    _reject_sentence(model)
    from attnscope.lineage.steps import markdown as as_markdown
    from attnscope.lineage.steps import terminal
    from attnscope.lineage.walk import walk as run_walk
    from attnscope.lineage.walk import walk_toy

    with progress_bar("walk") as show:
        if toy:
            steps = walk_toy(seed=seed or 0, token=_number(arguments["query_token"]))
        else:
            steps = run_walk(texts=text, targets=target, progress=show, **arguments)
    if markdown is None:
        console = new_console()
        console.print(terminal(steps, language, width=console.width))
    elif str(markdown) == "-":
        emit(as_markdown(steps, language))
    else:
        _write(markdown, as_markdown(steps, language))


def _check(*, toy: bool, has_text: bool, has_head: bool, has_loading: bool, has_seed: bool) -> None:
    """Refuse what the toy has of its own beside it, and what it alone has without it."""
    if toy and has_text:
        raise AttnscopeError("--toy has numbers of its own: leave the sentence and --target out, or --toy")
    if toy and has_head:
        raise AttnscopeError("--toy has one head of its own: leave the model, --layer and --head out, or --toy")
    if toy and has_loading:
        raise AttnscopeError(
            "--device, --dtype, --tokenizer, --revision and --trust-remote-code are of a model, and --toy has none: "
            "leave them out, or --toy"
        )
    if has_seed and not toy:
        raise AttnscopeError("--seed is for --toy: give --toy too, or leave --seed out")


def _reject_sentence(model: str) -> None:
    """Refuse a sentence in the model's place."""
    if " " in model and not Path(model).exists():
        raise AttnscopeError(
            "the first argument is the model. For the bundled model on a sentence, say: attnscope walk bundled "
            f"{model!r}"
        )


def _number(token: str | None) -> int:
    if token is not None and not token.isdecimal():
        raise AttnscopeError(f"--query-token is {token!r}: the toy's tokens go by position, from 0 to 3")
    return int(token or 0)


def _write(path: Path, text: str) -> None:
    from attnscope.store.files import explained, write_output

    with explained(f"write {path}", "Choose another file with --markdown"):
        write_output(path, text)
    print_path(path)
