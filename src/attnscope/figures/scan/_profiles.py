"""Mean weight against the offset, with its spread over texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope.figures.palette import LEFT, cluster_colours
from attnscope.figures.reading import (
    axis_values,
    check_heads,
    label_shares,
    mean_over_texts,
    noun_of,
    quantiles_over_texts,
    require,
)
from attnscope.figures.style import figure_style, looked_at, one_scale
from attnscope.figures.text import with_minus
from attnscope.statistics import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr


def profile_curves(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's mean weight at every offset, with the band that holds the middle 80% of texts.

    The line is the mean over texts, the band goes from the 10% to the 90% quantile over texts. A head is
    drawn in the colour of its most frequent label, where the result has labels. All panels have one scale.

    Parameters
    ----------
    result
        With ``profile (text, layer, head, offset)``, the mean weight at each offset.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result has no profiles or a head does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures import profile_curves
    >>> profile = np.random.default_rng(0).dirichlet(np.ones(5), size=(20, 1, 2))
    >>> result = xr.Dataset(
    ...     {"profile": (("text", "layer", "head", "offset"), profile)}, coords={"offset": range(-2, 3)}
    ... )
    >>> figure = profile_curves(result, heads=[(0, 0), (0, 1)])
    >>> len(figure.axes)
    2
    """
    require(result, ("profile", "offset"), purpose="profile_curves")
    pairs = check_heads(result, heads)
    layers, columns_of_heads = axis_values(result, "layer"), axis_values(result, "head")
    offsets = result["offset"].values
    labelled = {"label", "cluster"} <= set(result.variables)
    columns = min(len(pairs), 4)
    rows = math.ceil(len(pairs) / columns)

    with figure_style():
        figure = Figure(figsize=(max(3.2, 2.3 * columns), 2.1 * rows + 0.3), layout="constrained")
        for index, (layer, head) in enumerate(pairs):
            axes = figure.add_subplot(rows, columns, index + 1)
            at = {"layer": [layers.index(layer)], "head": [columns_of_heads.index(head)]}
            mean = mean_over_texts(result["profile"].isel(at))[0, 0]
            low, high = (edge[0, 0] for edge in quantiles_over_texts(result["profile"].isel(at)))
            name, colour = _majority(result.isel(at)) if labelled else ("", LEFT)
            axes.axvline(0, color="0.5", linewidth=0.6, linestyle=":")
            axes.fill_between(offsets, low, high, color=colour, alpha=0.28, linewidth=0)
            axes.plot(offsets, mean, color=colour, linewidth=1.3, marker="o", markersize=2.2)
            axes.set(xlim=looked_at(offsets, mean), ylim=(0, None))
            axes.set_title(
                f"Layer {layer}, head {head}" + (f"\n{name}" if name else ""), loc="left", parse_math=False
            )
        one_scale(figure.axes)
        figure.supxlabel(f"Offset (key − query), {unit_of(result)}: negative is left", fontsize=8)
        figure.supylabel("Mean attention weight", fontsize=8)
    return figure


def _majority(head: xr.Dataset) -> tuple[str, str]:
    """Name with its share, and colour, of the most frequent label of a result of one head."""
    names = [str(name) for name in head["cluster"].values]
    shares = label_shares(head)[0, 0]
    if np.isnan(shares).any():
        return "no label", LEFT
    best = int(np.argmax(shares))
    return f"{with_minus(names[best])}, {shares[best]:.0%} of {noun_of(head)}s", cluster_colours(names)[best]
