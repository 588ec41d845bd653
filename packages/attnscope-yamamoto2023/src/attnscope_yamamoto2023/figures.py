"""Figures of the position table, its trace in the layers, waves in queries and keys, and their removal."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from attnscope.results.figures import panels
from attnscope.results.figures.selection import axis_values, layer_labels, require
from attnscope.results.figures.shifts import TITLE, frequencies_of, offset_title, significant
from attnscope.results.figures.style import MARK, Figure, figure_style, name_heads
from attnscope.support.errors import AttnscopeError

Models = Mapping[str, xr.Dataset]

_KINDS = {"positions": "Position table", "words": "Words of a text (control)"}
_CORRELATIONS = {"": "99.9% of the variance", "raw_": "All components"}
_SIDE_BY_SIDE = 3  # models
_NUMBER_WIDTH = 0.08  # of the axis
_MOST_PEAKS = 5  # named in a panel
_MOST_COLUMNS = 20  # of a head
_CURVE = 128  # tokens
_MOST_COMPONENTS = 48  # of several models, so that the first ones can be told apart
_SHOWN = 0.99  # the components are drawn until so much of the variance is there


@figure_style()
def position_spectrum(spectra: xr.Dataset | Models) -> Figure:
    """Draw the amplitudes of the waves in a position table, next to those of words, which have no peak.

    Parameters
    ----------
    spectra
        The node ``position_spectrum`` of the result of `attnscope.explain`, or such nodes of several models by name.

    Raises
    ------
    AttnscopeError
        If there is no model, or a node lacks a variable.
    """
    models = _by_model(spectra, ("mean", "lower_quartile", "upper_quartile", "null_mean"), "position_spectrum")
    rows = [[(name, kind, part) for kind, part in _kinds(table)] for name, table in models.items()]
    if max(map(len, rows)) == 1:
        flat = [panel for row in rows for panel in row]
        rows = [flat[first : first + _SIDE_BY_SIDE] for first in range(0, len(flat), _SIDE_BY_SIDE)]
    columns = max(map(len, rows))
    same = len({_positions(table) for table in models.values()}) == 1
    figure = Figure(figsize=(3.5 * columns, 2.2 * len(rows) + 0.3), layout="constrained")
    for row, drawn in enumerate(rows):
        first: Axes | None = None
        for column, (name, kind, part) in enumerate(drawn):
            shared = first if first is not None and drawn[0][0] == name else None
            axes = figure.add_subplot(len(rows), columns, row * columns + column + 1, sharey=shared)
            first = first or axes
            _draw_spectrum(axes, part, name_peaks=kind == "positions", per_token=not same)
            title = _KINDS.get(kind, kind)
            axes.set_title(f"{name}: {title}" if name else title, loc="left", parse_math=False)
            if shared is None:
                axes.set_ylim(0, axes.get_ylim()[1] * 1.12)  # room for the names of peaks
            if column == 0:
                axes.set_ylabel("Amplitude")
    panels.legend_above(figure, 3)
    return figure


def _by_model(tables: xr.Dataset | Models, needs: tuple[str, ...], purpose: str) -> dict[str, xr.Dataset]:
    models: dict[str, xr.Dataset] = {"": tables} if isinstance(tables, xr.Dataset) else dict(tables)
    if not models:
        raise AttnscopeError(f"{purpose} found no model; expected at least one")
    for table in models.values():
        require(table, needs, purpose=purpose)
    return models


def _kinds(spectra: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    if "table" not in spectra.dims:
        return [("positions", spectra)]
    return [(kind, spectra.isel(table=row)) for row, kind in enumerate(panels.names(spectra, "table"))]


def _positions(spectra: xr.Dataset) -> int:
    return int(spectra.attrs.get("positions", 2 * int(spectra["frequency"][-1])))


def _draw_spectrum(axes: Axes, part: xr.Dataset, *, name_peaks: bool, per_token: bool) -> None:
    positions = _positions(part)
    cycles = part["frequency"].values[1:]
    frequency = cycles / positions if per_token else cycles
    mean, low, high = (part[name].values[1:] for name in ("mean", "lower_quartile", "upper_quartile"))
    ends = (float(part[f"null_{name}_quartile"]) for name in ("lower", "upper"))
    axes.axhspan(*ends, color=panels.NOISE_BAND, linewidth=0, label="Noise: middle half")
    axes.axhline(float(part["null_mean"]), color=panels.NOISE, linewidth=0.8, linestyle="--", label="Noise: mean")
    axes.fill_between(
        frequency, low, high, color=panels.MEASURED, alpha=0.28, linewidth=0, label="Columns: middle half"
    )
    axes.plot(frequency, mean, color=panels.MEASURED, linewidth=1.1, label="Columns: mean")
    if "root_power" in part:
        power = part["root_power"].values[1:]
        axes.plot(frequency, power, color=panels.INK, linewidth=0.7, linestyle=(0, (2, 1)), label="Root of total power")
    if name_peaks and "is_peak" in part:
        above = part["is_peak"].values[1:].astype(bool) & (mean > float(part["null_upper_quartile"]))
        peaks = _highest_peaks(above, mean)
        for peak in peaks:
            name, at = f"{positions / cycles[peak]:.3g}", (frequency[peak], high[peak])
            panels.name_point(axes, name, at, (0, 2), ha=_side(peak, peaks, len(mean)), va="bottom", color=MARK)
            axes.plot(frequency[peak], mean[peak], "o", color=MARK, markersize=2.4)
        axes.plot([], [], "o", color=MARK, markersize=2.4, label="Peak: period in tokens")
    unit = "token" if per_token else f"{positions} tokens"
    axes.set(xlim=(0, frequency[-1]), xlabel=f"Frequency (cycles per {unit})")


def _highest_peaks(is_peak: np.ndarray, mean: np.ndarray) -> list[int]:
    """The highest few of the highest peak of each run of peaks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_peak.astype(int), [0]])))
    tops = [int(first + mean[first:end].argmax()) for first, end in edges.reshape(-1, 2)]
    return sorted(tops, key=lambda top: -mean[top])[:_MOST_PEAKS]


def _side(peak: int, peaks: list[int], count: int) -> str:
    """Alignment of a peak's number that avoids overlap with its neighbours."""
    near = [other for other in peaks if 0 < abs(other - peak) < count * _NUMBER_WIDTH]
    if not near:
        return "center"
    return "right" if peak < min(near) else "left" if peak > max(near) else "center"


@figure_style()
def position_components(components: xr.Dataset | Models) -> Figure:
    """Draw the variance of a position table that its first principal components explain."""
    models = _by_model(components, ("cumulative_share",), "position_components")
    figure = Figure(figsize=(3.6, 2.6), layout="constrained")
    axes = figure.add_subplot()
    last = 16
    for index, (name, table) in enumerate(models.items()):
        share = table["cumulative_share"].values
        axes.plot(
            np.concatenate([[0], np.arange(1, len(share) + 1)]),
            np.concatenate([[0.0], share]),
            color=panels.MEASURED if len(models) == 1 else colormaps["viridis"](index / len(models)),
            linewidth=1.3,
            label=name or None,
        )
        last = max(last, int((share < _SHOWN).sum()) + 1)
        for count in (4, 12):
            if count > len(share):
                continue
            value = float(share[count - 1])
            axes.plot(count, value, "o", color=MARK, markersize=3.5)
            if len(models) == 1:
                axes.plot([count, count, 0], [0, value, value], color="0.6", linewidth=0.6, linestyle=":")
                panels.name_point(axes, f"{count} components: {value:.1%}", (count, value), (6, -4), va="top")
    axes.set(
        xlim=(0, last if len(models) == 1 else min(last, _MOST_COMPONENTS)),
        ylim=(0, 1.02),
        xlabel="Principal components",
    )
    axes.set_ylabel("Cumulative share of variance")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(models) > 1:
        axes.legend(loc="lower right")
    return figure


def tables_of_models(tables: xr.Dataset) -> Figure:
    """Draw the waves in the position tables of several models."""
    spectra: dict[str, xr.Dataset] = {}
    for name in panels.names(tables, "model"):
        part = tables.sel(model=name).dropna("frequency", subset=["mean"])
        spectra[name] = part.assign_attrs(positions=int(part.positions))
    return position_spectrum(spectra)


def components_of_models(tables: xr.Dataset) -> Figure:
    """Draw the dimensions of each model's position table."""
    shares = tables[["cumulative_share"]]
    names = panels.names(tables, "model")
    return position_components({name: shares.sel(model=name).dropna("component") for name in names})


@figure_style()
def position_correlations(correlations: xr.Dataset) -> Figure:
    """Draw the canonical correlations of each layer's input with the position table."""
    require(correlations, ("correlation", "null_correlation", "strong_components"), purpose="position_correlations")
    layers = axis_values(correlations, "layer")
    strong = float(correlations.attrs.get("strong", 0.5))
    kinds = [prefix for prefix in _CORRELATIONS if f"{prefix}correlation" in correlations]
    colours = [colormaps["viridis"](0.92 * row / max(len(layers) - 1, 1)) for row in range(len(layers))]
    figure = Figure(figsize=(3.0 + 2.7 * len(kinds), 2.6), layout="constrained")
    ratios = [2.0] * len(kinds) + [max(1.3, min(2.0, len(layers) / 9))]
    axes = figure.subplots(1, len(kinds) + 1, width_ratios=ratios)
    width = 0.8 / len(kinds)
    for index, prefix in enumerate(kinds):
        axes[index].axhline(strong, color=MARK, linewidth=0.8, linestyle=":")
        _draw_correlations(axes[index], correlations, prefix, colours)
        at = np.arange(len(layers)) + width * (index - (len(kinds) - 1) / 2)
        hatch = "////" if prefix else None
        count = correlations[f"{prefix}strong_components"].values
        axes[-1].bar(at, count, width, color=colours, hatch=hatch, edgecolor="white", linewidth=0)
    axes[0].set_ylabel("Correlation")
    panels.legend_above(figure, 6)
    axes[-1].set_xticks(range(len(layers)), [str(layer) for layer in layers])
    axes[-1].set(xlabel="Layer", ylabel="Components")
    axes[-1].yaxis.set_major_locator(MaxNLocator(integer=True))
    hatched = " (hatched: all)" if len(kinds) > 1 else ""
    axes[-1].set_title(f"Above {strong:g}{hatched}", loc="left")
    axes[-1].tick_params(axis="x", length=0)
    return figure


def _draw_correlations(
    axes: Axes, correlations: xr.Dataset, prefix: str, colours: list[tuple[float, float, float, float]]
) -> None:
    """One curve for each layer, and the noise level."""
    layers = axis_values(correlations, "layer")
    values = correlations[f"{prefix}correlation"].transpose("layer", "component").values
    null = correlations[f"{prefix}null_correlation"].values
    most = int(correlations[f"{prefix}strong_components"].max())
    number = np.arange(1, values.shape[1] + 1)
    step = math.ceil(len(layers) / 6)
    for row, layer in enumerate(layers):
        label = f"Layer {layer}" if (row % step == 0 or row == len(layers) - 1) else None
        axes.plot(number, values[row], color=colours[row], linewidth=1.2, label=label)
    axes.axhspan(float(np.nanmin(null)), float(np.nanmax(null)), color=panels.NOISE_BAND, linewidth=0)
    axes.axhline(float(np.nanmean(null)), color=panels.NOISE, linewidth=0.8, linestyle="--", label="Largest in noise")
    drawn = int(np.clip(2 * most, 10, max(10, np.isfinite(values).any(0).sum())))
    axes.set(xlim=(1, max(drawn, 2)), ylim=(0, 1.03), xlabel="Canonical component")
    axes.set_title(_CORRELATIONS[prefix], loc="left")


_SIDES = {"X": "Input X", "query": "Queries of all heads", "key": "Keys of all heads"}
_GREY = "0.72"


@figure_style()
def wave_columns(waves: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the peak frequencies of the leading columns of each head's queries and keys, and their shares."""
    needs = ("query_frequency", "key_frequency", "periodic", "partner", "importance")
    positions = waves.attrs.get("positions")
    columns = min(_MOST_COLUMNS, waves.sizes.get("column", 1))
    sizes, labels = (0.6 + 0.13 * columns,), ("Singular column",)
    figure, drawn = panels.head_panels(waves, heads, needs, sizes, labels, purpose="wave_columns", width=2.6)
    for part, (axes,) in drawn:
        _draw_columns(axes, part, columns)
        total, periodic = part.sizes["column"], int(np.nansum(part["periodic"].values.astype(float)))
        axes.set_title(f"{axes.get_title('left')}: {periodic} of {total}", loc="left")
    cycles = f" (cycles per {positions} tokens)" if positions else ""
    figure.supxlabel(f"Strongest frequency{cycles}; bars: share of the scores")
    panels.legend_above(figure, 4)
    return figure


def _draw_columns(axes: Axes, part: xr.Dataset, columns: int) -> None:
    query, key = part["query_frequency"].values[:columns], part["key_frequency"].values[:columns]
    periodic = part["periodic"].values[:columns].astype(bool)
    partner = part["partner"].values[:columns]
    importance = np.nan_to_num(part["importance"].values.astype(float))
    rows = np.arange(columns)
    reach = max(float(np.nanmax(query)), float(np.nanmax(key)), 4.0)
    bars = importance[:columns] / max(importance.sum(), 1e-300)
    lengths = 0.28 * reach * bars / max(bars.max(), 1e-300)
    colours = [panels.QUERY if wave else _GREY for wave in periodic]
    axes.barh(rows, lengths, left=1.1 * reach, height=0.7, color=colours, linewidth=0)
    longest = int(bars.argmax())
    axes.text(1.39 * reach, longest, f"{bars[longest]:.0%}", fontsize=7, va="center", color="0.35")
    for row, other in enumerate(partner):
        if row < other < columns:
            arc = {"arrowstyle": "-", "connectionstyle": "arc3,rad=-0.35", "color": panels.QUERY, "linewidth": 0.9}
            ends = (query[row], row), (query[other], other)
            axes.annotate("", *ends, arrowprops=arc | {"shrinkA": 2, "shrinkB": 2})
    axes.hlines(rows, query, key, color="0.85", linewidth=0.7, zorder=1)
    for label, wave, colour in (("waves", True, panels.QUERY), ("no waves", False, _GREY)):
        chosen = periodic == wave
        axes.scatter(query[chosen], rows[chosen], s=11, color=colour, zorder=3, linewidths=0, label=f"Query: {label}")
        ring: dict[str, Any] = {"s": 30, "facecolors": "none", "linewidths": 0.9, "zorder": 2}
        edge = panels.KEY if wave else _GREY
        axes.scatter(key[chosen], rows[chosen], edgecolors=edge, label=f"Key: {label}", **ring)
    axes.set(xlim=(-0.02 * reach, 1.52 * reach), ylim=(columns - 0.4, -0.6))
    axes.axvline(1.1 * reach, color="0.6", linewidth=0.5)
    axes.set_xticks([tick for tick in MaxNLocator(4, integer=True).tick_values(0, reach) if 0 <= tick <= reach])
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))


@figure_style()
def wave_counts(waves: xr.Dataset) -> Figure:
    """Draw the number of waves among the columns of each head's queries and keys, and with tokens shuffled."""
    require(waves, ("periodic_columns", "null_periodic_columns"), purpose="wave_counts")
    counts = panels.by_head(waves["periodic_columns"])
    null = panels.by_head(waves["null_periodic_columns"])  # over ``permutation`` too
    shuffled = null.max(-1) if null.shape[-1] else np.full(counts.shape, np.nan)
    layers, heads = counts.shape
    cell = float(np.clip(3.2 / max(layers, heads), 0.22, 0.5))
    top = max(1.0, float(np.nanmax([counts, shuffled], initial=0.0)))
    size = (2 * heads * cell + 2.2, layers * cell + 0.9)
    # of square cells the other layout learns the height too late, and cuts the titles off
    figure = Figure(figsize=(max(size[0], 4.6), size[1]), layout="compressed")
    titles = ("Columns that are waves", "With tokens shuffled")
    for index, (values, title) in enumerate(zip((counts, shuffled), titles, strict=True)):
        axes = figure.add_subplot(1, 2, index + 1)
        image = panels.heat(axes, values, "Greens", (0.0, top))
        panels.write_cells(image, "{:.0f}".format)
        name_heads(axes, layer_labels(waves), axis_values(waves, "head"))
        axes.set_title(title, loc="left")
    bar = panels.colour_bar(figure, figure.axes[0].images[0], figure.axes[:2], "Columns", shrink=0.9, aspect=18)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


@figure_style()
def spectra_by_layer(spectra: xr.Dataset) -> Figure:
    """Draw the largest amplitude at each frequency in each layer: in X, in the queries and in the keys."""
    require(spectra, ("maximum", "null_mean", "side"), purpose="spectra_by_layer")
    sides = panels.names(spectra, "side")
    layers = axis_values(spectra, "layer")
    frequency = spectra["frequency"].values[1:]
    values = (spectra["maximum"] / spectra["null_mean"]).transpose("side", "layer", "frequency").values[..., 1:]
    reach = float(np.nanmax(np.abs(np.log2(np.maximum(values, 2.0**-3))), initial=0.5))
    height = float(np.clip(0.2 * len(layers), 0.7, 3.0)) + 0.9
    figure = Figure(figsize=(2.6 * len(sides) + 0.7, height), layout="constrained")
    for index, side in enumerate(sides):
        axes = figure.add_subplot(1, len(sides), index + 1)
        size = np.log2(np.maximum(values[index], 2.0**-reach))
        extent = (frequency[0] - 0.5, frequency[-1] + 0.5, len(layers) - 0.5, -0.5)
        panels.heat(axes, size, "RdBu_r", (-reach, reach), aspect="auto", extent=extent)
        axes.tick_params(axis="x", length=2)
        axes.set_title(_SIDES.get(side, side), loc="left")
        rows = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), 12)).round().astype(int))
        axes.set_yticks(rows, [str(layers[row]) for row in rows] if index == 0 else [])
        axes.tick_params(axis="y", length=0)
    figure.axes[0].set_ylabel("Layer")
    figure.supxlabel(f"Frequency ({spectra['frequency'].attrs.get('units', 'cycles')})")
    image, label = figure.axes[0].images[0], "Amplitude relative to noise"
    bar = panels.colour_bar(figure, image, figure.axes[: len(sides)], label, pad=0.01, aspect=16)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    bar.ax.yaxis.set_major_formatter(lambda power, _: f"{2.0**power:.3g}×")
    return figure


@figure_style()
def wave_curves(waves: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the most important columns of each head's queries and keys along a text: waves if it encodes positions."""
    needs = ("query_curve", "key_curve", "curve_column", "periodic", "query_frequency")
    heights = (0.62,) * waves.sizes.get("curve", 1)
    figure, drawn = panels.head_panels(waves, heads, needs, heights, purpose="wave_curves", width=2.5)
    tokens = min(_CURVE, waves.sizes["position"])
    for part, rows in drawn:
        for row, axes in enumerate(rows):
            _draw_curve(axes, part.isel(curve=row), tokens)
            if row < len(rows) - 1:
                axes.set_xticklabels([])
        rows[0].set_title(rows[0].get_title("left"), loc="left")  # at its distance, not that of the column's
    cycles = f";\ncycles per {waves.sizes['position']} tokens, green: a wave"
    figure.supxlabel(f"Position in the text, the first {tokens} tokens{cycles}")
    panels.legend_above(figure, 2)
    return figure


def _draw_curve(axes: Axes, part: xr.Dataset, tokens: int) -> None:
    axes.axhline(0, color="0.85", linewidth=0.5)
    axes.plot(part["query_curve"].values[:tokens], color=panels.QUERY, linewidth=0.9, label="Query")
    axes.plot(part["key_curve"].values[:tokens], color=panels.KEY, linewidth=0.9, label="Key")
    axes.set(xlim=(0, tokens - 1), ylim=(-3.2, 3.2), yticks=[])
    if np.isfinite(float(part["curve_column"])):
        column = int(part["curve_column"])
        cycles, wave = int(part["query_frequency"].values[column]), bool(part["periodic"].values[column])
        title = f"column {column}: {cycles} cycles"
        axes.set_title(title, loc="right", fontsize=7, pad=1, color=panels.QUERY if wave else "0.45")


_LINES = (-2.0, -1.0, 0.0, 1.0, 2.0)  # offsets whose line is drawn in a map


@figure_style()
def phase_maps(maps: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the energy of the eigenvectors of each head's rotation R over frequency and angle."""
    needs, labels = ("energy", "angle"), ("Angle of the eigenvalue",)
    figure, drawn = panels.head_panels(maps, heads, needs, (2.5,), labels, purpose="phase_maps", width=2.6)
    frequency, positions = frequencies_of(maps)
    for part, (axes,) in drawn:
        energy = part["energy"].transpose("angle", "frequency").values[:, 1:]
        extent = (0.5, frequency[-1] + 0.5, -np.pi, np.pi)
        norm = PowerNorm(0.5, 0, panels.largest(energy))
        panels.heat(axes, energy, "Greys", norm=norm, origin="lower", aspect="auto", extent=extent)
        _draw_lines(axes, positions, float(frequency[-1]))
        if "line_shift" in part:
            axes.set_title(offset_title(significant(-part["line_shift"], part["line_chance"])), **TITLE)
        ticks = np.pi * np.array([-1, -0.5, 0, 0.5, 1])
        axes.set_yticks(ticks, ["−π", "−π/2", "0", "π/2", "π"] if axes.get_ylabel() else [])
        axes.set(xlim=(0, frequency[-1] + 0.5), ylim=(-np.pi, np.pi))
    figure.supxlabel(f"Frequency (cycles per {positions} tokens); lines: offset in tokens (Δ = −offset)")
    return figure


def _draw_lines(axes: Axes, positions: int, last: float) -> None:
    """Draw the angle of a shift of the keys by each offset t: -2 pi f t / T, wrapped."""
    frequency = np.linspace(0, last, 600)
    for offset in _LINES:
        wrapped = ((-2 * np.pi * frequency * offset / positions) + np.pi) % (2 * np.pi) - np.pi
        wrapped[np.flatnonzero(np.abs(np.diff(wrapped)) > np.pi)] = np.nan
        axes.plot(frequency, wrapped, color="#1F77B4", linewidth=0.8, linestyle="-", alpha=0.75)
        at = 0.62 * last if abs(offset) < 2 else 0.40 * last  # noqa: PLR2004 the outer lines leave early
        angle = (-2 * np.pi * at * offset / positions + np.pi) % (2 * np.pi) - np.pi
        box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "linewidth": 0, "alpha": 0.8}
        look: dict[str, Any] = {"fontsize": 7, "color": "#10507C", "ha": "center", "va": "center", "bbox": box}
        axes.text(at, angle, panels.tokens(offset), **look)


_HEAD, _COMPLETED, _CHOSEN = "The head", 1, panels.OTHERS[1]
_ROWS = (_HEAD, "By the rotation R", "Keys of another head", "Positions shuffled", "Random weights")


@figure_style()
def shift_controls(controls: xr.Dataset) -> Figure:
    """Draw the remainder of each head's shift under controls that should remove it."""
    needs = ("control", "coherence_at_offset", "band_offset")
    require(controls, needs, purpose="shift_controls")
    every = [*product(axis_values(controls, "layer"), axis_values(controls, "head"))]
    offsets = [controls.sel(layer=layer, head=head)["band_offset"].values for layer, head in every]
    pairs = [head for head, values in zip(every, offsets, strict=True) if np.isfinite(values).any()]
    if not pairs:
        raise AttnscopeError("shift_controls needs at least one head with values, but found none.")
    rows = np.array([_ROWS.index(_row(name)) for name in panels.names(controls, "control")])
    figure, columns = panels.head_panels(controls, pairs, needs, (1.05, 1.25), purpose="shift_controls", width=4.4)
    for index, (part, axes) in enumerate(columns):
        _draw(axes[0], axes[1], part, rows)
        for panel in axes:
            panel.set(ylim=(len(_ROWS) - 0.5, -0.5))
            panel.set_yticks(range(len(_ROWS)), _ROWS if index % panels.MOST_COLUMNS == 0 else [])
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="y")
    panels.legend_above(figure, 3)
    return figure


def _row(control: str) -> str:
    return {"head": _HEAD, "other key": "Keys of another head"}.get(control) or (
        "Positions shuffled" if control.startswith("permuted") else "Random weights"
    )


def _draw(coherence: Axes, offset: Axes, part: xr.Dataset, rows: np.ndarray) -> None:
    """Coherence at the head's offset, and the offset found, one row for each control."""
    at = float(part["band_offset"].values[rows == 0][0])
    _discs(coherence, part["coherence_at_offset"].values, rows)
    panels.zero_line(coherence)
    coherence.set(xlim=(-0.45, 1.05), xlabel=f"Coherence at offset {panels.tokens(at)}")
    _discs(offset, part["band_offset"].values, rows)
    if "completed_shift" in part:
        _discs(offset, -part["completed_shift"].values, np.full(part.sizes["completion"], _COMPLETED))
    offset.axvline(at, color=MARK, linewidth=0.9, zorder=1)
    offset.set_xscale("symlog", linthresh=4, linscale=1.2)
    offset.set(xlim=(-300, 300), xlabel="Offset found, tokens")
    offset.set_xticks([-64, -4, 0, 4, 64], ["−64", "−4", "0", "+4", "+64"])
    offset.minorticks_off()


def _discs(axes: Axes, values: np.ndarray, rows: np.ndarray) -> None:
    for chosen, colour, label in (
        (rows == 0, panels.MEASURED, "The head"),
        (rows > _COMPLETED, panels.ALONE, "Must lose the shift"),
        (rows == _COMPLETED, _CHOSEN, "Depends on the completion of R"),
    ):
        style: dict[str, Any] = {"alpha": 0.6, "markersize": 4.5, "markeredgewidth": 0, "label": label}
        axes.plot(values[chosen], rows[chosen], "o", color=colour, **style)


def wave_removal(removed: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw each head's profile before waves are taken out of the position table, as expected after it, and after it."""
    needs = ("profile_before", "profile_expected", "profile_after")

    def draw(axes: Axes, offset: np.ndarray, part: xr.Dataset) -> None:
        for moment, colour, label, style in (
            ("before", panels.BEFORE, "Before", {"linewidth": 1.0}),
            ("after", panels.MEASURED, "After", {}),
        ):
            panels.curve(axes, offset, panels.with_interval(part, f"profile_{moment}"), colour, label=label, **style)
        expected = part["profile_expected"].values
        panels.curve(axes, offset, expected, panels.ALONE, label="Expected after", linewidth=1.2, linestyle="--")

    return panels.profiles_of_heads(removed, heads, needs, draw, "wave_removal")
