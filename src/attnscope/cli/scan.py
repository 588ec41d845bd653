"""`attnscope scan`: parse, call, print."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import csv_text, emit, json_text, new_console, progress_bar, working
from attnscope.cli.place import PAGE, Place, count, draw_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from rich.table import Table

    from attnscope.cli.again import Question


def scan(
    model: options.Model = options.BUNDLED,
    text: options.Texts = None,
    target: Annotated[
        list[Path] | None, typer.Option(help=options.TARGET + "Both texts by line, line i beside line i.")
    ] = None,
    out: options.Out = None,
    repair: options.Repair = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    statistics: Annotated[
        str | None,
        typer.Option(help="Names of statistics with commas between; 'list' shows them.", show_default="all"),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens of a window.", show_default="the model's length, at most 2048")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens between the starts of windows.", show_default="no overlap")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Largest number of windows.", show_default="all")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows at a time.", show_default="about 2048 tokens")
    ] = None,
    band: options.Band = 10,
    clusters: Annotated[
        int | None,
        typer.Option(
            help="Number of kinds of heads, by k-means over profiles.", show_default="as many as are named"
        ),
    ] = None,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER.HEAD,...",
            help="Heads that the page shows token by token, beside those that lead the rankings.",
        ),
    ] = None,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Where does every head look? Stream a corpus through a model; measure every attention head."""
    if statistics == "list":
        _list_statistics()
        return
    from attnscope.cli.again import Question
    from attnscope.statistics import default_out

    options.refuse_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures)
    heads = _heads(show)
    shown = heads if report else None
    settings: dict[str, Any] = {
        "tokenizer": tokenizer,
        "window": window,
        "stride": stride,
        "limit": limit,
        "batch_size": batch_size,
        "statistics": statistics,
        "band": band,
        "clusters": clusters,
        "seed": seed,
        "field": field,
        "by_line": by_line,
        "device": device,
        "dtype": dtype,
    }
    place = Place(out, default_out)
    plain = not (target or repair or revision or trust_remote_code)
    question = Question.of(model, text or None, **settings) if plain else None
    results = None if question is None else _known(question, place, shown)
    if results is None:
        from attnscope.statistics import scan as run_scan

        with progress_bar("scan") as told:
            results = run_scan(
                model,
                text or None,
                targets=target or None,
                out=place,
                repair=repair,
                revision=revision,
                trust_remote_code=trust_remote_code,
                show=shown,
                progress=told,
                **settings,
            )
        if question is not None:
            question.note(Path(results.encoding["source"]), json.loads(results.attrs["signature"]))
    folder = Path(results.encoding["source"])
    page = _draw(results, folder, formats, heads) if report else None
    if as_json:
        emit(json_text(_as_json(results, folder)) + "\n")
    elif as_csv:
        _print_csv(results)
    else:
        _print_tables(results)
        place.say(folder, page)


def _known(question: Question, place: Place, shown: Sequence[tuple[int, int]] | None) -> xr.Dataset | None:
    """Results that are there already; None where the model is needed, if only to say what is wrong."""
    from attnscope.errors import AttnscopeError
    from attnscope.statistics import keeps_maps_of, load_scan

    with suppress(AttnscopeError, OSError):
        run = question.found(place)
        if run is None:
            return None
        with run:
            if not run.complete:
                return None
            results = load_scan(run)
            if shown is not None and run.is_writable() and not keeps_maps_of(run, shown):
                return None
        working()
        return results
    return None


def _heads(given: str | None) -> list[tuple[int, int]]:
    """Heads as people write them.

    Examples
    --------
    >>> _heads("3.6,10.5")
    [(3, 6), (10, 5)]
    """
    from attnscope.errors import AttnscopeError

    found: list[tuple[int, int]] = []
    for name in given.split(",") if given else []:
        layer, _, head = name.strip().partition(".")
        if not (layer.isdecimal() and head.isdecimal()):
            raise AttnscopeError(
                f"--show is {given!r}: give heads as layer.head, with commas between, as in 3.6,10.5"
            )
        found.append((int(layer), int(head)))
    return found


def _list_statistics() -> None:
    from attnscope.statistics import DEFAULT, STATISTICS, SUMMARIES

    lines = [
        f"{name:26}{statistic.long_name} [{statistic.units}]"
        + (" (not by default)" if name not in DEFAULT else "")
        for name, statistic in STATISTICS.items()
    ]
    nulls = [name for name, statistic in STATISTICS.items() if statistic.has_equal]
    equal = [f"{f'equal_{name}':26}{name}, of equal weights over what a token may see" for name in nulls]
    derived = [*equal, *(f"{name:26}{what}" for name, what in SUMMARIES.items())]
    more = "found beside them, not to be asked for by name:"
    emit("".join(f"{line}\n" for line in (*lines, "", more, *derived)))


def _draw(
    results: xr.Dataset, folder: Path, formats: tuple[str, ...], heads: list[tuple[int, int]]
) -> Path | None:
    from attnscope.store import RunFolder

    with RunFolder(folder, json.loads(results.attrs["signature"])) as run:

        def draw(place: Path) -> None:
            from attnscope.figures import write_scan_figures
            from attnscope.report import write_report
            from attnscope.statistics import SAMPLE

            sample = run.load(SAMPLE)
            write_scan_figures(results, sample, place / "figures", formats)
            write_report(results, sample, place / PAGE)

        return draw_views(run, [formats, heads], draw)


def _as_json(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    from attnscope.statistics import rank_heads

    return {
        "signature": json.loads(results.attrs["signature"]),
        "texts": results.sizes["text"],
        "kinds": results.attrs.get("kinds"),
        "heads": rank_heads(results),
        "independence": json.loads(results.attrs.get("summary", "null")),
        "run": str(folder),
    }


def _print_csv(results: xr.Dataset) -> None:
    """One line for each head: means over texts, and the signature that names the run's folder."""
    from attnscope.statistics import majority_names, peaks
    from attnscope.store import Signature

    means = {
        name: values.mean("text", skipna=True).values
        for name, values in results.data_vars.items()
        if values.dims == ("text", "layer", "head") and name != "label"
    }
    means |= {str(name): values.values for name, values in (peaks(results) or {}).items()}
    kinds = majority_names(results)
    signature = Signature.from_json(results.attrs["signature"]).short
    table = [["layer", "head", "layer_name", "layer_kind", "label", *means, "signature"]]
    for layer, (name, kind) in enumerate(
        zip(results.layer_name.values, results.layer_kind.values, strict=True)
    ):
        for head in range(results.sizes["head"]):
            label = "" if kinds is None else kinds[layer][head]
            values = [f"{mean[layer, head]:.6g}" for mean in means.values()]
            table.append([layer, head, name, kind, label, *values, signature])
    emit(csv_text(table))


_MEANING = {
    "positional": ("share of all weight at one offset", "at one offset other than 0"),
    "local": ("weight inside the band of offsets", "inside the band"),
    "sink-like": ("weight on the first, special or no token", "on the first, special or no token"),
}


def _print_tables(results: xr.Dataset) -> None:

    from attnscope.statistics import LEAST_SHARE, LOCAL, NOTES, numbering_note, rank_heads

    console = new_console()
    sizes = results.sizes
    tokens = f"{int(results.length.sum())} tokens"
    if "target_length" in results:
        tokens += f", {int(results.target_length.sum())} of the target"
    console.print(
        f"{results.attrs['model']}: {count(sizes['layer'], 'layer')} x {count(sizes['head'], 'head')} over "
        f"{count(sizes['text'], 'window')} ({tokens})",
        highlight=False,
        markup=False,
    )
    for note in NOTES:
        if note in results.attrs:
            console.print(results.attrs[note], style="dim", highlight=False, markup=False)
    if numbering := numbering_note(results.layer_name.values.tolist()):
        console.print(numbering, style="dim", highlight=False, markup=False)
    for kind, rows in rank_heads(results).items():
        what, where = _MEANING[kind]
        if rows:
            console.print(f"\nmost {kind} heads: {what}", style="bold", highlight=False)
            console.print(_table_of_heads(rows))
        else:
            least = LOCAL if kind == "local" else LEAST_SHARE
            none = (
                f"\nno {kind} head: none has {least} of its weight {where} and twice what equal weights give"
            )
            console.print(none, style="bold", highlight=False)
    console.print(f"\n{results.attrs.get('kinds', _missing(results))}", highlight=False, markup=False)
    console.print("A weight is a mixing coefficient, not an explanation.", style="dim")


def _missing(results: xr.Dataset) -> str:
    from attnscope.statistics import NEEDED

    absent = ", ".join(name for name in NEEDED if name not in results)
    return f"No kinds of heads: for them --statistics lacks {absent}."


def _table_of_heads(rows: list[dict[str, Any]]) -> Table:
    """Columns for what the rows have."""
    from rich.table import Table

    columns = {
        "layer": lambda row: str(row["layer"]),
        "attention": lambda row: row["attention"],
        "head": lambda row: str(row["head"]),
        "weight": lambda row: f"{row['value']:.3f}",
        "offset": lambda row: f"{row['offset']:+d}",
        "kind of head": lambda row: row["label"],
    }
    for name in ("attention", "offset"):
        if not any(name in row for row in rows):
            del columns[name]
    if not any(row["label"] for row in rows):
        del columns["kind of head"]
    table = Table()
    for column in columns:
        table.add_column(column, justify="left" if column in ("attention", "kind of head") else "right")
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table
