"""Heat maps of the mean weight at each offset in rows and columns of patches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from attnscope.figures.palette import MARK
from attnscope.figures.reading import check_heads, mean_over_texts, require
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

_SIDE = 2.3  # inches


def patch_profiles(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's mean weight on the neighbours of a patch; the red frame is the patch itself.

    Parameters
    ----------
    result
        A scan of images, with ``patch_profile (text, layer, head, row_offset, column_offset)``.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If a head does not exist, or the result holds no such profile.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures import patch_profiles
    >>> dims = ("text", "layer", "head", "row_offset", "column_offset")
    >>> offsets = {"row_offset": [-1, 0, 1], "column_offset": [-1, 0, 1]}
    >>> result = xr.Dataset(
    ...     {"patch_profile": (dims, np.full((1, 1, 1, 3, 3), 1 / 9))}, {"layer": [0], "head": [0], **offsets}
    ... )
    >>> patch_profiles(result, [(0, 0)]).axes[0].get_title()
    'Layer 0, head 0'
    """
    require(result, ("patch_profile",), purpose="patch_profiles")
    pairs = check_heads(result, heads)
    layers, numbers = (result[dim].values.tolist() for dim in ("layer", "head"))
    mean = mean_over_texts(result["patch_profile"])
    down, right = (result[name].values for name in ("row_offset", "column_offset"))
    columns = min(math.ceil(math.sqrt(len(pairs))), 3)
    rows = math.ceil(len(pairs) / columns)
    with figure_style():
        figure = Figure(figsize=(columns * _SIDE * 1.25, rows * _SIDE), layout="compressed")
        for index, (layer, head) in enumerate(pairs):
            axes = figure.add_subplot(rows, columns, index + 1)
            values = mean[layers.index(layer), numbers.index(head)]
            top = float(np.nanmax(values, initial=0.0)) or 1.0
            extent = (right[0] - 0.5, right[-1] + 0.5, down[-1] + 0.5, down[0] - 0.5)
            paper = colormaps["Blues"].with_extremes(bad="0.88")
            image = axes.imshow(values, cmap=paper, vmin=0, vmax=top, extent=extent)
            axes.plot([-0.5, 0.5, 0.5, -0.5, -0.5], [-0.5, -0.5, 0.5, 0.5, -0.5], color=MARK, linewidth=1.0)
            axes.set(xlabel="Columns to the right", ylabel="Rows down", xticks=right, yticks=down)
            axes.set_title(f"Layer {layer}, head {head}")
            axes.tick_params(length=1.5, pad=1.5)
            axes.spines[:].set(visible=True, color="0.7")
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25)
            bar.set_label("Mean weight", fontsize=7)
            bar.outline.set_visible(False)
    return figure
