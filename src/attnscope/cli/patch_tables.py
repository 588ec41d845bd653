"""What `attnscope patch` prints: a table, CSV, JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._nulls import with_nulls
from attnscope.cli.output import TABLE_ROWS, emit_rows, new_console

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from attnscope.faithfulness import PatchedPlace

_EFFECT = (
    "change: of answer minus wrong answer, logits, from the run that is patched; way: the share of the gap between "
    "both runs."
)
_TOLD = "95% interval: of the way, over pairs; * is told from 0 with all places looked at together."


def as_dict(tree: xr.DataTree, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.faithfulness import patch_headline, patched_places

    pairs = tree["pairs"].to_dataset()
    texts = ("clean_text", "corrupted_text", "answer_text", "wrong_text")
    columns = {name.removesuffix("_text"): pairs[name].values.tolist() for name in texts}
    columns |= {f"{name}_difference": pairs[name].values.tolist() for name in ("clean", "corrupted")}
    rows = zip(*columns.values(), strict=True)
    return {
        "signature": json.loads(tree.attrs["signature"]),
        "says": patch_headline(tree),
        "patched": with_nulls([asdict(row) for row in patched_places(tree)]),
        "pairs": with_nulls([dict(zip(columns, row, strict=True)) for row in rows]),
        "agreement": with_nulls(_agreement(tree)),
        "run": str(folder),
    }


def print_csv(tree: xr.DataTree) -> None:
    """One line for each place, with the signature that names the run's folder."""
    from attnscope.faithfulness import patched_places
    from attnscope.store import Signature

    signature = Signature.from_json(tree.attrs["signature"]).short
    rows: list[dict[str, Any]] = []
    for row in patched_places(tree):
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
    from attnscope.faithfulness import patched_places
    from attnscope.results import account_of

    console = new_console()
    rows, account = patched_places(tree), account_of("patch", tree)
    console.print(f"{tree.attrs['model']}: {account.read}", highlight=False, markup=False)
    for sentence in account.headline:
        console.print(sentence, style="bold", highlight=False, markup=False)
    console.print(_table(rows[:TABLE_ROWS]))
    if len(rows) > TABLE_ROWS:
        console.print(f"and {len(rows) - TABLE_ROWS} more: --csv lists all", highlight=False)
    told = [_TOLD] if rows[0].effect.shown is not None else []
    for note in (_EFFECT, *told, *account.care):
        console.print(note, style="dim", highlight=False, markup=False)


def _table(rows: list[PatchedPlace]) -> Table:
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
            f"{row.effect.mean:+.{row.effect.digits}f}{'*' if row.effect.shown else ' '}",
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
