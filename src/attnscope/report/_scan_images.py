"""What a page says about a scan of images: profiles in rows and columns of patches, and the images themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.figures.reading import mean_over_texts
from attnscope.report._embed import numbers

if TYPE_CHECKING:
    import xarray as xr


def patch_data(result: xr.Dataset) -> dict[str, Any] | None:
    """The patch profile of each head, layer by layer, and what equal weights give; None where there is none.

    Rows of the profile follow each other: ``mean[head][row * columns + column]``.
    """
    if "patch_profile" not in result.variables:
        return None
    mean = mean_over_texts(result["patch_profile"])
    heads = mean.shape[1]
    equal = result["equal_patch_profile"].mean("text", skipna=True).transpose("layer", ...).values
    return {
        "rows": result["row_offset"].values.tolist(),
        "columns": result["column_offset"].values.tolist(),
        "mean": numbers(mean.reshape(mean.shape[0] * heads, -1)),
        "equal": numbers(np.repeat(equal.reshape(len(equal), -1), heads, 0)),
    }


def picture_data(sample: xr.Dataset) -> list[dict[str, Any]] | None:
    """For each window the image, its name, and which tokens are its patches; None for text."""
    if "picture" not in sample.variables:
        return None
    return [
        {
            "name": str(name),
            "source": f"data:image/jpeg;base64,{picture}" if picture else "",
            **dict(zip(("start", "rows", "columns"), grid.tolist(), strict=True)),
        }
        for name, picture, grid in zip(
            sample["source"].values, sample["picture"].values, sample["grid"].values, strict=True
        )
    ]


def view_data(sample: xr.Dataset) -> list[list[dict[str, Any]]] | None:
    """For each window the images in its text: rows, columns, and the tokens that lie in them, row by row."""
    if "view_of" not in sample.variables:
        return None
    views: list[list[dict[str, Any]]] = [[] for _ in range(sample.sizes["window"])]
    for view, window in enumerate(sample["view_window"].values.tolist()):
        picture = str(sample["view_picture"].values[view])
        tokens = np.flatnonzero(sample["view_of"].values[window] == view)
        views[window].append(
            {
                "name": str(sample["view_name"].values[view]),
                "source": f"data:image/jpeg;base64,{picture}" if picture else "",
                "rows": int(sample["view_rows"].values[view]),
                "columns": int(sample["view_columns"].values[view]),
                "tokens": tokens[np.argsort(sample["view_place"].values[window][tokens])].tolist(),
            }
        )
    return views
