"""`attnscope generate`: parse, call, print."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import csv_text, emit, new_console, progress_bar
from attnscope.cli.place import PAGE, Forms, OutputFolder, draw_views, usual_folder
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope.comparison.spans import OwnOutputShare

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
    reading: dict[str, Any],
    output: options.Output,
) -> None:
    """Measure where every head attends while the model writes: each new token of continued texts."""
    texts = reading.pop("texts")
    if prompt and texts:
        raise AttnscopeError("both files of text and --prompt were given: leave out one of them")
    named = options.rule_or_file(groups, options.GROUPS)
    from attnscope.measure.generation import generate as run_generate

    place = OutputFolder(output.out, usual_folder("generate"))
    with progress_bar("generate") as show:
        results = run_generate(
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
            out=place,
            progress=show,
        )
    folder = Path(results.encoding["source"])
    page = _draw(results, folder) if output.report else None
    forms = Forms(as_dict, print_csv, print_tables)
    forms.show(results, place, folder, page, as_json=output.as_json, as_csv=output.as_csv)


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


def _draw(results: xr.Dataset, folder: Path) -> Path | None:
    from attnscope.store.runs import RunFolder

    with RunFolder(folder, json.loads(results.attrs["signature"])) as run:

        def draw(place: Path) -> None:
            from attnscope.results.page.generation import write_generation_report

            write_generation_report(results, place / PAGE)

        return draw_views(run, [], draw)


_TEXTS, _HEADS = 3, 10  # that are printed
_PROMPT = 200  # characters of a prompt's end


def as_dict(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.comparison.spans import describe_own_output, own_output_shares, span_uses
    from attnscope.measure.stored import notes_of

    rows = own_output_shares(results)
    return {
        "signature": json.loads(results.attrs["signature"]),
        "says": [f"{describe_own_output(rows)}."],
        "notes": notes_of(results),
        "full_pass_difference": _number(results.attrs.get("full_pass")),
        "texts": [
            {
                "source": str(text.source.item()),
                "prompt_tokens": int(text.prompt_length),
                "new_tokens": int(text.length),
                "written": str(text.written.item()),
                "token_ids": text.token_id.values[: int(text.length)].tolist(),
            }
            for text in (results.isel(sequence=number) for number in range(results.sizes["sequence"]))
        ],
        "heads": [row.as_dict() for row in rows],
        "spans": [use.as_dict() for use in span_uses(results)],
        "run": str(folder),
    }


def print_csv(results: xr.Dataset) -> None:
    """One line for each head: its own output's share, what grows by itself, and its mean weight on each span."""
    from attnscope.comparison.spans import own_output_shares
    from attnscope.store.signature import Signature

    signature = Signature.from_json(results.attrs["signature"]).short
    told = {(row.layer, row.head): row for row in own_output_shares(results)}
    weight = results.span_weight.mean(("sequence", "step"))
    kinds = ("own", "equal", "places")
    turned = [f"{kind}_{end}" for kind in kinds for end in ("first", "last")]
    spans = [str(span) for span in results.span.values]
    table: list[list[Any]] = [
        ["layer", "head", "attention", *turned, "turn", "turn_low", "turn_high", "beyond_chance"]
        + [f"weight {span}" for span in spans]
        + ["signature"]
    ]
    for i, layer in enumerate(results.layer.values):
        for head in results["head"].values:
            row = told.get((int(layer), int(head)))
            values = [""] * (len(turned) + 4) if row is None else _turn_cells(row)
            on_spans = [_cell(value) for value in weight.sel(layer=layer, head=head).values]
            kind = str(results.layer_kind.values[i])
            table.append([int(layer), int(head), kind, *values, *on_spans, signature])
    emit(csv_text(table))


def print_tables(results: xr.Dataset) -> None:
    """What was written, the heads that turn to it, the spans, and how to read them."""
    from attnscope.comparison.spans import CAUTION, describe_own_output, own_output_shares
    from attnscope.measure.stored import notes_of
    from attnscope.results.account import describe_full_pass, describe_read

    console, texts = new_console(), results.sizes["sequence"]
    _sentence(console, f"{results.attrs['model']}: {describe_read('generate', results)}")
    for number in range(min(texts, _TEXTS)):
        _print_text(console, results.isel(sequence=number))
    if texts > _TEXTS:
        _sentence(console, f"and {count(texts - _TEXTS, 'text')} more: --json has all", style="dim")
    rows = own_output_shares(results)
    console.print()
    _sentence(console, f"{describe_own_output(rows)}.", style="bold")
    if rows:
        _print_turns(console, rows)
    _print_spans(console, results)
    for note in notes_of(results).values():
        _sentence(console, note)
    if checked := describe_full_pass(results):
        _sentence(console, checked, style="dim")
    _sentence(console, CAUTION, style="dim")


def _print_text(console: Console, text: xr.Dataset) -> None:
    from rich.text import Text

    given = "".join(str(token) for token in text.text_token.values[: int(text.prompt_length)])
    begin = "…" if len(given) > _PROMPT else ""
    new = "".join(str(token) for token in text.text_token.values[int(text.prompt_length) :])
    console.print()
    console.print(Text(f"{text.source.item()}: ", style="dim"), end="", highlight=False)
    console.print(Text(begin + given[-_PROMPT:], style="dim") + Text(new, style="bold"), highlight=False)


def _print_turns(console: Console, rows: list[OwnOutputShare]) -> None:
    known = any(row.low == row.low for row in rows)
    interval = ["95%"] if known else []
    table = _table("head", "own output", "equal", "places", "turn", *interval, "beyond\nchance")
    for row in rows[:_HEADS]:
        table.add_row(
            f"{row.layer}.{row.head}",
            *(f"{first:.2f} → {last:.2f}" for first, last in (row.own, row.equal, row.places)),
            f"{row.turn:+.2f}",
            *([f"{row.low:+.2f} to {row.high:+.2f}"] if known else []),
            {True: "yes", False: "not shown", None: "not known"}[row.beyond_chance],
        )
    console.print(table)
    if len(rows) > _HEADS:
        _sentence(console, f"the first {_HEADS} of {len(rows)} heads; --csv has all", style="dim")


def _print_spans(console: Console, results: xr.Dataset) -> None:
    from rich.markup import escape

    from attnscope.comparison.spans import explain_dashes, span_uses

    _sentence(console, "spans: mean weight while the texts are written", style="bold")
    table = _table("span", "all heads", "equal", "places", "most above", "weight", "equal", "places")
    uses = span_uses(results)
    for use in uses:
        table.add_row(
            escape(use.span),
            *(_share(value) for value in (use.weight, use.equal, use.places)),
            use.named,
            *(_share(value) for value in (use.most, use.most_equal, use.most_places)),
        )
    console.print(table)
    if dashes := explain_dashes(uses):
        _sentence(console, dashes, style="dim")


def _table(first: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _share(value: float) -> str:
    return f"{value:.2f}" if value == value else "–"  # noqa: PLR0124


def _turn_cells(row: OwnOutputShare) -> list[Any]:
    ends = [value for pair in (row.own, row.equal, row.places) for value in pair]
    told = "" if row.beyond_chance is None else row.beyond_chance
    return [*(_cell(value) for value in (*ends, row.turn, row.low, row.high)), told]


def _cell(value: float) -> float | str:
    return float(value) if value == value else ""  # noqa: PLR0124


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _sentence(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False)
