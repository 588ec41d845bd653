"""`attnscope scan`: parse, call, print."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import xarray as xr

    from attnscope.statistics import Progress


def scan(
    model: options.Model = options.BUNDLED,
    text: options.Texts = None,
    out: options.Out = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    statistics: Annotated[
        str | None, typer.Option(help="Names with commas between. 'list' shows them.", show_default="all")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens of a window.", show_default="the model's length, at most 2048")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens between windows.", show_default="no overlap")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Windows to measure.", show_default="all")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows at a time.", show_default="about 2048 tokens")
    ] = None,
    band: options.Band = 10,
    clusters: Annotated[int, typer.Option(help="Kinds of heads to look for.")] = 6,
    seed: options.Seed = 0,
    field: options.Field = None,
    by_line: options.ByLine = False,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Where does every head look? Stream a corpus through a model; measure every attention head."""
    if statistics == "list":
        _list_statistics()
        return
    from attnscope.statistics import scan as run_scan
    from attnscope.statistics._scan import default_out

    options.refuse_two_formats(as_json=as_json, as_csv=as_csv)
    with _progress_bar() as show:
        results = run_scan(
            model,
            text or None,
            out=out or default_out,
            tokenizer=tokenizer,
            window=window,
            stride=stride,
            limit=limit,
            batch_size=batch_size,
            statistics=statistics,
            band=band,
            clusters=clusters,
            seed=seed,
            field=field,
            by_line=by_line,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    folder = Path(results.encoding["source"])
    page = _write_pages(results, folder) if report else None
    if as_json:
        print(json.dumps(_as_json(results, folder), indent=2, ensure_ascii=False))  # noqa: T201
    elif as_csv:
        _print_csv(results)
    else:
        _print_table(results, folder, page)


def _list_statistics() -> None:
    from attnscope.statistics import STATISTICS

    width = max(map(len, STATISTICS))
    for name, statistic in STATISTICS.items():
        print(f"{name:{width}}  {statistic.long_name} [{statistic.units}]")  # noqa: T201


@contextmanager
def _progress_bar() -> Generator[Callable[[Progress], None]]:
    """A bar with rate and time left, on standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("scan"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[windows]} windows, {task.fields[rate]:.1f}/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("scan", total=1.0, windows=0, rate=0.0)

    def show(progress: Any) -> None:
        elapsed = bar.tasks[0].elapsed or 0.0
        rate = progress.windows / elapsed if elapsed else 0.0
        bar.update(task, completed=progress.share, windows=progress.windows, rate=rate)

    with bar:
        yield show


def _write_pages(results: xr.Dataset, folder: Path) -> Path:
    import xarray as xr

    from attnscope.figures import write_scan_figures
    from attnscope.report import write_report
    from attnscope.statistics._scan import SAMPLE

    sample = xr.load_dataset(folder / SAMPLE, engine="zarr", consolidated=False)
    write_scan_figures(results, sample, folder / "figures")
    return write_report(results, sample, folder / "report.html")


def _as_json(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    from attnscope.statistics import rank_heads

    return {
        "signature": json.loads(results.attrs["signature"]),
        "texts": results.sizes["text"],
        "heads": rank_heads(results),
        "independence": json.loads(results.attrs.get("summary", "null")),
        "run": str(folder),
    }


def _print_csv(results: xr.Dataset) -> None:
    """One line for each head: means over texts."""
    from attnscope.statistics._summary import majority_names

    mean = results.mean("text", skipna=True)
    names = [str(name) for name in mean.data_vars if mean[name].dims == ("layer", "head")]
    names.remove("label") if "label" in names else None
    kinds = majority_names(results)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["layer", "head", "layer_name", "layer_kind", "label", *names])
    for layer in range(results.sizes["layer"]):
        for head in range(results.sizes["head"]):
            values = [float(mean[name][layer, head]) for name in names]
            writer.writerow(
                [
                    layer,
                    head,
                    str(results.layer_name.values[layer]),
                    str(results.layer_kind.values[layer]),
                    "" if kinds is None else kinds[layer][head],
                    *(f"{value:.6g}" for value in values),
                ]
            )


def _print_table(results: xr.Dataset, folder: Path, page: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from attnscope.statistics import rank_heads

    console = Console()
    sizes = results.sizes
    console.print(
        f"{results.attrs['model']}: {sizes['layer']} layers x {sizes['head']} heads over {sizes['text']} windows "
        f"({int(results.length.sum())} tokens)",
        highlight=False,
        markup=False,
    )
    meaning = {
        "positional": "share of all weight at one offset",
        "local": "weight inside the band of offsets",
        "sink-like": "weight on the first, special or no token",
    }
    for kind, rows in rank_heads(results).items():
        console.print(f"\nmost {kind} heads: {meaning[kind]}", style="bold", highlight=False)
        table = Table()
        for column in ("layer", "head", "weight", "offset", "kind of head"):
            table.add_column(column, justify="left" if column == "kind of head" else "right")
        for row in rows:
            offset = f"{row['offset']:+d}" if "offset" in row else ""
            table.add_row(str(row["layer"]), str(row["head"]), f"{row['value']:.3f}", offset, row["label"])
        if kind != "positional":
            table.columns.pop(3)
        console.print(table)
    console.print("A weight is a mixing coefficient, not an explanation.", style="dim")
    console.print(f"results: {folder}", highlight=False, markup=False, soft_wrap=True)
    if page is not None:
        console.print(f"report:  {page}", highlight=False, markup=False, soft_wrap=True)
