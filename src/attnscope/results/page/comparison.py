"""Writing the page of a comparison of translation systems."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.lineage.compare import NO_ATTENTION
from attnscope.lineage.compare_notes import error_rate_note
from attnscope.results.figures.comparison import comparison_figures
from attnscope.results.page.parts import STYLES, picture, write_page
from attnscope.results.page.scan import parsed
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    import xarray as xr


@reads("compare")
def write_comparison_report(tree: xr.DataTree, path: Path | str) -> Path:
    """Write a comparison as one HTML page that needs no network, no server and no other file."""
    scores, alignment = tree["scores"].to_dataset(), tree["alignment"].to_dataset()
    known = "alignment_error_rate" in scores
    buckets = zip(scores["bucket"].values, scores["sentences"].values, strict=True)
    return write_page(
        Path(path),
        "comparison.html.j2",
        styles=STYLES,
        signature=parsed(tree.attrs["signature"]),
        sentences=scores.attrs["sentences"],
        length_in=scores.attrs["length_in"],
        buckets=[{"name": str(name).replace("-", "–"), "count": int(count)} for name, count in buckets],
        headings=_headings(scores),
        systems=[_system(tree, str(name)) for name in scores["system"].values],
        trends=_trends(scores),
        known=known,
        error_rates=error_rate_note(scores) if known else "",
        cut={str(system["system"].item()): int(system) for system in scores["sentences_cut"] if system},
        fixed=[str(of.item()) for of in alignment["system"][alignment["read_from"] == NO_ATTENTION]],
        pictures={name: picture(figure) for name, figure in comparison_figures(tree).items()},
        line=alignment.attrs["line"],
        source=" ".join(map(str, alignment["source"].values)),
        reference=" ".join(map(str, alignment["target"].values)),
    )


def _headings(scores: xr.Dataset) -> list[str]:
    several = ["Difference", "p"] if scores.sizes["system"] > 1 else []
    headings = ["Parameters", "BLEU", *several, "chrF"]
    headings += ["Training, min", "Tokens/s", "Sentences/s"]
    return [*headings, "AER, %"] if "alignment_error_rate" in scores else headings


def _system(tree: xr.DataTree, name: str) -> dict[str, Any]:
    """What the page says of one system."""
    at = tree["scores"].to_dataset().sel(system=name)
    bleu = at.sel(metric="BLEU")
    cells = [
        (f"{int(at['parameters']):,}", ""),
        (_number(bleu["score"], ".1f"), _interval(bleu["lower"], bleu["upper"])),
        *(_difference(bleu) if tree["scores"].sizes["system"] > 1 else []),
        (_number(at["score"].sel(metric="chrF"), ".1f"), ""),
        (_number(at["training_seconds"] / 60, ".1f"), ""),
        (_number(at["training_tokens_per_second"], ",.0f"), ""),
        (_number(at["sentences_per_second"], ".1f"), ""),
    ]
    if "alignment_error_rate" in at:
        rate, lower, upper = (100 * at[f"alignment_error_rate{end}"] for end in ("", "_lower", "_upper"))
        cells.append((_number(rate, ".1f"), _interval(lower, upper)))
    return {
        "name": name,
        "cells": cells,
        "lengths": [
            (_number(score, ".1f"), _interval(lower, upper))
            for score, lower, upper in zip(
                *(bleu[f"{end}_by_length"].values for end in ("score", "lower", "upper")), strict=True
            )
        ],
        "translation": str(tree["alignment"].to_dataset()["translation"].sel(system=name).item()),
    }


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
        ends = [_number(end["score_by_length"], ".1f") for end in (first, last)]
        trends.append({"name": str(name), "first": ends[0], "last": ends[1], "apart": apart})
    return trends


def _interval(lower: Any, upper: Any, form: str = ".1f", to: str = "–") -> str:
    ends = (_number(end, form) for end in (lower, upper))
    return "" if math.isnan(float(lower)) else to.join(ends)


def _difference(bleu: xr.Dataset) -> list[tuple[str, str]]:
    """From the first system, with its interval, and the test; nothing of the first one."""
    if math.isnan(float(bleu["difference"])):
        return [("", ""), ("", "")]
    interval = _interval(bleu["difference_lower"], bleu["difference_upper"], "+.1f", " to ")
    return [(_number(bleu["difference"], "+.1f"), interval), (_number(bleu["p_value"], ".3f"), "")]


def _number(value: Any, form: str) -> str:
    return "–" if math.isnan(float(value)) else format(float(value), form).replace("-", "−")
