"""`attnscope compare`: parse, call, print."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import csv_text, emit, json_text, new_console, progress_bar
from attnscope.cli.place import PAGE, draw_views
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

_Systems = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Systems: YAML files of settings, to be trained, and folders of `attnscope train`. The first is the "
        "baseline.",
        show_default="three that learn a generated task in minutes",
    ),
]
_Out = Annotated[
    Path,
    typer.Option(
        parser=options.run_folder,
        help="Folder of trainings, translations, page and figures; given again, it goes on.",
    ),
]
_Text = Annotated[
    Path | None,
    typer.Option(
        help="Sentences to translate, one a line.", show_default="what the systems were validated on"
    ),
]
_Target = Annotated[Path | None, typer.Option(help="Right translations of the text, line by line.")]
_Join = Annotated[
    int | None,
    typer.Option(
        help="Largest number of neighbouring sentences joined into one (from 1 to so many, at random).",
        show_default="as in training; a text that is given stays as it is",
    ),
]
_ByLength = Annotated[
    str | None,
    typer.Option(
        help="Upper limits of source length, with commas between, such as 10,20,30.",
        show_default="from the text",
    ),
]
_LengthIn = Annotated[
    str | None, typer.Option(help="Unit of length: words or characters.", show_default="from the text")
]
_Line = Annotated[
    int | None,
    typer.Option(
        help="Sentence pair whose alignments are shown, from 1.", show_default="one of at most 24 words"
    ),
]
_Tokenize = Annotated[
    str | None,
    typer.Option(help="Tokenizer of BLEU, as in `attnscope score`.", show_default="as in training"),
]
_Lowercase = Annotated[
    bool | None,
    typer.Option(
        "--lowercase/--cased", "-lc", help="Case in BLEU: ignored or kept.", show_default="as in training"
    ),
]
_Resamples = Annotated[int, typer.Option(help="Number of resamples of the bootstrap; 0 for no intervals.")]


@options.takes(
    "device",
    "report",
    "figures",
    "as_json",
    "as_csv",
    as_csv=options.varied("as_csv", False, help="CSV on standard output: one line for each system."),
)
def compare(
    systems: _Systems = None,
    out: _Out = Path("attnscope-comparison"),
    text: _Text = None,
    target: _Target = None,
    join: _Join = None,
    by_length: _ByLength = None,
    length_in: _LengthIn = None,
    line: _Line = None,
    beams: Annotated[
        int, typer.Option(min=1, help="Beam size: translations followed at a time; 1 is greedy.")
    ] = 5,
    tokenize: _Tokenize = None,
    lowercase: _Lowercase = None,
    resamples: _Resamples = 1000,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads for training and translating.", show_default="the processors there are"
        ),
    ] = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Which system translates best, how fast, up to which length? Trains what is not trained; one table, one page."""
    from attnscope.cli.score import length_limits
    from attnscope.lineage.compare import compare as run

    limits = None if by_length is None else length_limits(by_length)
    with progress_bar("compare", lines=True) as show:
        tree = run(
            systems or None,
            text,
            targets=target,
            out=out,
            join=join,
            by_length=limits,
            length_in=length_in,
            line=line,
            beams=beams,
            tokenize=tokenize,
            lowercase=lowercase,
            resamples=resamples,
            threads=threads,
            **reading,
            progress=show,
        )
    page = _draw(tree, out, output.formats) if output.report else None
    if output.as_json:
        emit(json_text(_as_json(tree)) + "\n")
    elif output.as_csv:
        rows = _rows(tree)
        emit(csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
    else:
        _print_tables(tree, page)


def _draw(tree: xr.DataTree, out: Path, formats: tuple[str, ...]) -> Path | None:
    from attnscope.results.figures.comparison import write_comparison_figures
    from attnscope.results.page.comparison import write_comparison_report
    from attnscope.store.folder import OwnedFolder

    def draw(place: Path) -> None:
        write_comparison_figures(tree, place / "figures", formats)
        write_comparison_report(tree, place / PAGE)

    with OwnedFolder(out, "compare") as folder:
        results = [
            checksum.sha256 for name, checksum in folder.files.items() if "/" not in name and name != PAGE
        ]
        return draw_views(folder, [sorted(results), formats], draw)


def _rows(tree: xr.DataTree) -> list[dict[str, Any]]:
    """A line of CSV for each system, with the signature of the whole; what does not exist is None."""
    from attnscope.store.signature import Signature

    signature = {"signature": Signature.from_json(tree.attrs["signature"]).short}
    scores = tree["scores"].to_dataset()
    rows: list[dict[str, Any]] = []
    for system in scores["system"].values:
        at = scores.sel(system=system)
        row: dict[str, Any] = {"system": str(system)}
        for metric in scores["metric"].values:
            short = str(metric).lower()
            row |= {
                short if name == "score" else f"{short}_{name}": _value(at[name].sel(metric=metric))
                for name in (
                    *("score", "lower", "upper"),
                    *("difference", "difference_lower", "difference_upper", "p_value"),
                )
            }
        rows.append(row | _of_system(scores, str(system)) | signature)
    return rows


def _of_system(scores: xr.Dataset, system: str) -> dict[str, float | None]:
    """What there is of a system beside its scores."""
    names = [str(name) for name, values in scores.data_vars.items() if values.dims == ("system",)]
    return {name: _value(scores[name].sel(system=system)) for name in names}


def _value(number: Any) -> float | None:
    return with_nulls(float(number))


def _as_json(tree: xr.DataTree) -> dict[str, Any]:
    from attnscope.cli.score import scores_of

    scores, curves = tree["scores"].to_dataset(), tree["curves"].to_dataset()
    rows: list[dict[str, Any]] = []
    for system in map(str, scores["system"].values):
        curve = curves.sel(system=system)
        row = {"system": system, **scores_of(scores, system), **_of_system(scores, system)}
        rows.append(row)
        row["learning_curve"] = [
            {str(name): _value(curve[name].sel(validation=i)) for name in curve.data_vars}
            for i in range(curves.sizes["validation"])
            if not math.isnan(float(curve["updates"][i]))
        ]
    return {
        "signature": json.loads(tree.attrs["signature"]),
        "sentences": scores.attrs["sentences"],
        "sentences_by_length": {
            str(bucket): int(count)
            for bucket, count in zip(scores["bucket"].values, scores["sentences"].values, strict=True)
        },
        "length_in": scores.attrs["length_in"],
        "systems": rows,
        "run": tree.attrs["run"],
    }


def _print_tables(tree: xr.DataTree, page: Path | None) -> None:
    from attnscope.lineage.compare_notes import error_rate_note
    from attnscope.results.account import describe_cut_sentences, differences_note
    from attnscope.store.signature import Signature

    console = new_console()
    scores = tree["scores"].to_dataset()
    console.print(_table(scores))
    if how := differences_note(scores):
        console.print(_table_of_differences(scores))
        console.print(how, style="dim", highlight=False, markup=False)
    console.print(_table_by_length(scores))
    if "alignment_error_rate" in scores:
        console.print(error_rate_note(scores), style="dim", highlight=False)
    for said in describe_cut_sentences(scores):
        console.print(said, highlight=False, markup=False)
    for metric, signature in json.loads(scores.attrs["signature"]).items():
        console.print(f"{metric}|{signature}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"results: {tree.attrs['run']}", highlight=False, markup=False, soft_wrap=True)
    cited = Signature.from_json(tree.attrs["signature"]).format()
    console.print(f"signature: {cited}", highlight=False, markup=False, soft_wrap=True)
    if page is not None:
        console.print(f"report:  {page}", highlight=False, markup=False, soft_wrap=True)


def _table(scores: xr.Dataset) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    known = "alignment_error_rate" in scores
    title = count(scores.attrs["sentences"], "sentence")
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("system", overflow="fold", min_width=11)
    headings = ["para-\nmeters", "BLEU [95%]", "chrF"]
    headings += ["train\ntokens/s", "test\nlines/s", *(["AER, %\n[95%]"] if known else [])]
    for heading in headings:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for system in scores["system"].values:
        at = scores.sel(system=system)
        bleu = at.sel(metric="BLEU")
        cells = [
            _short(int(at["parameters"])),
            _number(bleu["score"], ".1f") + _interval(bleu["lower"], bleu["upper"]),
        ]
        cells += [
            _number(at["score"].sel(metric="chrF"), ".1f"),
            _number(at["training_tokens_per_second"], ",.0f"),
            _number(at["sentences_per_second"], ".1f"),
        ]
        if known:
            rate, *ends = (100 * at[f"alignment_error_rate{end}"] for end in ("", "_lower", "_upper"))
            cells.append(_number(rate, ".1f") + _interval(*ends))
        table.add_row(*map(Text, [str(system), *cells]))
    return table


def _short(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1_000_000 else f"{count / 1e3:.0f}k"  # noqa: PLR2004


def _table_of_differences(scores: xr.Dataset) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="BLEU, difference from the first system",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("system", overflow="fold", min_width=11)
    for heading in ("difference", "95% interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for system in scores["system"].values[1:]:
        at = scores.sel(system=system, metric="BLEU")
        ends = [_signed(at[f"difference_{end}"]) for end in ("lower", "upper")]
        cells = [_signed(at["difference"]), " to ".join(ends), _number(at["p_value"], ".3f")]
        table.add_row(*map(Text, [str(system), *cells]))
    return table


def _table_by_length(scores: xr.Dataset) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="BLEU by source length [95%, of 6 sentences and more]",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column(scores.attrs["length_in"])
    table.add_column("sentences", justify="right")
    for system in scores["system"].values:
        table.add_column(Text(str(system)), justify="right")
    for bucket in scores["bucket"].values:
        at = scores.sel(bucket=bucket, metric="BLEU")
        ends = (at[f"{end}_by_length"].values for end in ("score", "lower", "upper"))
        cells = [
            _number(score, ".1f") + _interval(lower, upper) for score, lower, upper in zip(*ends, strict=True)
        ]
        table.add_row(str(bucket), str(int(at["sentences"])), *cells)
    return table


def _interval(lower: Any, upper: Any) -> str:
    return "" if math.isnan(float(lower)) else f" [{float(lower):.1f}, {float(upper):.1f}]"


def _signed(value: Any) -> str:
    return _number(value, "+.1f").replace("-", "−") if math.isfinite(float(value)) else "-"


def _number(value: Any, form: str) -> str:
    return "-" if math.isnan(float(value)) else format(float(value), form)
