"""`attnscope generate`: parse, call, print."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console
from attnscope.cli.place import run
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr

_Model = Annotated[
    str,
    typer.Argument(
        help="Model folder or hub id: a causal model or an encoder-decoder, which the bundled model is not."
    ),
]
_Prompt = Annotated[list[str] | None, typer.Option(help="Prompt itself, in place of files of text; may be repeated.")]
_NewTokens = Annotated[int, typer.Option(help="Tokens to write, at most.")]
_Beams = Annotated[int, typer.Option(help="Beams of the search; 1 is greedy.")]
_Sample = Annotated[bool, typer.Option("--sample", help="Sampling: tokens are drawn instead of searched for.")]
_Temperature = Annotated[float, typer.Option(help="Temperature of --sample; below 1, unlikely tokens become rarer.")]
_TopP = Annotated[
    float, typer.Option(help="Probability that the likeliest tokens have together, among which --sample draws.")
]
_Span = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATTERN",
        help="Span of the prompts by name, as it reads, with ... for whatever stands between: "
        "document='<doc>...</doc>'; may be repeated.",
    ),
]
_Groups = Annotated[
    str | None,
    typer.Option(
        metavar="kinds|roles|FILE",
        help="Groups of the prompts' tokens, each a span: by kind, by role in a chat, or by a file of rules.",
        show_default="roles of a chat, else none",
    ),
]
_Cache = Annotated[str, typer.Option(help="Cache of keys and values: dynamic, static or none.")]


@options.takes(
    *options.READING,
    "window",
    "limit",
    "chat",
    "chat_template",
    "seed",
    "batch_size",
    "repair",
    "out",
    "report",
    "as_json",
    "as_csv",
    model=(_Model, inspect.Parameter.empty),
    window=options.varied("window", help="Tokens of a prompt, at most.", show_default="what the model takes"),
    limit=options.varied("limit", help="Largest number of prompts."),
    batch_size=options.varied("batch_size", 1, help="Prompts at a time.", show_default=True),
    examples=(
        ("attnscope generate gpt2 --prompt 'The tide is'", "one prompt"),
        ("attnscope generate gpt2 prompts.txt --by-line --limit 20", "prompts, one a line"),
        ("attnscope generate ./chat-model chats.jsonl --groups roles", "chats, by role"),
    ),
)
def generate(
    prompt: _Prompt = None,
    new_tokens: _NewTokens = 64,
    beams: _Beams = 1,
    sample: _Sample = False,
    temperature: _Temperature = 1.0,
    top_p: _TopP = 1.0,
    span: _Span = None,
    groups: _Groups = None,
    cache: _Cache = "dynamic",
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Measure where every head attends while the model writes: each new token of continued texts."""
    texts = reading.pop("texts")
    if prompt and texts:
        raise AttnscopeError("both files of text and --prompt were given: leave out one of them")
    named = options.rule_or_file(groups, options.GROUPS)
    run(
        "generate",
        output,
        **reading,
        texts=prompt or texts,
        new_tokens=new_tokens,
        beams=beams,
        sample=sample,
        temperature=temperature,
        top_p=top_p,
        spans=_spans(span or []),
        groups=named,
        cache=cache,
        first=_print_texts,
    )


def _spans(given: list[str]) -> dict[str, str]:
    spans: dict[str, str] = {}
    for text in given:
        name, equals, pattern = text.partition("=")
        if not equals or not name.strip() or not pattern:
            raise AttnscopeError(f"--span is {text!r:.60}; expected a name and a pattern, as document='<doc>...</doc>'")
        spans[name.strip()] = pattern
    return spans


_TEXTS = 3  # that are printed
_PROMPT = 200  # characters of a prompt's end


def _print_texts(results: xr.Dataset) -> None:
    """The end of each prompt, and what the model wrote."""
    from rich.text import Text

    console, texts = new_console(), results.sizes["sequence"]
    for number in range(min(texts, _TEXTS)):
        text = results.isel(sequence=number)
        tokens, given = [str(token) for token in text.text_token.values], int(text.prompt_length)
        prompt, new = "".join(tokens[:given]), "".join(tokens[given:])
        begin = "…" if len(prompt) > _PROMPT else ""
        console.print(Text(f"{text.source.item()}: ", style="dim"), end="", highlight=False)
        console.print(Text(begin + prompt[-_PROMPT:], style="dim") + Text(new, style="bold"), highlight=False)
        console.print()
    if texts > _TEXTS:
        console.print(f"and {count(texts - _TEXTS, 'text')} more: --json has all\n", style="dim", highlight=False)
