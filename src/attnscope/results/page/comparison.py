"""The page of a comparison of translation systems."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attnscope.lineage.compare import NO_ATTENTION
from attnscope.lineage.compare_notes import error_rate_note
from attnscope.results.figures.comparison import comparison_figures
from attnscope.results.page.parts import cells, minus, picture, write_page
from attnscope.results.render import Cell, Column
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr


@reads("compare")
def write_comparison_report(tree: xr.DataTree, path: Path | str) -> Path:
    """Write a comparison as one HTML page that needs no network, no server and no other file."""
    scores, alignment = tree["scores"].to_dataset(), tree["alignment"].to_dataset()
    known, systems = "alignment_error_rate" in scores, [str(name) for name in scores["system"].values]
    several = ["Difference", "p"] if len(systems) > 1 else []
    headings = [
        "Parameters",
        "BLEU",
        *several,
        "chrF",
        "Training, min",
        "Tokens/s",
        "Sentences/s",
        *["AER, %"] * known,
    ]
    lengths = scores["bucket"].values, scores["sentences"].values
    buckets = [
        {"name": str(name).replace("-", "–"), "count": int(count)}
        for name, count in zip(*lengths, strict=True)
    ]
    return write_page(
        path,
        "comparison",
        signature=tree.attrs["signature"],
        sentences=scores.attrs["sentences"],
        length_in=scores.attrs["length_in"],
        buckets=buckets,
        systems=systems,
        columns=[Column("System", kind="left"), *map(Column, headings)],
        rows=[[Cell(name), *_row(scores.sel(system=name), several=bool(several))] for name in systems],
        length_columns=[Column(scores.attrs["length_in"].capitalize(), kind="left"), Column("Sentences")]
        + [Column(name) for name in systems],
        length_rows=[
            [*cells(bucket["name"], str(bucket["count"])), *_by_length(scores.isel(bucket=row))]
            for row, bucket in enumerate(buckets)
        ],
        trends=_trends(scores),
        error_rates=error_rate_note(scores) if known else "",
        cut={str(system["system"].item()): int(system) for system in scores["sentences_cut"] if system},
        fixed=[str(of.item()) for of in alignment["system"][alignment["read_from"] == NO_ATTENTION]],
        pictures={name: picture(figure) for name, figure in comparison_figures(tree).items()},
        line=alignment.attrs["line"],
        source=" ".join(map(str, alignment["source"].values)),
        reference=" ".join(map(str, alignment["target"].values)),
        translations={name: str(alignment["translation"].sel(system=name).item()) for name in systems},
    )


def _row(at: xr.Dataset, *, several: bool) -> list[Cell]:
    """The numbers of one system."""
    bleu = at.sel(metric="BLEU")
    row = [Cell(f"{int(at['parameters']):,}"), _with_interval(bleu, "score", "lower", "upper")]
    if several and math.isnan(float(bleu["difference"])):  # of the first system
        row += cells("", "")
    elif several:
        ends = "difference", "difference_lower", "difference_upper"
        row += [_with_interval(bleu, *ends, form="+.1f", to=" to "), Cell(_number(bleu["p_value"], ".3f"))]
    row += cells(
        _number(at["score"].sel(metric="chrF")),
        _number(at["training_seconds"] / 60),
        _number(at["training_tokens_per_second"], ",.0f"),
        _number(at["sentences_per_second"]),
    )
    if "alignment_error_rate" in at:
        row.append(
            _with_interval(100 * at, *(f"alignment_error_rate{end}" for end in ("", "_lower", "_upper")))
        )
    return row


def _by_length(scores: xr.Dataset) -> list[Cell]:
    bleu = scores.sel(metric="BLEU")
    ends = [f"{end}_by_length" for end in ("score", "lower", "upper")]
    return [_with_interval(bleu.sel(system=system), *ends) for system in bleu["system"].values]


def _trends(scores: xr.Dataset) -> list[dict[str, Any]]:
    """BLEU of the shortest and the longest sentences by each system, and whether their intervals are apart."""
    bleu = scores.sel(metric="BLEU")
    if bleu.sizes["bucket"] == 1:
        return []
    trends: list[dict[str, Any]] = []
    for name in bleu["system"].values:
        first, last = (bleu.sel(system=name).isel(bucket=end) for end in (0, -1))
        if bool(first["lower_by_length"].isnull() | last["lower_by_length"].isnull()):
            continue
        apart = bool(
            (first["lower_by_length"] > last["upper_by_length"])
            | (last["lower_by_length"] > first["upper_by_length"])
        )
        ends = [_number(end["score_by_length"]) for end in (first, last)]
        trends.append({"name": str(name), "first": ends[0], "last": ends[1], "apart": apart})
    return trends


def _with_interval(at: xr.Dataset, value: str, low: str, high: str, form: str = ".1f", to: str = "–") -> Cell:
    interval = "" if math.isnan(float(at[low])) else to.join(_number(at[end], form) for end in (low, high))
    return Cell(_number(at[value], form), below=interval)


def _number(value: Any, form: str = ".1f") -> str:
    return "–" if math.isnan(float(value)) else minus(format(float(value), form))
