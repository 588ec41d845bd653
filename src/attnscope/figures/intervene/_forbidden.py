"""Where heads may not look: how much of their weight lies there, and what the predictions lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from attnscope.figures.palette import LEFT, RIGHT
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr


def forbidden_maps(forbidden: xr.Dataset) -> Figure:
    """Draw the weight that a rule forbids beside what the predictions lose without it, layers by heads.

    Parameters
    ----------
    forbidden
        The node ``forbidden`` of `attnscope.intervene`.

    Examples
    --------
    >>> import xarray as xr
    >>> dims = ("layer", "head")
    >>> forbidden = xr.Dataset(
    ...     {
    ...         "effect": (dims, np.ones((1, 2))),
    ...         "shown": (dims, np.ones((1, 2), dtype=bool)),
    ...         "forbidden_weight": (dims, np.full((1, 2), 0.5)),
    ...     },
    ...     coords={"layer": [0], "head": [0, 1]},
    ... )
    >>> [axes.get_title(loc="left") for axes in forbidden_maps(forbidden).axes[:2]]
    ['Weight forbidden', 'Change of the loss']
    """
    weight, effect = forbidden.forbidden_weight.values, forbidden.effect.values
    layers, columns = effect.shape
    cell = float(np.clip(3.0 / max(layers, columns), 0.14, 0.42))  # inches
    reach = float(np.nanmax(np.abs(effect))) or 1.0
    white = "#F7F7F7"
    panels = (
        ("Weight forbidden", weight, [white, "0.15"], (0.0, float(np.nanmax(weight)) or 1.0), "share"),
        ("Change of the loss", effect, [LEFT, white, RIGHT], (-reach, reach), "nats"),
    )
    with figure_style():
        figure = Figure(figsize=(2 * (columns * cell + 1.5), layers * cell + 1.0), layout="constrained")
        both = figure.subplots(1, 2, sharey=True)
        for axes, (title, values, colours, ends, units) in zip(both, panels, strict=True):
            scale = LinearSegmentedColormap.from_list(title, colours).with_extremes(bad="white")
            image = axes.imshow(values, cmap=scale, norm=Normalize(*ends), aspect="equal")
            axes.set_title(title, loc="left")
            axes.set_xlabel("Head")
            axes.set_xticks(range(0, columns, max(1, columns // 8)))
            step = max(1, layers // 12)
            axes.set_yticks(range(0, layers, step), forbidden.layer.values[::step])
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
            bar.set_label(units)
            bar.outline.set_visible(False)
        shown = np.argwhere(forbidden.shown.values)
        size = float(np.clip(9 * cell, 1.5, 3))
        both[1].plot(shown[:, 1], shown[:, 0], ".", color="0.1", markersize=size)
        for axes in both:
            nowhere = np.argwhere(np.isnan(weight))
            axes.plot(nowhere[:, 1], nowhere[:, 0], "x", color="0.7", markersize=size, markeredgewidth=0.6)
        both[0].set_ylabel("Layer")
    return figure
