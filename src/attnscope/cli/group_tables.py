"""What `attnscope scan` prints of groups of tokens: table, CSV, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

_PAIRS = 10  # that a table shows


def groups_dict(results: xr.Dataset) -> dict[str, Any]:
    """What ``--json`` says of groups."""
    from attnscope._group_pairs import group_pairs, mean_group_weights

    weight, equal = (_without_nan(values.tolist()) for values in mean_group_weights(results))
    return {
        "names": results.group_query.values.tolist(),
        "pairs": [pair.as_dict() for pair in group_pairs(results)],
        "weight": weight,
        "equal_weight": equal,
    }


def group_columns(results: xr.Dataset) -> dict[str, Any]:
    """A column for each pair of groups, and one for what equal weights give."""
    from attnscope._group_pairs import mean_group_weights

    weight, equal = mean_group_weights(results)
    names = [str(name) for name in results.group_query.values]
    columns: dict[str, Any] = {}
    for i, query in enumerate(names):
        for j, key in enumerate(names):
            columns[f"group_weight {query} > {key}"] = weight[:, :, i, j]
            columns[f"equal_group_weight {query} > {key}"] = equal[:, None, i, j].repeat(
                weight.shape[1], axis=1
            )
    return columns


def print_groups(results: xr.Dataset, console: Console) -> None:
    """The pairs of groups between which a head looks most, beside equal weights."""
    from rich.table import Table

    from attnscope._group_pairs import CAUTION, group_pairs

    pairs = group_pairs(results)
    console.print(
        "\ngroups of tokens: for each pair, the head whose weight is furthest above equal weights",
        style="bold",
    )
    table = Table()
    for column in ("queries", "keys", "head", "weight", "equal weights", "difference (95% interval)"):
        table.add_column(column, justify="left" if column in ("queries", "keys") else "right")
    for pair in pairs[:_PAIRS]:
        interval = f" ({pair.low:+.2f} to {pair.high:+.2f})" if pair.low == pair.low else ""
        difference = f"{pair.difference:+.2f}{interval}"
        table.add_row(
            escape(pair.query),
            escape(pair.key),
            f"{pair.layer}.{pair.head}",
            f"{pair.weight:.3f}",
            f"{pair.equal:.3f}",
            difference,
        )
    console.print(table)
    left = len(pairs) - _PAIRS
    more = (
        f"The largest {_PAIRS} of {len(pairs)} pairs; all are in --json, --csv and the report. "
        if left > 0
        else ""
    )
    console.print(
        f"{more}Each is the largest of {results.sizes['layer'] * results.sizes['head']} heads: its interval is of that "
        f"head by itself. {CAUTION}",
        style="dim",
        highlight=False,
    )


def _without_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_nan(one) for one in values]  # pyright: ignore[reportUnknownVariableType]
    return None if values != values else values  # noqa: PLR0124
