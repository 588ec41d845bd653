"""`attnscope explain`: parse, call, print."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import xarray as xr

    from attnscope.mechanism.explain import Step

_SHOWN = 20  # heads in the table
_SHOWN_IN_FIGURES = 4  # heads, where none was asked for; of a layer that was asked for, twice as many


def explain(
    model: Annotated[
        str,
        typer.Argument(help="A model folder or hub id; 'bundled' is the small model that attnscope brings."),
    ] = "bundled",
    text: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders of text (UTF-8, .txt .md .jsonl); - is standard input."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. A run that was stopped does what is not yet done.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... [default: cuda if there is one]")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16, float64 [default: as saved]")
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens of a window; shorter ones are left out [default: the model's length]"),
    ] = None,
    limit: Annotated[int, typer.Option(help="Windows to read.")] = 100,
    band: Annotated[int, typer.Option(help="Largest offset of the profiles.")] = 10,
    frequencies: Annotated[
        str | None,
        typer.Option(
            metavar="LOW:HIGH", help="Cycles per window in which shifts are read off [default: from 3]"
        ),
    ] = None,
    completion: Annotated[
        str, typer.Option(help="Of the rotation in the phase maps: minimal, lapack, haar or thin.")
    ] = "minimal",
    interventions: Annotated[
        bool,
        typer.Option(
            "--interventions", help="Also change words and positions and see what becomes of heads."
        ),
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The papers' settings, and their published numbers beside ours.")
    ] = False,
    relearn: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS", help="Also learn the position table anew with unknown tokens between (1000)."
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Layer to show in the figures of single heads.")] = None,
    head: Annotated[int | None, typer.Option(help="Head to show in the figures of single heads.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is random.")] = 0,
    field: Annotated[str | None, typer.Option(help="Field of JSON Lines that holds the text.")] = None,
    by_line: Annotated[bool, typer.Option("--by-line", help="Every line of a file is a text.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer [default: the model's]")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    report: Annotated[bool, typer.Option(help="Write report.html and the figures.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print one line for each head instead of a table.")
    ] = False,
) -> None:
    """Why does every head look there? Take queries and keys apart into positions, content and waves."""
    from attnscope.errors import AttnscopeError
    from attnscope.mechanism.explain import explain as run_explain
    from attnscope.mechanism.paper import reproduce
    from attnscope.mechanism.ranking import best_heads
    from attnscope.mechanism.rotation import COMPLETIONS

    if as_json and as_csv:
        raise AttnscopeError("--json and --csv both want the standard output: choose one")
    wanted = _frequencies(frequencies)
    if completion not in COMPLETIONS:
        raise AttnscopeError(f"--completion is {completion!r}: choose {', '.join(COMPLETIONS)}")
    source = None if model == "bundled" else model
    with _progress_bar() as show:
        options: dict[str, Any] = {
            "out": out or _default_out,
            "tokenizer": tokenizer,
            "window": window,
            "limit": limit,
            "band": band,
            "frequencies": wanted,
            "completion": completion,
            "intervene": interventions,
            "seed": seed,
            "field": field,
            "by_line": by_line,
            "device": device,
            "dtype": dtype,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "progress": show,
        }
        tree = (
            reproduce(source, text or None, **options)[0]
            if paper
            else run_explain(source, text or None, **options)
        )
    count = _SHOWN_IN_FIGURES if layer is None and head is None else 2 * _SHOWN_IN_FIGURES
    heads = best_heads(tree, layer=layer, head=head, count=count)
    folder = Path(tree.attrs["run"])
    if relearn is not None:
        _relearn(
            source,
            text or None,
            folder,
            relearn,
            tokenizer=tokenizer,
            field=field,
            by_line=by_line,
            seed=seed,
        )
    page = _write_pages(tree, folder, heads) if report else None
    if as_json:
        print(json.dumps(_as_json(tree, folder), indent=2, ensure_ascii=False))  # noqa: T201
    elif as_csv:
        _print_csv(tree)
    else:
        if "paper" in tree.children:
            _print_paper(tree["paper"].to_dataset())
        _print_table(tree, folder, page)


def _print_paper(table: xr.Dataset) -> None:
    """Published numbers beside ours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from attnscope.mechanism.paper import COLUMNS, paper_lines

    shown = Table(show_lines=True)
    for heading in COLUMNS:
        shown.add_column(heading)
    for line in paper_lines(table):
        shown.add_row(*map(Text, line))
    Console().print(shown)


def _relearn(source: str | None, text: list[Path] | None, folder: Path, steps: int, **options: Any) -> None:
    """Learn the positions anew; the model, its tokenizer and the spectra are kept in the run folder."""
    from rich.console import Console
    from rich.progress import Progress

    from attnscope.bundled import MODEL
    from attnscope.capture import load_model
    from attnscope.mechanism.relearn import relearn_positions

    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("relearn", total=steps)
        model, found = relearn_positions(
            source, text, steps=steps, progress=lambda done, _: bar.update(task, completed=done), **options
        )
    kept = folder / "relearned"
    model.save_pretrained(kept)
    load_model(source or MODEL, tokenizer=options.get("tokenizer")).tokenizer.save_pretrained(kept)
    losses = found.loss.values
    console.print(
        f"relearned positions: loss {losses[0]:.3f} -> {losses[-1]:.3f}; model kept in {kept}",
        highlight=False,
    )


def _frequencies(given: str | None) -> tuple[int, int] | None:
    from attnscope.errors import AttnscopeError

    if given is None:
        return None
    low, _, high = given.partition(":")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise AttnscopeError(
            f"--frequencies is {given!r}: give two whole numbers, the smaller first, as in 3:60"
        )
    return int(low), int(high)


def _default_out(signature: dict[str, Any]) -> Path:
    from attnscope.statistics._scan import default_out

    folder = default_out(signature)
    return folder.with_name(f"explain-{folder.name}")


@contextmanager
def _progress_bar() -> Generator[Callable[[Step], None]]:
    """A bar with what is being done, on standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("explain"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[step]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("explain", total=1.0, step="loading the model")

    def show(step: Step) -> None:
        bar.update(task, completed=step.share, step=step.name)

    with bar:
        yield show


def _write_pages(tree: xr.DataTree, folder: Path, heads: list[tuple[int, int]]) -> Path:
    from attnscope.figures.mechanism import write_explain_figures
    from attnscope.report import write_explain_report

    write_explain_figures(tree, folder / "figures", heads)
    return write_explain_report(tree, folder / "report.html", heads)


def _as_json(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    from attnscope.mechanism.ranking import rank_heads

    return {
        "signature": json.loads(tree.attrs["signature"]),
        "heads": rank_heads(tree),
        "skipped": json.loads(tree.attrs["skipped"]),
        "run": str(folder),
    }


def _print_csv(tree: xr.DataTree) -> None:
    from attnscope.mechanism.ranking import rank_heads

    rows = sorted(rank_heads(tree), key=lambda row: (row["layer"], row["head"]))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()])


def _print_table(tree: xr.DataTree, folder: Path, page: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from attnscope.mechanism.ranking import rank_heads

    console = Console()
    rows = rank_heads(tree)
    settings = json.loads(tree.attrs["signature"])["settings"]
    console.print(
        f"{tree.attrs['model']}: {len(rows)} heads over {settings['windows']} windows of {settings['window']} tokens",
        highlight=False,
        markup=False,
    )
    judged = [row for row in rows if row["agree"] is not None]
    if judged:
        agreeing = sum(row["agree"] for row in judged)
        console.print(
            f"three ways find the same offset in {agreeing} of {len(judged)} heads",
            style="bold",
            highlight=False,
        )
    table = Table()
    headings = (
        "layer",
        "head",
        "weight",
        "weights",
        "spectrum",
        "correlation",
        "agree",
        "share of\nposition",
    )
    for heading in headings:
        by = "offset:\n" if heading in {"weights", "spectrum", "correlation"} else ""
        table.add_column(by + heading, justify="left" if heading == "agree" else "right")
    for row in rows[:_SHOWN]:
        table.add_row(
            str(row["layer"]),
            str(row["head"]),
            _number(row["peak_weight"], ".3f"),
            _number(row["offset_of_weights"], "+.0f"),
            _number(row["offset_of_spectrum"], "+.2f"),
            _number(row["offset_of_correlation"], "+.2f"),
            {True: "yes", False: "no", None: ""}[row["agree"]],
            _number(row["position_share"], ".2f"),
        )
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} more heads: --csv lists all", highlight=False)
    for name, reason in json.loads(tree.attrs["skipped"]).items():
        console.print(f"no {name.replace('_', ' ')}: {reason}", style="dim", highlight=False, markup=False)
    console.print(
        "A weight is a mixing coefficient, not an explanation; scores are not weights.", style="dim"
    )
    console.print(f"results: {folder}", highlight=False, markup=False, soft_wrap=True)
    if page is not None:
        console.print(f"report:  {page}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form if value else form.replace("+", ""))
