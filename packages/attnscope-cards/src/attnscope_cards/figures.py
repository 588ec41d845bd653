"""Figures of a card: those of roles, and the loss as more and more heads are limited."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from attnscope.report.schema import Report
from attnscope.results.figures import roles
from attnscope.results.figures.panels import curve, with_interval
from attnscope.results.figures.style import Figure, figure_style, system_colours

first, panel, grid = ("limited-keys",), roles.panel, roles.grid
#: Title and caption of each figure, by name.
captions = roles.captions | {
    "limited-keys": (
        "Loss with limited keys",
        (
            "Change of the loss as more key-value heads are limited to a cache: in the order of the card, those first "
            "that need it least, and in random orders. Bands: 95% intervals."
        ),
    )
}


def panel_data(report: Report) -> dict[str, Any]:
    """Data of the panel of a head, as for roles."""
    return roles.panel_data(report) | {"table": "scores"}


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    of_roles = roles.figures(report)
    yield next(of_roles)
    if "check_p" in report.result:
        yield "limited-keys", limited_keys(report.result)
    yield from of_roles


_WORDS = {"card": "by the card", "kvpress": "by kvpress", "effects": "by predicted loss", "random": "at random"}


@figure_style()
def limited_keys(card: xr.Dataset) -> Figure:
    """Draw the change of the loss against the keys that are kept, a panel for each cache, with 95% intervals."""
    figure = Figure(figsize=(3.3 * card.sizes["cache"], 2.9), layout="constrained")
    panels = figure.subplots(1, card.sizes["cache"], sharey=True, squeeze=False)[0]
    names = [str(name) for name in card.order.values]
    for axes, cache in zip(panels, card.cache.values, strict=True):
        at = card.sel(cache=cache)
        kept = 100 * np.append(1, at.check_size.values)
        for name, colour, mark in zip(names, system_colours(len(names)), "osD^", strict=False):
            mean, low, high = (np.append(0, end) for end in with_interval(at.sel(order=name), "check_effect"))
            curve(axes, kept, (mean, low, high), colour, marker=mark, markersize=4, label=_WORDS[name])
        recent, sinks = cache.split("+")
        axes.set(title=f"latest {recent}, first {sinks} tokens", xlabel="keys kept (%)")
        axes.axhline(0, color="0.6", linewidth=0.6)
        axes.invert_xaxis()
    panels[0].set_ylabel("change of the loss (nats)")
    panels[0].legend(loc="upper left")
    return figure
