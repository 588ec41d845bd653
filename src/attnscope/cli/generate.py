"""`attnscope generate`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.output import new_console, progress_bar
from attnscope.cli.place import PAGE, OutputFolder, draw_views, show, usual_folder
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.results.schema import Report

_Model = Annotated[
    str,
    typer.Argument(
        help="Model folder or hub id: a causal model or an encoder-decoder, which the bundled model is not."
    ),
]
_Prompt = Annotated[
    list[str] | None, typer.Option(help="Prompt itself, in place of files of text; may be repeated.")
]
_NewTokens = Annotated[int, typer.Option(help="Tokens to write, at most.")]
_Beams = Annotated[int, typer.Option(help="Beams of the search; 1 is greedy.")]
_Sample = Annotated[
    bool, typer.Option("--sample", help="Sampling: tokens are drawn instead of searched for.")
]
_Temperature = Annotated[
    float, typer.Option(help="Temperature of --sample; below 1, unlikely tokens become rarer.")
]
_TopP = Annotated[
    float,
    typer.Option(help="Probability that the likeliest tokens have together, among which --sample draws."),
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
_Window = Annotated[
    int | None,
    typer.Option(
        help="Tokens of a prompt, at most.", show_default="what the model takes beside the new ones"
    ),
]
_Limit = Annotated[int | None, typer.Option(help="Largest number of prompts.", show_default="all")]
_BatchSize = Annotated[int, typer.Option(help="Prompts at a time.")]


def generate(
    model: _Model,
    text: options.Texts = None,
    prompt: _Prompt = None,
    new_tokens: _NewTokens = 64,
    beams: _Beams = 1,
    sample: _Sample = False,
    temperature: _Temperature = 1.0,
    top_p: _TopP = 1.0,
    seed: options.Seed = 0,
    span: _Span = None,
    groups: _Groups = None,
    cache: _Cache = "dynamic",
    window: _Window = None,
    limit: _Limit = None,
    batch_size: _BatchSize = 1,
    out: options.Out = None,
    repair: options.Repair = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    field: options.Field = None,
    by_line: options.ByLine = False,
    chat: options.Chat = False,
    chat_template: options.ChatTemplate = None,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Where does every head look while the model writes? Go on with texts; measure each new token."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    if prompt and text:
        raise AttnscopeError("both files of text and --prompt were given: leave out one of them")
    named = options.rule_or_file(groups, options.GROUPS)
    place = OutputFolder(out, usual_folder("generate"))
    from attnscope.measure.generation import generate as run_generate

    with progress_bar("generate") as bar:
        results = run_generate(
            model,
            prompt or text or None,
            new_tokens=new_tokens,
            beams=beams,
            sample=sample,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            spans=_spans(span or []),
            groups=named,
            cache=cache,
            tokenizer=tokenizer,
            out=place,
            repair=repair,
            window=window,
            limit=limit,
            batch_size=batch_size,
            field=field,
            by_line=by_line,
            chat=chat,
            chat_template=chat_template,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=bar,
        )
    from attnscope.comparison.generated import report as report_of

    folder = Path(results.encoding["source"])
    with place.reading(folder):
        found = report_of(results)
        page = _draw(found, folder) if report else None
        if not (as_json or as_csv):
            _print_texts(results)
        show(found, place, folder, page, as_json=as_json, as_csv=as_csv)


def _spans(given: list[str]) -> dict[str, str]:
    spans: dict[str, str] = {}
    for text in given:
        name, equals, pattern = text.partition("=")
        if not equals or not name.strip() or not pattern:
            raise AttnscopeError(
                f"--span is {text!r:.60}; expected a name and a pattern, as document='<doc>...</doc>'"
            )
        spans[name.strip()] = pattern
    return spans


def _draw(found: Report, folder: Path) -> Path | None:
    from attnscope.store.runs import RunFolder

    with RunFolder(folder, found.signature) as run:

        def draw(place: Path) -> None:
            from attnscope.results.page.generation import write

            write(found, place / PAGE)

        return draw_views(run, [], draw)


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
        console.print(
            f"and {count(texts - _TEXTS, 'text')} more: --json has all\n", style="dim", highlight=False
        )
