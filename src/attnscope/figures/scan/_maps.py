"""Heat maps of the weights among the first tokens of one window."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from attnscope.errors import AttnscopeError
from attnscope.figures.palette import MARK
from attnscope.figures.reading import check_heads, dense_weights, layer_kind, require, side_tokens, sides
from attnscope.figures.style import figure_style, name_columns
from attnscope.figures.text import drawable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


def weight_maps(sample: xr.Dataset, heads: Sequence[tuple[int, int]], tokens: int = 15) -> Figure:
    """Draw each head's weights among the first tokens of a window: rows are queries, columns are keys.

    The red dotted line is the diagonal, where a token attends to itself; each panel has its own scale. A
    weight that the sample does not list, because it is not among the largest, is grey. Where the
    sample's ``layer_kind`` is "cross", queries are tokens of the target and keys of the source, and there is no
    diagonal.

    Parameters
    ----------
    sample
        One window: ``token (query)``, ``key`` and ``weight (layer, head, query, rank)``, if the map is not complete
        ``rest (layer, head, query)``, and of a decoder beside an encoder ``target_token (query)``.
    heads
        Pairs (layer, head), counted from 0.
    tokens
        How many of the first tokens to show; fewer if the window is shorter.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If a head does not exist, or `tokens` is not positive.

    References
    ----------
    Yamamoto and Matsuzaki (NLP 2023), figure 2.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures import weight_maps
    >>> rows = ("layer", "head", "query", "rank")
    >>> sample = xr.Dataset(
    ...     {
    ...         "key": (rows, np.array([[[[0, 1], [0, 1]]]], dtype="uint16")),
    ...         "weight": (rows, np.array([[[[0.9, 0.1], [0.7, 0.3]]]], dtype="float32")),
    ...     },
    ...     coords={"token": ("query", ["猫", "sat"])},
    ... )
    >>> figure = weight_maps(sample, heads=[(0, 0)])
    >>> figure.axes[0].get_title()
    'Layer 0, head 0'
    """
    require(sample, ("token", "key", "weight"), purpose="weight_maps")
    if tokens < 1:
        raise AttnscopeError(f"tokens must be at least 1, found {tokens}.")
    pairs = check_heads(sample, heads)
    names = {side: side_tokens(sample, side)[:tokens] for pair in pairs for side in sides(sample, pair[0])}
    labels = {side: [drawable(token) for token in text] for side, text in names.items()}
    count = max(map(len, names.values()))
    columns = min(math.ceil(math.sqrt(len(pairs))), 3)
    rows = math.ceil(len(pairs) / columns)
    side = max(1.6, 0.155 * count) + 1.3  # inches
    cut = False

    with figure_style():
        figure = Figure(figsize=(columns * side, rows * 0.9 * side), layout="compressed")
        for index, (layer, head) in enumerate(pairs):
            axes = figure.add_subplot(rows, columns, index + 1)
            queries, keys = (labels[side] for side in sides(sample, layer))
            weights = dense_weights(sample, layer, head, len(queries), len(keys))
            cut |= bool(np.isnan(weights).any())
            image = _draw_map(axes, weights, queries, keys, crossed=layer_kind(sample, layer) == "cross")
            axes.set_title(f"Layer {layer}, head {head}")
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25)
            bar.set_label("Attention weight", fontsize=7)
            bar.outline.set_visible(False)
        if cut:
            figure.supxlabel(
                "Grey: not among the weights that were kept",
                fontsize=7,
                color="0.35",
            )
    return figure


def _draw_map(
    axes: Axes, weights: np.ndarray, queries: list[str], keys: list[str], *, crossed: bool
) -> AxesImage:
    top = float(np.nanmax(weights, initial=0.0)) or 1.0
    image = axes.imshow(weights, cmap=colormaps["Blues"].with_extremes(bad="0.88"), vmin=0, vmax=top)
    if not crossed:
        end = len(queries) - 0.5
        axes.plot([-0.5, end], [-0.5, end], color=MARK, linestyle=":", linewidth=1.2)
    axes.set(xlim=(-0.5, len(keys) - 0.5), ylim=(len(queries) - 0.5, -0.5))
    name_columns(axes, range(len(keys)), keys)
    axes.set_yticks(range(len(queries)), queries, parse_math=False)
    axes.set(
        xlabel="Key token in the source" if crossed else "Key token (attended to)",
        ylabel="Query token in the target" if crossed else "Query token (attending)",
    )
    axes.tick_params(length=1.5, pad=1.5)
    axes.spines[:].set(visible=True, color="0.7")
    return image
