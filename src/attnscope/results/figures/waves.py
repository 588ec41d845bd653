"""Waves in queries and keys: which columns, at which frequencies, in which layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnscope.results.figures.panels import KEY, QUERY, colour_bar, head_panels, heat, legend_above, names, write_cells
from attnscope.results.figures.reading import axis_values, layer_labels, require
from attnscope.results.figures.style import figure_style, name_heads
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

_SIDES = {"X": "Input X", "query": "Queries of all heads", "key": "Keys of all heads"}
_GREY = "0.72"


def wave_columns(waves: xr.Dataset, heads: Sequence[tuple[int, int]], columns: int = 20) -> Figure:
    """Draw where the leading columns of each head's queries and keys peak, and how much each column weighs."""
    needs = ("query_frequency", "key_frequency", "periodic", "partner", "importance")
    if columns < 1:
        raise AttnscopeError(f"columns must be at least 1, found {columns}.")
    positions = waves.attrs.get("positions")
    with figure_style():
        shown = min(columns, waves.sizes.get("column", 1))
        sizes, labels = (0.6 + 0.13 * shown,), ("Singular column",)
        figure, panels = head_panels(waves, heads, needs, sizes, labels, purpose="wave_columns", width=2.6)
        for part, (axes,) in panels:
            _draw_columns(axes, part, shown)
            total, periodic = part.sizes["column"], int(np.nansum(part["periodic"].values.astype(float)))
            axes.set_title(f"{axes.get_title('left')}: {periodic} of {total}", loc="left")
        cycles = f" (cycles per {positions} tokens)" if positions else ""
        figure.supxlabel(f"Strongest frequency{cycles}; bars: share of the scores", fontsize=8)
        legend_above(figure, figure.axes[0], 4)
    return figure


def _draw_columns(axes: Axes, part: xr.Dataset, shown: int) -> None:
    query, key = part["query_frequency"].values[:shown], part["key_frequency"].values[:shown]
    periodic = part["periodic"].values[:shown].astype(bool)
    partner = part["partner"].values[:shown]
    importance = np.nan_to_num(part["importance"].values.astype(float))
    rows = np.arange(shown)
    reach = max(float(np.nanmax(query)), float(np.nanmax(key)), 4.0)
    bars = importance[:shown] / max(importance.sum(), 1e-300)
    axes.barh(
        rows,
        0.28 * reach * bars / max(bars.max(), 1e-300),
        left=1.1 * reach,
        height=0.7,
        color=[QUERY if wave else _GREY for wave in periodic],
        linewidth=0,
    )
    longest = int(bars.argmax())
    axes.text(1.39 * reach, longest, f"{bars[longest]:.0%}", fontsize=6, va="center", color="0.35")
    for row, other in enumerate(partner):
        if row < other < shown:
            arc = {"arrowstyle": "-", "connectionstyle": "arc3,rad=-0.35", "color": QUERY, "linewidth": 0.9}
            ends = (query[row], row), (query[other], other)
            axes.annotate("", *ends, arrowprops=arc | {"shrinkA": 2, "shrinkB": 2})
    axes.hlines(rows, query, key, color="0.85", linewidth=0.7, zorder=1)
    for label, wave, colour in (("waves", True, QUERY), ("no waves", False, _GREY)):
        chosen = periodic == wave
        axes.scatter(query[chosen], rows[chosen], s=11, color=colour, zorder=3, linewidths=0, label=f"Query: {label}")
        axes.scatter(
            key[chosen],
            rows[chosen],
            s=30,
            facecolors="none",
            edgecolors=KEY if wave else _GREY,
            linewidths=0.9,
            zorder=2,
            label=f"Key: {label}",
        )
    axes.set(xlim=(-0.02 * reach, 1.52 * reach), ylim=(shown - 0.4, -0.6))
    axes.axvline(1.1 * reach, color="0.6", linewidth=0.5)
    axes.set_xticks([tick for tick in MaxNLocator(4, integer=True).tick_values(0, reach) if 0 <= tick <= reach])
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))


def wave_counts(waves: xr.Dataset) -> Figure:
    """Draw how many columns of each head's queries and keys are waves, beside the same with tokens shuffled."""
    require(waves, ("periodic_columns", "null_periodic_columns"), purpose="wave_counts")
    counts = waves["periodic_columns"].transpose("layer", "head").values.astype(float)
    null = waves["null_periodic_columns"].transpose("layer", "head", "permutation").values.astype(float)
    shuffled = null.max(-1) if null.shape[-1] else np.full(counts.shape, np.nan)
    layers, heads = counts.shape
    cell = float(np.clip(3.2 / max(layers, heads), 0.22, 0.5))
    top = max(1.0, float(np.nanmax([counts, shuffled], initial=0.0)))
    with figure_style():
        size = (2 * heads * cell + 2.2, layers * cell + 0.9)
        # of square cells the other layout learns the height too late, and cuts the titles off
        figure = Figure(figsize=(max(size[0], 4.6), size[1]), layout="compressed")
        titles = ("Columns that are waves", "With tokens shuffled")
        image = None
        for index, (values, title) in enumerate(zip((counts, shuffled), titles, strict=True)):
            axes = figure.add_subplot(1, 2, index + 1)
            image = heat(axes, values, "Greens", (0.0, top))
            write_cells(image, "{:.0f}".format)
            name_heads(axes, layer_labels(waves), axis_values(waves, "head"))
            axes.set_title(title, loc="left")
        if image is not None:
            bar = colour_bar(figure, image, figure.axes[:2], "Columns", shrink=0.9, aspect=18)
            bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def spectra_by_layer(spectra: xr.Dataset) -> Figure:
    """Draw the largest amplitude at each frequency in each layer: in X, in the queries and in the keys."""
    require(spectra, ("maximum", "null_mean", "side"), purpose="spectra_by_layer")
    sides = names(spectra, "side")
    layers = axis_values(spectra, "layer")
    frequency = spectra["frequency"].values[1:]
    values = (spectra["maximum"] / spectra["null_mean"]).transpose("side", "layer", "frequency").values[..., 1:]
    reach = float(np.nanmax(np.abs(np.log2(np.maximum(values, 2.0**-3))), initial=0.5))
    with figure_style():
        height = float(np.clip(0.2 * len(layers), 0.7, 3.0)) + 0.9
        figure = Figure(figsize=(2.6 * len(sides) + 0.7, height), layout="constrained")
        image = None
        for index, side in enumerate(sides):
            axes = figure.add_subplot(1, len(sides), index + 1)
            size = np.log2(np.maximum(values[index], 2.0**-reach))
            extent = (frequency[0] - 0.5, frequency[-1] + 0.5, len(layers) - 0.5, -0.5)
            image = heat(axes, size, "RdBu_r", (-reach, reach), aspect="auto", extent=extent)
            axes.tick_params(axis="x", length=2)
            axes.set_title(_SIDES.get(side, side), loc="left")
            rows = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), 12)).round().astype(int))
            axes.set_yticks(rows, [str(layers[row]) for row in rows] if index == 0 else [])
            axes.tick_params(axis="y", length=0)
        figure.axes[0].set_ylabel("Layer")
        figure.supxlabel(f"Frequency ({spectra['frequency'].attrs.get('units', 'cycles')})", fontsize=8)
        if image is not None:
            panels = figure.axes[: len(sides)]
            bar = colour_bar(figure, image, panels, "Amplitude over that of noise", pad=0.01, aspect=16)
            bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            bar.ax.yaxis.set_major_formatter(lambda power, _: f"{2.0**power:.3g}×")
    return figure


def wave_curves(waves: xr.Dataset, heads: Sequence[tuple[int, int]], tokens: int = 128) -> Figure:
    """Draw the most important columns of each head's queries and keys along a text: waves where it knows positions."""
    needs = ("query_curve", "key_curve", "curve_column", "periodic", "query_frequency")
    if tokens < 2:  # noqa: PLR2004 a curve
        raise AttnscopeError(f"tokens must be at least 2, found {tokens}.")
    with figure_style():
        heights = (0.62,) * waves.sizes.get("curve", 1)
        figure, panels = head_panels(waves, heads, needs, heights, purpose="wave_curves", width=2.5)
        shown = min(tokens, waves.sizes["position"])
        for part, rows in panels:
            for row, axes in enumerate(rows):
                _draw_curve(axes, part.isel(curve=row), shown)
                if row < len(rows) - 1:
                    axes.set_xticklabels([])
            rows[0].set_title(rows[0].get_title("left"), loc="left")  # at its distance, not that of the column's
        cycles = f"; cycles per {waves.sizes['position']} tokens, green: a wave"
        figure.supxlabel(f"Position in the text, the first {shown} tokens{cycles}", fontsize=8)
        legend_above(figure, figure.axes[0], 2)
    return figure


def _draw_curve(axes: Axes, part: xr.Dataset, shown: int) -> None:
    axes.axhline(0, color="0.85", linewidth=0.5)
    axes.plot(part["query_curve"].values[:shown], color=QUERY, linewidth=0.9, label="Query")
    axes.plot(part["key_curve"].values[:shown], color=KEY, linewidth=0.9, label="Key")
    axes.set(xlim=(0, shown - 1), ylim=(-3.2, 3.2), yticks=[])
    if np.isfinite(float(part["curve_column"])):
        column = int(part["curve_column"])
        cycles, wave = int(part["query_frequency"].values[column]), bool(part["periodic"].values[column])
        title = f"column {column}: {cycles} cycles"
        axes.set_title(title, loc="right", fontsize=6.5, pad=1, color=QUERY if wave else "0.45")
