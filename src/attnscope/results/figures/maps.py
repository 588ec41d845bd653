"""Heat maps of the weights among the first tokens of one window."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import PowerNorm
from matplotlib.patches import Circle, Wedge
from matplotlib.ticker import MaxNLocator, PercentFormatter

from attnscope.measure.means import text_mean
from attnscope.measure.offset_shares import shares_by_offset
from attnscope.measure.stored import unit_of
from attnscope.results.figures import selection, style
from attnscope.results.figures.panels import colour_bar, heat, largest, medians, panel_grid, zero_line
from attnscope.results.figures.style import Figure, in_lines
from attnscope.support.errors import AttnscopeError


@style.figure_style()
def weight_maps(sample: xr.Dataset, heads: Sequence[tuple[int, int]], tokens: int = 15) -> Figure:
    """Draw each head's weights among the first tokens of a window: rows are queries, columns are keys."""
    selection.require(sample, ("token", "key", "weight"), purpose="weight_maps")
    if tokens < 1:
        raise AttnscopeError(f"tokens must be at least 1, found {tokens}.")
    pairs = selection.check_heads(sample, heads)
    names = {
        side: selection.side_tokens(sample, side)[:tokens]
        for pair in pairs
        for side in selection.sides(sample, pair[0])
    }
    labels = {side: [style.drawable(token) for token in text] for side, text in names.items()}
    side = max(1.6, 0.155 * max(map(len, names.values()))) + 1.3  # inches
    cut = False
    figure, panels = panel_grid(len(pairs), (side, 0.9 * side))
    for (layer, head), axes in zip(pairs, panels, strict=True):
        queries, keys = (labels[side] for side in selection.sides(sample, layer))
        weights = selection.dense_weights(sample, layer, head, len(queries), len(keys))
        cut |= bool(np.isnan(weights).any())
        crossed = selection.layer_kind(sample, layer) == "cross"
        image = heat(axes, weights, ends=(0.0, largest(weights)))
        if not crossed:
            axes.plot([-0.5, len(queries) - 0.5], [-0.5, len(queries) - 0.5], color=style.MARK, ls=":", lw=1.2)
        axes.set(xlim=(-0.5, len(keys) - 0.5), ylim=(len(queries) - 0.5, -0.5))
        style.name_columns(axes, range(len(keys)), keys)
        axes.set_yticks(range(len(queries)), queries, parse_math=False)
        axes.set_xlabel("Key token in the source" if crossed else "Key token (attended to)")
        axes.set_ylabel("Query token in the target" if crossed else "Query token (attending)")
        _frame(axes, f"Head {layer}.{head}")
        colour_bar(figure, image, axes, "Attention weight", aspect=25)
    if cut:
        figure.supxlabel("Grey: weight not stored", fontsize=7, color="0.35")
    return figure


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.tick_params(length=1.5, pad=1.5)
    axes.spines[:].set(visible=True, color="0.7")


_INK, _FEW = "0.1", 6  # so many layers are named one by one


@style.figure_style()
def block_shares(result: xr.Dataset, statistic: str = "block_recall") -> Figure:
    """Draw the share of weight in the best blocks: a dot for each head by layer, a panel for each share.

    Parameters
    ----------
    result
        Result of `attnscope.scan` with this statistic.
    statistic
        A statistic over ``kept``, the shares of blocks in percent: ``block_recall`` or ``map_block_recall``.

    Raises
    ------
    AttnscopeError
        If the result lacks the statistic.
    """
    selection.require(result, (statistic, "kept"), purpose="block_shares")
    means = selection.mean_over_texts(result[statistic].transpose(..., "kept"))  # (layer, head, kept)
    uniform = result.get(f"equal_{statistic}")
    uniform = None if uniform is None else text_mean(uniform).transpose("layer", "kept").values.astype(float)
    shares = result["kept"].values.tolist()
    width = float(np.clip(1.1 + 0.16 * len(means), 2.4, 4.2))
    names = selection.layer_labels(result)
    height = 2.9 if all(map(str.isdigit, names)) else 3.3  # inches
    figure = Figure(figsize=(width * len(shares), height), layout="constrained")
    panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
    for index, (axes, percent) in enumerate(zip(panels, shares, strict=True)):
        _draw(axes, means[..., index], None if uniform is None else uniform[:, index])
        by_kind = any(not name.isdigit() for name in names)
        if len(names) <= _FEW or by_kind:
            every = -(-len(names) // 16)
            axes.set_xticks(range(0, len(names), every), names[::every], rotation=90 if by_kind else 0)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_title(f"Best {percent}% of the blocks", loc="left")
    panels[0].set_ylabel("Share of weight in these blocks")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    count, noun = result.sizes.get("window", 1), selection.noun_of(result)
    reading = selection.wording(result, statistic).reading
    title = f"{reading} Mean over {count} {noun}{'s' * (count != 1)}."
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return figure


def _draw(axes: Axes, means: np.ndarray, uniform: np.ndarray | None) -> None:
    """The heads of all layers, ``(layer, head)``, their medians, and uniform attention ``(layer)``."""
    layers = np.arange(len(means))
    at = np.broadcast_to(layers[:, None], means.shape)
    finite = np.isfinite(means)
    axes.plot(at[finite], means[finite], "o", color=style.LEFT, alpha=0.5, ms=3.4, mew=0, label="a head")
    ends = layers - 0.32, layers + 0.32
    axes.hlines(medians(means), *ends, color=_INK, linewidth=1.6, label="median of the layer")
    if uniform is not None:
        edges = np.append(layers - 0.5, layers[-1] + 0.5)
        dashes: dict[str, Any] = {"baseline": None, "color": style.RIGHT, "linewidth": 1.3, "linestyle": "--"}
        axes.stairs(uniform, edges, label="uniform attention", **dashes)
    axes.set(xlim=(-0.6, len(means) - 0.4), ylim=(0, 1.03), xlabel="Layer")
    axes.grid(axis="y")


@style.figure_style()
def patch_profiles(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's mean weight on the neighbours of a patch; the red frame is the patch itself."""
    selection.require(result, ("patch_profile",), purpose="patch_profiles")
    pairs = selection.check_heads(result, heads)
    mean = text_mean(result["patch_profile"].astype(float))
    down, right = (result[name].values for name in ("row_offset", "column_offset"))
    extent = (right[0] - 0.5, right[-1] + 0.5, down[-1] + 0.5, down[0] - 0.5)
    figure, panels = panel_grid(len(pairs), (2.875, 2.3))
    for (layer, head), axes in zip(pairs, panels, strict=True):
        values = mean.sel(layer=layer, head=head).values
        image = heat(axes, values, ends=(0.0, largest(values)), extent=extent)
        axes.plot([-0.5, 0.5, 0.5, -0.5, -0.5], [-0.5, -0.5, 0.5, 0.5, -0.5], color=style.MARK, linewidth=1.0)
        axes.set(xlabel="Columns to the right", ylabel="Rows down", xticks=right, yticks=down)
        _frame(axes, f"Head {layer}.{head}")
        colour_bar(figure, image, axes, "Mean weight", aspect=25)
    return figure


_LEFT, _RIGHT, _BOTTOM, _TOP, _GAP = 0.7, 0.28, 0.5, 0.35, 0.6  # inches
_CURVE_WIDTH, _CURVE_GAP, _CURVE_TEXT, _PITCH = 1.2, 0.4, 0.32, 0.66  # inches
_GRID, _PIES_INK = (3.4, "0.15")  # inches; the letters keep a readable size where the figure is as wide as a page


@style.figure_style()
def label_pies(result: xr.Dataset) -> Figure:
    """Draw the share of texts in which each head has each label, one pie per head, and the mean profile of each label.

    Parameters
    ----------
    result
        Result of `attnscope.scan`.

    Raises
    ------
    AttnscopeError
        If the result has no labels.
    """
    selection.require(result, ("label", "cluster", "centroid"), purpose="label_pies")
    shares = selection.label_shares(result)  # (layer, head, cluster)
    names = [str(name) for name in result["cluster"].values]
    colours = style.cluster_colours(names)
    layers, heads, _ = shares.shape

    cell = float(np.clip(_GRID / max(layers, heads), 0.22, 0.6))  # inches
    grid_width, grid_height = heads * cell, layers * cell
    legend_columns = 1 if len(names) * _PITCH <= max(grid_height, 4.0) else 2
    legend_rows = math.ceil(len(names) / legend_columns)
    pitch = float(np.clip(grid_height / legend_rows, _PITCH, 0.9))
    legend_width = legend_columns * (_CURVE_WIDTH + _CURVE_GAP) - _CURVE_GAP
    width = style.printed(_LEFT + grid_width + _GAP + legend_width + _RIGHT)
    height = _TOP + max(grid_height, legend_rows * pitch) + _BOTTOM

    figure = Figure(figsize=(width, height))
    grid = figure.add_axes((_LEFT / width, 1 - (_TOP + grid_height) / height, grid_width / width, grid_height / height))
    _draw_pies(grid, shares, colours)
    style.name_heads(grid, selection.layer_labels(result), selection.axis_values(result, "head"))
    count, noun = result.sizes["window"], selection.noun_of(result)
    grid.set_title(f"Labels over {count} {noun}{'s' * (count != 1)}", loc="left")

    left = _LEFT + grid_width + _GAP
    curves = result["centroid"].transpose("cluster", "offset")
    ends = style.drawn_range(curves["offset"].values, curves.values)
    units = str(result["centroid"].attrs.get("units", ""))
    heading = f"Mean profiles ({units})" if units else "Mean profiles"
    figure.text(left / width, 1 - (_TOP - 0.08) / height, heading, va="bottom", parse_math=False)
    for index, (name, colour) in enumerate(zip(names, colours, strict=True)):
        column, row = divmod(index, legend_rows)
        x, y = left + column * (_CURVE_WIDTH + _CURVE_GAP), height - _TOP - (row + 1) * pitch + 0.2
        axes = figure.add_axes((x / width, y / height, _CURVE_WIDTH / width, (pitch - _CURVE_TEXT) / height))
        _draw_centroid(axes, result["centroid"].isel(cluster=index), name, colour, ends, noun)
        if row == legend_rows - 1 or index == len(names) - 1:
            axes.set_xlabel(f"Offset (key − query), {unit_of(result)}", fontsize=7)
    return figure


def _draw_pies(axes: Axes, shares: np.ndarray, colours: list[str]) -> None:
    layers, heads, clusters = shares.shape
    wedges: list[list[Wedge]] = [[] for _ in range(clusters)]
    for layer, head in np.ndindex(layers, heads):
        if np.isnan(shares[layer, head]).any():
            axes.add_patch(Circle((head, layer), 0.3, fill=False, edgecolor="0.8", linestyle=":"))
            continue
        edges = 90 - 360 * np.concatenate([[0.0], np.cumsum(shares[layer, head])])  # clockwise from the top
        for cluster, (start, stop) in enumerate(pairwise(edges)):
            if start > stop:
                wedges[cluster].append(Wedge((head, layer), 0.42, stop, start))
    for patches, colour in zip(wedges, colours, strict=True):
        axes.add_collection(PatchCollection(patches, facecolor=colour, edgecolor="white", linewidth=0.3))
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(layers - 0.5, -0.5), aspect="equal")


def _draw_centroid(
    axes: Axes, centroid: xr.DataArray, name: str, colour: str, ends: tuple[int, int], noun: str
) -> None:
    offsets, values = centroid["offset"].values, centroid.values
    axes.fill_between(offsets, values, color=colour, linewidth=0)
    axes.plot(offsets, values, color=_PIES_INK, linewidth=0.6)
    top = float(np.nanmax(values, initial=0.0))
    if top > 0:
        zero_line(axes)
    else:
        axes.text(0.5, 0.45, f"no {noun}", color="0.5", ha="center", transform=axes.transAxes, fontsize=7)
    axes.set(xlim=ends, ylim=(0, 1.08 * (top or 1.0)))
    axes.set_xticks(sorted({ends[0], 0, ends[1]}))
    ticks = {0.0: "0", top: f"{top:.3g}"}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(labelsize=7, length=2, pad=1.5)
    look: dict[str, Any] = {"color": _PIES_INK, "fontweight": "bold", "fontsize": 7, "pad": 2, "parse_math": False}
    axes.set_title(style.with_minus(name), loc="left", **look)


_LINES = 40  # rows of which each head is named, and layers that are
_LETTER = 0.066  # inches


@style.figure_style()
def offset_shares(result: xr.Dataset) -> Figure:
    """Draw each head's share of weight in each bin of offsets: a row for each head, layer by layer.

    Parameters
    ----------
    result
        Result of `attnscope.scan`: bins that double over the whole text if they were measured, else the offsets nearby.

    Raises
    ------
    AttnscopeError
        If the result has neither.
    """
    shares = shares_by_offset(result, "bins")
    whole = shares is not None
    shares = shares if whole else shares_by_offset(result, "band")
    if shares is None:
        raise AttnscopeError(
            "offset_shares needs bin_sum, offset_sum or band_sum, and the length of each text: the result holds "
            f"{', '.join(sorted(map(str, result.data_vars))) or 'nothing'}."
        )
    shares = shares.seen()
    layers, heads, bins = shares.share.shape
    names = [_named(first, last) for first, last in zip(shares.first.tolist(), shares.last.tolist(), strict=True)]
    panels = [("Each head", shares.share.reshape(-1, bins))]
    if shares.equal is not None:
        panels.append(("Uniform attention, by layer", np.repeat(shares.equal, heads, 0)))
    most = largest(np.concatenate([values.ravel() for _, values in panels]))
    longest = max(map(len, names))
    width = style.printed(1.1 + len(panels) * float(np.clip(0.17 * bins, 2.2, 4.4)) + 0.9)
    height = 1.5 + _LETTER * longest + float(np.clip(0.14 * layers * heads, 0.8, 6.5))
    where = "doubling bins of offsets" if whole else "the offsets of the band"
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(grid, panels, strict=True):
        heat(axes, values, norm=PowerNorm(0.5, 0.0, most), aspect="auto")
        axes.set_xticks(range(bins), names, rotation=90)
        for layer in range(1, layers):
            axes.axhline(layer * heads - 0.5, color="0.55", linewidth=0.5)
        axes.set_title(title, loc="left")
    _name_rows(grid[0], selection.layer_labels(result), selection.axis_values(result, "head"))
    scale = grid[-1].images[0], grid[-1], "Share of weight (square-root scale)"
    colour_bar(figure, *scale, pad=0.03, aspect=35).ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.supxlabel(f"Offset in {unit_of(result)}, key − query: negative is left")
    count, noun = result.sizes.get("window", 1), selection.noun_of(result)
    text = f"Share of weight in {where}, mean over {count} {noun}{'s' * (count != 1)}. "
    text += "Distant bins contain more tokens: compare with uniform attention."
    text += " Grey: no such head." * bool(np.isnan(shares.share).any())
    figure.suptitle(in_lines(text, int(width / _LETTER) - 2), x=0.01, ha="left")
    return figure


def _named(first: int, last: int) -> str:
    """Offsets of a bin, the one nearest to 0 first."""
    near, far = (last, first) if last < 0 else (first, last)
    return (f"{near:,}" if near == far else f"{near:,}…{far:,}").replace("-", "−")


def _name_rows(axes: Axes, layers: list[str], heads: list[int]) -> None:
    """Name every head where there is room, else every layer, or some of them, in its middle."""
    if len(layers) * len(heads) <= _LINES:
        names = [f"{layer}.{head}" for layer in layers for head in heads]
        axes.set_yticks(range(len(names)), names)
        axes.set_ylabel("Layer.head")
        return
    every = -(-len(layers) // _LINES)
    axes.set_yticks([(layer + 0.5) * len(heads) - 0.5 for layer in range(0, len(layers), every)], layers[::every])
    axes.set_ylabel("Layer, with its heads from top to bottom")
