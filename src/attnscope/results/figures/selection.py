"""Data for figures and pages: checks, wording of statistics, and summaries over texts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from attnscope.measure.means import text_mean
from attnscope.measure.offset_shares import shares_by_offset
from attnscope.measure.quantities import Wording
from attnscope.measure.quantities import wording as known_wording
from attnscope.measure.ranking import of_several
from attnscope.statistics.units import LEAST, called_in
from attnscope.support.errors import AttnscopeError

LOW, HIGH = 0.10, 0.90  # the quantiles over entries of `window` that are shown, as "the middle 80% of windows"
_FEWEST = 6  # entries of `window` whose quantiles are told: those of two are but the two, drawn nearer to each other
LISTED = 20  # heads or positions whose intervals a figure shows
_GIVEN = ("weights", "function calls")  # captures whose texts are whole, as they were given
_COMPLETE = 1e-4  # a row whose unlisted mass is below this is listed in full


class NothingToShowError(AttnscopeError):
    """A result has no data for a figure. When all figures are drawn, this one is left out."""


def wording(result: xr.Dataset, statistic: str) -> Wording:
    """The words for a statistic: the variable's own attributes come first, then those of the catalogue."""
    words, attributes = known_wording(statistic), result[statistic].attrs
    units = str(attributes.get("units", words.units))
    return replace(
        words,
        long_name=str(attributes.get("long_name", words.long_name)),
        units="" if units == "1" else units,  # of a number that has none
        signed=bool(attributes.get("signed", words.signed)),
    )


def noun_of(result: xr.Dataset) -> str:
    """The name of an entry of ``window``, in the singular: a text may make several windows."""
    if "window_count" in result:
        return "pool"
    if result.attrs.get("capture") in _GIVEN:
        return "text"
    return called_in(result.attrs)["windows"].removesuffix("s")


def of_entries(words: str, name: str) -> str:
    """Adapt the wording about texts to the entries of ``window``."""
    return re.sub(r"\btext(?=s?\b)", name, re.sub(r"\bText(?=s?\b)", name.capitalize(), words))


def statistics(result: xr.Dataset) -> list[str]:
    """Names of the variables that give each head one number, or one number per text."""
    return [
        str(name)
        for name, variable in result.data_vars.items()
        if {"layer", "head"} <= set(variable.dims) <= {"window", "layer", "head"}
        and name not in {"label", "columns_left"}
        and not str(name).endswith(("_variance", "_error", "_freedom", "_skewness", "_effective_rows"))
        and variable.dtype.kind in "fiub"
    ]


def can_be_drawn(result: xr.Dataset) -> bool:
    """Whether a scan holds anything of its heads that a page draws."""
    drawn = {"profile", "patch_profile", "label", *of_several(result, "kept"), *of_several(result, "chosen_offset")}
    by_offset = any(shares_by_offset(result, of) is not None for of in ("bins", "band"))
    return bool(statistics(result)) or by_offset or bool(drawn & set(result.variables))


def require(result: xr.Dataset, names: Iterable[str], *, purpose: str) -> None:
    """Raise `AttnscopeError` unless the result holds every named variable."""
    missing = [name for name in names if name not in result.variables]
    if missing:
        present = ", ".join(sorted(str(name) for name in result.data_vars)) or "nothing"
        raise AttnscopeError(f"{purpose} needs {', '.join(missing)}, but the result has {present}.")


def check_statistic(result: xr.Dataset, statistic: str) -> None:
    """Raise `AttnscopeError` unless `statistic` gives each head a number."""
    names = statistics(result)
    if statistic not in names:
        choices = ", ".join(names) or "none"
        raise AttnscopeError(f"unknown statistic {statistic!r}: choose from {choices}")


def check_heads(result: xr.Dataset, heads: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the heads as pairs of int, or raise `AttnscopeError` naming the heads that exist."""
    try:
        pairs = [(int(layer), int(head)) for layer, head in heads]
    except (TypeError, ValueError) as error:
        raise AttnscopeError(f"heads must be pairs (layer, head) such as [(8, 9)], found {heads!r}.") from error
    if not pairs:
        raise AttnscopeError("heads is empty: name at least one pair (layer, head), such as [(8, 9)].")
    layers, columns = axis_values(result, "layer"), axis_values(result, "head")
    for layer, head in pairs:
        if layer not in layers or head not in columns:
            raise AttnscopeError(
                f"layer {layer} has no head {head}: layers go from {layers[0]} to {layers[-1]}, "
                f"heads from {columns[0]} to {columns[-1]}."
            )
    return pairs


def axis_values(result: xr.Dataset, dim: str) -> list[int]:
    """Coordinate values of a dimension, or 0, 1, ... where it has none."""
    if dim not in result.sizes:
        raise AttnscopeError(f"the result has no dimension {dim!r}; it has {', '.join(map(str, result.sizes))}.")
    return [int(value) for value in result[dim].values]


def layer_kind(result: xr.Dataset, layer: int) -> str:
    """Kind of attention of a layer: "self", "causal" or "cross"; "self" if not recorded."""
    if "layer_kind" not in result.variables:
        return "self"
    return str(result["layer_kind"].values[axis_values(result, "layer").index(layer)])


def sides(sample: xr.Dataset, layer: int) -> tuple[str, str]:
    """The text of a layer's queries and of its keys: "" is the input, "target_" the input of a decoder."""
    if "target_token" not in sample.variables:
        return "", ""
    kind = layer_kind(sample, layer)
    return "" if kind == "self" else "target_", "target_" if kind == "causal" else ""


def side_tokens(sample: xr.Dataset, side: str) -> list[str]:
    """The tokens of one text of a sample, without the padding beyond them."""
    count = int(sample[f"{side}tokens"]) if (f"{side}tokens" in sample.variables) else sample.sizes["query"]
    return [str(token) for token in sample[f"{side}token"].values[:count]]


def layer_labels(result: xr.Dataset) -> list[str]:
    """Layer numbers, with the kind of attention if the model has more than one kind."""
    layers = axis_values(result, "layer")
    if "layer_kind" not in result.variables:
        return [str(layer) for layer in layers]
    kinds = [str(kind) for kind in result["layer_kind"].values]
    if len(set(kinds)) == 1:
        return [str(layer) for layer in layers]
    return [f"{layer} {kind}" for layer, kind in zip(layers, kinds, strict=True)]


def mean_over_texts(variable: xr.DataArray) -> np.ndarray:
    """Mean over texts, shape (layer, head, ...); NaN only where a head has no value at all."""
    return text_mean(variable.astype(float)).transpose("layer", "head", ...).values


def quantiles_over_texts(variable: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """The 10% and 90% quantiles over texts, each of shape (layer, head, ...); NaN where fewer than 6 have a value."""
    values = variable.transpose("window", "layer", "head", ...).values.astype(float)
    enough = np.isfinite(values).sum(axis=0) >= _FEWEST
    low, high = np.full(enough.shape, np.nan), np.full(enough.shape, np.nan)
    if enough.any():
        finite = np.where(np.isfinite(values), values, np.nan)[:, enough]
        low[enough], high[enough] = np.nanquantile(finite, (LOW, HIGH), axis=0)
    return low, high


def label_shares(result: xr.Dataset) -> np.ndarray:
    """Share of texts with each label, shape (layer, head, cluster); NaN where a head has no label."""
    require(result, ("label", "cluster"), purpose="A figure of labels")
    labels = result["label"].where(result["label"] >= 0).transpose("window", "layer", "head")
    return np.stack(
        [mean_over_texts((labels == c).where(labels.notnull())) for c in range(result.sizes["cluster"])], -1
    )


def dense_weights(sample: xr.Dataset, layer: int, head: int, queries: int, keys: int) -> np.ndarray:
    """The first rows and columns of a head's weights, shape (queries, keys)."""
    chosen = sample.sel(layer=layer, head=head)
    key = chosen["key"].transpose("query", "rank").values[:queries].astype(np.int64)
    weight = chosen["weight"].transpose("query", "rank").values[:queries].astype(float)
    rest = chosen["rest"].values[:queries] if "rest" in sample else np.zeros(len(key))
    dense = np.where(rest[:, None] > _COMPLETE, np.nan, 0.0) * np.ones((1, keys))
    row, rank = np.nonzero((key < keys) & (weight > 0))
    dense[row, key[row, rank]] = weight[row, rank]
    return dense


def captions_of(readings: Mapping[str, tuple[str, str, str]], *, tested: bool, of: str) -> dict[str, tuple[str, str]]:
    """Title and caption of each figure; parts about tested effects only if any effect was tested."""
    few = f"No tests or intervals: these need {LEAST} or more {of}."
    return {
        name: (title, f"{reading} {(significance if tested else few) if significance else ''}".strip())
        for name, (title, reading, significance) in readings.items()
    }


def rank_caption(agreement: xr.Dataset) -> str:
    """Rank correlation of an estimate with the measurement, and its chance, in two lines."""
    value, chance = float(agreement["rank_correlation"]), float(agreement["chance"])
    as_high = "" if np.isnan(chance) else f"as high in {chance:.0%} of random orders"
    if chance < 0.01:  # noqa: PLR2004
        as_high = "as high in under 1% of random orders"
    return f"rank correlation {value:.2f}\n{as_high}".replace("-", "−")
