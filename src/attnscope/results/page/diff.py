"""Writing the page of a difference: what changed from one model to the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.comparison.findings import (
    changes_of,
    headline,
    partner_heading,
    same_everywhere,
    same_heads,
    value_headings,
)
from attnscope.results.figures.diff import difference_captions, difference_figures
from attnscope.results.page.parts import TOLD, pictures, write_page
from attnscope.support.arguments import reads
from attnscope.support.numbers import places

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_LISTED = 300  # changes in the table; the CSV has all


@reads("diff")
def write_difference_report(
    difference: xr.Dataset, path: Path | str, figures: Mapping[str, Figure] | None = None
) -> Path:
    """Write the results of `attnscope.diff` as one HTML page that needs no network and no other file."""
    drawn = dict(difference_figures(difference)) if figures is None else figures
    rows = changes_of(difference)
    return write_page(
        path,
        "difference",
        scripts=("sort.js",),
        signature=str(difference.attrs["signature"]),
        before=str(difference.attrs["before"]),
        after=str(difference.attrs["after"]),
        headline=headline(difference),
        pictures=pictures(drawn, difference_captions(difference)),
        rows=[] if same_everywhere(rows) else rows[:_LISTED],
        places=places,
        told=TOLD,
        tested=bool(difference.tested.any()),
        left_out=max(0, len(rows) - _LISTED),
        partner=partner_heading(difference),
        same=same_heads(difference),
        values=value_headings(difference),
        names=dict(
            zip(map(str, difference.statistic.values), map(str, difference.long_name.values), strict=True)
        ),
    )
