"""Arrays of statistics, as the labelled Dataset that a scan gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture import layer_coordinates
from attnscope.statistics._blocks import KEPT
from attnscope.statistics._catalogue import wording
from attnscope.statistics._pass import dimensions
from attnscope.statistics._rows import bin_coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attnscope.capture import Site


def labelled(
    arrays: Mapping[str, np.ndarray],
    sites: Sequence[Site],
    band: int,
    reach: int,
    lengths: Mapping[str, np.ndarray],
    sources: Sequence[tuple[str, int]],
    first: int = 0,
    groups: Sequence[str] = (),
    unit: str = "tokens",
    by: Sequence[str] | None = None,
    chosen: Sequence[int] = (),
) -> xr.Dataset:
    """Name the dimensions of arrays, and say what stands along them.

    Parameters
    ----------
    arrays
        From `stacked`.
    sites
        One for each layer.
    band, reach
        The largest offset of the band, and the largest that has a bin.
    lengths
        Tokens of each text, ``(text,)``, by the variable's name.
    sources
        Name and first character of each text.
    first
        Number of the first text.
    groups
        Names of the groups that tokens are in.
    unit
        What lengths and offsets count.
    by
        The value of each text by which they are held apart.
    chosen
        Offsets that were chosen.
    """
    heads = next(array.shape[2] for name, array in arrays.items() if "head" in dimensions(name))
    tokens = {"long_name": unit, "units": unit}
    return xr.Dataset(
        {name: (dimensions(name), array, _attributes(name, unit)) for name, array in arrays.items()}
        | {name: ("text", counts, tokens) for name, counts in lengths.items()}
        | {
            "source": ("text", np.array([source for source, _ in sources], dtype=object)),
            "start": ("text", np.array([start for _, start in sources], dtype=np.int64)),
        },
        coords={
            "text": np.arange(first, first + len(sources)),
            **({} if by is None else {"by": ("text", np.array(by, dtype=object))}),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "offset": np.arange(-band, band + 1),
            **({"kept": list(KEPT)} if any("kept" in dimensions(name) for name in arrays) else {}),
            **({} if "bin_sum" not in arrays else bin_coordinates(band, reach)),
            **({} if "weight_at" not in arrays else _chosen_coordinate(chosen, unit)),
            **({} if "offset_sum" not in arrays else {"every_offset": np.arange(-reach, reach + 1)}),
            **{side: np.array(groups, dtype=object) for side in ("group_query", "group_key") if groups},
        },
    ).set_coords(["source", "start"])


def _chosen_coordinate(chosen: Sequence[int], unit: str) -> dict[str, Any]:
    attributes = {"long_name": "Chosen offset, key minus query", "units": unit}
    return {"chosen_offset": ("chosen_offset", np.array(chosen, dtype=np.int64), attributes)}


def _attributes(name: str, unit: str) -> dict[str, str]:
    attributes = wording(name).attributes
    return attributes | {"units": attributes["units"].replace("tokens", unit)}
