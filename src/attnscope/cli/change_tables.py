"""What `attnscope explain --interventions` prints of words and positions changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscope._nulls import with_nulls
from attnscope._numbers import count

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

    from attnscope.mechanism import HeadExplanation

_CHANGED = 6  # heads that fit on a terminal of 80 columns
_NODE = "interventions"


def changes_of_heads(tree: xr.DataTree) -> list[dict[str, Any]] | None:
    """For ``--json``: the weight at a head's offset by change, of heads that prefer one; None if none was asked for."""
    if _NODE not in tree.children:
        return None
    content = tree[_NODE].to_dataset()
    return with_nulls(
        [
            {"layer": layer, "head": head, "change": str(change)}
            | {
                name: content[variable].sel(at, drop=True).item()
                for name, variable, at in _measured(layer, head, change)
            }
            for layer in content.layer.values.tolist()
            for head in content["head"].values.tolist()
            if math.isfinite(content.target.sel(layer=layer, head=head))
            for change in content.change.values
        ]
    )


def _measured(layer: int, head: int, change: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What is told of a head and a change: its name, its variable, and where it stands there."""
    of_head: dict[str, Any] = {"layer": layer, "head": head}
    of_change = of_head | {"change": change}
    return [
        ("offset", "target", of_head),
        ("weight_before", "mass_before", of_head),
        ("weight_after", "mass_after", of_change),
        ("weight_change", "mass_change", of_change),
        ("weight_change_low", "mass_change_low", of_change),
        ("weight_change_high", "mass_change_high", of_change),
    ]


def changed_columns(
    tree: xr.DataTree, rows: Sequence[HeadExplanation]
) -> list[dict[str, int | float | None]]:
    """For ``--csv``: more columns of each head, the weight at its offset before and after each change."""
    if _NODE not in tree.children:
        return [{} for _ in rows]
    content = tree[_NODE].to_dataset()
    columns: list[dict[str, int | float | None]] = []
    for row in rows:
        values = content.sel(layer=row.layer, head=row.head)
        after = {
            f"{name}_weight": values.mass_after.sel(change=name).item() for name in content.change.values
        }
        before = {"changed_offset": values.target.item(), "before_weight": values.mass_before.item()}
        columns.append(with_nulls(before | after))
    return columns


def print_changes(tree: xr.DataTree, rows: Sequence[HeadExplanation], console: Console) -> None:
    """The weight at their offsets of the first heads that prefer one, before and after every change of their input."""
    if _NODE not in tree.children:
        return
    from rich.table import Table

    from attnscope.mechanism.passes import CHANGES

    content = tree[_NODE].to_dataset()
    rows = [row for row in rows if row.prefers]
    if not rows:
        console.print("No head prefers an offset: there is no weight at one that a change could move.")
        return
    heads = [content.sel(layer=row.layer, head=row.head) for row in rows[:_CHANGED]]
    table = Table(title="weight at the offset t*, before and after a change", title_justify="left")
    table.add_column("layer.head\nt*")
    for row, values in zip(rows, heads, strict=False):
        table.add_column(f"{row.layer}.{row.head}\n{_offset(float(values.target))}", justify="right")
    table.add_row("before", *(_weight(values.mass_before) for values in heads), end_section=True)
    names = [str(name) for name in content.change.values]
    for name in names:
        table.add_row(name, *(_weight(values.mass_after.sel(change=name)) for values in heads))
    console.print(table)
    if len(rows) > _CHANGED:
        more = count(len(rows) - _CHANGED, "more head")
        console.print(f"and {more}: --csv lists all, --json with 95% intervals", highlight=False)
    console.print(
        "t*: the offset where the head's mean profile is highest; of heads that prefer an offset.",
        style="dim",
        highlight=False,
    )
    for name in names:
        if name in CHANGES:
            console.print(f"{name}: {CHANGES[name]}.", style="dim", highlight=False)


def _weight(value: xr.DataArray) -> str:
    return "–" if math.isnan(value.item()) else f"{value.item():.3f}"


def _offset(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.0f}" if value else "0"
