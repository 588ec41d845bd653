"""Writing the page of the roles of heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.detection.role_controls import counts_of, headline
from attnscope.measure.stored import notes_of
from attnscope.results.figures.roles import READINGS, role_figures
from attnscope.results.page.parts import pictures, write_page
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


@reads("roles")
def write_roles_report(
    result: xr.Dataset, path: Path | str, figures: Mapping[str, Figure] | None = None
) -> Path:
    """Write the results of `attnscope.roles` as one HTML page that needs no network and no other file."""
    drawn = dict(role_figures(result)) if figures is None else figures
    rows = counts_of(result)
    return write_page(
        path,
        "roles",
        signature=str(result.attrs["signature"]),
        model=str(result.attrs["model"]),
        pictures=pictures(drawn, READINGS),
        rows=rows,
        controls=list(rows[0].controls),
        notes=list(notes_of(result).values()),
        headline=headline(result),
    )
