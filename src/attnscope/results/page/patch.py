"""Writing the page of patching: what carries the difference between clean and corrupted texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.intervention.patch_findings import estimator_names, patch_headline, patched_positions
from attnscope.read.shown import with_marked_spaces
from attnscope.results.figures.patch import patch_captions, patch_figures
from attnscope.results.page.parts import MOST_ROWS, TOLD, pictures, write_page
from attnscope.results.render import Cell
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.intervention.patch_findings import PatchedPosition

_PAIRS = 100


@dataclass(frozen=True)
class _PairRow:
    number: int
    clean: str
    corrupted: str
    answer: str
    wrong: str
    own: str
    other: str


@reads("patch")
def write_patch_report(
    tree: xr.DataTree, path: Path | str, figures: Mapping[str, Figure] | None = None
) -> Path:
    """Write the results of `attnscope.patch` as one HTML page that needs no network and no other file."""
    drawn = dict(patch_figures(tree)) if figures is None else figures
    rows = patched_positions(tree)
    pairs = tree["pairs"].to_dataset()
    return write_page(
        path,
        "patch",
        scripts=("sort.js",),
        signature=tree.attrs.get("signature", "{}"),
        model=str(tree.attrs.get("model", "the model")),
        headline=patch_headline(tree),
        pictures=pictures(drawn, patch_captions(tree)),
        columns=_columns(rows[0]),
        rows=[_row(row) for row in rows[:MOST_ROWS]],
        count=len(rows),
        tested=rows[0].effect.shown is not None,
        pairs=_pairs(pairs),
        pair_count=pairs.sizes["pair"],
        estimated="agreement" in tree.children,
        path_receiver=pairs.attrs.get("receiver", ""),
    )


def _columns(first: PatchedPosition) -> list[tuple[str, str]]:
    """Heading and what a first click does, of each column."""
    where = [("Head" if first.block is None else "Block", "ascending")]
    if first.position is not None:
        where += [("Position", "ascending"), ("Token", "ascending")]
    estimates = [(f"Estimate: {name}", "descending") for name in estimator_names(list(first.estimates))]
    return [*where, ("Change, logits", "descending"), ("Share of the way", "descending"), *estimates]


def _row(row: PatchedPosition) -> list[Cell]:
    if row.block is None:
        cells = [Cell(f"{row.layer}.{row.head}", float((row.layer or 0) * 10_000 + (row.head or 0)))]
    else:
        cells = [Cell(str(row.block), float(row.block))]
    if row.position is not None:
        token = row.token or ""
        cells += [Cell(str(row.position), float(row.position)), Cell(token, token, "left")]
    told = TOLD[row.effect.shown]
    for effect, form in ((row.effect, "+.3f"), (row.recovered, ".1%")):
        interval = f"{effect.low:{form}} to {effect.high:{form}}" if math.isfinite(effect.low) else ""
        cells.append(Cell(_said(effect.mean, form), effect.mean, told, interval.replace("-", "−")))
    return cells + [Cell(_said(value, "+.3f"), value) for value in row.estimates.values()]


def _pairs(pairs: xr.Dataset) -> list[_PairRow]:
    some = pairs.isel(pair=slice(_PAIRS))
    columns = [
        some.pair.values.tolist(),
        some.clean_text.values.tolist(),
        some.corrupted_text.values.tolist(),
        [with_marked_spaces(str(text)) for text in some.answer_text.values],
        [with_marked_spaces(str(text)) for text in some.wrong_text.values],
        [_said(float(value), "+.2f") for value in some.clean.values],
        [_said(float(value), "+.2f") for value in some.corrupted.values],
    ]
    return [_PairRow(*row) for row in zip(*columns, strict=True)]


def _said(value: float, form: str) -> str:
    return f"{value:{form}}".replace("-", "−") if math.isfinite(value) else ""
