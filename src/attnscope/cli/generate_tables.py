"""What `attnscope generate` prints: texts and tables, CSV, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attnscope._numbers import count
from attnscope.cli.output import csv_text, emit, new_console

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope._turning import Turn

_TEXTS, _HEADS = 3, 10  # that are printed
_PROMPT = 200  # characters of a prompt's end


def as_dict(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope._named_spans import span_uses
    from attnscope._turning import said_of_turns, turns
    from attnscope.statistics import notes_of

    rows = turns(results)
    return {
        "signature": json.loads(results.attrs["signature"]),
        "says": [f"{said_of_turns(rows)}."],
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
    from attnscope._turning import turns
    from attnscope.store import Signature

    signature = Signature.from_json(results.attrs["signature"]).short
    told = {(row.layer, row.head): row for row in turns(results)}
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
    from attnscope._turning import CAUTION, said_of_turns, turns
    from attnscope.results import full_pass_said, read_said
    from attnscope.statistics import notes_of

    console, texts = new_console(), results.sizes["sequence"]
    _say(console, f"{results.attrs['model']}: {read_said('generate', results)}")
    for number in range(min(texts, _TEXTS)):
        _print_text(console, results.isel(sequence=number))
    if texts > _TEXTS:
        _say(console, f"and {count(texts - _TEXTS, 'text')} more: --json has all", style="dim")
    rows = turns(results)
    console.print()
    _say(console, f"{said_of_turns(rows)}.", style="bold")
    if rows:
        _print_turns(console, rows)
    _print_spans(console, results)
    for note in notes_of(results).values():
        _say(console, note)
    if checked := full_pass_said(results):
        _say(console, checked, style="dim")
    _say(console, CAUTION, style="dim")


def _print_text(console: Console, text: xr.Dataset) -> None:
    from rich.text import Text

    given = "".join(str(token) for token in text.text_token.values[: int(text.prompt_length)])
    begin = "…" if len(given) > _PROMPT else ""
    new = "".join(str(token) for token in text.text_token.values[int(text.prompt_length) :])
    console.print()
    console.print(Text(f"{text.source.item()}: ", style="dim"), end="", highlight=False)
    console.print(Text(begin + given[-_PROMPT:], style="dim") + Text(new, style="bold"), highlight=False)


def _print_turns(console: Console, rows: list[Turn]) -> None:
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
        _say(console, f"the first {_HEADS} of {len(rows)} heads; --csv has all", style="dim")


def _print_spans(console: Console, results: xr.Dataset) -> None:
    from rich.markup import escape

    from attnscope._named_spans import dashes_said, span_uses

    _say(console, "spans: mean weight while the texts are written", style="bold")
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
    if dashes := dashes_said(uses):
        _say(console, dashes, style="dim")


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


def _turn_cells(row: Turn) -> list[Any]:
    ends = [value for pair in (row.own, row.equal, row.places) for value in pair]
    told = "" if row.beyond_chance is None else row.beyond_chance
    return [*(_cell(value) for value in (*ends, row.turn, row.low, row.high)), told]


def _cell(value: float) -> float | str:
    return float(value) if value == value else ""  # noqa: PLR0124


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False)
