"""The shift between a head's queries and keys: the cross-spectrum, and the scores along offsets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes

from attnscope.explanation.analyses.verdict import ERROR
from attnscope.results.figures import panels
from attnscope.results.figures.style import MARK, Figure, figure_style

_CURVES, _REACH = 10, 60
_BEYOND = 4.0  # tokens drawn above and below the offset of a head
TITLE: dict[str, Any] = {"loc": "right", "color": MARK}


def frequencies_of(result: xr.Dataset) -> tuple[np.ndarray, int]:
    """Frequencies, and the number of tokens in which they are cycles."""
    frequency = result["frequency"].values
    return frequency, int(result.attrs.get("positions", 2 * frequency[-1]))


def significant(offset: xr.DataArray, chance: xr.DataArray) -> float:
    """The offset; NaN if random phases concentrate as much too often."""
    return float(offset) if float(chance) <= ERROR else float("nan")


def offset_title(offset: float) -> str:
    return f"offset {panels.tokens(offset)}" if np.isfinite(offset) else "no offset"


def _grey_out(axes: Axes, part: xr.Dataset, *, across: bool) -> None:
    """Shade the offsets that the mask forbids, along x or y, without changing the limits of the axes."""
    if "lowest_offset" not in part.coords:
        return
    ends = axes.get_xlim() if across else axes.get_ylim()
    span = axes.axvspan if across else axes.axhspan
    low, high = float(part["lowest_offset"]), float(part["highest_offset"])
    if low > ends[0]:
        span(ends[0], low - 0.5, color=panels.NOISE_BAND, linewidth=0, zorder=0)
    if high < ends[1]:
        span(high + 0.5, ends[1], color=panels.NOISE_BAND, linewidth=0, zorder=0)
        if across:
            axes.text(0.98, 0.96, "masked", transform=axes.transAxes, ha="right", va="top", fontsize=7, color="0.35")
    (axes.set_xlim if across else axes.set_ylim)(ends)


@figure_style()
def cross_correlations(correlations: xr.Dataset, heads: Sequence[tuple[int, int]], curves: int = _CURVES) -> Figure:
    """Draw each head's cross-correlations of queries and keys: the leading columns, and their weighted sum."""
    labels = ("Correlation", "Sum of scores" if "lowest_offset" not in correlations.coords else "Sum before mask")
    purpose, needs = "cross_correlations", ("correlation", "trace")
    figure, drawn = panels.head_panels(correlations, heads, needs, (1.5, 1.5), labels, purpose=purpose, width=2.4)
    offset = correlations["offset"].values
    reach = min(_REACH, int(offset.max()))
    near = np.abs(offset) <= reach
    curves_drawn = min(curves, correlations.sizes["column"])
    colours = [colormaps["viridis"](0.9 * column / max(curves_drawn - 1, 1)) for column in range(curves_drawn)]
    for part, (columns, total) in drawn:
        lines = part["correlation"].transpose("column", "offset").values[:, near]
        for column in reversed(range(curves_drawn)):
            columns.plot(offset[near], lines[column], color=colours[column], linewidth=0.9)
        columns.set(xlim=(-reach, reach), ylim=(-1.05, 1.05))
        columns.set_xticklabels([])
        columns.set_title(f"columns 0–{curves_drawn - 1}", loc="right", fontsize=7, color="0.35")
        total.plot(offset[near], part["trace"].values[near], color=panels.INK, linewidth=1.1)
        total.set(xlim=(-reach, reach))
        total.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
        total.yaxis.get_offset_text().set_fontsize(7)
        _mark_peak(total, part)
        for axes in (columns, total):
            panels.zero_line(axes)
            _grey_out(axes, part, across=True)
    figure.supxlabel(panels.OFFSET)
    return figure


def _mark_peak(axes: Axes, part: xr.Dataset) -> None:
    if "trace_peak_clear" not in part:
        return
    at = float(part["trace_peak_offset"].sel(range="near"))
    if not (np.isfinite(at) and bool(part["trace_peak_clear"])):
        return
    height = float(part["trace"].isel(offset=int(np.flatnonzero(part["offset"].values == at)[0])))
    axes.plot(at, height, "o", color=MARK, markersize=3)
    panels.name_point(axes, f"t = {panels.tokens(at, 0)}", (at, height), (6, 0), va="center", color=MARK)


@figure_style()
def cross_spectrum_offsets(spectra: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the offset that each frequency of a head's scores favours."""
    needs = ("offset", "cross_amplitude", "coherence", "band_offset", "band_offset_chance")
    purpose, labels = "cross_spectrum_offsets", ("Offset, tokens",)
    figure, drawn = panels.head_panels(spectra, heads, needs, (2.3,), labels, purpose=purpose, width=2.5)
    frequency, positions = frequencies_of(spectra)
    discs = None
    for part, (axes,) in drawn:
        middle = significant(part["band_offset"], part["band_offset_chance"])
        limit = max(abs(float(np.nan_to_num(middle))) + 1.5, _BEYOND)
        below = frequency > 0
        wrap = positions / (2 * frequency[below])
        for sign in (-1, 1):
            axes.plot(frequency[below], sign * wrap, color="0.6", linewidth=0.7, linestyle="--")
        axes.axhline(0, color="0.5", linewidth=0.6, linestyle=":")  # no shift
        if np.isfinite(middle):
            axes.axhline(middle, color=MARK, linewidth=0.9)
        if "in_band" in part:
            inside = np.flatnonzero(part["in_band"].values.astype(bool))
            first, last = float(frequency[inside[0]]), float(frequency[inside[-1]])
            axes.axvspan(-1, first - 0.5, color=panels.NOISE_BAND, linewidth=0)
            axes.axvspan(last + 0.5, float(frequency[-1]) + 1, color=panels.NOISE_BAND, linewidth=0)
        amplitude = np.nan_to_num(part["cross_amplitude"].values.astype(float))
        share = amplitude / max(amplitude[below].max(initial=0.0), 1e-300)
        discs = axes.scatter(
            frequency[below],
            part["offset"].values[below],
            s=70 * np.minimum(share[below], 1) + 3,
            c=np.nan_to_num(part["coherence"].values[below]),
            cmap="viridis_r",
            vmin=0,
            vmax=1,
            alpha=0.85,
            linewidths=0,
            zorder=3,
        )
        axes.set(xlim=(0, frequency[-1] + 0.5), ylim=(-limit, limit))
        axes.set_title(offset_title(middle), **TITLE)
        _grey_out(axes, part, across=False)
    figure.supxlabel(f"Frequency (cycles per {positions} tokens); shaded: not used")
    if discs is not None:
        panels.colour_bar(figure, discs, [*figure.axes], "Coherence", pad=0.01, aspect=18)
    return figure
