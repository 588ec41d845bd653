"""Heads in order, the clearest case first: one list for the terminal, the page and the figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import xarray as xr

from attnscope._arguments import typed
from attnscope._returned import reads
from attnscope.errors import AttnscopeError


@dataclass(frozen=True)
class HeadExplanation:
    """What was found out about one head; None where it is not known or not there.

    Attributes
    ----------
    layer, head
        Which head.
    attention
        How its layer attends, self or causal; None where all layers attend in one way.
    prefers
        Whether its largest mean weight at one offset is more than chance gives.
    positional
        Whether it prefers an offset and position gives more than half of its scores' profile.
    agree
        Whether both readings of the scores of a positional head find the offset of its weights; None where it is not
        positional, or a reading finds none.
    offset_of_weights
        Offset of its largest mean weight, tokens, where it prefers one.
    offset_of_spectrum, offset_of_correlation
        The two readings of its scores, tokens.
    position_share
        Share of position in the variance of the mean scores over offsets, where it prefers one.
    peak_weight, weight_level
        Its largest mean weight at one offset, and what chance would give there.
    coherence
        Coherence of its cross-spectrum over the band.
    chance
        How often the readings of another head would agree with its weights.
    weights_of
        Earlier layer whose query and key matrices its own layer uses again; None where it uses none again.
    offset_of_kernel, kernel_agrees, kernel_chance, kernel_share
        With RoPE or a bias of the scores, what that alone foretells: see `scheme_kernel`. Whether it agrees, and its
        share, is asked of a head that prefers an offset.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> variables = {name: (grid, [[True]]) for name in ("prefers", "positional", "asked", "agree")}
    >>> variables["peak_weight"] = (grid, [[0.9]])
    >>> verdict = xr.Dataset(variables, coords={"layer": [0], "head": [0]})
    >>> (found,) = rank_explanations(xr.DataTree.from_dict({"verdict": verdict}))
    >>> found.agree, found.peak_weight, found.coherence is None  # its cross-spectrum is not there
    (True, 0.9, True)
    """

    layer: int
    attention: str | None
    head: int
    prefers: bool
    positional: bool
    agree: bool | None
    offset_of_weights: float | None = None
    offset_of_spectrum: float | None = None
    offset_of_correlation: float | None = None
    position_share: float | None = None
    peak_weight: float | None = None
    weight_level: float | None = None
    coherence: float | None = None
    chance: float | None = None
    weights_of: int | None = None
    offset_of_kernel: float | None = None
    kernel_agrees: bool | None = None
    kernel_chance: float | None = None
    kernel_share: float | None = None


@reads("explain")
@typed
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
    verdict, kinds = _Grid(tree["verdict"].to_dataset()), _kinds(tree)
    kernel = _Grid(tree["scheme_kernel"].to_dataset()) if "scheme_kernel" in tree.children else None
    rows = [_with_kernel(_row(verdict, place, kinds), kernel) for place in verdict.places]
    known = [row for row in rows if row.peak_weight is not None]
    return sorted(
        known,
        key=lambda row: (not row.agree, not row.positional, -(row.peak_weight or 0.0), row.layer, row.head),
    )


class _Grid:
    """Variables ``(layer, head)`` of a dataset, read head by head."""

    def __init__(self, dataset: xr.Dataset) -> None:
        layers, heads = (dataset[name].values.tolist() for name in ("layer", "head"))
        self.places = {
            (layer, head): (row, column)
            for row, layer in enumerate(layers)
            for column, head in enumerate(heads)
        }
        alike = dataset["weights_of"].values.tolist() if "weights_of" in dataset.coords else layers
        self.earlier = {layer: first for layer, first in zip(layers, alike, strict=True) if first != layer}
        self._values = {
            str(name): variable.transpose("layer", "head").values
            for name, variable in dataset.data_vars.items()
            if set(variable.dims) == {"layer", "head"}
        }

    def number(self, name: str, place: tuple[int, int]) -> float | None:
        """The value of a variable at (layer, head); None where there is none, or it is not finite."""
        if name not in self._values or place not in self.places:
            return None
        value = float(self._values[name][self.places[place]])
        return value if math.isfinite(value) else None


def _row(verdict: _Grid, place: tuple[int, int], kinds: dict[int, str]) -> HeadExplanation:
    """The record of one head, without what a scheme's kernel says of it."""

    def number(name: str) -> float | None:
        return verdict.number(name, place)

    layer, head = place
    prefers, positional = bool(number("prefers")), bool(number("positional"))
    return HeadExplanation(
        layer,
        kinds.get(layer),
        head,
        prefers,
        positional,
        bool(number("agree")) if number("asked") else None,
        offset_of_weights=number("offset_of_weights"),
        offset_of_spectrum=number("offset_of_spectrum"),
        offset_of_correlation=number("offset_of_correlation"),
        position_share=number("position_share"),
        peak_weight=number("peak_weight"),
        weight_level=number("weight_level"),
        coherence=number("coherence"),
        chance=number("chance"),
        weights_of=verdict.earlier.get(layer),
    )


def _with_kernel(row: HeadExplanation, kernel: _Grid | None) -> HeadExplanation:
    """The record with what the position scheme alone foretells of the head, where it has such a scheme."""
    if kernel is None:
        return row
    place = row.layer, row.head
    agrees = kernel.number("agree", place)
    return replace(
        row,
        offset_of_kernel=kernel.number("offset_of_kernel", place),
        kernel_agrees=None if agrees is None else bool(agrees),
        kernel_chance=kernel.number("chance", place),
        kernel_share=kernel.number("share", place),
    )


@reads("explain")
@typed
def best_heads(
    tree: xr.DataTree, *, layer: int | None = None, head: int | None = None, count: int | None = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `rank_explanations`, of one layer or with one number where asked for.

    Where the readings of some heads agree, only such heads are chosen, unless a layer or head is asked for.

    Parameters
    ----------
    tree
        From `attnscope.explain`.
    layer, head
        Layer, or number of a head, to choose from, from 0.
    count
        Number of heads at most; None for all.

    Raises
    ------
    AttnscopeError
        If there is no such layer or head.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> variables = {name: (grid, [[True, True]]) for name in ("prefers", "positional", "asked", "agree")}
    >>> variables["peak_weight"] = (grid, [[1.0, 0.5]])
    >>> verdict = xr.Dataset(variables, coords={"layer": [0], "head": [0, 1]})
    >>> tree = xr.DataTree.from_dict({"verdict": verdict})
    >>> best_heads(tree, count=1), best_heads(tree, head=1)
    ([(0, 0)], [(0, 1)])
    """
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
