"""`attnscope score`: parse, call, print."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli.output import emit, json_text, new_console, progress_bar
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from rich.console import Console

_NUMBERS = ("score", "lower", "upper", "difference", "difference_lower", "difference_upper", "p_value")
_BY_LENGTH = "_by_length"


def score(
    hypotheses: Annotated[
        list[Path],
        typer.Argument(
            help="Translations, one sentence a line; - is standard input. The first is the baseline."
        ),
    ],
    target: Annotated[
        list[Path],
        typer.Option(help="Reference translations; given again for a second one of each sentence."),
    ],
    tokenize: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer of BLEU: 13a, intl, zh, ja-mecab, char, none (tokenised text), moses.",
            show_default="ja-mecab and zh for their languages, else 13a",
        ),
    ] = None,
    lowercase: Annotated[
        bool,
        typer.Option(
            "--lowercase", "-lc", help="Case-insensitive scores, as in older papers with moses or none."
        ),
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Language of the targets, such as ja; for moses en by default.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Sentences that were translated, for --by-length.")
    ] = None,
    by_length: Annotated[
        str | None,
        typer.Option(help="Upper limits of source length, with commas between, such as 10,20,30."),
    ] = None,
    length_in: Annotated[str, typer.Option(help="Unit of length: words or characters.")] = "words",
    resamples: Annotated[
        int, typer.Option(help="Number of resamples of the bootstrap; 0 for no intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 12345,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output instead of a table.")
    ] = False,
) -> None:
    """How good are the translations? BLEU and chrF with signatures, intervals and paired tests."""
    from attnscope.lineage.score import score as run_score
    from attnscope.support.errors import AttnscopeError

    files = [*hypotheses, *target, *([text] if text else [])]
    if sum(str(file) == "-" for file in files) > 1:
        raise AttnscopeError("standard input (-) can be only one of the files")
    if text and not by_length:
        raise AttnscopeError(
            "--text is for BLEU by its length: give limits too, such as --by-length 10,20,30"
        )
    with progress_bar("score") as show:
        result = run_score(
            list(hypotheses),
            list(target),
            texts=text,
            by_length=length_limits(by_length) if by_length else [],
            length_in=length_in,
            tokenize=tokenize,
            lowercase=lowercase,
            language=language,
            resamples=resamples,
            seed=seed,
            progress=show,
        )
    if as_json:
        emit(json_text(_as_json(result)) + "\n")
    else:
        _print_tables(result)


def length_limits(text: str) -> list[int]:
    """Upper limits of length from what the user typed."""
    from attnscope.support.errors import AttnscopeError

    try:
        return [int(limit) for limit in text.split(",")]
    except ValueError as error:
        raise AttnscopeError(f"--by-length {text!r}: expected whole numbers such as 10,20,30") from error


def scores_of(result: xr.Dataset, system: str) -> dict[str, Any]:
    """The numbers of one system by metric, and by length within it; what does not exist is null."""

    def values(names: Sequence[str], **where: Any) -> dict[str, Any]:
        return with_nulls({name.removesuffix(_BY_LENGTH): float(result[name].sel(where)) for name in names})

    told: dict[str, Any] = {}
    for metric in result["metric"].values:
        at = {"system": system, "metric": metric}
        told[str(metric)] = values(_NUMBERS, **at)
        if "bucket" in result.dims:
            told[str(metric)]["by_length"] = {
                str(bucket): values([f"{name}{_BY_LENGTH}" for name in _NUMBERS[:3]], **at, bucket=bucket)
                for bucket in result["bucket"].values
            }
    return told


def _as_json(result: xr.Dataset) -> dict[str, Any]:
    names = [str(name) for name in result["system"].values]
    out: dict[str, Any] = {
        "sentences": result.attrs["sentences"],
        "signature": json.loads(result.attrs["signature"]),
        **({"note": result.attrs["note"]} if "note" in result.attrs else {}),
        "systems": [{"system": name, **scores_of(result, name)} for name in names],
    }
    if "bucket" in result.dims:
        counts = zip(result["bucket"].values, result["sentences"].values, strict=True)
        out["sentences_by_length"] = {str(bucket): int(count) for bucket, count in counts}
        out["length_in"] = result.attrs["length_in"]
    return out


def _print_tables(result: xr.Dataset) -> None:
    console = new_console()
    for metric in result["metric"].values:
        _print_scores(console, result, str(metric))
        if "bucket" in result.dims:
            _print_by_length(console, result, str(metric))
    from attnscope.measure.documents import FEW, LEAST

    if (sentences := result.attrs["sentences"]) < FEW:
        untested = f"; not tested: fewer than {LEAST}" if sentences < LEAST else ""
        note = f"No interval of scores: fewer than {FEW} sentences{untested}."
        console.print(note, style="dim", highlight=False)
    if "note" in result.attrs:
        console.print(result.attrs["note"], style="bold", highlight=False, markup=False)
    for metric, signature in json.loads(result.attrs["signature"]).items():
        console.print(f"{metric}|{signature}", highlight=False, markup=False, soft_wrap=True)


def _print_scores(console: Console, result: xr.Dataset, metric: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{metric} over {_sentences(result)}", title_justify="left")
    table.add_column("system")
    several = result.sizes["system"] > 1
    drawn, tested = (bool(result[name].notnull().any()) for name in ("lower", "p_value"))
    headings = [metric, *["95% interval"] * drawn]
    if several:
        headings += ["difference", *["95% interval", "p"] * tested]
    for heading in headings:
        table.add_column(heading, justify="right")
    for i, system in enumerate(result["system"].values):
        at = result.sel(system=system, metric=metric)
        row = [_number(at["score"]), *([_interval(at["lower"], at["upper"])] * drawn)]
        if several and i == 0:
            row.append("baseline")
        elif several:
            row.append(_number(at["difference"], "+.2f"))
        if tested and i:
            row += [
                _interval(at["difference_lower"], at["difference_upper"], "+.2f"),
                _number(at["p_value"], ".3f"),
            ]
        table.add_row(Text(str(system)), *row)
    console.print(table)


def _sentences(result: xr.Dataset) -> str:
    return count(result.attrs["sentences"], "sentence")


def _print_by_length(console: Console, result: xr.Dataset, metric: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{metric} by source length", title_justify="left")
    table.add_column(result.attrs["length_in"])
    table.add_column("sentences", justify="right")
    for system in result["system"].values:
        table.add_column(Text(str(system)), justify="right")
    for bucket in result["bucket"].values:
        at = result.sel(bucket=bucket, metric=metric)
        cells = [
            f"{_number(row['score_by_length'])}  {_interval(row['lower_by_length'], row['upper_by_length'])}"
            for row in (at.sel(system=system) for system in result["system"].values)
        ]
        table.add_row(str(bucket), str(int(at["sentences"])), *cells)
    console.print(table)


def _interval(lower: Any, upper: Any, form: str = ".2f") -> str:
    return "" if math.isnan(float(lower)) else f"{_number(lower, form)} to {_number(upper, form)}"


def _number(value: Any, form: str = ".2f") -> str:
    return "-" if math.isnan(float(value)) else format(float(value), form)
