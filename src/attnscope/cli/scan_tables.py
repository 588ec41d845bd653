"""What `attnscope scan` prints: tables, CSV, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._nulls import with_nulls
from attnscope._numbers import significant
from attnscope.cli.contrast_tables import contrasts_dict, print_contrasts
from attnscope.cli.group_tables import group_columns, groups_dict, print_groups
from attnscope.cli.offset_tables import offsets_dict
from attnscope.cli.output import csv_text, emit, new_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from rich.console import Console
    from rich.table import Table

    from attnscope.statistics import RankedHead, TopKeys, Wording


def list_statistics() -> None:
    """What ``--statistics list`` prints."""
    from attnscope.statistics import (
        DEFAULT,
        OF_GROUPS,
        OF_OFFSETS,
        PATCH_STATISTICS,
        STATISTICS,
        SUMMARIES,
    )

    lines = [
        f"{name:28}{_with_units(statistic.words)}" + (" (not by default)" if name not in DEFAULT else "")
        for name, statistic in STATISTICS.items()
    ]
    lines += [
        f"{name:28}{_with_units(statistic.words)} (with {flag})"
        for flag, measured in (("--offsets", OF_OFFSETS), ("--groups", OF_GROUPS))
        for name, statistic in measured.items()
    ]
    lines += [f"{'..._by_group':28}each of one number a head, of the queries of each group (with --groups)"]
    every = STATISTICS | OF_OFFSETS | OF_GROUPS
    nulls = [name for name, statistic in every.items() if statistic.has_equal]
    equal = [f"{f'equal_{name}':28}{name}, of equal weights over what a token may see" for name in nulls]
    summaries = [f"{name:28}{_with_units(words)}" for name, words in SUMMARIES.items()]
    more = "found beside them, not to be asked for by name:"
    of_images = [f"{name:28}{_with_units(words)}" for name, words in PATCH_STATISTICS.items()]
    images = "of images, beside entropy, max_weight, gini_simpson and learned_sink:"
    usual = "by default: all that are not marked; to add one to them: --statistics default,block_recall"
    emit(
        "".join(f"{line}\n" for line in (*lines, usual, "", more, *equal, *summaries, "", images, *of_images))
    )


def _with_units(words: Wording) -> str:
    return f"{words.long_name} [{words.units}]" if words.units else words.long_name


def as_dict(results: xr.Dataset, folder: Path) -> dict[str, Any]:
    """What ``--json`` prints."""
    from attnscope.statistics import notes_of, rank_heads

    return {
        "signature": json.loads(results.attrs["signature"]),
        "texts": results.sizes["text"],
        "notes": notes_of(results),
        "capture": results.attrs.get("capture"),
        "kinds": results.attrs.get("kinds"),
        "heads": rank_heads(results),
        "statistics": with_nulls(_means(results)),
        "offsets": offsets_dict(results),
        "received": _received(results, folder),
        "groups": groups_dict(results) if "group_weight" in results else None,
        "by": contrasts_dict(results) if "by" in results.coords else None,
        "independence": json.loads(results.attrs.get("summary", "null")),
        "run": str(folder),
    }


def _received(results: xr.Dataset, folder: Path) -> list[TopKeys] | None:
    """The keys that receive most in the sample windows, of the heads that lead the rankings or were asked for."""
    from attnscope.statistics import SAMPLE, rank_heads, top_keys
    from attnscope.store import RunFolder

    with RunFolder(folder, json.loads(results.attrs["signature"])) as run:
        sample = run.load(SAMPLE)
    if sample is None or "received" not in sample:
        return None
    asked = [tuple(place) for place in json.loads(sample.attrs["asked"])]
    leading = [(row["layer"], row["head"]) for rows in rank_heads(results).values() for row in rows]
    if not asked and not leading:  # nothing ranks heads: those with the key that receives most
        most = sample.received.max("position").mean("window").values
        leading = [np.unravel_index(place, most.shape) for place in np.argsort(-most, axis=None)[:_MOST]]
    return top_keys(sample, [(int(layer), int(head)) for layer, head in dict.fromkeys([*asked, *leading])])


def _means(results: xr.Dataset) -> dict[str, np.ndarray]:
    """Means over texts of what is one number a head, ``(layer, head)``; of several, one for each."""
    from attnscope.statistics import without_end

    own = [
        str(name)
        for name, values in results.data_vars.items()
        if "head" in values.dims and name != "label" and without_end(str(name)) == name
    ]
    return {name: values for statistic in own for name, values in _means_of(results, statistic).items()}


def _means_of(results: xr.Dataset, name: str) -> dict[str, np.ndarray]:
    """Means over texts of one statistic, by the name of each; nothing where it is more than a number a head."""
    from attnscope.statistics import SEVERAL

    values = results[name]
    if not {"text", "layer"} <= set(values.dims) <= {"text", "layer", "head", *SEVERAL}:
        return {}
    means = values.mean("text", skipna=True)
    several = next((dim for dim in SEVERAL if dim in means.dims), None)
    if several is None:
        return {name: means.values}
    return {f"{name}_{one}": means.sel({several: one}).values for one in means[several].values.tolist()}


def print_csv(results: xr.Dataset) -> None:
    """One line for each head: means over texts, and the signature that names the run's folder."""
    from attnscope.statistics import intervals, majority_names, peaks
    from attnscope.statistics.images import patch_peaks
    from attnscope.store import Signature

    means = _means(results)
    if "sampled_rows" in results:
        ends = intervals(results)
        for name in [name for name in means if name in ends]:
            means |= {f"{name}_{bound}": ends[name].sel(bound=bound).values for bound in ("low", "high")}
    means |= group_columns(results) if "group_weight" in results else {}
    highest = patch_peaks(results) if "patch_profile" in results else peaks(results)
    means |= {str(name): values.values for name, values in (highest or {}).items()}
    kinds = majority_names(results)
    signature = Signature.from_json(results.attrs["signature"]).short
    table: list[list[Any]] = [["layer", "head", "layer_name", "layer_kind", "label", *means, "signature"]]
    for layer, (name, kind) in enumerate(
        zip(results.layer_name.values, results.layer_kind.values, strict=True)
    ):
        for head in range(results.sizes["head"]):
            label = "" if kinds is None else kinds[layer][head]
            values = [f"{mean[layer, head]:.6g}" for mean in means.values()]
            table.append([layer, head, name, kind, label, *values, signature])
    emit(csv_text(table))


_MOST = 4  # heads whose keys are listed where no ranking leads to any


def print_tables(results: xr.Dataset) -> None:
    """The rankings of heads, and what kinds there are."""
    from attnscope.results import read_said
    from attnscope.statistics import WEIGHTS_NOTE, kinds_said, means_note, notes_of, rank_heads, ranking_said

    console = new_console()
    console.print(f"{results.attrs['model']}: {read_said('scan', results)}", highlight=False, markup=False)
    for note in notes_of(results).values():
        console.print(note, style="dim", highlight=False, markup=False)
    ranked = rank_heads(results)
    for kind, rows in ranked.items():
        console.print(f"\n{ranking_said(results, kind, rows)}", style="bold", highlight=False)
        if rows:
            console.print(_table_of_heads(rows))
    _print_asked(results, console)
    if means := means_note(results, ranked.values()):
        console.print(means, style="dim")
    if "group_weight" in results:
        print_groups(results, console)
    if "by" in results.coords:
        print_contrasts(results, console)
    console.print(f"\n{kinds_said(results)}", highlight=False, markup=False)
    console.print(WEIGHTS_NOTE, style="dim")


def _print_asked(results: xr.Dataset, console: Console) -> None:
    """Statistics that are not there by default: of which head they are lowest and highest, beside equal weights."""
    from rich.table import Column, Table

    from attnscope.statistics import DEFAULT, OF_OFFSETS, STATISTICS, entries_said

    known = STATISTICS | OF_OFFSETS
    asked = [str(name) for name in results.data_vars if name in known and name not in DEFAULT]
    table = Table(Column("statistic", no_wrap=True), "lowest", "head", "mean", "highest", "head", "equal")
    more = []
    for statistic in asked:
        means = _means_of(results, statistic)
        equal = _means_of(results, f"equal_{statistic}") if f"equal_{statistic}" in results else {}
        for name, values in means.items():
            table.add_row(name, *_ends_and_mean(values), _mean_text(equal.get(f"equal_{name}")))
        more += [] if means else [statistic]
    if table.row_count:
        each = entries_said(results)
        console.print(
            f"\nstatistics asked for: means over {each}; head: layer.head", style="bold", highlight=False
        )
        console.print(table)
        console.print(
            "Equal: what equal weights over all that a token may see give. Each head's: --csv or --json.",
            style="dim",
        )
    if more:
        elsewhere = (
            "In bins that double on the page and in --json, which has every offset; sums: attnscope.open_run."
        )
        kept = f"More than one number a head, so not in this table: {', '.join(more)}. {elsewhere}"
        console.print(kept, style="dim", highlight=False, markup=False)


def _ends_and_mean(values: np.ndarray) -> tuple[str, ...]:
    """The lowest value and its head, the mean, the highest value and its head; dashes where nothing is known."""
    known = np.isfinite(values)
    if not known.any():
        return "–", "", "–", "–", ""
    ends = []
    for find, beyond in ((np.argmin, np.inf), (np.argmax, -np.inf)):
        layer, head = np.unravel_index(find(np.where(known, values, beyond)), values.shape)
        ends.append((significant(values[layer, head], 3), f"{layer}.{head}"))
    (low, lowest), (high, highest) = ends
    if low == high:  # then no head is the one
        lowest = highest = ""
    return low, lowest, _mean_text(values), high, highest


def _mean_text(values: np.ndarray | None) -> str:
    if values is None:
        return ""
    known = values[np.isfinite(values)]
    return significant(known.mean(), 3) if known.size else "–"


def _table_of_heads(rows: Sequence[RankedHead]) -> Table:
    """Columns for what the rows have."""
    from rich.table import Table

    columns = {
        "layer": lambda row: str(row["layer"]),
        "attention": lambda row: row["attention"],
        "head": lambda row: str(row["head"]),
        "weight": lambda row: f"{row['value']:.3f}",
        "offset": lambda row: row["offset"] if isinstance(row["offset"], str) else f"{row['offset']:+d}",
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
