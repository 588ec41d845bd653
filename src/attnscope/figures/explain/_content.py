"""Position or content: what of a head's scores and weights comes from where a token stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnscope.figures.explain._common import (
    ALONE,
    INK,
    MEASURED,
    OTHERS,
    curve,
    head_panels,
    is_leftmost,
    legend_above,
    names,
    one_head,
    the_heads,
    up_to_the_mask,
    with_interval,
    zero_line,
)
from attnscope.figures.style import figure_style, one_scale

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"PP": "#0072B2", "PC": "#56B4E9", "CP": "#CC79A7", "CC": "#E69F00", "B": "#009E73"}


def position_content(content: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw how much of each head's profile position alone makes, and what the four parts of the scores give.

    The letters name the query's part and the key's: PP is position with position, CC content with content. B is a
    bias by distance, which is position too.
    Above: the mean weight at each offset, and the same with only position left in the scores. Below: the share of the
    scores' variation over offsets that each part explains (they add up to 1), and its Shapley value for the
    weight at the offset in question (they add up to that weight less what no part at all gives). Bars have 95%
    intervals over texts.

    Parameters
    ----------
    content
        From `attnscope.mechanism`'s ``position_content``.
    heads
        Pairs (layer, head), counted from 0.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none or a head does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from attnscope.figures.explain import position_content
    >>> curves, bars = ("layer", "head", "offset"), ("layer", "head", "term")
    >>> made = xr.Dataset(
    ...     {
    ...         "profile": (curves, np.array([[[0.8, 0.1, 0.1]]])),
    ...         "profile_position": (curves, np.array([[[0.7, 0.2, 0.1]]])),
    ...         "share": (bars, np.array([[[0.9, 0.0, 0.0, 0.1]]])),
    ...         "shapley": (bars, np.array([[[0.6, 0.0, 0.0, 0.1]]])),
    ...         "target": (("layer", "head"), [[-1]]),
    ...     },
    ...     coords={"offset": [-1, 0, 1], "term": ["PP", "PC", "CP", "CC"]},
    ... )
    >>> len(position_content(made, [(0, 0)]).axes)
    3
    """
    needs = ("profile", "profile_position", "share", "shapley", "target")
    pairs = the_heads(content, heads, needs, purpose="position_content")
    terms = names(content, "term")
    with figure_style():
        figure, panels = head_panels(len(pairs), (1.7, 1.3, 1.3))
        for index, ((layer, head), (profile, share, shapley)) in enumerate(zip(pairs, panels, strict=True)):
            part = up_to_the_mask(one_head(content, layer, head), "profile")
            offset = part["offset"].values
            zero_line(profile)
            curve(
                profile,
                offset,
                with_interval(part, "profile"),
                MEASURED,
                label="The model's weights",
                marker="o",
                markersize=2.2,
            )
            curve(
                profile,
                offset,
                part["profile_position"].values,
                ALONE,
                label="Position alone",
                linewidth=1.1,
                linestyle="--",
            )
            profile.set(xlim=(offset[0], offset[-1]), ylim=(0, None), xlabel="Offset, tokens")
            profile.set_title(f"Layer {layer}, head {head}", loc="left")
            _draw_bars(share, part, "share", terms)
            _draw_bars(shapley, part, "shapley", terms)
            at = f"{int(part['target']):+d}".replace("-", "−").replace("+0", "0")
            shapley.set_title(f"weight at offset {at}", loc="right", fontsize=7)
            if is_leftmost(index):
                profile.set_ylabel("Mean weight")
                share.set_ylabel("Share of the\nscores' profile")
                shapley.set_ylabel("Part of\nthe weight")
        for of_heads in zip(*panels, strict=True):
            one_scale(of_heads)
        legend_above(figure, panels[0][0], 2)
    return figure


def _draw_bars(axes: Axes, part: xr.Dataset, name: str, terms: list[str]) -> None:
    value, low, high = (np.nan_to_num(bound) for bound in with_interval(part, name))
    place = np.arange(len(terms))
    colours = [_COLOURS.get(term, OTHERS[row % len(OTHERS)]) for row, term in enumerate(terms)]
    axes.bar(place, value, color=colours, width=0.7)
    ends = np.maximum([value - low, high - value], 0)
    axes.errorbar(place, value, yerr=ends, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
    axes.axhline(0, color="0.4", linewidth=0.6)
    axes.set_xticks(place, terms)
    axes.tick_params(axis="x", length=0)
    bottom, top = min(0.0, float(low.min()), float(value.min())), max(float(high.max()), float(value.max()))
    room = 0.2 * max(top - bottom, 1e-12)
    for x, (height, end) in enumerate(zip(value, high, strict=True)):
        axes.text(
            x,
            max(end, height, 0) + 0.15 * room,
            f"{height:.2f}".replace("-0.00", "0.00").replace("-", "−"),
            ha="center",
            va="bottom",
            fontsize=6.5,
        )
    axes.set_ylim(bottom - (room / 3 if bottom < 0 else 0), top + 1.4 * room)
