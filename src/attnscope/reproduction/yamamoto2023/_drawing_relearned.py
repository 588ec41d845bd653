"""Positions learned anew on texts with unknown tokens between: the table, the loss, and where the heads look now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.figures.explain import ALONE, MEASURED, NOISE, curve, legend_above, scheme_effect
from attnscope.figures.reading import require
from attnscope.figures.scan import weight_maps
from attnscope.figures.style import figure_style
from attnscope.reproduction.yamamoto2023._drawing import by_layer_and_head

if TYPE_CHECKING:
    import xarray as xr

_TABLES = (("before", "0.45", "Table as it was"), ("after", MEASURED, "Learned anew"))


def relearned_table(relearned: xr.Dataset) -> Figure:
    """Draw the spectrum of the position table as it was and as learned anew, and the loss while it was learned.

    Lines are means over columns, bands their middle half; the dashed line is what white noise as strong as the
    table learned anew gives.

    Parameters
    ----------
    relearned
        From ``relearn_positions``.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    AttnscopeError
        If the result holds none.

    References
    ----------
    Yamamoto and Matsuzaki (EMNLP 2023), appendix E.

    Examples
    --------
    >>> from attnscope.reproduction.yamamoto2023 import relearned_table
    >>> from attnscope.reproduction.yamamoto2023 import relearn_positions
    >>> relearned_run = relearn_positions(steps=2, batch_size=2, limit=4)[1]
    >>> [axes.get_title(loc="left") for axes in relearned_table(relearned_run).axes]
    ['Spectrum of the position table', 'Loss while learning']
    """
    needs = ("mean", "lower_quartile", "upper_quartile", "null_mean", "loss")
    require(relearned, needs, purpose="relearned_table")
    frequency = relearned["frequency"].values[1:]
    positions = int(relearned.attrs.get("positions", 2 * frequency[-1]))
    with figure_style():
        figure = Figure(figsize=(6.6, 2.6), layout="constrained")
        spectrum, loss = figure.subplots(1, 2, width_ratios=[1.9, 1])
        for name, colour, label in _TABLES:
            part = relearned.sel(table=name)
            mean, low, high = (part[edge].values[1:] for edge in needs[:3])
            curve(spectrum, frequency, (mean, low, high), colour, label=label)
        noise = float(relearned["null_mean"].sel(table="after"))
        spectrum.axhline(noise, color=NOISE, linewidth=0.8, linestyle="--", label="White noise")
        spectrum.set(xlim=(0, frequency[-1]), ylim=(0, None), ylabel="Amplitude")
        spectrum.set_xlabel(f"Frequency (cycles per {positions} tokens)")
        spectrum.set_title("Spectrum of the position table", loc="left")
        loss.plot(relearned["step"].values, relearned["loss"].values, color=ALONE, linewidth=1.2)
        loss.set(xlabel="Step", ylabel="Nats per masked token")
        loss.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        loss.set_title("Loss while learning", loc="left")
        legend_above(figure, spectrum, 3)
    return figure


def relearned_profiles(relearned: xr.Dataset) -> Figure:
    """Draw where the sharpest heads look: on plain text, and on spaced text before and after the learning.

    Parameters
    ----------
    relearned
        From ``relearn_positions``: the heads are those that were sharpest on plain text.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from attnscope.reproduction.yamamoto2023 import relearned_profiles
    >>> from attnscope.reproduction.yamamoto2023 import relearn_positions
    >>> relearned_run = relearn_positions(steps=2, batch_size=2, limit=4)[1]
    >>> len(relearned_profiles(relearned_run).axes)
    4
    """
    require(relearned, ("profile", "shown_layer", "shown_head"), purpose="relearned_profiles")
    return scheme_effect(relearned, _shown(relearned))


def relearned_maps(relearned: xr.Dataset) -> Figure:
    """Draw the weights of the same heads in one spaced text with the table learned anew; dots are unknown tokens.

    Parameters
    ----------
    relearned
        From ``relearn_positions``.

    Returns
    -------
    matplotlib.figure.Figure

    References
    ----------
    Yamamoto and Matsuzaki (EMNLP 2023), figure 22.

    Examples
    --------
    >>> from attnscope.reproduction.yamamoto2023 import relearned_maps
    >>> from attnscope.reproduction.yamamoto2023 import relearn_positions
    >>> relearned_run = relearn_positions(steps=2, batch_size=2, limit=4)[1]
    >>> relearned_maps(relearned_run).axes[0].get_xlabel()
    'Key token (attended to)'
    """
    require(relearned, ("key", "weight", "shown_layer"), purpose="relearned_maps")
    maps = relearned[["key", "weight"]].rename(shown_layer="layer", shown_head="head")
    return weight_maps(*by_layer_and_head(maps), tokens=maps.sizes["query"])


def _shown(relearned: xr.Dataset) -> list[tuple[int, int]]:
    layers, heads = relearned["shown_layer"].values.tolist(), relearned["shown_head"].values.tolist()
    return list(zip(layers, heads, strict=True))
