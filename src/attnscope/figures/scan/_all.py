"""The figures of a scan, all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope._group_pairs import group_pairs
from attnscope._returned import reads
from attnscope.checks import FORMATS
from attnscope.figures.reading import of_blocks
from attnscope.figures.save import save_figure
from attnscope.figures.scan._blocks import block_shares
from attnscope.figures.scan._groups import group_maps
from attnscope.figures.scan._maps import weight_maps
from attnscope.figures.scan._offsets import offset_shares
from attnscope.figures.scan._overview import overview
from attnscope.figures.scan._patches import patch_profiles
from attnscope.figures.scan._pies import label_pies
from attnscope.figures.scan._profiles import profile_curves
from attnscope.figures.scan._sample import first_rows, maps
from attnscope.statistics import shares_by_offset
from attnscope.statistics.images import patch_shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import xarray as xr
    from matplotlib.figure import Figure

_OVERVIEWS = (
    "entropy",
    "outside",
    "first_token",
    "special_tokens",
    "mean_offset",
    "max_weight",
    "patch_distance",
    "class_token",
)
_HEADS = 4  # shown in maps and profiles: those that put most weight on one offset
_TOKENS = 15  # of a map
_OF_GROUPS = 3  # heads of which groups are shown: those furthest above both nulls


@reads("scan")
def write_scan_figures(
    result: xr.Dataset, sample: xr.Dataset | None, folder: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write every figure of a scan, by default as SVG, PDF and PNG; return the files.

    Figures of statistics that were not measured are left out.

    Parameters
    ----------
    result
        From `scan`.
    sample
        Attention of a few windows, for the maps; None for no maps.
    folder
        Folder of the files; it is made where it is not there.
    formats
        Endings of the files, without the dot.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attnscope
    >>> result = attnscope.scan(texts=["The tide comes in."], statistics=["entropy"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in write_scan_figures(result, None, Path(folder))]
    ['overview-entropy.svg', 'overview-entropy.pdf', 'overview-entropy.png']
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for name, figure in _figures(result, sample)
        for path in save_figure(figure, folder / name, formats)
    ]


def _figures(result: xr.Dataset, sample: xr.Dataset | None) -> Iterator[tuple[str, Figure]]:
    for statistic in _OVERVIEWS:
        if statistic in result:
            yield f"overview-{statistic.replace('_', '-')}", overview(result, statistic)
    for statistic in of_blocks(result):
        yield statistic.replace("_", "-"), block_shares(result, statistic)
    if any(shares_by_offset(result, of) is not None for of in ("bins", "band")):
        yield "offsets", offset_shares(result)
    if "label_share" in result and "centroid" in result:
        yield "labels", label_pies(result)
    if "group_weight" in result:
        leading = dict.fromkeys((pair.layer, pair.head) for pair in group_pairs(result))
        if leading:
            yield "groups", group_maps(result, list(leading)[:_OF_GROUPS])
    if "profile" in result:
        listed = None if sample is None else {(shown.layer, shown.head) for shown in maps(sample)}
        heads = _sharpest(result, listed)
        yield "profiles", profile_curves(result, heads)
        if sample is not None:
            yield "maps", weight_maps(first_rows(sample, heads, _TOKENS), heads)

    if "patch_profile" in result:
        yield "patch-profiles", patch_profiles(result, _sharpest_on_patches(result))


def _sharpest_on_patches(result: xr.Dataset) -> list[tuple[int, int]]:
    """Heads with the largest share of a patch's weight on one neighbour, itself not counted."""
    shares = patch_shares(result).mean("text")
    away = shares.where((shares.row_offset != 0) | (shares.column_offset != 0))
    largest = away.max(("row_offset", "column_offset")).transpose("layer", "head").values
    order = np.argsort(-np.nan_to_num(largest, nan=-1.0), axis=None, kind="stable")[:_HEADS]
    return [(int(place // largest.shape[1]), int(place % largest.shape[1])) for place in order]


def _sharpest(result: xr.Dataset, listed: set[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Heads with the largest mean weight at one offset other than 0; where there are maps, of those that have one."""
    mean = result.profile.mean("text").where(result.offset != 0).max("offset").values
    order = np.argsort(-np.nan_to_num(mean, nan=-1.0), axis=None, kind="stable")
    ranked = [(int(place // mean.shape[1]), int(place % mean.shape[1])) for place in order]
    return [head for head in ranked if listed is None or head in listed][:_HEADS]
