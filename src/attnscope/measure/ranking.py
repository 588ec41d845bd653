"""Rankings of heads, the offset of each, and the keys that receive most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
import xarray as xr

from attnscope.measure.labels import LEAST_SHARE, LOCAL, MORE, beyond_chance, beyond_shared
from attnscope.measure.means import queries, text_mean
from attnscope.measure.quantities import EQUAL, SEVERAL, without_end, wording
from attnscope.report.reads import reads


class RankedHead(TypedDict):
    """A head in a ranking."""

    layer: int
    head: int
    value: float
    label: str
    attention: NotRequired[str]
    offset: NotRequired[int | str]


@dataclass(frozen=True, eq=False)
class Question:
    """A ranking of all heads."""

    name: str
    score: xr.DataArray  # ``(layer, head)``; NaN for heads that do not qualify
    offset: Callable[[int, int], int | str] | None = None  # of a head, from its layer and number


def beyond(
    shares: xr.DataArray, equal: xr.DataArray | None, least: float, rows: xr.DataArray | None = None
) -> xr.DataArray:
    """Shares that are large, and larger than under uniform attention and by chance; NaN for others."""
    enough = shares >= least
    if equal is None:
        return shares.where(enough)
    enough &= shares >= MORE * equal
    if rows is not None:
        enough &= xr.apply_ufunc(beyond_chance, shares, equal, rows.astype(float))
    return shares.where(enough)


def sink_like(results: xr.Dataset, names: Iterable[str]) -> list[Question]:
    """The ranking by weight on the largest of these kinds of sinks; empty if the scan has none of them."""
    sinks: list[xr.DataArray] = []
    for name in names:
        if name not in results:
            continue
        share, equal = text_mean(results[name]), _equal(results, name)
        enough = share >= LEAST_SHARE
        if equal is not None:
            enough &= xr.apply_ufunc(beyond_shared, share, equal)
        sinks.append(share.where(enough))
    if not sinks:
        return []
    return [Question("sink-like", xr.concat(sinks, "kind", coords="minimal", compat="override").max("kind"))]


def _equal(results: xr.Dataset, name: str) -> xr.DataArray | None:
    return text_mean(results[f"equal_{name}"]) if f"equal_{name}" in results else None


def answered(questions: Iterable[Question], results: xr.Dataset, top: int) -> dict[str, list[RankedHead]]:
    """The first heads of each ranking, by decreasing score."""
    names = majority_names(results)
    attention = results.layer_kind.values if "layer_kind" in results.coords else []
    ranking: dict[str, list[RankedHead]] = {}
    for question in questions:
        values = question.score.transpose("layer", "head").values
        order = np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None, kind="stable")[:top]
        ranking[question.name] = []
        for at in order:
            layer, head = (int(i) for i in np.unravel_index(at, values.shape))
            if not np.isfinite(values[layer, head]):
                continue
            value, label = round(float(values[layer, head]), 6), "" if names is None else names[layer][head]
            row = RankedHead(layer=layer, head=head, value=value, label=label)
            if len(set(attention)) > 1:
                row["attention"] = str(attention[layer])
            if question.offset is not None:
                row["offset"] = question.offset(layer, head)
            ranking[question.name].append(row)
    return ranking


def majority_names(results: xr.Dataset) -> list[list[str]] | None:
    """The most frequent label of each head, by layer and head; None without labels."""
    if "label_share" not in results:
        return None
    shares = results.label_share.transpose("layer", "head", "cluster")
    names = results.cluster.values
    return [[str(names[cluster]) for cluster in row] for row in shares.fillna(-1).argmax("cluster").values]


_SAME = 1e-6  # relative: smaller differences between heads do not count


def _offset_dims(results: xr.Dataset) -> tuple[str, ...]:
    """Dimensions of an offset: one for tokens, rows and columns for patches."""
    return ("row_offset", "column_offset") if "row_offset" in results.dims else ("offset",)


def patch_shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Share of all weight of patches at each offset: the profile times the share of patches that have the neighbour."""
    shares = results[f"{prefix}patch_profile"].fillna(0.0)
    for size, offset in (("rows", "row_offset"), ("columns", "column_offset")):
        shares = shares * ((results[size] - abs(results[offset])).clip(0) / results[size])
    return shares


def _shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray | None:
    """Share of all weight at each offset, over all rows: few rows have a large offset."""
    if "row_offset" in results.dims:
        return text_mean(patch_shares(results, prefix))
    name = f"{prefix}band_sum"
    return text_mean(results[name] / queries(results)) if name in results and "length" in results else None


@reads("scan")
def peaks(results: xr.Dataset) -> xr.Dataset | None:
    """The offset of the peak of each head's profile, by means over windows."""
    shares, dims, units = _shares(results), _offset_dims(results), "tokens"
    if shares is None:
        return None
    measured = shares
    if len(dims) > 1:  # for patches, missing shares are 0
        measured, units = text_mean(results["patch_profile"]), "patches"
    present = measured.notnull().any(dims).transpose("layer", "head").values
    stacked = shares.transpose("layer", "head", *dims).stack(cell=dims)
    best = stacked.fillna(-1).argmax("cell").values
    peak = {f"peak_{dim}": (stacked[dim].values[best].astype(float), units) for dim in dims}
    peak["peak_weight"] = stacked.max("cell").values, "share"
    each = {name: (np.where(present, values, np.nan), {"units": unit}) for name, (values, unit) in peak.items()}
    return xr.Dataset({name: (("layer", "head"), *variable) for name, variable in each.items()})


def _number_of_rows(results: xr.Dataset) -> xr.DataArray | None:
    """The number of rows of all windows, by layer if layers differ; None if unknown."""
    if "row_offset" in results.dims:
        return (results.rows * results.columns).sum()
    if "length" not in results:
        return None
    rows = queries(results)
    if "sampled_rows" in results:
        rows = xr.where(rows < results.sampled_rows, rows, results.sampled_rows)
    return rows.sum("window") if "window" in rows.dims else rows


@reads("scan")
def rank_heads(results: xr.Dataset, top: int = 5) -> dict[str, list[RankedHead]]:
    """The most positional, most local and most sink-like heads, by means over windows."""
    questions: list[Question] = []
    dims, rows = _offset_dims(results), _number_of_rows(results)
    is_grid = len(dims) > 1
    shares, equal = _shares(results), _shares(results, EQUAL)
    if shares is not None:
        away = beyond(shares.where((shares[dims[0]] != 0) | (shares[dims[-1]] != 0)), equal, LEAST_SHARE, rows)
        cells = away.transpose("layer", "head", *dims).fillna(-1.0).stack(cell=dims)
        best = cells.isel(cell=cells.argmax("cell"))

        def offset_of(layer: int, head: int) -> int | str:
            offset = [int(best[dim].values[layer, head]) for dim in dims]
            return offset_name(*offset) if is_grid else offset[0]

        questions.append(Question("positional", away.max(dims), offset_of))
    if is_grid and shares is not None and equal is not None:
        near, evenly = (part.isel({dim: abs(shares[dim]) <= 1 for dim in dims}).sum(dims) for part in (shares, equal))
        questions.append(Question("local", beyond(near, evenly, LOCAL, rows)))
    elif shares is not None and not is_grid:
        evenly = None if equal is None else equal.sum(dims)
        questions.append(Question("local", beyond(shares.sum(dims, skipna=False), evenly, LOCAL, rows)))
    sinks = ("class_token", "registers") if is_grid else ("first_token", "special_tokens", "learned_sink")
    return answered([*questions, *sink_like(results, sinks)], results, top)


@reads("scan")
def heads_far_from_uniform(results: xr.Dataset, top: int = 5) -> tuple[str, list[tuple[int, int]]] | None:
    """The heads furthest from uniform attention in one statistic, for results without rankings."""
    for key, variable in results.data_vars.items():
        name = str(key)
        if not {"layer", "head"} <= set(variable.dims) <= {"window", "layer", "head", *SEVERAL}:
            continue
        if variable.dtype.kind != "f" or without_end(name) != name or name.endswith("_variance"):
            continue
        values = _one_each(variable, ("layer", "head"))
        finite = np.isfinite(values)
        if not finite.any() or np.ptp(values[finite]) <= _SAME * np.abs(values[finite]).max():
            continue
        equal = results.get(f"{EQUAL}{name}")
        middle = np.median(values[finite]) if equal is None else _one_each(equal, ("layer",))[:, None]
        away = np.nan_to_num(np.abs(values - middle), nan=-1.0)
        order = [divmod(int(head), away.shape[1]) for head in np.argsort(-away, axis=None, kind="stable")]
        return name, [head for head in order if finite[head]][:top]
    return None


def _one_each(variable: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Means over texts; if a head has several numbers (shares of blocks, chosen offsets), those of the first."""
    first = variable.isel({dim: 0 for dim in variable.dims if dim in SEVERAL})
    return text_mean(first).transpose(*dims).values.astype(float)


def offset_name(row: int, column: int) -> str:
    """The label of an offset."""
    if not row and not column:
        return "self"
    parts = [(abs(row), "up" if row < 0 else "down"), (abs(column), "left" if column < 0 else "right")]
    parts = [(steps, side) for steps, side in parts if steps]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{steps} {side}" for steps, side in parts)


TOP = 10
AROUND = 8  # tokens on either side


class TopKey(TypedDict):
    """A key that receives much: its share of all weight, that under uniform attention, and the text around it."""

    position: int
    share: float
    equal_share: float
    before: str
    token: str
    after: str


class TopKeys(TypedDict):
    """The keys that receive most from a head in a window; ``recent_keys`` from its last queries only."""

    window: int
    layer: int
    head: int
    keys: list[TopKey]
    recent_keys: NotRequired[list[TopKey]]
    recent_queries: NotRequired[int]


def top_positions(shares: np.ndarray, count: int = TOP) -> np.ndarray:
    """Indices of the largest shares, largest first, without 0 and NaN."""
    finite = np.nan_to_num(shares)
    order = np.argsort(-finite, kind="stable")[:count]
    return order[finite[order] > 0]


def context(tokens: Sequence[str], position: int) -> tuple[str, str, str]:
    """Text before a token, the token, and text after it."""
    before = tokens[max(0, position - AROUND) : position]
    return "".join(before), tokens[position], "".join(tokens[position + 1 : position + 1 + AROUND])


def key_side(sample: xr.Dataset, layer: int) -> str:
    """The text of a layer's keys: "" for the text, "target_" for the decoder's."""
    of_decoder = str(sample.layer_kind.values[layer]) == "causal" and "target_position_token" in sample
    return "target_" if of_decoder else ""


def top_keys(sample: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[TopKeys]:
    """The keys that receive most from these heads in each window of a sample, with position, share and text."""
    if "received" not in sample:
        return []
    rows: list[TopKeys] = []
    for layer, head in heads:
        for window in range(sample.sizes["window"]):
            keys = _listed(sample, "received", window, layer, head)
            if not keys:
                continue
            row = TopKeys(window=window, layer=layer, head=head, keys=keys)
            if "recent" in sample:
                row["recent_keys"] = _listed(sample, "recent", window, layer, head)
                row["recent_queries"] = recent_queries(sample, window, layer)
            rows.append(row)
    return rows


def recent_queries(sample: xr.Dataset, window: int, layer: int) -> int:
    """The number of queries of a window that ``recent`` covers: the observation window, or all if fewer."""
    of_decoder = str(sample.layer_kind.values[layer]) != "self" and "target_tokens" in sample
    tokens = sample["target_tokens" if of_decoder else "tokens"].values[window]
    return min(int(sample.attrs["observation"]), int(tokens))


def _listed(sample: xr.Dataset, name: str, window: int, layer: int, head: int) -> list[TopKey]:
    shares = _key_shares(sample[name].values[window, layer, head])
    equal = _key_shares(sample[f"equal_{name}"].values[window, layer])
    tokens = sample[f"{key_side(sample, layer)}position_token"].values[window].tolist()
    return [
        TopKey(
            position=int(position),
            share=float(shares[position]),
            equal_share=float(equal[position]),
            before=before,
            token=token,
            after=after,
        )
        for position in top_positions(shares)
        for before, token, after in [context(tokens, int(position))]
    ]


def _key_shares(received: np.ndarray) -> np.ndarray:
    total = np.nansum(received, -1, keepdims=True, dtype=np.float64)
    return received / np.where(total > 0, total, 1)


def with_each(result: xr.Dataset) -> xr.Dataset:
    """The result with one variable for each of several numbers of a head: ``block_recall_5``, ``weight_at_-64``."""
    single: dict[str, xr.DataArray] = {}
    for dim in SEVERAL:
        for statistic in of_several(result, dim):
            for name in (statistic, f"equal_{statistic}"):
                for one in result[dim].values.tolist() if name in result else ():
                    each = f"{name}_{one}"
                    value = result[name].sel({dim: one}, drop=True).drop_attrs()
                    single[each] = value.assign_attrs(wording(each).attributes)
    return result.assign(single)


def of_several(result: xr.Dataset, dim: str) -> list[str]:
    """Names of the variables with several numbers a head along that dimension."""
    dims_of = {str(name): set(variable.dims) for name, variable in result.data_vars.items()}
    return [
        name for name, dims in dims_of.items() if {"layer", "head", dim} <= dims <= {"window", "layer", "head", dim}
    ]
