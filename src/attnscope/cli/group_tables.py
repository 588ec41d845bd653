"""What `attnscope scan` prints of groups of tokens: table, CSV, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

from attnscope._nulls import with_nulls

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

_PAIRS = 10  # that a table shows


def groups_dict(results: xr.Dataset) -> dict[str, Any]:
    """What ``--json`` says of groups."""
    from attnscope._group_pairs import NULLS, MeanGroupWeights, group_pairs, said_of

    means, pairs = MeanGroupWeights.of(results), group_pairs(results)
    return {
        "names": results.group_query.values.tolist(),
        "says": [f"{said_of(pairs)}.", NULLS],
        "pairs": [pair.as_dict() for pair in pairs],
        "weight": with_nulls(means.weight),
        "equal": with_nulls(means.equal),
        "places": with_nulls(means.places),
    }


def group_columns(results: xr.Dataset) -> dict[str, Any]:
    """Columns of the CSV for each pair of groups that are there: weight, and that of equal weights and places alone."""
    from attnscope._group_pairs import MeanGroupWeights

    means = MeanGroupWeights.of(results)
    names = {int(number): str(results.group_query.values[number]) for number in means.present}
    kinds = {
        "group_weight": means.weight,
        "equal_group_weight": means.equal,
        "place_group_weight": means.places,
    }
    return {
        f"{kind} {query} > {key}": values[:, :, i, j]
        for i, query in names.items()
        for j, key in names.items()
        for kind, values in kinds.items()
    }


def print_groups(results: xr.Dataset, console: Console) -> None:
    """The pairs of groups between which a head looks most, beside equal weights."""
    from rich.table import Table

    from attnscope._group_pairs import NULLS, group_pairs, no_interval_said, said_of

    every = group_pairs(results)
    pairs = [pair for pair in every if pair.above > 0]
    console.print(
        "\ngroups of tokens: for each pair, the head furthest above both nulls", style="bold", highlight=False
    )
    table = Table()
    for column in ("queries", "keys", "head", "weight", "equal", "places"):
        table.add_column(column, justify="left" if column in ("queries", "keys") else "right")
    table.add_column("above, 95%", justify="right", no_wrap=True)
    table.add_column("beyond chance")
    for pair in pairs[:_PAIRS]:
        known = pair.low == pair.low
        above = f"{pair.low:.2f} to {pair.high:.2f}" if known else f"{pair.above:+.2f}"
        table.add_row(
            escape(pair.query),
            escape(pair.key),
            f"{pair.layer}.{pair.head}",
            *(f"{value:.2f}" for value in (pair.weight, pair.equal, pair.places)),
            above,
            {True: "yes", False: "not shown", None: "not known"}[pair.beyond_chance],
        )
    if pairs:
        console.print(table)
    largest = f"; the largest {_PAIRS} are shown, all are in --json and --csv" if len(pairs) > _PAIRS else ""
    heads = results.sizes["layer"] * results.sizes["head"]
    console.print(
        f"{said_of(every)}{largest}. Each is the largest of {heads} heads: its interval is of that head by itself. "
        f"{no_interval_said(pairs[:_PAIRS])}Above: the weight less the larger null. {NULLS}",
        style="dim",
        highlight=False,
    )
