"""The papers' figures by their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from attnscope.results.figures.maps import weight_maps
from attnscope.results.figures.panels import ALONE, MEASURED, NOISE, curve, legend_above, scheme_effect
from attnscope.results.figures.selection import require
from attnscope.results.figures.shifts import cross_correlations
from attnscope.results.figures.style import MARK, Figure, figure_style
from attnscope_yamamoto2023.figures import phase_maps, wave_curves
from attnscope_yamamoto2023.rows import CURVES

if TYPE_CHECKING:
    import xarray as xr

if TYPE_CHECKING:
    Draw = Callable[[xr.Dataset], Figure]

_NODES = (
    "figure_1",
    "figure_2",
    "position_spectrum",
    "figure_4",
    "spectra",
    "figure_6",
    "figure_7",
    "position_models",
    "position_pca",
)


def left_out(tree: xr.DataTree) -> str:
    """The figures of the first paper that an explanation lacks, in a sentence; empty if it has all nine."""
    missing = [(number, node) for number, node in enumerate(_NODES, 1) if node not in tree.children]
    figures = [
        f"{number} (tables of several models: use --analyses position_models=MODEL)"
        if node == "position_models"
        else str(number)
        for number, node in missing
    ]
    return f"Missing from the papers' figures 1 to 9: {', '.join(figures)}." if figures else ""


def score_maps(scores: xr.Dataset) -> Figure:
    """Draw scores before mask and softmax; those right of the diagonal never reach a causal head's output."""
    require(scores, ("score",), purpose="score_maps")
    count = scores.sizes["shown"]
    with figure_style():
        figure = Figure(figsize=(3.2 * count, 2.7), layout="compressed")
        for index in range(count):
            axes = figure.add_subplot(1, count, index + 1)
            values = scores["score"].isel(shown=index).transpose("query", "key").values
            image = axes.imshow(values, cmap="viridis", interpolation="nearest")
            axes.plot([-0.5, len(values) - 0.5], [-0.5, len(values) - 0.5], color=MARK, linestyle=":", linewidth=1)
            axes.set(xlabel="Key position", ylabel="Query position")
            axes.set_title(f"Layer {int(scores['layer'][index])}, head {int(scores['head'][index])}")
            bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=25)
            bar.set_label("Score before mask and softmax", fontsize=7)
            bar.outline.set_visible(False)
    return figure


def by_layer_and_head(shown: xr.Dataset) -> tuple[xr.Dataset, list[tuple[int, int]]]:
    """Results of a few heads along ``shown`` as a grid of layers and heads, and which heads they are."""
    places = zip(shown["layer"].values.tolist(), shown["head"].values.tolist(), strict=True)
    heads = list(dict.fromkeys(places))
    first = [list(zip(shown["layer"].values, shown["head"].values, strict=True)).index(head) for head in heads]
    only = shown.isel(shown=first).drop_vars("named_head", errors="ignore")
    return only.set_index(shown=["layer", "head"]).unstack("shown"), heads


def maps_of_heads(shown: xr.Dataset) -> Figure:
    """Draw figure 2: weights of the papers' heads among the first tokens."""
    return weight_maps(*by_layer_and_head(shown))


def waves_of_head(shown: xr.Dataset) -> Figure:
    """Draw figure 4: queries and keys of one head as waves."""
    return wave_curves(shown, [(int(shown["layer"][0]), int(shown["head"][0]))])


def phases_as_published(shown: xr.Dataset) -> Figure:
    """Draw figure 6: phase maps, the rotation completed as the papers did."""
    return _phases(shown, "lapack")


def phases_completed_minimally(shown: xr.Dataset) -> Figure:
    """Draw figure 6 with the completion nearest to the identity."""
    return _phases(shown, "minimal")


def _phases(shown: xr.Dataset, completion: str) -> Figure:
    return phase_maps(*by_layer_and_head(shown.sel(completion=completion, drop=True)))


def correlations_of_heads(shown: xr.Dataset) -> Figure:
    """Draw figure 7: cross-correlations of the papers' heads."""
    return cross_correlations(*by_layer_and_head(shown), curves=CURVES)


_TABLES = (("before", "0.45", "Original table"), ("after", MEASURED, "Relearned"))


def relearned_table(relearned: xr.Dataset) -> Figure:
    """Draw the spectrum of the position table, original and relearned, and the loss during training."""
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
        legend_above(figure, 3)
    return figure


def relearned_profiles(relearned: xr.Dataset) -> Figure:
    """Draw where the sharpest heads attend: on plain text, and on spaced text before and after training."""
    require(relearned, ("profile", "shown_layer", "shown_head"), purpose="relearned_profiles")
    return scheme_effect(relearned, _shown(relearned))


def relearned_maps(relearned: xr.Dataset) -> Figure:
    """Draw the weights of the same heads in one spaced text with the relearned table; dots are unknown tokens."""
    require(relearned, ("key", "weight", "shown_layer"), purpose="relearned_maps")
    maps = relearned[["key", "weight"]].rename(shown_layer="layer", shown_head="head")
    return weight_maps(*by_layer_and_head(maps), tokens=maps.sizes["query"])


def _shown(relearned: xr.Dataset) -> list[tuple[int, int]]:
    layers, heads = relearned["shown_layer"].values.tolist(), relearned["shown_head"].values.tolist()
    return list(zip(layers, heads, strict=True))
