"""A verb on several models: its results, each a run of its own, and one report of them all."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.model_names import step_of
from attnscope.options import Scan
from attnscope.report.reads import signed
from attnscope.report.schema import HEAD, NO_NUMBERS, Finding, Quantity, Report, Row, Table
from attnscope.report.signature import Signature
from attnscope.results.notebook import Shown
from attnscope.results.open import known_run, read_run, run_at, runs
from attnscope.results.reports import report_of
from attnscope.store.files import TASKS, VIEWS, local_folder
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError, out_of_memory, unimportable
from attnscope.support.numbers import count
from attnscope.support.progress import Progress, Tell

if TYPE_CHECKING:
    from attnscope.report.schema import Detail
    from attnscope.results.open import Run

_log = logging.getLogger("attnscope")
_VIEWS = {view.rstrip("/") for view in VIEWS}
_CARE = {
    "A head of one model need not be that head of another.": "Checkpoints of one training have the same heads.",
    "Differences between models are not tested here.": "attnscope diff tests them, also between groups of models.",
}


class Models(Shown, dict[str, Any]):
    """Results of one command on several models, by the names of the models; a notebook shows them together.

    Attributes
    ----------
    failed
        The reason for each model without a result, by its name.
    """

    page_call = ".show()"

    def __init__(self, results: Mapping[str, Any], failed: Mapping[str, str]) -> None:
        dict.__init__(self, results)
        self.failed = dict(failed)

    def report(self, quantity: str | None = None) -> Report:
        """The tables of `several`."""
        return several(self, quantity=quantity)


def on_each(verb: Callable[..., Any], models: Mapping[str, Any], options: Mapping[str, Any]) -> Models:
    """Run a verb on each model, in a folder of its own below `out`; one that fails does not stop the others."""
    options = {name: [*value] if isinstance(value, Iterator) else value for name, value in options.items()}
    out, tell = options.get("out"), options.get("progress")
    folder = local_folder(out) if isinstance(out, str | Path) else None
    if folder is not None:
        _check_folder(folder)
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for number, (name, model) in enumerate(models.items()):
        options["model"] = model
        if folder is not None:
            options["out"] = folder / re.sub(r"[/\\:]", "-", name)
        if tell is not None:
            options["progress"] = partial(_tell, tell, f"{name} ({number + 1} of {len(models)})", number, len(models))
        try:
            results[name] = verb(**options)
        except Exception as error:
            reason = error if isinstance(error, AttnscopeError) else out_of_memory(error) or unimportable(error)
            if reason is None:
                raise
            failed[name] = str(reason)
    if not results:
        reasons = [*dict.fromkeys(failed.values())]
        raise AttnscopeError(reasons[0] if len(reasons) == 1 else "; ".join(map(": ".join, failed.items())))
    for name, reason in failed.items():
        _log.warning("%s failed: %s", name, reason)
    return Models(results, failed)


def _tell(tell: Tell, model: str, before: int, models: int, at: Progress) -> None:
    tell(Progress(at.name, (before + at.share) / models, {"model": model, **at.details}))


def _check_folder(folder: Path) -> None:
    """Reject a folder with files other than runs and the page of several."""
    names = [
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name not in _VIEWS and not path.name.endswith(TASKS) and run_at(path) is None
    ]
    if names:
        raise AttnscopeError(
            f"{folder} holds other files ({min(names)}); expected runs, each in a folder with the name of its model: "
            "choose an empty or new folder with --out"
        )


@checked
def several(results: Mapping[str, Any] | Sequence[Scan], *, quantity: str | None = None) -> Report:
    """Put results of one command on several models into one report.

    Parameters
    ----------
    results
        Run folders, or results by the names of their models, as a function returns them for several models:
        ``attnscope.roles([first, second])``.
    quantity
        Column of the command's table that heads are compared by. By default the one that colours the map of its page.

    Returns
    -------
    attnscope.report.schema.Report
        Two tables: ``models`` has a row for each model, with the mean of each column of the command's first table over
        its rows; ``heads`` a row for each head, with the quantity of each model and its interval, of the models with
        one number of layers and heads. For checkpoints, whose names end in their steps, ``models`` has a column
        ``step``.
        `attnscope.results.reports.write_page` writes one page, whose map shows each model.

    Raises
    ------
    AttnscopeError
        If the results are of different commands, or have no such column.

    Examples
    --------
    >>> import attnscope
    >>> results = attnscope.scan(["bundled", "bundled:pronoun"], ["The tide is out."] * 4, by_line=True)
    >>> report = several(results, quantity="entropy")
    >>> [row["model"] for row in report.rows]
    ['bundled', 'bundled:pronoun']
    """
    opened = results if isinstance(results, Mapping) else _opened(results)
    commands = {name: str(signed(result).get("command")) for name, result in opened.items()}
    if len({*commands.values()}) != 1:
        listed = ", ".join(f"{name} ({command})" for name, command in commands.items())
        raise AttnscopeError(f"found {listed or 'no results'}; expected results of one command")
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
    chosen = _chosen(quantity, numbers, colour=next(iter(reports.values())).colour)
    models: list[Row] = [_means(name, table, numbers, chosen) for name, table in tables.items()]
    steps = {name: step_of(name) for name in tables}
    if None not in steps.values():
        models = [{"step": steps[str(row["model"])], **row} for row in models]
        models.sort(key=lambda row: row["step"] or 0)
    shapes = {name: _shape(result) for name, result in opened.items()}
    usual_shape = Counter(shapes.values()).most_common(1)[0][0]
    alike = {str(row["model"]): tables[row["model"]] for row in models if shapes[row["model"]] == usual_shape}
    detail: Detail = "table" if len(numbers) <= _WIDE else "data"
    means = [
        replace(one, low="", high="", significant="", detail="table" if one is chosen else detail, like="")
        for one in numbers
    ]
    significant = Quantity("significant", unit="count", meaning=f"heads with a significant {chosen.title}")
    found = {name: (report.finding, report.title) for name, report in reports.items()}
    sentences = [f"{name}: {one.headline or next(iter(one.sentences), title)}" for name, (one, title) in found.items()]
    signatures = {name: Signature.of(signed(result)) for name, result in opened.items()}
    together = Signature(command, systems={name: one.to_dict() for name, one in signatures.items()})
    failed = [f"{name} failed: {reason}" for name, reason in getattr(results, "failed", {}).items()]
    notes = [*failed, *_other_shapes(shapes, usual_shape), *_other_inputs(signatures)]
    return Report(
        title=f"attnscope {command} on {count(len(models), 'model')}",
        read="; ".join(dict.fromkeys(report.read for report in reports.values())),
        finding=Finding(sentences, "models side by side, without a test", headline=f"{chosen.title} of several models"),
        tables=[
            Table(
                "models",
                "Means over the rows of the table",
                [Quantity("model"), Quantity("step", unit="count"), *means, significant],
                models,
            ),
            _by_head(alike, chosen),
        ],
        result=xr.Dataset(attrs={"signature": together.to_json(), "quantity": chosen.name}),
        notes=notes,
        care=_CARE,
        command=command,
        model=", ".join(reports),
        drawing="attnscope.results.figures.several",
    )


def _chosen(wanted: str | None, numbers: Sequence[Quantity], colour: str) -> Quantity:
    """The quantity that heads are compared by: by default that of the map's colour, else the first tested one."""
    if wanted is None:
        usual = [one for one in numbers if one.name == colour]
        tested = [one for one in numbers if one.significant]
        return next(iter(usual + tested), numbers[0])
    for one in numbers:
        if wanted in {one.name, one.title}:
            return one
    names = ", ".join(one.name for one in numbers)
    raise AttnscopeError(f"found quantity (--quantity) {wanted!r}; choose from {names}")


def _shape(result: xr.Dataset | xr.DataTree) -> tuple[int, int] | None:
    """Layers and heads of a result; None for one without."""
    nodes = [result] if isinstance(result, xr.Dataset) else result.subtree
    sizes = next((node.sizes for node in nodes if {"layer", "head"} <= node.sizes.keys()), None)
    return None if sizes is None else (sizes["layer"], sizes["head"])


def _other_shapes(shapes: Mapping[str, tuple[int, int] | None], usual: tuple[int, int] | None) -> list[str]:
    """The models that are left out of the table of heads."""
    others = [name for name, shape in shapes.items() if shape != usual]
    if not others or usual is None:
        return []
    sizes = {name: shapes[name] for name in others}
    listed = ", ".join(f"{name} ({shape[0]} x {shape[1]})" for name, shape in sizes.items() if shape is not None)
    return [f"The table of heads leaves out {listed}: it has models of {usual[0]} layers x {usual[1]} heads."]


def _other_inputs(signatures: Mapping[str, Signature]) -> list[str]:
    """How models read other texts than the first, or read them with another tokenizer or other settings."""
    first = next(iter(signatures))

    def unlike_first(*parts: str) -> str:
        return ", ".join(
            name
            for name, one in signatures.items()
            if any(getattr(one, part) != getattr(signatures[first], part) for part in parts)
        )

    notes: list[str] = []
    tokenizers, texts = unlike_first("tokenizer"), unlike_first("corpus", "text")
    if tokenizers:
        notes.append(f"Tokenizers of {tokenizers} and {first} differ: a number for each token is of other tokens.")
    if texts:
        notes.append(f"Texts of {texts} and {first} differ.")
    alone = [Signature(settings=one.settings) for one in signatures.values()]
    changed = sorted({text.split()[0].removeprefix("settings.") for one in alone for text in alone[0].differences(one)})
    if changed:
        notes.append(f"Settings of the models differ: {', '.join(changed)}.")
    return notes


_WIDE = 8  # columns


def _opened(folders: Sequence[Any]) -> dict[str, xr.Dataset | xr.DataTree]:
    """Results of runs, also those in a folder, by the names of their models, or of the folders if models share one."""
    every = [run for folder in map(local_folder, folders) for run in _runs_of(folder)]
    shared = Counter(Path(run.model).name for run in every)
    names = [Path(run.model).name if shared[Path(run.model).name] == 1 else str(run.path) for run in every]
    return {name: read_run(run) for name, run in zip(names, every, strict=True)}


def _runs_of(folder: Path) -> list[Run]:
    """The run of a folder, or those below it, in the order of their names."""
    below = [] if run_at(folder) is not None or not folder.is_dir() else runs(folder)
    return sorted(below, key=lambda run: run.path) or [known_run(folder)]


def _is_number(quantity: Quantity, table: Table) -> bool:
    values = [row.get(quantity.name) for row in table.rows]
    is_number = any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return is_number and quantity.unit not in NO_NUMBERS - {"words"}


def _means(name: str, table: Table, numbers: Sequence[Quantity], chosen: Quantity) -> Row:
    """The mean of each number over the rows of a table."""
    row: Row = {"model": name}
    for one in numbers:
        cells = [of_head.get(one.name) for of_head in table.rows]
        values = [cell for cell in cells if isinstance(cell, int | float)]
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
