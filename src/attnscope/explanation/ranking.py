"""Heads in order, the clearest case first: one list for the terminal, the page and the figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.capture.borrow import borrowed
from attnscope.explanation.arrays.decomposition import append_one
from attnscope.explanation.evidence import Evidence, Layer
from attnscope.explanation.projections import Projections
from attnscope.explanation.projections import projections as projections_of_model
from attnscope.explanation.study import study
from attnscope.explanation.tokens import FOR_MATCHING, model_inputs, token_ids
from attnscope.store.arrays import stacked
from attnscope.support.arguments import reads, validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.capture.watch import Site
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@dataclass(frozen=True)
class HeadExplanation:
    """What was found out about one head; None where it is not known or not there."""

    layer: int  # which head
    attention: str | None  # how its layer attends, self or causal; None where all layers attend in one way
    head: int  # which head
    prefers: bool  # whether its largest mean weight at one offset is more than chance gives
    positional: bool  # whether it prefers an offset and position gives more than half of its scores' profile
    # whether both readings of the scores of a positional head find the offset of its weights; None where it is not
    # positional, or a reading finds none
    agree: bool | None
    offset_of_weights: float | None = None  # offset of its largest mean weight, tokens, where it prefers one
    offset_of_spectrum: float | None = None  # the two readings of its scores, tokens
    offset_of_correlation: float | None = None
    # share of position in the variance of the mean scores over offsets, where it prefers one
    position_share: float | None = None
    peak_weight: float | None = None  # its largest mean weight at one offset, and what chance would give there
    weight_level: float | None = None  # its largest mean weight at one offset, and what chance would give there
    coherence: float | None = None  # coherence of its cross-spectrum over the band
    chance: float | None = None  # how often the readings of another head would agree with its weights
    # earlier layer whose query and key matrices its own layer uses again; None where it uses none again
    weights_of: int | None = None
    # with RoPE or a bias of the scores, what that alone foretells: see `scheme_kernel`
    offset_of_kernel: float | None = None
    kernel_agrees: bool | None = None
    kernel_chance: float | None = None
    kernel_share: float | None = None


@reads("explain")
@validated
def rank_explanations(tree: xr.DataTree) -> list[HeadExplanation]:
    """What was found out about each head, the clearest case first.

    Parameters
    ----------
    tree
        From `explain`.

    Returns
    -------
    list of HeadExplanation
        First those whose readings agree, then the other positional ones, then the rest; each of these by the largest
        mean weight. Empty where the tree has no verdict.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> variables = {"prefers": (grid, [[False, True]]), "positional": (grid, [[False, True]])}
    >>> variables |= {name: (grid, [[False, True]]) for name in ("asked", "agree")}
    >>> variables["peak_weight"] = (grid, [[0.9, 0.5]])
    >>> verdict = xr.Dataset(variables, coords={"layer": [0], "head": [0, 1]})
    >>> [(row.head, row.peak_weight) for row in rank_explanations(xr.DataTree.from_dict({"verdict": verdict}))]
    [(1, 0.5), (0, 0.9)]
    """
    if "verdict" not in tree.children:
        return []
    verdict, kinds = tree["verdict"].to_dataset(), _kinds(tree)
    layers = verdict["layer"].values.tolist()
    alike = verdict["weights_of"].values.tolist() if "weights_of" in verdict.coords else layers
    earlier = {layer: first for layer, first in zip(layers, alike, strict=True) if first != layer}
    grids = _grids(verdict)
    if "scheme_kernel" in tree.children:
        kernel = _grids(tree["scheme_kernel"].to_dataset().reindex(layer=verdict["layer"], head=verdict["head"]))
        grids |= {name: kernel[own] for name, own in _OF_KERNEL.items() if own in kernel}
    rows: list[HeadExplanation] = []
    for row, column in np.ndindex(grids["prefers"].shape):
        numbers = {name: float(grid[row, column]) for name, grid in grids.items()}
        found: dict[str, Any] = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if "peak_weight" not in found:
            continue
        given: dict[str, Any] = {name: found.get(name) for name in _NUMBERS}
        given |= {name: bool(found.get(name)) for name in ("prefers", "positional")}
        if "kernel_agrees" in found:
            given["kernel_agrees"] = bool(found["kernel_agrees"])
        rows.append(
            HeadExplanation(
                layer=layers[row],
                attention=kinds.get(layers[row]),
                head=int(verdict["head"][column]),
                weights_of=earlier.get(layers[row]),
                agree=bool(found.get("agree")) if found.get("asked") else None,
                **given,
            )
        )
    return sorted(
        rows, key=lambda row: (not row.agree, not row.positional, -(row.peak_weight or 0.0), row.layer, row.head)
    )


_OF_KERNEL = {
    "offset_of_kernel": "offset_of_kernel",
    "kernel_agrees": "agree",
    "kernel_chance": "chance",
    "kernel_share": "share",
}
_NUMBERS = (
    *("offset_of_weights", "offset_of_spectrum", "offset_of_correlation", "position_share", "peak_weight"),
    *("weight_level", "coherence", "chance", "offset_of_kernel", "kernel_chance", "kernel_share"),
)


def _grids(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """The variables ``(layer, head)``."""
    return {
        str(name): variable.transpose("layer", "head").values
        for name, variable in dataset.data_vars.items()
        if set(variable.dims) == {"layer", "head"}
    }


@reads("explain")
@validated
def best_heads(
    tree: xr.DataTree, *, layer: int | None = None, head: int | None = None, count: int | None = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `rank_explanations`, of one layer or with one number where asked for."""
    rows = rank_explanations(tree)
    for name, asked in (("layer", layer), ("head", head)):
        known = sorted({getattr(row, name) for row in rows})
        if asked is not None and asked not in known:
            there = f"they go from {known[0]} to {known[-1]}" if known else "none was explained"
            raise AttnscopeError(f"there is no {name} {asked}: {there}")
    chosen = [row for row in rows if layer in {None, row.layer} and head in {None, row.head}]
    if not chosen and rows:
        raise AttnscopeError(f"layer {layer} has no head {head}: choose another")
    agreeing = [row for row in chosen if row.agree]
    if layer is None and head is None and agreeing:
        chosen = agreeing
    return [(row.layer, row.head) for row in chosen[:count]]


def _kinds(tree: xr.DataTree) -> dict[int, str]:
    """How each layer attends, where not all attend in the same way."""
    if "position_content" not in tree.children:
        return {}
    content = tree["position_content"].to_dataset()
    if "layer_kind" not in content.coords:
        return {}
    kinds = dict(zip(content["layer"].values.tolist(), map(str, content["layer_kind"].values), strict=True))
    return kinds if len(set(kinds.values())) > 1 else {}


ERROR = 0.01  # probability that one head or more of a model without preferences seems to have one
SAME = 0.5  # tokens: readings that lie closer together find the same offset
MOST = 0.5  # share of position from which a head's scores are more position than all else
READINGS = ("offset_of_spectrum", "offset_of_correlation")


def weight_peaks(evidence: Evidence) -> xr.Dataset:
    """Where the weights of each head are largest, and whether that is more than chance: dimensions ``layer, head``."""
    tests = sum(layer.band_sums[0].size for layer in evidence.layers)
    heads = max(layer.heads for layer in evidence.layers)
    parts = [_of_layer(layer, ERROR / tests).reindex(head=np.arange(heads)) for layer in evidence.layers]
    peaks = stacked(parts, "layer", [layer.site.index for layer in evidence.layers])
    peaks["prefers"] = (peaks.peak_weight > peaks.weight_level) & np.isfinite(peaks.offset_of_weights)
    for name, long_name, units in (
        ("offset_of_weights", "Offset of the largest mean weight", "tokens"),
        ("peak_weight", "Largest mean weight", "weight"),
        ("weight_level", "Mean weight that chance gives at that offset", "weight"),
    ):
        peaks[name].attrs = {"long_name": long_name, "units": units}
    lowest, highest = zip(*[layer.reach.offsets for layer in evidence.layers], strict=True)
    return peaks.assign_coords(
        lowest_offset=("layer", list(lowest)),
        highest_offset=("layer", list(highest)),
        weights_of=("layer", [_first_alike(layer, evidence.layers) for layer in evidence.layers]),
    )


def _first_alike(layer: Layer, layers: Sequence[Layer]) -> int:
    """Number of the first layer that has the query and key matrices of this one, where layers share them (ALBERT)."""
    return next(other.site.index for other in layers if _same_weights(layer, other))


def _same_weights(layer: Layer, other: Layer) -> bool:
    if layer.site.name == other.site.name:
        return True
    one, two = layer.projections, other.projections
    return (
        one.query is not None
        and two.query is not None
        and one.key is not None
        and two.key is not None
        and np.array_equal(one.query, two.query)
        and np.array_equal(one.key, two.key)
    )


def _of_layer(layer: Layer, chance: float) -> xr.Dataset:
    profiles = layer.profiles.mean(0)
    half = profiles.shape[-1] // 2
    offset = np.arange(-half, half + 1)
    low, high = layer.reach.offsets
    at = profiles.argmax(-1)
    # beyond the mask all weights are 0, and known; beyond the band they are not
    known = (np.abs(offset) < half) | (offset == low) | (offset == high)
    return xr.Dataset(
        {
            "offset_of_weights": ("head", np.where(known[at], offset[at], np.nan)),
            "peak_weight": ("head", profiles.max(-1)),
            "weight_level": ("head", layer.reach.level(chance)[at]),
        },
        coords={"head": np.arange(layer.heads)},
    )


def judged(readings_of: xr.Dataset) -> xr.Dataset:
    """Add whether each head is positional, whether its readings agree, and how often those of other heads would."""
    share = readings_of.get("position_share")
    by_position = True if share is None else share > MOST
    weights = readings_of.offset_of_weights.values
    readings = np.stack([readings_of[name].values for name in READINGS], -1)
    dims = readings_of.prefers.dims
    positional = readings_of.prefers & by_position
    asked = positional & xr.DataArray(np.isfinite(readings).all(-1), dims=dims)
    chance = _by_accident(weights.ravel(), readings.reshape(-1, len(READINGS))).reshape(weights.shape)
    judged_of = readings_of.assign(
        offset_of_weights=readings_of.offset_of_weights.where(readings_of.prefers),
        positional=positional,
        asked=asked,
        agree=asked & xr.DataArray(_near(weights, readings), dims=dims),
        chance=xr.DataArray(chance, dims=dims).where(positional),
    )
    judged_of.asked.attrs = {"long_name": "Positional, and both readings find an offset"}
    judged_of.agree.attrs = {"long_name": "Both readings find the offset of the weights, of heads that are asked"}
    judged_of.chance.attrs = {"long_name": "Chance that another head's scores would agree", "units": "share"}
    return judged_of


def _near(weights: np.ndarray, readings: np.ndarray) -> Bool[np.ndarray, "*head"]:
    return np.asarray((np.abs(readings - weights[..., None]) <= SAME).all(-1))


def _by_accident(
    weights: Float[np.ndarray, " head"], readings: Float[np.ndarray, "head reading"]
) -> Float[np.ndarray, " head"]:
    read = np.isfinite(readings).all(-1)
    near = _near(weights[:, None], readings[None])
    np.fill_diagonal(near, val=False)
    others = read.sum() - read
    return np.where((others > 0) & np.isfinite(weights), (1 + near.sum(1)) / (1 + others), np.nan)


OneHead = Callable[[Layer, int], xr.Dataset]


def over_heads(evidence: Evidence, analyse: OneHead) -> xr.Dataset:
    """Stack a head's analysis over all layers with bilinear scores and all their heads."""
    layers = evidence.bilinear
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # LAPACK and FFT leave Python's lock free
        heads = [list(pool.map(partial(analyse, layer), range(layer.heads))) for layer in layers]
    rows = [stacked(of_layer, "head", np.arange(len(of_layer))) for of_layer in heads]
    names = np.array([layer.site.name for layer in layers], dtype=object)
    return stacked(rows, "layer", [layer.site.index for layer in layers]).assign_coords(
        layer_name=("layer", names),
        lowest_offset=("layer", [layer.reach.offsets[0] for layer in layers]),
        highest_offset=("layer", [layer.reach.offsets[1] for layer in layers]),
    )


@validated
def inputs_of(layer: Layer, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean X over texts and a column of ones; W_Q and W_K with their biases below."""
    return append_one(layer.moments.position_mean), *layer.matrices(head, affine=True)


@validated
def projections(
    model: Model | Study | None = None, texts: Sources = None, *, tokenizer: Tokenizer = None
) -> dict[Site, Projections]:
    """Query, key, value and output matrices of every head, found and verified on a window of text."""
    given = study(model, texts, tokenizer=tokenizer, limit=2)
    with borrowed(given.model):
        return projections_of_model(
            given.model, model_inputs(given.model, token_ids(given.windows)[:1].start(FOR_MATCHING))
        )
