"""Figures of word alignments: one sentence pair, several systems on it, and the error rate of each head."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from attnscope.capture.load import load_model
from attnscope.report.schema import Report
from attnscope.results.figures import style
from attnscope.results.figures.panels import colour_bar, heat, write_cells
from attnscope.results.page.parts import Picture, Section, picture
from attnscope.store.folder import OwnedFolder, damage
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import percent
from attnscope_lineage.alignment import compared_heads
from attnscope_lineage.checkpoints import Checkpoints
from attnscope_lineage.links import ForcedPair, Forcing, links_of_line

_CELL, _LABEL, _KEYS = 0.19, 0.085, 0.15  # inches: of a word's cell, a column of a label, a row of the legend
_END = "</s>"
_DARK = 0.6  # of the scale: marks on darker cells are white
_FILLED = 0.8  # of a cell's side: the square of a gold link

_PAIRS = (
    "Rows are target words, columns source words; the colour is the attention weight, with a scale for each pair. "
    "Click to open a pair. Dots: extracted links. Squares: gold links, dotted if only possible."
)

Links = Collection[tuple[int, int]]


def figures(report: Report) -> dict[str, style.Figure]:
    chosen, heads = report.finding.leading, compared_heads(report.result)
    drawn = {f"pair-{line}": pair_map(pair, f"Line {line}") for line, pair in _stored_pairs(report).items()}
    return drawn if heads is None else {"heads": error_rate_grid(heads, *chosen), **drawn}


def sections(report: Report, drawn: Mapping[str, style.Figure]) -> list[Section]:
    """A section of single heads, and one of sentence pairs, with a pair of medium quality open."""
    sections = list[Section]()
    if "heads" in drawn:
        reading = "Alignment error rate of each head alone, in percent. Darker blue is better."
        sections.append(Section("heads", "Error rate of each head", reading, [picture(drawn["heads"], "heads")]))
    pictures = list[Picture]()
    for line, pair in _stored_pairs(report).items():
        rate = f", error rate {percent(pair['error_rate'].item())}" if pair["error_rate"].notnull() else ""
        words = f"{' '.join(pair['source'].values)} — {' '.join(pair['target'].values)}"
        pictures.append(picture(drawn[f"pair-{line}"], f"pair-{line}", f"Line {line}{rate}", words))
    if pictures:
        sections.append(Section("pairs", "Sentence pairs", _PAIRS, pictures, folded=True))
    return sections


def _stored_pairs(report: Report) -> dict[str, xr.Dataset]:
    """The stored sentence pairs, by line."""
    tree = report.result
    return {line: pair.to_dataset() for line, pair in tree["shown"].children.items()} if "shown" in tree else {}


def alignment_in_training(
    folder: str | Path,
    source: str,
    target: str,
    path: str | Path | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
) -> style.Figure:
    """Draw how the attention of one sentence pair is learned: a map for each checkpoint of a training.

    Parameters
    ----------
    folder
        Folder of `attnscope train`. With ``keep=8`` it has the last eight checkpoints.
    source, target
        The sentence and its translation, which the decoder reads as in training.
    path
        File to write, by its ending ``.svg``, ``.pdf`` or ``.png``.
    layer, head
        A head of the cross-attention, counted from 0; by default the mean over all.

    Raises
    ------
    AttnscopeError
        If the folder has no checkpoint, a checkpoint is damaged, or the model has no attention to the source.
    """
    owned = OwnedFolder(Path(folder), "train").look()
    checkpoints, loaded = Checkpoints(owned), load_model(folder)
    if not checkpoints.updates():
        raise AttnscopeError(f"{folder} has no checkpoints: train with --keep 8")
    damaged = owned.damaged(name for name in owned.files if name.endswith("/model.safetensors"))
    if damaged:
        raise damage(owned.path / damaged[0], ". Repeat attnscope train to repair it")
    read: dict[str, ForcedPair] = {}
    for update in checkpoints.updates():
        loaded.model.load_state_dict(checkpoints.mean_weights([update]), strict=False)  # tied weights are stored once
        (read[f"Update {update:,}"],) = Forcing(loaded.model, loaded.tokenizer, [source], [target]).pairs(range(1))
    first = next(iter(read.values()))
    maps = {name: pair.words(layer, head) for name, pair in read.items()}
    figure = alignment_maps(maps, first.source.words, first.target.words)
    if path is not None:
        style.save_as(figure, path)
    return figure


def pair_map(pair: xr.Dataset, title: str = "") -> style.Figure:
    """Draw the attention of each target word in a stored sentence pair, with the model's links and the gold links."""
    extracted, sure, possible = (links_of_line(pair[name].item()) for name in ("links", "sure", "possible"))
    source, target = (pair[side].values.tolist() for side in ("source", "target"))
    weights = {title: pair["weights"].values}
    return alignment_maps(weights, source, target, links={title: extracted}, sure=sure, possible=possible)


@style.figure_style()
def alignment_maps(
    systems: Mapping[str, np.ndarray],
    source: Sequence[str],
    target: Sequence[str],
    *,
    links: Mapping[str, Links] | None = None,
    sure: Links | None = None,
    possible: Links | None = None,
    sure_name: str = "Gold link",
) -> style.Figure:
    """Draw the weights of several systems on one sentence pair, on one scale."""
    if not systems or not source or not target:
        raise AttnscopeError("found no system, source word or target word; expected at least one of each")
    for name, weights in systems.items():
        if weights.shape not in {(len(target), len(source)), (len(target), len(source) + 1)}:
            raise AttnscopeError(
                f"the weights{' of ' + name if name else ''} have shape {weights.shape}, and there are {len(target)} "
                f"target and {len(source)} source words: expected ({len(target)}, {len(source)})"
            )
    top = max(float(weights.max()) for weights in systems.values()) or 1.0
    labels = (
        [style.drawable(word, longest=18) for word in source],
        [style.drawable(word, longest=18) for word in target],
    )
    columns = min(len(systems), max(1, round(math.sqrt(2 * len(systems) * len(target) / len(source)))), 4)
    rows = math.ceil(len(systems) / columns)
    width = max(1.6, _CELL * (len(source) + 1) + _LABEL * max(map(len, labels[1])) + 0.3)
    height = max(1.2, _CELL * len(target) + _LABEL * max(map(len, labels[0])) + 0.3)

    figure = style.Figure(figsize=(columns * width + 1.0, rows * height + 0.7), layout="compressed")
    for index, (name, weights) in enumerate(systems.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw(axes, weights, labels, top)
        keys = _mark(axes, weights / top, None if links is None else links.get(name), sure, possible, sure_name)
        axes.set_title(style.drawable(name, longest=60) if name else "", parse_math=False)
        if index == 0 and keys:
            side_by_side = style.legend_columns(figure, [str(key.get_label()) for key in keys], len(keys))
            figure.set_figheight(figure.get_figheight() + _KEYS * (math.ceil(len(keys) / side_by_side) - 1))
            figure.legend(handles=keys, loc="outside lower center", ncols=side_by_side)
    shrink = min(1, 3 / (rows * height))
    colour_bar(figure, figure.axes[0].images[0], figure.axes[:], "Attention weight", aspect=25, shrink=shrink)
    return figure


def _draw(axes: Axes, weights: np.ndarray, labels: tuple[list[str], list[str]], top: float) -> None:
    source, target = labels
    heat(axes, weights, ends=(0.0, top))
    if weights.shape[1] > len(source):
        axes.axvline(len(source) - 0.5, color="0.5", linewidth=0.8)
        source = [*source, _END]
    style.name_columns(axes, range(len(source)), source)
    axes.set_yticks(range(len(target)), target, parse_math=False)
    axes.xaxis.tick_top()
    axes.set(xlabel="Source", ylabel="Target")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=1.5, pad=1.5)
    axes.set_xticks(np.arange(0.5, len(source) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(target) - 1), minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.4)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set(visible=True, color="0.7")


def _mark(
    axes: Axes, shade: np.ndarray, links: Links | None, sure: Links | None, possible: Links | None, sure_name: str
) -> list[Artist]:
    """Draw the links; return the entries of the legend."""
    rows, columns = shade.shape
    keys: list[Artist] = []
    certain = set(sure or ())
    for pairs, line, name in (
        (certain, "-", sure_name),
        (set(possible or ()) - certain, (0, (1.2, 1.0)), "Possible gold link"),
    ):
        for x, y in pairs:
            if x < columns and y < rows:
                axes.add_patch(_square(x, y, line))
        if pairs:
            keys.append(_square(0, 0, line, name))
    at = [(x, y) for x, y in sorted(links or ()) if x < columns and y < rows]
    if at:
        colours = ["white" if shade[y, x] > _DARK else "black" for x, y in at]
        xs, ys = zip(*at, strict=True)
        axes.scatter(xs, ys, s=7, c=colours, linewidths=0, zorder=3)
        keys.append(axes.scatter([], [], s=7, c="black", linewidths=0, label="Extracted link"))
    return keys


def _square(x: int, y: int, line: str | tuple[int, tuple[float, float]], name: str = "") -> Rectangle:
    corner = (x - _FILLED / 2, y - _FILLED / 2)
    return Rectangle(
        corner, _FILLED, _FILLED, fill=False, edgecolor=style.MARK, linewidth=1.0, linestyle=line, label=name
    )


@style.figure_style()
def error_rate_grid(heads: xr.Dataset, chosen: tuple[int, int] | None = None) -> style.Figure:
    """Draw each head's alignment error rate in percent: darker is better; the selected head has a frame."""
    rates = 100 * heads["error_rate"].transpose("layer", "head").values
    layers, count = rates.shape
    figure = style.Figure(figsize=(max(2.6, 0.42 * count + 1.5), max(1.5, 0.36 * layers + 0.8)), layout="compressed")
    axes = figure.add_subplot()
    image = heat(axes, rates, "Blues_r", (0.0, 100.0), aspect="auto")
    write_cells(image, "{:.1f}".format)
    for layer, head in np.argwhere(np.isnan(rates)):
        axes.text(head, layer, "–", ha="center", va="center", fontsize=7)
    if chosen is not None:
        layer, head = chosen
        frame = Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=style.MARK, linewidth=1.6)
        frame.set_clip_on(False)
        axes.add_patch(frame)
    style.name_heads(axes, [str(layer) for layer in range(layers)], list(range(count)))
    colour_bar(figure, image, axes, "Alignment error rate, %", aspect=15)
    return figure
