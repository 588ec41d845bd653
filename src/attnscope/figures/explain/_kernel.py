"""What the position scheme foretells: its kernel over offsets beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import NullLocator

from attnscope.figures.explain._common import (
    ALONE,
    INK,
    MEASURED,
    curve,
    head_panels,
    is_leftmost,
    legend_above,
    one_head,
    the_heads,
    tokens,
    zero_line,
)
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 6  # pairs that can all be labelled


def scheme_kernel(kernel: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw what the rotation or the bias adds to each head's scores at every offset, and which pairs make it.

    Above: the mean scores, and what the scheme alone gives, each about its mean over the offsets; dotted lines are
    where the scheme peaks and where the head's mean weight is largest. Below, under RoPE: the share of the scores'
    variation over offsets that each pair of columns makes, by the tokens that it takes for one turn.

    Parameters
    ----------
    kernel
        From `attnscope.mechanism.scheme_kernel`.
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
    >>> from attnscope.figures.explain import scheme_kernel
    >>> grid, curves = ("layer", "head"), ("layer", "head", "offset")
    >>> made = xr.Dataset(
    ...     {
    ...         "kernel": (curves, np.array([[[2.0, 1.0, np.nan]]])),
    ...         "scores": (curves, np.array([[[2.5, 1.0, np.nan]]])),
    ...         "offset_of_kernel": (grid, np.array([[-1.0]])),
    ...         "offset_of_weights": (grid, np.array([[0.0]])),
    ...     },
    ...     coords={"offset": [-1, 0, 1]},
    ... )
    >>> len(scheme_kernel(made, [(0, 0)]).axes)
    1
    """
    needs = ("kernel", "scores", "offset_of_kernel", "offset_of_weights")
    pairs = the_heads(kernel, heads, needs, purpose="scheme_kernel")
    by_pair = "pair_share" in kernel
    with figure_style():
        figure, panels = head_panels(len(pairs), (1.7, 1.3) if by_pair else (1.7,))
        for index, ((layer, head), axes) in enumerate(zip(pairs, panels, strict=True)):
            part = one_head(kernel, layer, head)
            _draw_curves(axes[0], part)
            offsets = (_offset(float(part[f"offset_of_{name}"])) for name in ("weights", "kernel"))
            axes[0].set_title(
                f"Layer {layer}, head {head}\n" + "weights {}, scheme {}".format(*offsets), loc="left"
            )
            if is_leftmost(index):
                axes[0].set_ylabel("Score, nats")
            if by_pair:
                _draw_pairs(axes[1], part)
                if is_leftmost(index):
                    axes[1].set_ylabel("Share of the\nscores' profile")
        legend_above(figure, panels[0][0], 4)
    return figure


def _offset(value: float) -> str:
    return tokens(value, 0) if np.isfinite(value) else "none"


def _draw_curves(axes: Axes, part: xr.Dataset) -> None:
    offset = part["offset"].values
    zero_line(axes)
    for name, colour, label in (
        ("scores", MEASURED, "Mean scores"),
        ("kernel", ALONE, "The scheme alone"),
    ):
        values = part[name].values.astype(float)
        dashes = "--" if name == "kernel" else "-"
        middle = np.nanmean(values) if np.isfinite(values).any() else 0.0
        curve(axes, offset, values - middle, colour, label=label, linestyle=dashes)
    for name, colour in (("offset_of_weights", MEASURED), ("offset_of_kernel", ALONE)):
        at = float(part[name])
        if np.isfinite(at):
            axes.axvline(at, color=colour, linewidth=0.9, linestyle=":")
    seen = offset[np.isfinite(part["kernel"].values.astype(float))]
    if len(seen) > 1:
        axes.set_xlim(seen[0] - 0.3, seen[-1] + 0.3)
    axes.set_xlabel("Offset, tokens")


def _draw_pairs(axes: Axes, part: xr.Dataset) -> None:
    share, period = (part[name].values.astype(float) for name in ("pair_share", "period"))
    known = np.isfinite(share)
    axes.axhline(0, color="0.4", linewidth=0.6)
    axes.vlines(period[known], 0, share[known], color=ALONE, linewidth=1.4)
    axes.plot(period[known], share[known], "o", color=ALONE, markersize=3, mew=0)
    axes.set_xscale("log")
    if known.sum() <= _FEW:
        axes.set_xticks(period[known], [f"{tokens_of:,.0f}" for tokens_of in period[known]])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Tokens for one turn", color=INK)
