"""Heads in order, and what their verdicts come to in sentences: one count for the terminal and the page."""

from __future__ import annotations

import math
from typing import Any

import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.mechanism._verdict import READINGS

_OF_KERNEL = ("offset_of_kernel", "kernel_agrees", "kernel_chance", "kernel_share")
_NUMBERS = (
    "offset_of_weights",
    *READINGS,
    "position_share",
    "peak_weight",
    "weight_level",
    "coherence",
    "chance",
)

Rows = list[dict[str, Any]]


def rank_heads(tree: xr.DataTree) -> Rows:
    """What was found out about each head, the clearest case first.

    Parameters
    ----------
    tree
        From `explain`.

    Returns
    -------
    list of dict
        For each head ``layer``, ``attention`` (self or causal; None where all layers attend in one way), ``head``;
        ``prefers`` (its largest mean weight at one offset is more than chance gives) and ``positional`` (and position
        gives more than half of its scores' profile); ``agree``, whether both readings of the scores of a positional
        head find the offset of its weights (None where it is not positional, or a reading finds none); and, None where
        not known or not there, ``offset_of_weights`` (where it prefers one), ``offset_of_spectrum``,
        ``offset_of_correlation`` (tokens), ``position_share``, ``peak_weight``, ``weight_level``, ``coherence`` and
        ``chance``, how often the readings of another head would agree. With RoPE or a bias of the scores also
        ``offset_of_kernel``, ``kernel_agrees``, ``kernel_chance`` and ``kernel_share``: see `scheme_kernel`.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> found = {"prefers": (grid, [[False, True]]), "positional": (grid, [[False, True]])}
    >>> found |= {"agree": (grid, [[False, True]]), "peak_weight": (grid, [[0.9, 0.5]])}
    >>> verdict = xr.Dataset(found, coords={"layer": [0], "head": [0, 1]})
    >>> [row["head"] for row in rank_heads(xr.DataTree.from_dict({"verdict": verdict}))]
    [1, 0]
    """
    if "verdict" not in tree.children:
        return []
    verdict = tree["verdict"].to_dataset()
    kinds, kernels = _kinds(tree), _from_kernel(tree)
    nothing = dict.fromkeys(_OF_KERNEL)
    rows = [
        _row(verdict.sel(layer=layer, head=head), kinds) | kernels.get((int(layer), int(head)), nothing)
        for layer in verdict["layer"].values
        for head in verdict["head"].values
    ]
    return sorted(
        (row for row in rows if row["peak_weight"] is not None),
        key=lambda row: (
            not row["agree"],
            not row["positional"],
            -row["peak_weight"],
            row["layer"],
            row["head"],
        ),
    )


def _row(one: xr.Dataset, kinds: dict[int, str]) -> dict[str, Any]:
    numbers = {name: _finite(float(one[name])) if name in one else None for name in _NUMBERS}
    if not bool(one["prefers"]):
        numbers["offset_of_weights"] = None
    positional = bool(one["positional"])
    judged = positional and all(numbers[name] is not None for name in READINGS)
    return {
        "layer": int(one["layer"]),
        "attention": kinds.get(int(one["layer"])),
        "head": int(one["head"]),
        "prefers": bool(one["prefers"]),
        "positional": positional,
        "agree": bool(one["agree"]) if judged else None,
        **numbers,
    }


def best_heads(
    tree: xr.DataTree, *, layer: int | None = None, head: int | None = None, count: int | None = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `rank_heads`, of one layer or with one number where asked for.

    Where the readings of some heads agree, only such heads are chosen, unless a layer or head is asked for.

    Raises
    ------
    AttnscopeError
        If there is no such layer or head.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> found = {name: (grid, [[True, True]]) for name in ("prefers", "positional", "agree")}
    >>> verdict = xr.Dataset(
    ...     found | {"peak_weight": (grid, [[1.0, 0.5]])}, coords={"layer": [0], "head": [0, 1]}
    ... )
    >>> tree = xr.DataTree.from_dict({"verdict": verdict})
    >>> best_heads(tree, count=1), best_heads(tree, head=1)
    ([(0, 0)], [(0, 1)])
    """
    rows = rank_heads(tree)
    for name, asked in (("layer", layer), ("head", head)):
        known = sorted({row[name] for row in rows})
        if asked is not None and asked not in known:
            there = f"they go from {known[0]} to {known[-1]}" if known else "none was explained"
            raise AttnscopeError(f"there is no {name} {asked}: {there}")
    chosen = [row for row in rows if layer in {None, row["layer"]} and head in {None, row["head"]}]
    if not chosen and rows:
        raise AttnscopeError(f"layer {layer} has no head {head}: choose another")
    agreeing = [row for row in chosen if row["agree"]]
    if layer is None and head is None and agreeing:
        chosen = agreeing
    return [(row["layer"], row["head"]) for row in chosen[:count]]


def _kinds(tree: xr.DataTree) -> dict[int, str]:
    """How each layer attends, where not all attend in the same way."""
    if "position_content" not in tree.children:
        return {}
    content = tree["position_content"].to_dataset()
    if "layer_kind" not in content.coords:
        return {}
    kinds = dict(zip(content["layer"].values.tolist(), map(str, content["layer_kind"].values), strict=True))
    return kinds if len(set(kinds.values())) > 1 else {}


def _from_kernel(tree: xr.DataTree) -> dict[tuple[int, int], dict[str, Any]]:
    """What the position scheme alone foretells of each head."""
    if "scheme_kernel" not in tree.children:
        return {}
    kernel = tree["scheme_kernel"].to_dataset()
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row, layer in enumerate(kernel["layer"].values):
        for column, head in enumerate(kernel["head"].values):
            at = {"layer": row, "head": column}
            agree = _number(kernel, "agree", at)
            if agree is not None:
                rows[int(layer), int(head)] = {
                    "offset_of_kernel": _number(kernel, "offset_of_kernel", at),
                    "kernel_agrees": bool(agree),
                    "kernel_chance": _number(kernel, "chance", at),
                    "kernel_share": _number(kernel, "share", at),
                }
    return rows


def _number(dataset: xr.Dataset, name: str, at: dict[str, int]) -> float | None:
    return _finite(float(dataset[name].isel(at))) if name in dataset else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
