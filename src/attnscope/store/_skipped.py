"""What could not be found out, as every result says it."""

from __future__ import annotations

import json

import xarray as xr

from attnscope._arguments import typed


@typed
def skipped_of(result: xr.Dataset | xr.DataTree) -> dict[str, str]:
    """What could not be found out, by its name, and why.

    Examples
    --------
    >>> skipped_of(xr.DataTree()), skipped_of(xr.Dataset(attrs={"skipped": '{"waves": "no matrix"}'}))
    ({}, {'waves': 'no matrix'})
    """
    return json.loads(str(result.attrs.get("skipped", "{}")))
