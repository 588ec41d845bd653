"""What a page says about a result: plain lists and numbers, small whatever the number of texts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._numbers import significant
from attnscope.corpus import split_character
from attnscope.errors import AttnscopeError
from attnscope.figures.palette import cluster_colours
from attnscope.figures.reading import (
    axis_values,
    can_be_drawn,
    label_shares,
    layer_labels,
    mean_over_texts,
    noun_of,
    of_blocks,
    of_entries,
    quantiles_over_texts,
    statistics,
    wording,
)
from attnscope.figures.text import with_minus
from attnscope.report._embed import numbers
from attnscope.report._offset_content import offset_data, with_peak
from attnscope.statistics import SUMMARIES, heads_apart, intervals, rank_heads, with_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import xarray as xr

_BINS = 24
_SAID = {  # of the summary of a scan
    "clusters": "Kinds of heads",
    "k": "how many",
    "inertia": "sum of squared distances to their means (k-means)",
    "label_information": "How far the head alone tells the kind: share of the entropy of the kinds",
    "label_information_by_chance": "The same by chance, with the kinds shuffled",
    "named": "Heads with a name",
    "unnamed": "Other heads",
    "intervals_over": "Intervals are over",
    "majority_share": "share of the texts on which a head is of its usual kind",
    "effective_labels": "kinds of one head over texts (1: always the same)",
    "at_most_two_labels": "share of the heads with at most two kinds",
    "sign_agreement": "share of the texts on which a head leans to its usual side",
    "direction_icc": "share of the variance of the direction that lies between heads, not texts",
    "profile_between_heads": "share of the variance of the profiles that lies between heads, not texts",
}


def page_data(result: xr.Dataset) -> dict[str, Any]:
    """Everything the page draws, except the sample window.

    Arrays run over heads in the order layer by layer. Distributions over texts are counts, so the size does
    not grow with the number of texts.
    """
    if not can_be_drawn(result):
        raise AttnscopeError("The result has no statistic, profile or label of any head: nothing to report.")
    result = with_each(result)
    result = result if statistics(result) or "label" in result else with_peak(result)
    names, ends = statistics(result), intervals(result)
    layers, heads = axis_values(result, "layer"), axis_values(result, "head")
    kinds = result["layer_kind"].values if "layer_kind" in result.variables else ["self"] * len(layers)
    layer_names = result["layer_name"].values if "layer_name" in result.variables else layers
    return {
        "layers": layers,
        "layerLabels": layer_labels(result),
        "layerNames": [str(name) for name in layer_names],
        "layerKinds": [str(kind) for kind in kinds],
        "heads": heads,
        "texts": result.sizes.get("text", 0),
        "noun": noun_of(result),
        "statistics": [_statistic(result, name, ends) for name in names],
        "opens": _opens(result, names),
        "blocks": [_blocks(result, name) for name in of_blocks(result)],
        "profile": _profile(result),
        "offsets": offset_data(result),
        "labels": _labels(result),
    }


def pieces_note(tokens: Iterable[str]) -> str:
    """Say what a number under a token means, where one is.

    Examples
    --------
    >>> pieces_note(["a", "猫₁", "猫₂"])
    'The tokenizer splits some characters: 猫₁ 猫₂ are the pieces of one, each a token of its own.'
    >>> pieces_note(["a", "b"])
    ''
    """
    pieces = " ".join(split_character(list(tokens)))
    if not pieces:
        return ""
    return f"The tokenizer splits some characters: {pieces} are the pieces of one, each a token of its own."


def flatten(summary: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Rows (name, value, interval) of a nested summary, whatever its shape; none of what is not defined.

    Parameters
    ----------
    summary
        Numbers, in mappings within each other.
    path
        Names of the mappings around it.

    Examples
    --------
    >>> from attnscope.report import flatten
    >>> list(flatten({"icc": {"named": {"value": 0.8, "low": 0.75, "high": 0.84}}, "heads": 144}))
    [('icc, Heads with a name', '0.8', '0.75 to 0.84'), ('heads', '144', '')]
    """
    name = ", ".join(_SAID.get(part, part.replace("_", " ")) for part in path)
    if isinstance(summary, dict):
        rest = {str(key): value for key, value in summary.items()}
        value = next((rest.pop(key) for key in ("value", "estimate", "mean") if key in rest), None)
        interval = rest.pop("interval", None)
        if interval is None and {"low", "high"} <= rest.keys():
            interval = [rest.pop("low"), rest.pop("high")]
        if any(row := (_say(value), _say_interval(interval))):
            yield name, *row
        for key, inner in rest.items():
            yield from flatten(inner, (*path, key))
    elif isinstance(summary, list) and any(isinstance(item, dict | list) for item in summary):
        for index, item in enumerate(summary):
            yield from flatten(item, (*path, str(index)))
    elif isinstance(summary, list):
        yield name, "; ".join(_say(item) for item in summary), ""
    elif said := _say(summary):
        yield name, said, ""


def parsed(text: Any) -> Any:
    """The JSON value of an attribute, or the attribute itself where it is not JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _statistic(result: xr.Dataset, name: str, ends: xr.Dataset) -> dict[str, Any]:
    words = wording(result, name)
    if name in SUMMARIES:
        noun = noun_of(result)
        words = replace(
            words, long_name=of_entries(words.long_name, noun), reading=of_entries(words.reading, noun)
        )
    variable = result[name]
    entry: dict[str, Any] = {
        "key": name,
        "name": words.long_name,
        "units": "" if _says_share(words.long_name) and words.units == "share" else words.units,
        "help": words.reading,
        "signed": words.signed,
        "largest": words.largest,
        "mean": numbers(mean_over_texts(variable).ravel()),
    }
    if (even := result.get(f"equal_{name}")) is not None:
        even = even.mean("text") if "text" in even.dims else even
        entry["equal"] = numbers(even.values.astype(float))  # one a layer
    if name in ends and "text" in variable.dims:
        within = ends[name].transpose("bound", "layer", "head")
        entry["within"] = [numbers(bound.ravel()) for bound in within.values]
    if "text" in variable.dims:
        low, high = quantiles_over_texts(variable)
        entry["low"], entry["high"] = numbers(low.ravel()), numbers(high.ravel())
        values = variable.transpose("layer", "head", "text").values.astype(float)
        entry["counts"] = [_histogram(row) for row in values.reshape(-1, values.shape[-1])]
    return entry


def any_known(values: Any) -> bool:
    """Whether there is a number among values of the page, however deep.

    Examples
    --------
    >>> any_known([[None, 0.5]]), any_known([[None], []])
    (True, False)
    """
    return any(map(any_known, values)) if isinstance(values, list) else values is not None


def _says_share(name: str) -> bool:
    """Whether the name of a statistic says its unit, which beside it would be said twice."""
    return "share" in name.lower().split()


def _histogram(values: np.ndarray) -> dict[str, Any] | None:
    """Counts of one head over texts between its own least and greatest value."""
    values = values[np.isfinite(values)]
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
        reach = 0.05 * abs(low) or 0.5
        low, high = low - reach, high + reach
    counts, _ = np.histogram(values, bins=_BINS, range=(low, high))
    return {"range": numbers(np.array([low, high])), "n": counts.tolist()}


def _opens(result: xr.Dataset, names: list[str]) -> dict[str, Any]:
    """Which statistic colours the grid at first, at which head the page opens, and why, where no ranking says it.

    Without a head, the page opens at the one that looks hardest at one neighbour.
    """
    apart = heads_apart(result)
    opens: dict[str, Any] = {"statistic": 0, "head": None, "says": ""}
    name = ""
    if apart is not None:
        name = next((each for each in names if each == apart[0] or each.startswith(f"{apart[0]}_")), "")
        opens["statistic"] = names.index(name) if name else 0
    if {"profile", "patch_profile"} & set(result.variables) or not names:
        return opens
    heads = [(row["layer"], row["head"]) for rows in rank_heads(result).values() for row in rows]
    if not heads and apart is None:
        opens["says"] = (
            "These statistics are the same for all heads: none leads, and the page opens at the first."
        )
        return opens
    if not heads and apart is not None:
        heads = apart[1]
        layer, head = (
            axis_values(result, dim)[at] for dim, at in zip(("layer", "head"), heads[0], strict=True)
        )
        middle = "equal weights" if f"equal_{name}" in result else "the median of all heads"
        opens["says"] = (
            f"These statistics rank no heads. The page opens at head {layer}.{head}, the furthest from {middle} in "
            f"“{wording(result, name).long_name}”."
        )
    opens["head"] = heads[0][0] * result.sizes["head"] + heads[0][1]
    return opens


def _blocks(result: xr.Dataset, name: str) -> dict[str, Any]:
    """What a curve over the shares of blocks is made of: the keys of the statistics that are its points."""
    kept = result["kept"].values.tolist()
    keys = [f"{name}_{percent}" for percent in kept]
    words = wording(result, name)
    return {"kept": kept, "keys": keys, "title": words.long_name, "reading": words.reading}


def _profile(result: xr.Dataset) -> dict[str, Any] | None:
    if "profile" not in result.variables:
        return None
    offsets = [int(offset) for offset in result["offset"].values]
    low, high = quantiles_over_texts(result["profile"])
    mean = mean_over_texts(result["profile"])
    flat = {
        name: numbers(edge.reshape(-1, len(offsets)))
        for name, edge in (("mean", mean), ("low", low), ("high", high))
    }
    return {"offsets": offsets, **flat}


def _labels(result: xr.Dataset) -> dict[str, Any] | None:
    if not {"label", "cluster"} <= set(result.variables):
        return None
    names = [str(name) for name in result["cluster"].values]
    entry: dict[str, Any] = {
        "names": list(map(with_minus, names)),
        "colours": cluster_colours(names),
        "shares": numbers(label_shares(result).reshape(-1, len(names))),
    }
    if "centroid" in result.variables:
        entry["offsets"] = [int(offset) for offset in result["offset"].values]
        entry["centroids"] = numbers(result["centroid"].transpose("cluster", "offset").values.astype(float))
    return entry


def _say(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124 NaN: not defined, as with too few heads
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return significant(value, 4).replace("-", "−")
    return str(value)


def _say_interval(interval: Any) -> str:
    if isinstance(interval, list | tuple):
        if not any(map(_say, interval)):
            return ""
        return " to ".join(_say(edge) for edge in interval)
    return _say(interval)
