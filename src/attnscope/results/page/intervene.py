"""Writing the page of an intervention: where, why and whether, side by side for each head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnscope.intervention.effects import describe_effect
from attnscope.intervention.verdicts import effect_of, headline, verdicts
from attnscope.results.figures.intervene import intervention_captions, intervention_figures
from attnscope.results.page.parts import TOLD, Cell, pictures, write_page
from attnscope.store.runs import skipped_of
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.intervention.effects import Effect
    from attnscope.intervention.verdicts import HeadVerdict


_ASKED = {
    "masked": "The model is asked for 15% of the words, behind masks.",
    "next": "The model is asked for the token after each.",
    "translation": "The model is asked for the translation, token by token.",
}
_HIGH = 26  # pixels of a small profile


@dataclass(frozen=True)
class _Row:
    profile: list[tuple[float, float, bool]]  # x, height, whether it is the token itself
    cells: list[Cell]


@reads("intervene")
def write_intervention_report(
    tree: xr.DataTree, path: Path | str, figures: Mapping[str, Figure] | None = None
) -> Path:
    """Write the results of `attnscope.intervene` as one HTML page that needs no network and no other file."""
    drawn = dict(intervention_figures(tree)) if figures is None else figures
    rows = verdicts(tree)
    return write_page(
        path,
        "intervene",
        scripts=("sort.js",),
        signature=tree.attrs.get("signature", "{}"),
        model=str(tree.attrs.get("model", "the model")),
        asked=_ASKED.get(str(tree.attrs.get("asked", "")), ""),
        headline=headline(tree),
        pictures=pictures(drawn, intervention_captions(tree)),
        columns=_columns(rows),
        rows=[
            _row(
                tree,
                row,
                causes=_has_causes(rows),
                trusted=_has_trust(rows),
                barred=_has_forbidden(rows),
            )
            for row in rows
        ],
        forbidden=_listed_rule(tree),
        together=_frames_per_step(tree),
        skipped=list(skipped_of(tree).items()),
        high=_HIGH,
        zero="zero" in rows[0].effects,
        tested=rows[0].matters is not None,
        shuffled=tree["shuffled"].attrs["texts"] if "shuffled" in tree.children else 0,
    )


def _listed_rule(tree: xr.DataTree) -> str:
    """Where heads may not look, in words; empty where nothing was forbidden."""
    if "forbidden" not in tree.children:
        return ""
    return ", ".join(str(place).replace("-", "−") for place in tree["forbidden"].attrs["forbid"])


def _frames_per_step(tree: xr.DataTree) -> list[list[Cell]]:
    """Chosen sets of heads: a row for each and each ablation."""
    if "together" not in tree.children:
        return []
    sets = tree["together"].to_dataset().transpose("set", "ablation", ...)
    rows: list[list[Cell]] = []
    for place, name in enumerate(sets["set"].values):
        for row, ablation in enumerate(sets.ablation.values):
            cell = sets.isel({"set": place, "ablation": row})
            lost, between = (
                effect_of(cell, key, told) for key, told in (("effect", ""), ("between", "between_"))
            )
            alone = float(cell.alone)
            names = [Cell(str(cell_text), str(cell_text)) for cell_text in (name, ablation)]
            rows.append([*names, _change(lost), Cell(_signed(alone, 3), alone), _change(between)])
    return rows


def _columns(rows: list[HeadVerdict]) -> list[tuple[str, str, str]]:
    """Group, heading and what a first click does, of each column."""
    why = [
        ("why", "Share of position", "descending"),
        ("why", "Scores agree", "descending"),
    ]
    trust = [
        ("trust", "Peak by norms", "descending"),
        ("trust", "Share there", "descending"),
        ("trust", "Unseen by output", "descending"),
        ("trust", "Loss, weights shuffled", "descending"),
    ]
    forbidden = [("forbidden", "Weight forbidden", "descending"), ("forbidden", "Loss", "descending")]
    return [
        ("where", "Head", "ascending"),
        ("where", "Kind", "ascending"),
        ("where", "Peak", "descending"),
        ("where", "Weight there", "descending"),
        *(why if _has_causes(rows) else []),
        *(trust if _has_trust(rows) else []),
        *(("whether", f"Loss without: {name}", "descending") for name in rows[0].effects),
        *([("whether", "Search", "descending")] if _has_search(rows) else []),
        *(forbidden if _has_forbidden(rows) else []),
    ]


def _has_causes(rows: list[HeadVerdict]) -> bool:
    return any(row.position_share is not None for row in rows)


def _has_trust(rows: list[HeadVerdict]) -> bool:
    return any(row.norm_offset is not None or row.shuffled is not None for row in rows)


def _has_search(rows: list[HeadVerdict]) -> bool:
    return any(row.searched is not None for row in rows)


def _has_forbidden(rows: list[HeadVerdict]) -> bool:
    return any(row.forbidden is not None for row in rows)


def _row(tree: xr.DataTree, row: HeadVerdict, *, causes: bool, trusted: bool, barred: bool) -> _Row:
    cells = [
        Cell(f"{row.layer}.{row.head}", float(row.layer * 10_000 + row.head)),
        Cell(row.kind, row.kind),
        Cell(_signed(row.peak_offset, 0), _sortable(row.peak_offset)),
        Cell(f"{row.peak_weight:.2f}" if math.isfinite(row.peak_weight) else "", _sortable(row.peak_weight)),
    ]
    if causes:
        agree = row.scores_agree
        cells += [
            _number(row.position_share),
            Cell(
                "" if agree is None else "yes" if agree else "no",
                _order(None if agree is None else float(agree)),
            ),
        ]
    if trusted:
        peak = row.norm_offset
        cells += [
            Cell("" if peak is None else _signed(peak, 0), _order(peak)),
            _number(row.norm_weight),
            _number(row.null_share),
            _change(row.shuffled),
        ]
    cells += [_change(effect) for effect in row.effects.values()]
    if row.searched is not None:
        cells.append(
            Cell(_signed(row.searched or 0.0, 3), row.searched, "open")
        )  # an estimate without a test
    if barred:
        cells += [_number(row.forbidden_weight), _change(row.forbidden)]
    return _Row(_profile(tree, row), cells)


def _profile(tree: xr.DataTree, row: HeadVerdict) -> list[tuple[float, float, bool]]:
    """Bars of a small profile: the mean weight at each offset, as a share of the largest."""
    where = tree["where"].to_dataset()
    if "profile" not in where:
        return []
    values = np.nan_to_num(where.profile.sel(layer=row.layer, head=row.head).values)
    top = float(values.max()) or 1.0
    return [
        (float(place), round(_HIGH * float(value) / top, 1), int(offset) == 0)
        for place, (value, offset) in enumerate(zip(values, where.offset.values, strict=True))
    ]


def _change(effect: Effect | None) -> Cell:
    if effect is None:
        return Cell("", "")
    mean, _, interval = describe_effect(effect).partition(" ")
    return Cell(mean, effect.mean, TOLD[effect.shown], interval.strip("()"))


def _number(value: float | None) -> Cell:
    return Cell("" if value is None else f"{value:.2f}".replace("-", "−"), _order(value))


def _order(value: float | None) -> float | str:
    """What a column is sorted by."""
    return "" if value is None else float(value)


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−") if math.isfinite(value) else ""


def _sortable(value: float) -> float | str:
    return value if math.isfinite(value) else ""
