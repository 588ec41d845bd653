"""Heads in order: those for which three ways agree first, then by the largest mean weight."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import xarray as xr

from attnscope.capture import numbering_note
from attnscope.errors import AttnscopeError

LOOKS = 0.2  # mean weight at one offset from which a head can be said to look there
_RARE = 0.05  # what comes by chance less often than this is said to show something
_OF_KERNEL = ("offset_of_kernel", "kernel_agrees", "kernel_chance", "kernel_share")
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
        ``peak_weight``, ``coherence`` and ``moved_without_bias`` (tokens). With RoPE or a bias of the scores also
        ``offset_of_kernel``, ``kernel_agrees``, ``kernel_chance`` and ``kernel_share``: see `scheme_kernel`.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> verdict = xr.Dataset(
    ...     {"agree": (grid, np.array([[False, True]])), "peak_weight": (grid, np.array([[0.9, 0.5]]))},
    ...     coords={"layer": [0], "head": [0, 1]},
    ... )
    >>> [row["head"] for row in rank_heads(xr.DataTree.from_dict({"verdict": verdict}))]
    [1, 0]
    """
    rows = _from_content(tree) | _from_verdict(tree)
    kinds, kernels = _kinds(tree), _from_kernel(tree)
    nothing = dict.fromkeys(_OF_KERNEL)
    return sorted(
        (
            {"layer": row["layer"], "attention": kinds.get(row["layer"])} | row | kernels.get(place, nothing)
            for place, row in rows.items()
        ),
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


def foretold(tree: xr.DataTree) -> str:
    """In how many heads the position scheme alone foretells the offset, and how many chance would give, in a sentence.

    Chance is that of `scheme_kernel`. Empty where the scores have no such scheme.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> ones = xr.DataArray([[1.0, 1.0, 1.0]], dims=grid, coords={"layer": [0], "head": [0, 1, 2]})
    >>> kernel = xr.Dataset(
    ...     {"offset_of_kernel": -ones, "agree": ones, "chance": 0.2 * ones, "share": 0.9 * ones},
    ...     attrs={"scheme": "rotation"},
    ... )
    >>> content = xr.Dataset(
    ...     {"mass": 0.5 * ones, "target": -ones, "position_share": ones},
    ... )
    >>> foretold(xr.DataTree.from_dict({"scheme_kernel": kernel, "position_content": content}))
    'The rotation alone foretells the offset in 3 of 3 heads with 0.2 or more of their weight at one (0.6 by chance).'
    """
    judged = [row for row in rank_heads(tree) if row["kernel_agrees"] is not None]
    if not judged:
        return ""
    scheme = tree["scheme_kernel"].attrs.get("scheme", "position scheme")
    looking = [row for row in judged if (row["peak_weight"] or 0.0) >= LOOKS]
    if not looking:
        return f"No head has {LOOKS} or more of its weight at one offset that the {scheme} could foretell."
    chances = [row["kernel_chance"] for row in looking]
    agreeing = sum(row["kernel_agrees"] for row in looking)
    heads = "head with" if len(looking) == 1 else "heads with"
    said = (
        f"The {scheme} alone foretells the offset in {agreeing} of {len(looking)} {heads} {LOOKS} or more of their "
        f"weight at one ({sum(chances):.1f} by chance)."
    )
    likely = _at_least(agreeing, chances)
    return (
        said
        if likely < _RARE
        else f"{said} So many come by chance in {likely:.0%} of cases: it shows nothing."
    )


def _at_least(count: int, chances: list[float]) -> float:
    """How likely it is that so many or more of independent events happen."""
    number = np.ones(1)
    for chance in chances:
        number = np.convolve(number, [1 - chance, chance])
    return float(number[count:].sum())


def layer_numbers(tree: xr.DataTree) -> str:
    """Say which of the model's layers the numbers are, where only some attend; else nothing.

    Examples
    --------
    >>> content = xr.Dataset(coords={"layer_name": ("layer", ["layers.2.attn", "layers.5.attn"])})
    >>> layer_numbers(xr.DataTree.from_dict({"position_content": content}))
    'Layers are counted by attention: 0 is layers.2, 1 is layers.5.'
    """
    if "position_content" not in tree.children:
        return ""
    content = tree["position_content"].to_dataset()
    return (
        numbering_note([str(one) for one in content["layer_name"].values]) if "layer_name" in content else ""
    )


def skipped_by_reason(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Name the analyses that are not defined for a model, those of one reason together, and the reason.

    Raises
    ------
    ValueError
        If what the tree says of them cannot be read.

    Examples
    --------
    >>> tree = xr.DataTree()
    >>> tree.attrs["skipped"] = '{"phase_map": "no matrix", "waves": "no matrix", "bias_effect": "no bias"}'
    >>> skipped_by_reason(tree)
    [('phase map, waves', 'no matrix'), ('bias effect', 'no bias')]
    """
    reasons: Any = json.loads(tree.attrs.get("skipped", "{}"))
    if not isinstance(reasons, dict):
        raise ValueError("the attribute 'skipped' is no JSON object")  # noqa: TRY004 as of other text
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(str(reason), []).append(str(name).replace("_", " "))
    return [(", ".join(together), reason) for reason, together in names.items()]


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
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for row, layer in enumerate(content["layer"].values):
        for column, head in enumerate(content["head"].values):
            at = {"layer": row, "head": column}
            peak = _number(content, "mass", at)
            if peak is not None:
                found = dict.fromkeys((*_NUMBERS, "moved_without_bias")) | {
                    "offset_of_weights": _number(content, "target", at),
                    "position_share": _number(content, "position_share", at),
                    "peak_weight": peak,
                }
                rows[int(layer), int(head)] = {"layer": int(layer), "head": int(head), "agree": None, **found}
    return rows


def _number(dataset: xr.Dataset, name: str, at: dict[str, int]) -> float | None:
    return _finite(float(dataset[name].isel(at))) if name in dataset else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
