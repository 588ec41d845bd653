"""`attnscope patch`: parse, call, print."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnscope.cli import options
from attnscope.cli.output import TABLE_ROWS, emit_rows, new_console, print_note, progress_bar
from attnscope.cli.place import Forms, OutputFolder, draw_page, usual_folder
from attnscope.support.numbers import with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from attnscope.intervention.patch_findings import PatchedPosition

_Pairs = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Pairs of a clean and a corrupted text: one file of JSON Lines with clean, corrupted, answer and wrong in "
        "each line; or two text files, line i beside line i; or four, with the answers and the wrong ones.",
        show_default="those of the bundled model",
    ),
]
_Answer = Annotated[str | None, typer.Option(help="Right answer, of all pairs that have none of their own.")]
_Wrong = Annotated[str | None, typer.Option(help="Wrong answer, of all pairs that have none of their own.")]
_What = Annotated[
    str, typer.Option(help="Activations that are patched: heads, or residual (the stream after each block).")
]
_ByPosition = Annotated[bool, typer.Option("--by-position", help="Heads at one position at a time.")]
_Direction = Annotated[
    str | None,
    typer.Option(
        help="Direction: denoising puts clean activations into the corrupted run, noising does the opposite.",
        show_default="denoising; noising with --receiver",
    ),
]
_Receiver = Annotated[
    str | None,
    typer.Option(help="Path patching: layer.head of the later head through which alone the effect goes on."),
]
_Steps = Annotated[int, typer.Option(help="Gradients of the EAP-IG estimate; 0 leaves out all estimates.")]
_BatchSize = Annotated[
    int | None, typer.Option(help="Pairs at a time.", show_default="about 1,024 tokens' worth")
]
_AsCsv = Annotated[
    bool, typer.Option("--csv", help="CSV on standard output instead of a table: one line for each place.")
]


def patch(
    model: options.Model = options.BUNDLED,
    pairs: _Pairs = None,
    answer: _Answer = None,
    wrong: _Wrong = None,
    what: _What = "heads",
    by_position: _ByPosition = False,
    direction: _Direction = None,
    receiver: _Receiver = None,
    out: options.Out = None,
    repair: options.Repair = False,
    task: options.Task = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    ray_gpus: options.RayGpus = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    batch_size: _BatchSize = None,
    variants: options.Variants = None,
    steps: _Steps = 5,
    seed: options.Seed = 0,
    tokenizer: options.Tokenizer = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    report: options.Report = True,
    figures: options.Figures = options.USUAL_FIGURES,
    as_json: options.AsJson = False,
    as_csv: _AsCsv = False,
) -> None:
    """What carries the difference? Put activations of a clean run into a corrupted one; see the answer come back."""
    options.reject_two_formats(as_json=as_json, as_csv=as_csv)
    formats = options.formats_of(figures, report=report)
    place = OutputFolder(out, usual_folder("patch"))
    from attnscope.intervention.patch import patch as run_patch

    with progress_bar("patch") as show:
        tree = run_patch(
            model,
            pairs or None,
            answer=answer,
            wrong=wrong,
            out=place,
            repair=repair,
            task=task,
            ray=ray,
            workers=workers,
            ray_gpus=ray_gpus,
            tokenizer=tokenizer,
            what=what,  # pyright: ignore[reportArgumentType] checked there
            by_position=by_position,
            direction=direction,  # pyright: ignore[reportArgumentType]
            receiver=receiver,
            steps=steps,
            batch_size=batch_size,
            variants=variants,
            seed=seed,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            progress=show,
        )
    if "task" in tree.attrs:  # another process keeps and prints the results
        print_note(tree.attrs["task"])
        return
    folder = Path(tree.attrs["run"])
    page = _draw(tree, formats) if report else None
    Forms(as_dict, print_csv, print_tables).show(tree, place, folder, page, as_json=as_json, as_csv=as_csv)


def _draw(tree: xr.DataTree, formats: tuple[str, ...]) -> Path | None:
    from attnscope.results.figures.patch import patch_figures
    from attnscope.results.page.patch import write_patch_report

    return draw_page(tree, formats, patch_figures, write_patch_report)


_EFFECT = (
    "change: of answer minus wrong answer, logits, from the run that is patched; way: the share of the gap between "
    "both runs."
)
_TOLD = "95% interval: of the way, over pairs; * is told from 0 with all places looked at together."


def as_dict(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.intervention.patch_findings import patch_headline, patched_positions

    pairs = tree["pairs"].to_dataset()
    texts = ("clean_text", "corrupted_text", "answer_text", "wrong_text")
    columns = {name.removesuffix("_text"): pairs[name].values.tolist() for name in texts}
    columns |= {f"{name}_difference": pairs[name].values.tolist() for name in ("clean", "corrupted")}
    rows = zip(*columns.values(), strict=True)
    return {
        "signature": json.loads(tree.attrs["signature"]),
        "says": patch_headline(tree),
        "patched": with_nulls([asdict(row) for row in patched_positions(tree)]),
        "pairs": with_nulls([dict(zip(columns, row, strict=True)) for row in rows]),
        "agreement": with_nulls(_agreement(tree)),
        "run": str(folder),
    }


def print_csv(tree: xr.DataTree) -> None:
    """One line for each place, with the signature that names the run's folder."""
    from attnscope.intervention.patch_findings import patched_positions
    from attnscope.store.signature import Signature

    signature = Signature.from_json(tree.attrs["signature"]).short
    rows: list[dict[str, Any]] = []
    for row in patched_positions(tree):
        plain = asdict(row)
        effects = {name: plain.pop(name) for name in ("effect", "recovered")}
        estimates = plain.pop("estimates")
        plain = {name: value for name, value in plain.items() if value is not None}
        plain |= {
            name if end == "mean" else f"{name}_{end}": value
            for name, effect in effects.items()
            for end, value in effect.items()
            if end != "shown"
        }
        plain |= {"shown": row.effect.shown}
        plain |= {f"estimate_{name}": value for name, value in estimates.items()}
        rows.append(plain | {"signature": signature})
    emit_rows(rows)


def print_tables(tree: xr.DataTree) -> None:
    """The headline, a table of the largest effects, and how to read it."""
    from attnscope.intervention.patch_findings import patched_positions
    from attnscope.results.account import account_of

    console = new_console()
    rows, account = patched_positions(tree), account_of("patch", tree)
    console.print(f"{tree.attrs['model']}: {account.read}", highlight=False, markup=False)
    for sentence in account.headline:
        console.print(sentence, style="bold", highlight=False, markup=False)
    console.print(_table(rows[:TABLE_ROWS]))
    if len(rows) > TABLE_ROWS:
        console.print(f"and {len(rows) - TABLE_ROWS} more: --csv lists all", highlight=False)
    told = [_TOLD] if rows[0].effect.shown is not None else []
    for note in (_EFFECT, *told, *account.care):
        console.print(note, style="dim", highlight=False, markup=False)


def _table(rows: list[PatchedPosition]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    first = rows[0]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("head" if first.block is None else "block", justify="right")
    if first.token is not None:
        table.add_column("position", justify="right")
        table.add_column("token")
    for heading in ("change", "way", "95% interval", *(f"estimate:\n{name}" for name in first.estimates)):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row.block) if row.block is not None else f"{row.layer}.{row.head}"]
        if row.token is not None:
            cells += [str(row.position), row.token]
        share = row.recovered
        cells += [
            f"{row.effect.mean:+.3f}{'*' if row.effect.shown else ' '}",
            f"{share.mean:.1%}",
            f"{share.low:.1%} to {share.high:.1%}" if math.isfinite(share.low) else "",
            *(f"{value:+.3f}" for value in row.estimates.values()),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _agreement(tree: xr.DataTree) -> dict[str, dict[str, float]]:
    if "agreement" not in tree.children:
        return {}
    agreement = tree["agreement"].to_dataset()
    return {
        str(name): {str(key): float(agreement[key].sel(estimator=name)) for key in agreement.data_vars}
        for name in agreement.estimator.values
    }
