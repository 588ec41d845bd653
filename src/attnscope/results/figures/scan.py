"""Figures of a scan."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import Normalize

from attnscope.comparison.groups import MeanGroupWeights, group_pairs
from attnscope.measure.offset_shares import shares_by_offset
from attnscope.measure.quantities import Wording
from attnscope.measure.ranking import of_several, patch_shares
from attnscope.measure.stored import unit_of
from attnscope.report.reads import reads
from attnscope.report.schema import Report, shown_label
from attnscope.results.figures import panels, selection, style
from attnscope.results.figures.attention import attention
from attnscope.results.figures.maps import block_shares, label_pies, offset_shares, patch_profiles, weight_maps
from attnscope.results.figures.style import Figure, in_lines
from attnscope.results.scan_report import sample_of

_OVERVIEWS = (
    "entropy",
    "outside",
    "first_token",
    "special_tokens",
    "mean_offset",
    "max_weight",
    "patch_distance",
    "class_token",
)
_FULL = {"tokens": 1.0, "nats": 0.1}  # end of a colour scale, at least
_HEADS = 4  # shown in maps and profiles: those that put most weight on one offset
_TOKENS = 15  # of a map
_OF_GROUPS = 3  # heads in the figure of groups: those furthest above both controls


def figures(report: Report) -> dict[str, Figure]:
    """Every figure that the result has values for, by name; the page draws its own."""
    return dict(scan_figures(report.result, sample_of(report.result)))


def grid(report: Report) -> Figure | None:
    result = report.result
    name = next((name for name in ("max_weight", "outside", "entropy") if name in result), None)
    return None if name is None else overview(result, name)


@reads("scan")
def scan_figures(result: xr.Dataset, sample: xr.Dataset | None) -> Iterator[tuple[str, Figure]]:
    """Every figure of a scan and of the attention over its first windows, with its name."""
    for statistic in _OVERVIEWS:
        if statistic in result:
            yield f"overview-{statistic.replace('_', '-')}", overview(result, statistic)
    for statistic in of_several(result, "kept"):
        yield statistic.replace("_", "-"), block_shares(result, statistic)
    if any(shares_by_offset(result, of) is not None for of in ("bins", "band")):
        yield "offsets", offset_shares(result)
    if "label_share" in result and "centroid" in result:
        yield "labels", label_pies(result)
    if "group_weight" in result:
        leading = dict.fromkeys((pair["layer"], pair["head"]) for pair in group_pairs(result))
        if leading:
            yield "groups", group_maps(result, list(leading)[:_OF_GROUPS])
    if "profile" in result:
        listed = None if sample is None else {(one.layer, one.head) for one in maps(sample)}
        ranked = _largest_first(result.profile.mean("window").where(result.offset != 0).max("offset").values)
        heads = [head for head in ranked if listed is None or head in listed][:_HEADS]
        yield "profiles", profile_curves(result, heads)
        if sample is not None:
            yield "maps", weight_maps(first_rows(sample, heads, _TOKENS), heads)
            for layer, head in json.loads(sample.attrs["requested"]):  # by --show
                yield f"head-{layer}.{head}", head_map(sample, layer, head)

    if "patch_profile" in result:
        yield "patch-profiles", patch_profiles(result, _sharpest_on_patches(result))


def head_map(sample: xr.Dataset, layer: int, head: int) -> Figure:
    """Draw a head's weights over the first window that is shown, with its tokens where they fit."""
    rows = first_rows(sample, [(layer, head)], sample.sizes["query"])
    queries, keys = (selection.side_tokens(rows, side) for side in selection.sides(sample, layer))
    weights = selection.dense_weights(rows, layer, head, len(queries), len(keys))
    title = f"Head {layer}.{head}"
    return attention(weights, tokens=keys, query_tokens=queries, width=style.PAGE, title=title)


def _sharpest_on_patches(result: xr.Dataset) -> list[tuple[int, int]]:
    """Heads with the largest share of a patch's weight on one neighbour, itself not counted."""
    shares = patch_shares(result).mean("window")
    away = shares.where((shares.row_offset != 0) | (shares.column_offset != 0))
    return _largest_first(away.max(("row_offset", "column_offset")).transpose("layer", "head").values)[:_HEADS]


def _largest_first(values: np.ndarray) -> list[tuple[int, int]]:
    """Layer and head of all values ``(layer, head)``, the largest first, those without a value last."""
    order = np.argsort(-np.nan_to_num(values, nan=-1.0), axis=None, kind="stable")
    return [divmod(int(cell), values.shape[1]) for cell in order]


_MOST_NUMBERS = 64  # a grid of at most this many heads also shows the numbers


@style.figure_style()
def overview(result: xr.Dataset, statistic: str) -> Figure:
    """Draw a statistic of every head, the mean over texts, as a grid of layers and heads.

    Parameters
    ----------
    result
        Result of `attnscope.scan`.
    statistic
        Name of a variable with one number for each head, such as ``"entropy"``.

    Raises
    ------
    AttnscopeError
        If the result lacks the statistic.
    """
    selection.check_statistic(result, statistic)
    words = selection.wording(result, statistic)
    values = selection.mean_over_texts(result[statistic])  # (layer, head)
    layers, heads = values.shape
    cell = float(np.clip(5.0 / max(layers, heads), 0.28, 0.6))  # inches
    title = f"{words.long_name} ({words.units})" if words.units else words.long_name
    if "window" in result[statistic].dims:
        count = result.sizes["window"]
        title += f", mean over {count} {selection.noun_of(result)}{'s' * (count != 1)}"
    width = style.printed(heads * cell + 1.0)
    cell = min(cell, (width - 1.75) / heads)
    title = in_lines(title, int((width - 0.7) / 0.068))  # inches that a letter takes
    height = layers * cell + 0.9 + 0.14 * title.count("\n")
    figure = Figure(figsize=(width, height))
    room = (0.7 / width, 0.5 / height, heads * cell / width, layers * cell / height)
    axes = figure.add_axes(room)
    image = panels.heat(axes, values, panels.SIGNED if words.signed else "viridis", norm=_scale(values, words))
    for layer, head in np.argwhere(np.isnan(values)):
        axes.fill_between([head - 0.5, head + 0.5], layer - 0.5, layer + 0.5, hatch="////", fc="0.96", ec="0.75")
    style.name_heads(axes, selection.layer_labels(result), selection.axis_values(result, "head"))
    axes.set_xticks(np.arange(heads - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(layers - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
    if values.size <= _MOST_NUMBERS:
        panels.write_cells(image, _short)
    axes.set_title(title, loc="left", parse_math=False)
    beside = figure.add_axes((room[0] + room[2] + 0.15 / width, room[1], 0.13 / width, room[3]))
    panels.colour_bar(figure, image, None, words.units or words.long_name, cax=beside)
    return figure


def _scale(values: np.ndarray, words: Wording) -> Normalize:
    """From the lowest value to the highest, and as far at least as the statistic can go."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return Normalize(-1.0 if words.signed else 0.0, 1.0)
    if words.signed:
        reach = max(float(np.abs(finite).max()), words.largest, _FULL.get(words.units, 0.0)) or 1.0
        return Normalize(-reach, reach)
    low, high = float(finite.min()), float(finite.max())
    if words.largest:
        low, high = min(low, 0.0), max(high, words.largest)
    return Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)


def _short(value: float) -> str:
    """Two digits that matter, and never an exponent: a cell is small."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{float(f'{value:.2g}'):.3f}".rstrip("0").rstrip(".")  # noqa: PLR2004
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


@dataclass(frozen=True, eq=False)
class Map:
    """The attention of one head in one window."""

    window: int
    layer: int
    head: int
    count: np.ndarray  # ``(query,)``: number of listed weights
    rest: np.ndarray  # ``(query,)``: the weight that the list leaves out
    key: np.ndarray  # of the listed weights, row after row
    weight: np.ndarray  # the listed weights, row after row

    @property
    def query(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def share(self) -> float:
        """The share of the map's weight that is listed."""
        listed = float(self.weight.sum())
        return listed / max(listed + float(self.rest.sum()), 1e-9)


def maps(sample: xr.Dataset) -> Iterator[Map]:
    """Every map that a sample lists, with the rows that its queries have."""
    count, rest = sample["count"].values, sample["rest"].values
    key, weight = sample["key"].values, sample["weight"].values
    last = np.cumsum(count.sum(1))
    names = (sample[name].values.tolist() for name in ("window_of", "layer_of", "head_of"))
    for at, (window, layer, head) in enumerate(zip(*names, strict=True)):
        rows = int(sample[f"{selection.sides(sample, layer)[0]}tokens"].values[window])
        entries = slice(last[at] - count[at].sum(), last[at])
        yield Map(window, layer, head, count[at, :rows], rest[at, :rows], key[entries], weight[entries])


def first_rows(sample: xr.Dataset, heads: Sequence[tuple[int, int]], rows: int) -> xr.Dataset:
    """The first rows of some heads in the first window, as `attnscope.results.figures.maps.weight_maps` takes them."""
    layers, columns = (sorted({head[i] for head in heads}) for i in (0, 1))
    by_head = {(one.layer, one.head): one for one in maps(sample) if one.window == 0}
    rows = min(rows, sample.sizes["query"])  # of the longest window that is shown
    shape = (len(layers), len(columns), rows)
    chosen = [by_head[head] for head in heads]
    ranks = max(int(one.count[:rows].max(initial=1)) for one in chosen)
    key, weight = np.zeros((*shape, ranks), np.int64), np.zeros((*shape, ranks), np.float32)
    rest = np.zeros(shape, np.float32)
    for one in chosen:
        at = layers.index(one.layer), columns.index(one.head)
        firsts = np.cumsum(one.count) - one.count  # where each row begins in the list
        for row, (count, first) in enumerate(zip(one.count[:rows], firsts, strict=False)):
            key[*at, row, :count] = one.key[first : first + count]
            weight[*at, row, :count] = one.weight[first : first + count]
        rest[at][: len(one.rest)] = one.rest[:rows]
    dims = ("layer", "head", "query", "rank")
    texts = (
        sample.isel(window=0)[[str(name) for name in sample.coords if "window" in sample[name].dims]]
        .isel(query=slice(rows))
        .drop_vars(["layer", "head", "layer_kind"], errors="ignore")
    )
    return texts.assign(key=(dims, key), weight=(dims, weight), rest=(dims[:3], rest)).assign_coords(
        layer=layers, head=columns, layer_kind=sample["layer_kind"].sel(layer=layers)
    )


@style.figure_style()
def profile_curves(result: xr.Dataset, heads: Sequence[Any]) -> Figure:
    """Draw each head's mean weight at every offset, with the band that holds the middle 80% of texts.

    Parameters
    ----------
    result
        Result of `attnscope.scan`.
    heads
        Layer and head of each panel, counted from 0.

    Raises
    ------
    AttnscopeError
        If the result has no profile, or lacks a head.
    """
    selection.require(result, ("profile", "offset"), purpose="profile_curves")
    pairs = selection.check_heads(result, heads)
    offsets = result["offset"].values
    labelled = {"label", "cluster"} <= set(result.variables)
    columns = min(len(pairs), panels.MOST_COLUMNS)
    size = max(3.2, 2.3 * columns), 2.1 * math.ceil(len(pairs) / columns) + 0.3
    figure, drawn = panels.panel_rows(len(pairs), size)
    for axes, (layer, head) in zip(drawn, pairs, strict=True):
        of_head = result.sel(layer=[layer], head=[head])
        mean = selection.mean_over_texts(of_head["profile"])[0, 0]
        low, high = (edge[0, 0] for edge in selection.quantiles_over_texts(of_head["profile"]))
        name, colour = _majority(of_head) if labelled else ("", style.LEFT)
        panels.zero_line(axes)
        panels.curve(axes, offsets, (mean, low, high), colour, marker="o", markersize=2.2)
        axes.set(xlim=style.drawn_range(offsets, mean), ylim=(0, None))
        axes.set_title(f"Head {layer}.{head}" + (f"\n{name}" if name else ""), loc="left", parse_math=False)
    style.one_scale(figure.axes)
    figure.supxlabel(f"Offset (key − query), {unit_of(result)}: negative is left")
    figure.supylabel("Mean attention weight")
    return figure


def _majority(head: xr.Dataset) -> tuple[str, str]:
    """Name with its share, and colour, of the most frequent label of a result of one head."""
    names = [str(name) for name in head["cluster"].values]
    shares = selection.label_shares(head)[0, 0]
    if np.isnan(shares).any():
        return "no label", style.LEFT
    best = int(np.argmax(shares))
    text = f"{style.with_minus(shown_label(names[best]))}, {shares[best]:.0%} of {selection.noun_of(head)}s"
    return text, style.cluster_colours(names)[best]


_MOST = 6  # groups whose numbers fit into the cells


@style.figure_style()
def group_maps(result: xr.Dataset, heads: Sequence[tuple[int, int]]) -> Figure:
    """Draw the weight of the queries of each group on the keys of each group, head by head.

    Parameters
    ----------
    result
        Result of `attnscope.scan` with ``groups``.
    heads
        Layer and head of each row of panels, counted from 0: its weights, those by positions alone, uniform attention.

    Raises
    ------
    AttnscopeError
        If the result has no groups, or lacks a head.
    """
    selection.require(result, ("group_weight", "position_group_weight", "equal_group_weight"), purpose="group_maps")
    pairs = selection.check_heads(result, heads)
    means = MeanGroupWeights.of(result)
    present = means.present
    names = [style.drawable(str(name)) for name in result.group_query.values[present]]
    side = max(1.4, 0.3 * len(names))  # inches
    wide = 0.06 * max(map(len, names))
    layers, columns = selection.axis_values(result, "layer"), selection.axis_values(result, "head")
    figure = Figure(figsize=(3 * side + wide + 1.1, len(pairs) * (side + 0.3) + wide + 0.3), layout="constrained")
    grid = np.reshape(figure.subplots(len(pairs), 3, sharex=True, sharey=True), (-1, 3))
    image = None
    for row, (layer, head) in zip(grid, pairs, strict=True):
        titles = (f"Head {layer}.{head}", "Positions alone", "Uniform attention")
        for axes, title, values in zip(row, titles, (means.weight, means.positions, means.equal), strict=True):
            image = panels.heat(axes, values[layers.index(layer), columns.index(head)][np.ix_(present, present)])
            style.name_columns(axes, range(len(names)), names)
            axes.set_yticks(range(len(names)), names, parse_math=False)
            if len(names) <= _MOST:
                panels.write_cells(image, "{:.2f}".format)
            axes.set_title(title)
        row[0].set_ylabel("Queries")
    for axes in grid[-1]:
        axes.set_xlabel("Keys")
    panels.colour_bar(figure, image, grid.ravel().tolist(), "Mean weight", shrink=0.8)
    return figure
