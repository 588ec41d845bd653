"""Heads in order: those for which three ways agree first, then by the largest mean weight."""

from __future__ import annotations

import math
from typing import Any

import xarray as xr

from attnscope.errors import AttnscopeError

LOOKS = 0.2  # mean weight at one offset from which a head can be said to look there
_NUMBERS = (
    "offset_of_weights",
    "offset_of_spectrum",
    "offset_of_correlation",
    "position_share",
    "peak_weight",
    "coherence",
)


def rank_heads(tree: xr.DataTree) -> list[dict[str, Any]]:
    """What was found out about each head, the clearest case first.

    Parameters
    ----------
    tree
        From `explain`.

    Returns
    -------
    list of dict
        For each head ``layer``, ``attention`` (self or causal; None where all layers attend in one way), ``head``,
        ``agree`` (None where there is no verdict) and, None where not known,
        ``offset_of_weights``, ``offset_of_spectrum``, ``offset_of_correlation`` (tokens), ``position_share``,
        ``peak_weight``, ``coherence`` and ``moved_without_bias`` (tokens).

    Examples
    --------
    >>> import numpy as np
    >>> grid = ("layer", "head")
    >>> verdict = xr.Dataset(
    ...     {"agree": (grid, np.array([[False, True]])), "peak_weight": (grid, np.array([[0.9, 0.5]]))},
    ...     coords={"layer": [0], "head": [0, 1]},
    ... )
    >>> [row["head"] for row in rank_heads(xr.DataTree.from_dict({"verdict": verdict}))]
    [1, 0]
    """
    rows = _from_content(tree) | _from_verdict(tree)
    kinds = _kinds(tree)
    return sorted(
        ({"layer": row["layer"], "attention": kinds.get(row["layer"])} | row for row in rows.values()),
        key=lambda row: (not row["agree"], -(row["peak_weight"] or 0.0), row["layer"], row["head"]),
    )


def count_agreeing(rows: list[dict[str, Any]], least: float = 0.0) -> tuple[int, int]:
    """In how many heads three ways agree, and of how many that have a verdict.

    Parameters
    ----------
    rows
        From `rank_heads`.
    least
        Count only heads with so much mean weight at their peak: at an offset with little weight, agreement says little
        of where the head looks.

    Examples
    --------
    >>> rows = [{"agree": True, "peak_weight": 0.1}, {"agree": False, "peak_weight": 0.5}]
    >>> count_agreeing(rows), count_agreeing(rows, LOOKS)
    ((1, 2), (0, 1))
    """
    judged = [row["agree"] for row in rows if row["agree"] is not None and row["peak_weight"] >= least]
    return sum(judged), len(judged)


def agreement(rows: list[dict[str, Any]]) -> str:
    """In how many heads three ways agree, in a sentence; empty where none has a verdict.

    Examples
    --------
    >>> agreement([{"agree": True, "peak_weight": 0.5}, {"agree": False, "peak_weight": 0.1}])
    'Three ways find the same offset in 1 of 1 head that looks there with 0.2 or more of its weight (1 of all 2).'
    >>> agreement([{"agree": False, "peak_weight": 0.1}])
    'No head has 0.2 or more of its weight at one offset; three ways find the same offset in 0 of all 1.'
    """
    agreeing, judged = count_agreeing(rows)
    looking, looks = count_agreeing(rows, LOOKS)
    if not judged:
        return ""
    if not looks:
        return (
            f"No head has {LOOKS} or more of its weight at one offset; three ways find the same offset in "
            f"{agreeing} of all {judged}."
        )
    who = "head that looks there with" if looks == 1 else "heads that look there with"
    whose = "its" if looks == 1 else "their"
    return (
        f"Three ways find the same offset in {looking} of {looks} {who} {LOOKS} or more of {whose} weight "
        f"({agreeing} of all {judged})."
    )


def best_heads(
    tree: xr.DataTree, *, layer: int | None = None, head: int | None = None, count: int = 4
) -> list[tuple[int, int]]:
    """The heads to show: the first of `rank_heads`, of one layer or with one number where asked for.

    Where three ways agree for some heads, only such heads are chosen, unless a layer or head is asked for.

    Raises
    ------
    AttnscopeError
        If there is no such layer or head.

    Examples
    --------
    >>> import numpy as np
    >>> verdict = xr.Dataset(
    ...     {name: (("layer", "head"), np.array([[1.0, 0.5]])) for name in ("agree", "peak_weight")},
    ...     coords={"layer": [0], "head": [0, 1]},
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


def _from_verdict(tree: xr.DataTree) -> dict[tuple[int, int], dict[str, Any]]:
    if "verdict" not in tree.children:
        return {}
    verdict = tree["verdict"].to_dataset()
    moved = tree["bias"].to_dataset()["moved"] if "bias" in tree.children else None
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row, layer in enumerate(verdict["layer"].values):
        for column, head in enumerate(verdict["head"].values):
            at = {"layer": row, "head": column}
            peak = _number(verdict, "peak_weight", at)
            if peak is None:
                continue
            rows[int(layer), int(head)] = {
                "layer": int(layer),
                "head": int(head),
                "agree": bool(verdict["agree"].isel(at)),
                **{name: _number(verdict, name, at) for name in _NUMBERS},
                "moved_without_bias": None if moved is None else _finite(float(moved.isel(at))),
            }
    return rows


def _from_content(tree: xr.DataTree) -> dict[tuple[int, int], dict[str, Any]]:
    """Heads whose scores have no form that a verdict could be had from."""
    if "position_content" not in tree.children:
        return {}
    content = tree["position_content"].to_dataset()
    share = content["share"].isel(term=[str(term) for term in content["term"].values].index("PP"))
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row, layer in enumerate(content["layer"].values):
        for column, head in enumerate(content["head"].values):
            at = {"layer": row, "head": column}
            peak = _number(content, "mass", at)
            if peak is not None:
                found = dict.fromkeys((*_NUMBERS, "moved_without_bias")) | {
                    "offset_of_weights": _number(content, "target", at),
                    "position_share": _finite(float(share.isel(at))),
                    "peak_weight": peak,
                }
                rows[int(layer), int(head)] = {"layer": int(layer), "head": int(head), "agree": None, **found}
    return rows


def _number(dataset: xr.Dataset, name: str, at: dict[str, int]) -> float | None:
    return _finite(float(dataset[name].isel(at))) if name in dataset else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
