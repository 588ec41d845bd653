"""Efficient forms of attention beside full attention: what each head loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from attnscope.errors import AttnscopeError
from attnscope.figures.palette import LEFT, RIGHT
from attnscope.figures.reading import axis_values, require
from attnscope.figures.style import figure_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr
    from matplotlib.axes import Axes

_FULL = "0.2"
_COLOURS = (LEFT, "#009E73", RIGHT, "#CC79A7", "#7A5195")
_STYLES = ("-", "--", ":", "-.", "-")
_BARS = {
    "weight_moved": "Weight that lies\nelsewhere (share)",
    "output_error": "Distance of the output\n(over its size)",
    "entropy": "Entropy of a row\n(nats)",
    "first_token": "Weight on the\nfirst token (share)",
}
_SHARES = {"weight_moved", "first_token"}  # drawn from 0 to 1


def form_comparison(result: xr.Dataset, heads: Sequence[int] | None = None) -> Figure:
    """Draw for each head the profiles of all forms, and four numbers of each form, means over texts.

    A row is a head. Grey is full attention; on the left the mean weight at each offset, on the right how much
    weight a form puts elsewhere, how far its output is from that of full attention, the entropy of its rows and
    its weight on the first token.

    Parameters
    ----------
    result
        From `attnscope.statistics.compare_forms`.
    heads
        Counted from 0; by default all.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result compares no forms or a head does not exist.

    Examples
    --------
    >>> import torch
    >>> from attnscope.statistics import compare_forms
    >>> x = torch.randn(1, 2, 30, 4, generator=torch.Generator().manual_seed(0))
    >>> figure = form_comparison(compare_forms(x, x, x), heads=[1])
    >>> [axes.get_xlabel() for axes in figure.axes][0]
    'Offset (key − query), tokens'
    """
    require(result, ("profile", "form", *_BARS), purpose="form_comparison")
    known = axis_values(result.assign_coords(head=range(result.sizes["head"])), "head")
    chosen = known if heads is None else list(heads)
    if missing := [head for head in chosen if head not in known]:
        raise AttnscopeError(f"There is no head {missing[0]}: heads go from {known[0]} to {known[-1]}.")
    mean = result.mean("text")
    forms = [str(form) for form in result["form"].values]
    colours = [_FULL, *(_COLOURS[i % len(_COLOURS)] for i in range(len(forms) - 1))]
    with figure_style():
        figure = Figure(figsize=(9.2, 1.75 * len(chosen) + 0.75), layout="constrained")
        grid = figure.subplots(
            len(chosen), 1 + len(_BARS), squeeze=False, gridspec_kw={"width_ratios": [2.2, *[1] * len(_BARS)]}
        )
        for row, head in zip(grid, chosen, strict=True):
            of_head = mean.isel(head=head)
            _profiles(row[0], of_head, forms, colours)
            row[0].set_title(f"Head {head}", loc="left")
            for axes, name in zip(row[1:], _BARS, strict=True):
                values = of_head[name].values
                whole = 1.0 if name in _SHARES else max(float(np.nanmax(values)), 1e-9)
                _bars(axes, values, whole, forms, colours, named=axes is row[1])
        for axes, wording in zip(grid[0][1:], _BARS.values(), strict=True):
            axes.set_title(wording, loc="left", fontsize=7)
        grid[-1][0].set_xlabel("Offset (key − query), tokens")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=len(forms), frameon=False)
    return figure


def _profiles(axes: Axes, of_head: xr.Dataset, forms: list[str], colours: list[str]) -> None:
    for index, (form, colour) in enumerate(zip(forms, colours, strict=True)):
        full = index == 0
        axes.plot(
            of_head["offset"].values,
            of_head["profile"].values[index],
            color=colour,
            linewidth=3.2 if full else 1.3,
            alpha=0.35 if full else 1.0,
            linestyle=_STYLES[0 if full else (index - 1) % len(_STYLES)],
            label=form,
        )
    axes.axvline(0, color="0.5", linewidth=0.6, linestyle=":")
    axes.set(ylabel="Mean weight", ylim=(0, None))


def _bars(
    axes: Axes, values: np.ndarray, whole: float, forms: list[str], colours: list[str], *, named: bool
) -> None:
    """One bar a form, from the top in the order of the legend, with its number."""
    places = list(range(len(forms)))
    axes.barh(places, values, color=colours, height=0.65)
    for place, value in zip(places, values.tolist(), strict=True):
        axes.text(value + 0.03 * whole, place, f"{value:.2f}", va="center", fontsize=6)
    axes.set(xlim=(0, 1.3 * whole), ylim=(len(forms) - 0.5, -0.5))
    axes.set_yticks(places, forms if named else [])
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
