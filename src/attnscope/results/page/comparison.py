"""The page of a comparison of translation systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.lineage.compare import NO_ATTENTION
from attnscope.results.page.parts import picture, write_page
from attnscope.results.render import page_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

    from attnscope.results.schema import Report


def write(found: Report, path: Path | str, figures: Mapping[str, Figure]) -> Path:
    """Write the page of a report."""
    tree: Any = found.result
    scores, alignment = tree["scores"].to_dataset(), tree["alignment"].to_dataset()
    systems = [str(name) for name in scores["system"].values]
    lengths = zip(scores["bucket"].values, scores["sentences"].values, strict=True)
    first, second, _curves = map(page_table, found.tables)
    return write_page(
        path,
        "comparison",
        scripts=("sort.js",),
        signature=tree.attrs["signature"],
        report=found,
        length_in=scores.attrs["length_in"],
        buckets=[{"name": str(name), "count": int(count)} for name, count in lengths],
        systems=systems,
        table=first,
        lengths=second,
        trends=_trends(scores),
        known="alignment_error_rate" in scores,
        fixed=[str(of.item()) for of in alignment["system"][alignment["read_from"] == NO_ATTENTION]],
        pictures={name: picture(figure) for name, figure in figures.items()},
        line=alignment.attrs["line"],
        source=" ".join(map(str, alignment["source"].values)),
        reference=" ".join(map(str, alignment["target"].values)),
        translations={name: str(alignment["translation"].sel(system=name).item()) for name in systems},
    )


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
            (first["lower_by_length"] > last["upper_by_length"]) | (last["lower_by_length"] > first["upper_by_length"])
        )
        ends = [f"{float(end['score_by_length']):.1f}" for end in (first, last)]
        trends.append({"name": str(name), "first": ends[0], "last": ends[1], "apart": apart})
    return trends
