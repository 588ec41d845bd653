"""Results of one verb on several models as one report: models by quantities, and heads by models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.options import Scan
from attnscope.report.reads import signed
from attnscope.report.schema import HEAD, NO_NUMBERS, Finding, Quantity, Report, Row, Table
from attnscope.results.open import known_run, read_run
from attnscope.results.reports import report_of
from attnscope.store.files import local_folder
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from attnscope.report.schema import Detail

_CARE = {
    "A head of one model need not be that head of another.": "Checkpoints of one training have the same heads.",
    "Differences between models are not tested here.": "attnscope diff tests them, also between groups of models.",
}


@checked
def several(results: Mapping[str, Any] | Sequence[Scan], *, quantity: str | None = None) -> Report:
    """Put results of one verb on several models into one report.

    Parameters
    ----------
    results
        Run folders, or results by the names of their models, such as
        ``{name: attnscope.roles(name) for name in checkpoints}``.
    quantity
        Column of the verb's table that heads are compared by. By default the one that colours the map of its page.

    Returns
    -------
    attnscope.report.schema.Report
        Two tables: ``models`` has a row for each model, with the mean of each column of the verb's first table over its
        rows; ``heads`` a row for each head, with the quantity of each model and its interval.
        `attnscope.results.reports.write_page` writes one page, whose map shows each model.

    Raises
    ------
    AttnscopeError
        If the results are of different verbs, or have no such column.

    Examples
    --------
    >>> import attnscope
    >>> made = {kind: attnscope.scan(limit=2, window=32, dtype=kind) for kind in ("float32", "bfloat16")}
    >>> report = several(made, quantity="entropy")
    >>> [row["model"] for row in report.rows], list(report.tables[1].rows[0])
    (['float32', 'bfloat16'], ['layer', 'head', 'float32', 'bfloat16'])
    """
    opened = results if isinstance(results, Mapping) else _opened(results)
    commands = {name: str(signed(result).get("command")) for name, result in opened.items()}
    if len({*commands.values()}) != 1 or len(opened) < 2:  # noqa: PLR2004
        listed = ", ".join(f"{name} ({command})" for name, command in commands.items())
        raise AttnscopeError(f"found {listed or 'no results'}; expected results of one command on two or more models")
    command = next(iter(commands.values()))
    reports = {name: report_of(command, result, data=True) for name, result in opened.items()}
    tables = {name: report.tables[0] for name, report in reports.items()}
    first = next(iter(tables.values()))
    numbers = [
        replace(one, unit="significant") if one.unit == "words" else one
        for one in first.quantities
        if _is_number(one, first) and one.name not in {"layer", "head"}
    ]
    if not numbers:
        raise AttnscopeError(f"the first table of {command} has no numbers")
    usual = next(iter(reports.values())).colour
    wanted = quantity or next((one.name for one in numbers if one.name == usual or one.significant), numbers[0].name)
    chosen = next((one for one in numbers if wanted in {one.name, one.title}), None)
    if chosen is None:
        names = ", ".join(one.name for one in numbers)
        raise AttnscopeError(f"found quantity (--quantity) {wanted!r}; choose from {names}")
    models = [_means(name, table, numbers, chosen) for name, table in tables.items()]
    detail: Detail = "table" if len(numbers) <= _WIDE else "data"
    means = [
        replace(one, low="", high="", significant="", detail="table" if one is chosen else detail, like="")
        for one in numbers
    ]
    significant = Quantity("significant", unit="count", meaning=f"heads with a significant {chosen.title}")
    sentences = [f"{name}: {_headline(report)}" for name, report in reports.items()]
    return Report(
        title=f"attnscope {command} on {count(len(models), 'model')}",
        read="; ".join(dict.fromkeys(report.read for report in reports.values())),
        finding=Finding(sentences, "models side by side, without a test", headline=f"{chosen.title} of several models"),
        tables=[
            Table("models", "Means over the rows of the table", [Quantity("model"), *means, significant], models),
            _by_head(tables, chosen),
        ],
        result=xr.Dataset(attrs={"signature": next(iter(opened.values())).attrs["signature"]}),
        care=_CARE,
        command=command,
        model=", ".join(reports),
    )


_WIDE = 8  # columns


def _opened(folders: Sequence[Any]) -> dict[str, xr.Dataset | xr.DataTree]:
    """Results of run folders, by the names of their models, or of the folders if models share a name."""
    runs = [known_run(local_folder(folder)) for folder in folders]
    shared = Counter(Path(run.model).name for run in runs)
    names = [Path(run.model).name if shared[Path(run.model).name] == 1 else str(run.path) for run in runs]
    return {name: read_run(run) for name, run in zip(names, runs, strict=True)}


def _is_number(quantity: Quantity, table: Table) -> bool:
    values = [row.get(quantity.name) for row in table.rows]
    is_number = any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return is_number and quantity.unit not in NO_NUMBERS - {"words"}


def _headline(report: Report) -> str:
    return report.finding.headline or next(iter(report.finding.sentences), report.title)


def _means(name: str, table: Table, numbers: Sequence[Quantity], chosen: Quantity) -> Row:
    """The mean of each number over the rows of a table."""
    row: Row = {"model": name}
    for one in numbers:
        values = [value for row in table.rows if isinstance(value := row.get(one.name), int | float)]
        row[one.name] = float(np.mean(values)) if values else None
    tested = [row.get(chosen.significant) for row in table.rows if chosen.significant]
    row["significant"] = sum(map(bool, tested)) if any(one is not None for one in tested) else None
    return row


def _by_head(tables: Mapping[str, Table], chosen: Quantity) -> Table:
    """A row for each row that the tables share, with the quantity of each model; those that differ most come first."""
    first = next(iter(tables.values()))
    others = [one for one in first.quantities if one.name in _KEYS and any(one.name in row for row in first.rows)]
    keys = [*(HEAD if any("head" in row for row in first.rows) else ()), *others]
    rows: dict[tuple[Any, ...], Row] = {}
    columns: list[Quantity] = []
    for name, table in tables.items():
        ends = {end: f"{name}_{end}" if getattr(chosen, end) else "" for end in ("low", "high", "significant")}
        columns.append(replace(chosen, name=name, heading=name, detail="table", like="", **ends))
        for row in table.rows:
            labels = {one.name: row.get(one.name) for one in keys}
            merged = rows.setdefault(tuple(labels.values()), labels)
            merged[name] = row.get(chosen.name)
            merged |= {new: row.get(getattr(chosen, end)) for end, new in ends.items() if new}

    def spread(row: Row) -> float:
        values = [row[name] for name in tables if isinstance(row.get(name), int | float)]
        return max(values) - min(values) if values else -1.0

    return Table(
        "heads",
        f"{chosen.title} by model",
        [*(one if one in HEAD else replace(one, detail="table") for one in keys), *columns],
        sorted(rows.values(), key=spread, reverse=True),
        reading=chosen.meaning and f"Each column has the {chosen.title} of one model: {chosen.meaning}.",
        corrected=first.corrected,
    )


_KEYS = ("role", "statistic", "component", "sender", "receiver", "position", "block")
