"""Heads in order, and what their verdicts come to in sentences: one count for the terminal and the page."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.mechanism._verdict import ERROR, READINGS
from attnscope.statistics import numbering_note

_BY_ACCIDENT = 0.05  # probability from which as many agreements are called no more than accident
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


def summary(rows: Rows) -> list[str]:
    """What the verdicts come to, each count with what chance would give, in sentences.

    Examples
    --------
    >>> head = {"prefers": True, "positional": True, "agree": True, "weight_level": 0.06, "position_share": 0.9}
    >>> head |= {"offset_of_spectrum": -1.0, "offset_of_correlation": -1.0, "chance": 0.1}
    >>> other = head | {"prefers": False, "positional": False, "agree": None}
    >>> for sentence in summary([head, head, other]):
    ...     print(sentence)
    2 of 3 heads put more weight on one offset than chance does (0.06; one head or more in 1 of 100 models).
    In 2 of these 2 position gives more than half of the scores' profile.
    In 2 of these 2 both readings of the scores find the offset of the weights; \
with the scores of other heads 0.2 of 2 would (2 or more: probability 0.01).
    >>> summary([other])[-1]
    'No head of 1 puts more weight on one offset than chance does (0.06; one head or more in 1 of 100 models).'
    """
    if not rows:
        return []
    preferring = [row for row in rows if row["prefers"]]
    positional = [row for row in preferring if row["positional"]]
    found = [_preferring(len(preferring), rows)]
    if any(row["position_share"] is not None for row in preferring):
        found.append(
            f"In {len(positional)} of these {len(preferring)} position gives more than half of the scores' profile."
        )
    if positional and any(row[name] is not None for row in rows for name in READINGS):
        found.append(_agreement(positional))
    return found


def _preferring(count: int, rows: Rows) -> str:
    heads = (
        f"{count} of {len(rows)} heads {'puts' if count == 1 else 'put'}"
        if count
        else f"No head of {len(rows)} puts"
    )
    level = max(row["weight_level"] or 0.0 for row in rows)
    return (
        f"{heads} more weight on one offset than chance does "
        f"({level:.2g}; one head or more in 1 of {1 / ERROR:.0f} models)."
    )


def _agreement(positional: Rows) -> str:
    known = [row["agree"] for row in positional]
    agreeing = sum(agree is True for agree in known)
    said = (
        f"In {agreeing} of these {len(positional)} both readings of the scores find the offset of the weights"
    )
    unread = sum(agree is None for agree in known)
    if unread:
        said += f" (in {unread} a reading finds none)"
    chances = [row["chance"] for row in positional]
    if None in chances:
        return f"{said}; there are no other heads to tell how often that is an accident."
    probability = _or_more(agreeing, chances)
    said += (
        f"; with the scores of other heads {sum(chances):.2g} of {len(chances)} would "
        f"({agreeing} or more: probability {_rounded(probability)})"
    )
    return f"{said}, so this may be accident." if probability > _BY_ACCIDENT else f"{said}."


def _rounded(probability: float) -> str:
    return f"{probability:.1g}" if probability >= 0.0001 else "below 0.0001"  # noqa: PLR2004


def _or_more(count: int, chances: list[float]) -> float:
    """Probability of so many successes or more, in independent trials of these probabilities."""
    spread = np.ones(1)
    for chance in chances:
        spread = np.convolve(spread, [1 - chance, chance])
    return float(spread[count:].sum())


def foretold(tree: xr.DataTree) -> str:
    """In how many heads the position scheme alone foretells the offset, and how many chance would give, in a sentence.

    Asked of heads that prefer an offset. Chance is that of `scheme_kernel`. Empty where the scores have no such scheme.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> ones = xr.DataArray([[1.0, 1.0, 1.0]], dims=grid, coords={"layer": [0], "head": [0, 1, 2]})
    >>> kernel = xr.Dataset(
    ...     {"offset_of_kernel": -ones, "agree": ones, "chance": 0.2 * ones, "share": 0.9 * ones},
    ...     attrs={"scheme": "rotation"},
    ... )
    >>> verdict = xr.Dataset({"prefers": ones, "positional": ones, "agree": 0 * ones, "peak_weight": ones})
    >>> foretold(xr.DataTree.from_dict({"scheme_kernel": kernel, "verdict": verdict}))
    'The rotation alone foretells the offset of 3 of these 3 (0.6 by chance).'
    """
    judged = [row for row in rank_heads(tree) if row["prefers"] and row["kernel_agrees"] is not None]
    if not judged:
        return ""
    scheme = tree["scheme_kernel"].attrs.get("scheme", "position scheme")
    chances = [row["kernel_chance"] for row in judged]
    agreeing = sum(row["kernel_agrees"] for row in judged)
    of = f"{agreeing} of these {len(judged)}"
    said = f"The {scheme} alone foretells the offset of {of} ({sum(chances):.1f} by chance)."
    likely = _or_more(agreeing, chances)
    if likely < _BY_ACCIDENT:
        return said
    return f"{said} So many come by chance in {likely:.0%} of cases, so this may be accident."


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


def mask_note(tree: xr.DataTree) -> str:
    """Where peaks are looked for, if a mask keeps heads from some offsets; empty where it does not.

    Examples
    --------
    >>> reach = {"lowest_offset": ("layer", [-15, -7]), "highest_offset": ("layer", [0, 0])}
    >>> verdict = xr.Dataset({"offset_of_spectrum": 0.0}, {"layer": [0, 1]} | reach, {"positions": 16})
    >>> print(mask_note(xr.DataTree.from_dict({"verdict": verdict})))
    The mask lets heads look at offsets −15 to 0 (layers 1: −7 to 0). Peaks are looked for there alone; \
scores are read before the mask.
    """
    if "verdict" not in tree.children:
        return ""
    verdict = tree["verdict"].to_dataset()
    if "lowest_offset" not in verdict.coords:
        return ""
    by_reach: dict[str, list[str]] = {}
    widest = 0
    for layer in verdict["layer"].values:
        low, high = (int(verdict[name].sel(layer=layer)) for name in ("lowest_offset", "highest_offset"))
        by_reach.setdefault(f"{low} to {high}", []).append(str(layer))
        widest += (low, high) == (1 - verdict.attrs["positions"], verdict.attrs["positions"] - 1)
    if widest == verdict.sizes["layer"]:
        return ""
    first, *others = by_reach
    aside = "; ".join(f"layers {', '.join(by_reach[one])}: {one}" for one in others)
    said = f"The mask lets heads look at offsets {first}{f' ({aside})' if aside else ''}."
    read = any(name in verdict and bool(np.isfinite(verdict[name]).any()) for name in READINGS)
    said += " Peaks are looked for there alone" + "; scores are read before the mask" * read
    return f"{said}.".replace("-", "−")


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
