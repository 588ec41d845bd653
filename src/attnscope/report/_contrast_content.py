"""What the page of a scan says of texts that are held apart by a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope._numbers import places
from attnscope.difference import contrast_rows, contrasts, contrasts_said, field_of

if TYPE_CHECKING:
    import xarray as xr

_SHOWN = 20


def contrast_data(result: xr.Dataset) -> dict[str, Any] | None:
    """Sentences, and the largest differences that are told from 0; None where nothing is held apart.

    Examples
    --------
    >>> import xarray as xr
    >>> contrast_data(xr.Dataset()) is None
    True
    """
    if "by" not in result.coords or len(set(result.by.values)) < 2:  # noqa: PLR2004
        return None
    tested = contrasts(result)
    rows = [row for row in contrast_rows(tested) if row["differs"]]
    return {
        "field": field_of(result),
        "says": contrasts_said(tested),
        "all": len(rows),
        "rows": [
            {
                "head": f"{row['layer']}.{row['head']}",
                "statistic": str(tested.long_name.sel(statistic=row["statistic"]).item()),
                "by": row["by"],
                "numbers": [f"{row[name]:.{digits}f}".replace("-", "−") for name in ("mean", "others")],
                "difference": f"{row['difference']:+.{digits}f}".replace("-", "−"),
                "interval": f"{row['low']:+.{digits}f} to {row['high']:+.{digits}f}".replace("-", "−"),
            }
            for row in rows[:_SHOWN]
            for digits in [places(float(str(row["difference"])), 3)]
        ],
    }
