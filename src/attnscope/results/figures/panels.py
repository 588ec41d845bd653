"""Parts that figures share: maps of values, colour bars, intervals, panels for heads, curves with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from attnscope.report.schema import Effect
from attnscope.results.figures.selection import check_heads, require
from attnscope.results.figures.style import LEFT, RIGHT, Figure, figure_style, in_lines, printed

INK, NOISE, NOISE_BAND = "0.15", "0.45", "0.91"
MEASURED, ALONE = "#0072B2", "#D55E00"  # what the model does, what is left of it
QUERY, KEY = "#009E73", "#CC79A7"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
OFFSET = "Offset (key − query), tokens: negative is left"
MOST_COLUMNS = 4
_WIDE = 6.0  # inches

#: Blue below 0, orange above.
SIGNED = LinearSegmentedColormap.from_list("signed", [LEFT, "#F7F7F7", RIGHT])
_DARK = 0.55  # luminance of a cell below which it is written on in white


def largest(values: np.ndarray) -> float:
    """The largest known value, as the end of a colour scale; 1 if none is above 0."""
    return float(np.nanmax(values, initial=0.0)) or 1.0


def by_head(variable: xr.DataArray) -> np.ndarray:
    """Values ``(layer, head, ...)``, float64."""
    return variable.transpose("layer", "head", ...).values.astype(float)


def medians(values: np.ndarray) -> list[float]:
    """The median of each layer, of what is known of its heads; NaN without any."""
    return [float(np.median(row[np.isfinite(row)])) if np.isfinite(row).any() else np.nan for row in values]


def heat(
    axes: Axes,
    values: np.ndarray,
    colours: Colormap | str = "Blues",
    ends: tuple[float, float] = (0.0, 1.0),
    **more: Any,
) -> AxesImage:
    """A map of values between two ends; grey is what is not known."""
    options: dict[str, Any] = {"norm": Normalize(*ends), "interpolation": "nearest"} | more
    scale = colormaps[colours] if isinstance(colours, str) else colours
    image = axes.imshow(values, cmap=scale.with_extremes(bad="0.88"), **options)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def write_cells(image: AxesImage, texts: Callable[[float], str], values: np.ndarray | None = None) -> None:
    """Write what is known into the cells of a map, in white on dark ones; by default what colours them."""
    shades = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
    for (row, column), value in np.ndenumerate(shades if values is None else values):
        if not np.isfinite(value):
            continue
        shade = shades[row, column]
        red, green, blue, _ = image.cmap(image.norm(shade)) if np.isfinite(shade) else image.cmap.get_bad()
        luminance = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601
        colour = "white" if luminance < _DARK else "black"
        image.axes.text(column, row, texts(float(value)), ha="center", va="center", fontsize=7, color=colour)


def name_point(axes: Axes, text: str, at: tuple[Any, Any], shift: tuple[int, int], **look: Any) -> None:
    """Write a text next to a point, at a distance in points."""
    axes.annotate(text, at, shift, textcoords="offset points", fontsize=7, **look)


def colour_bar(figure: Figure, image: Any, axes: Any, label: str, **more: Any) -> Colorbar:
    """The colour scale of a map, next to its axes."""
    options: dict[str, Any] = more if "cax" in more else {"ax": axes, "pad": 0.02, "aspect": 20} | more
    bar = figure.colorbar(image, **options)
    bar.set_label(label, fontsize=7)
    bar.outline.set_visible(False)
    return bar


_INSIDE = 0.6  # of a hollow cell, of its side


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Values of all heads, layers by heads, and which are marked."""

    title: str
    values: np.ndarray
    marked: np.ndarray | None = None
    colours: str = ""  # by default blue below 0, and orange above
    ends: tuple[float, float] = (0.0, 1.0)
    label: str = ""  # of its scale
    hollow: np.ndarray | None = None  # which have their colour as a frame alone

    @classmethod
    def signed(cls, title: str, values: np.ndarray, marked: np.ndarray, reach: float, label: str) -> HeadMap:
        """Values below 0 in blue, above in orange; `marked` is 1 where significant, 0 where not, NaN untested."""
        return cls(title, values, marked == 1, ends=(-reach, reach), label=label, hollow=marked == 0)


@figure_style()
def head_maps(
    maps: Sequence[HeadMap], rows: Iterable[object], *, cell: float = 0.0, extend: str = "neither", mark: str = "0.1"
) -> Figure:
    """Maps side by side, with cells of `cell` inches, or as fit; one colour scale for all, or one for each."""
    high, wide = maps[0].values.shape
    cell = cell or float(np.clip(1.9 / max(high, wide), 0.06, 0.3))
    columns = min(len(maps), MOST_COLUMNS)
    down = math.ceil(len(maps) / columns)
    one_scale = len({(panel.ends, panel.label) for panel in maps}) == 1
    width = columns * max(1.5, wide * cell + (0.5 if one_scale else 1.5)) + 0.9
    cell *= min(1.0, printed(width) / width)
    figure, panels = panel_rows(len(maps), (width, down * max(0.9, high * cell + 0.65) + 0.4))
    one_row = len(maps) <= columns
    steps = max(1, high // (12 if one_row else 4)), max(1, wide // (8 if one_row else 4))  # between labelled ticks
    for number, (axes, panel) in enumerate(zip(panels, maps, strict=True)):
        image = heat(axes, panel.values, panel.colours or SIGNED, panel.ends, aspect="equal")
        dots = np.argwhere(np.zeros_like(panel.values) if panel.marked is None else panel.marked)
        axes.plot(dots[:, 1], dots[:, 0], ".", color=mark, markersize=float(np.clip(9 * cell, 1.5, 3)))
        for row, column in np.argwhere(False if panel.hollow is None else panel.hollow & np.isfinite(panel.values)):
            axes.add_patch(
                Rectangle((column - _INSIDE / 2, row - _INSIDE / 2), _INSIDE, _INSIDE, color="w", linewidth=0)
            )
        axes.set_title(panel.title, loc="left")
        axes.set_yticks(range(0, high, steps[0]), [str(row) for row in [*rows][:: steps[0]]])
        axes.set_xticks(range(0, wide, steps[1]))
        if number % columns == 0:
            axes.set_ylabel("Layer")
        if number >= len(maps) - columns:
            axes.set_xlabel("Head")
        if not one_scale or number == len(maps) - 1:
            colour_bar(figure, image, panels if one_scale else axes, panel.label, shrink=0.9, extend=extend)
    return figure


def panel_rows(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure of that size in inches with `count` panels, at most four in a row."""
    columns = min(count, MOST_COLUMNS)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(math.ceil(count / columns), columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, list(grid[:count])


@figure_style()
def interval_rows(names: Sequence[str], series: Mapping[str, tuple[str, str, Sequence[Effect]]], label: str) -> Figure:
    """Effects with their 95% intervals, a row for each name; by series a marker, a colour and an effect a row.

    Filled marks are significant effects, open ones are not.
    """
    figure = Figure(figsize=(5.6, 0.22 * len(names) + 0.9), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="0.6", linewidth=0.8)
    for step, (name, (marker, colour, effects)) in enumerate(series.items()):
        at = np.arange(len(names)) + (step - (len(series) - 1) / 2) * 0.22
        low, high = (np.array([getattr(effect, end) for effect in effects]) for end in ("low", "high"))
        tested = np.isfinite(low)
        axes.hlines(at[tested], low[tested], high[tested], color=colour, linewidth=1.1)
        faces = ["w" if effect.shown is False else colour for effect in effects]
        means = [effect.mean for effect in effects]
        axes.scatter(means, at, s=12, marker=marker, facecolors=faces, edgecolors=colour, linewidths=0.9, zorder=3)
        axes.plot([], [], marker, color=colour, markersize=3.2, label=name)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set(ylim=(len(names) - 0.4, -0.6), xlabel=label)
    axes.grid(axis="x")
    if len(series) > 1:
        figure.legend(loc="outside upper right", ncols=len(series))
    return figure


@figure_style()
def estimate_panels(panels: Sequence[tuple[str, str, np.ndarray, np.ndarray]], label: str) -> Figure:
    """Estimates against measurements; each panel has a title, a label, the measured values and the estimates."""
    figure = Figure(figsize=(2.3 * len(panels) + 0.4, 2.6), layout="constrained")
    for axes, (title, across, measured, estimated) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True
    ):
        axes.axline((0, 0), slope=1, color="0.75", linewidth=0.8)
        axes.plot(measured.ravel(), estimated.ravel(), "o", color=LEFT, markersize=2.8, alpha=0.75, mew=0)
        axes.set_title("\n".join(in_lines(line, 90 // len(panels)) for line in title.split("\n")), fontsize=7)
        axes.set_xlabel(in_lines(across, 90 // len(panels)))
    figure.axes[0].set_ylabel(label)
    return figure


def panel_grid(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of that size in inches, about as many down as across, three across at most."""
    columns = min(math.ceil(math.sqrt(count)), 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="compressed")
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(count)]


def head_panels(
    result: xr.Dataset,
    heads: Sequence[tuple[int, int]],
    needs: Sequence[str],
    heights: tuple[float, ...],
    labels: Sequence[str] = (),
    *,
    purpose: str,
    width: float = 2.3,
) -> tuple[Figure, list[tuple[xr.Dataset, list[Axes]]]]:
    """Each head's part of the result with its named column of panels, four heads in a row; heights in inches."""
    require(result, needs, purpose=purpose)
    pairs = check_heads(result, heads)
    columns = min(len(pairs), MOST_COLUMNS)
    blocks = math.ceil(len(pairs) / columns)
    figure = Figure(figsize=(width * columns, blocks * sum(heights) + 0.5), layout="constrained")
    grid = figure.add_gridspec(blocks * len(heights), columns, height_ratios=heights * blocks)
    panels: list[tuple[xr.Dataset, list[Axes]]] = []
    for index, (layer, head) in enumerate(pairs):
        first, column = index // columns * len(heights), index % columns
        column_axes = [figure.add_subplot(grid[first + row, column]) for row in range(len(heights))]
        column_axes[0].set_title(f"Head {layer}.{head}", loc="left")
        for axes, label in zip(column_axes, labels if column == 0 else (), strict=False):
            axes.set_ylabel(label)
        panels.append((result.sel(layer=layer, head=head), column_axes))
    return figure, panels


def names(result: xr.Dataset, dim: str) -> list[str]:
    return [str(name) for name in result[dim].values]


def curve(
    axes: Axes, x: np.ndarray, values: tuple[np.ndarray, np.ndarray, np.ndarray] | np.ndarray, colour: str, **line: Any
) -> None:
    """A line, and the band between its ends where values are (mean, low, high)."""
    if isinstance(values, tuple):
        mean, low, high = values
        axes.fill_between(x, low, high, color=colour, alpha=0.28, linewidth=0)
    else:
        mean = values
    style: dict[str, Any] = {"linewidth": 1.3} | line
    axes.plot(x, mean, color=colour, **style)


def with_interval(result: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A variable with the ends of its interval; the value itself where it has none."""
    ends = [result[name + end] if name + end in result else result[name] for end in ("", "_low", "_high")]
    mean, low, high = (np.asarray(end.values, dtype=float) for end in ends)
    return mean, low, high


def legend_above(figure: Figure, columns: int) -> None:
    """One legend of all axes above the figure, in up to `columns` columns."""
    legends = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    labels = {label: handle for every in legends for handle, label in every}
    columns = columns if figure.get_figwidth() >= _WIDE else min(columns, 2)
    figure.legend(labels.values(), labels, loc="outside upper center", ncols=columns)


def up_to_the_mask(part: xr.Dataset, name: str) -> xr.Dataset:
    """The profile of a head up to offset 0 if it has no weight beyond, as under a causal mask; else all of it."""
    after = part["offset"].values > 0
    if bool((part[name].isel(offset=after) > 0).any()):
        return part
    return part.isel(offset=~after)


def zero_line(axes: Axes, offset: float = 0) -> None:
    """Mark an offset, by default 0, the token itself."""
    axes.axvline(offset, color="0.5", linewidth=0.6, linestyle=":")


def tokens(value: float, digits: int = 2) -> str:
    """A signed number of tokens, as it is written in figures."""
    if not math.isfinite(value):
        return "?"
    text = f"{value:+.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:+.0f}"
    return "0" if text in {"+0", "-0"} else text.replace("-", "−")


BEFORE = "0.55"
_VARIANTS = {
    "model": "The model",
    "without_bias": "Bias at its mean",
    "none": "No pair turns",
    "fast": "Fast pairs turn (period below 16)",
    "middle": "Middle pairs (16 to 128)",
    "slow": "Slow pairs (128 and more)",
    "plain": "Plain text",
    "spaced": "Unknown tokens between",
    "relearned": "The same, relearned positions",
}


@figure_style()
def interventions(changes: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile before and after each change of words and positions."""
    require(changes, ("profile_before", "profile_after", "mass_change", "target"), purpose="interventions")
    pairs = check_heads(changes, heads)
    rows = names(changes, "change")
    size = (1.75 * len(pairs) + 1.6, 0.8 * len(rows) + 0.9)
    figure = Figure(figsize=(max(size[0], 4.0), size[1]), layout="constrained")
    grid = figure.subplots(len(rows), len(pairs), sharex="col", sharey="col", squeeze=False)
    for column, (layer, head) in enumerate(pairs):
        part = up_to_the_mask(changes.sel(layer=layer, head=head), "profile_before")
        offset = part["offset"].values
        for row, name in enumerate(rows):
            axes = grid[row, column]
            _draw_change(axes, part, row, offset)
            if column == 0:
                title = name.replace("-", "\n", 1).replace("-", " ")
                axes.set_ylabel(title, rotation=0, ha="right", va="center", labelpad=6, fontsize=7)
        grid[0, column].set_title(f"Head {layer}.{head}", loc="left")
        grid[0, column].set_ylim(0, 1.45 * grid[0, column].get_ylim()[1])
        grid[0, column].set_xlim(offset[0], offset[-1])
    figure.supxlabel(OFFSET)
    legend_above(figure, 3)
    return figure


def _draw_change(axes: Axes, part: xr.Dataset, row: int, offset: np.ndarray) -> None:
    after = part.isel(change=row)
    if np.isfinite(part["target"]):
        zero_line(axes, float(part["target"]))
    curve(axes, offset, with_interval(part, "profile_before"), BEFORE, label="Before", linewidth=1.0)
    curve(axes, offset, with_interval(after, "profile_after"), MEASURED, label="After")
    if "profile_by_id" in after and np.isfinite(after["profile_by_id"].values).any():
        by_id = after["profile_by_id"].values
        curve(axes, offset, by_id, ALONE, label="After, by position id", linewidth=1.0, linestyle="--")
    value, low, high = (float(part) for part in with_interval(after, "mass_change"))
    if np.isfinite(value):
        text = f"{value:+.2f}" + (f" [{low:+.2f}, {high:+.2f}]" if "mass_change_low" in after else "")
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0}
        look: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": 7, "color": INK, "bbox": box}
        axes.text(0.98, 0.95, text.replace("-", "−"), transform=axes.transAxes, **look)
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="y", nbins=3)


def scheme_effect(profiles: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile as it is and with its position scheme changed: rotation (RoPE) or bias (T5, ALiBi)."""

    def draw(axes: Axes, offset: np.ndarray, part: xr.Dataset) -> None:
        for row, name in enumerate(names(part, "variant")):
            colour = INK if row == 0 else OTHERS[(row - 1) % len(OTHERS)]
            style = {"marker": "o", "markersize": 2.2} if row == 0 else {"linewidth": 1.1}
            values = with_interval(part.isel(variant=row), "profile")
            curve(axes, offset, values, colour, label=_VARIANTS.get(name, name), **style)

    return profiles_of_heads(profiles, heads, ("profile", "variant"), draw, "scheme_effect")


@figure_style()
def profiles_of_heads(
    result: xr.Dataset,
    heads: Sequence[tuple[int, int]],
    needs: Sequence[str],
    draw: Callable[[Axes, np.ndarray, xr.Dataset], None],
    purpose: str,
) -> Figure:
    """A panel for each head, in which `draw` puts its curves over the offsets where the first needed profile is."""
    figure, panels = head_panels(result, heads, needs, (2.0,), ("Mean weight",), purpose=purpose)
    for whole, (axes,) in panels:
        part = up_to_the_mask(whole, needs[0])
        offset = part["offset"].values
        zero_line(axes)
        draw(axes, offset, part)
        axes.set(xlim=(offset[0], offset[-1]), ylim=(0, None))
    figure.supxlabel(OFFSET)
    legend_above(figure, 3)
    return figure
