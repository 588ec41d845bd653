"""Which heads a reader asks for first, where each attends, and which keys receive most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
import xarray as xr

from attnscope.measure.documents import queries, text_mean
from attnscope.measure.labels import LEAST_SHARE, LOCAL, MORE, beyond_chance, beyond_shared
from attnscope.measure.quantities import EQUAL, SEVERAL, without_end, wording
from attnscope.support.arguments import reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RankedHead(TypedDict):
    """A head among those that a reader asks for first."""

    layer: int
    head: int
    value: float
    label: str
    attention: NotRequired[str]
    offset: NotRequired[int | str]


@dataclass(frozen=True, eq=False)
class Question:
    """What a reader asks of all heads."""

    name: str  # name of what heads do, more or less
    score: xr.DataArray  # how much each does it, ``(layer, head)``; NaN where it does not
    # where a head does it, from its layer and head; None where nothing is to be said
    place: Callable[[int, int], int | str] | None = None


def beyond(
    shares: xr.DataArray, equal: xr.DataArray | None, least: float, rows: xr.DataArray | None = None
) -> xr.DataArray:
    """Shares that are large, and larger than of equal weights and than by chance; NaN for others."""
    enough = shares >= least
    if equal is None:
        return shares.where(enough)
    enough &= shares >= MORE * equal
    if rows is not None:
        each = xr.broadcast(shares, equal, rows.astype(float))
        enough &= xr.apply_ufunc(beyond_chance, *each)
    return shares.where(enough)


def sink_like(results: xr.Dataset, names: Iterable[str]) -> list[Question]:
    """Which heads put most weight on one of these, where a scan has any: tokens that hold no place in particular."""
    sinks: list[xr.DataArray] = []
    for name in names:
        if name not in results:
            continue
        share, equal = text_mean(results[name]), _equal(results, name)
        enough = share >= LEAST_SHARE
        if equal is not None:
            enough &= xr.apply_ufunc(beyond_shared, *xr.broadcast(share, equal))
        sinks.append(share.where(enough))
    if not sinks:
        return []
    return [Question("sink-like", xr.concat(sinks, "kind", coords="minimal", compat="override").max("kind"))]


def _equal(results: xr.Dataset, name: str) -> xr.DataArray | None:
    return text_mean(results[f"equal_{name}"]) if f"equal_{name}" in results else None


def answered(questions: Iterable[Question], results: xr.Dataset, top: int) -> dict[str, list[RankedHead]]:
    """The first heads of each question, those that do it most first; none of those that do not."""
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
            row = RankedHead(
                layer=layer,
                head=head,
                value=round(float(values[layer, head]), 6),
                label="" if names is None else names[layer][head],
            )
            if len(set(attention)) > 1:
                row["attention"] = str(attention[layer])
            if question.place is not None:
                row["offset"] = question.place(layer, head)
            ranking[question.name].append(row)
    return ranking


def majority_names(results: xr.Dataset) -> list[list[str]] | None:
    """The kind that each head is of in most texts, by layer and head; None where kinds are not known."""
    if "label_share" not in results:
        return None
    shares = results.label_share.transpose("layer", "head", "cluster")
    names = results.cluster.values
    return [[str(names[cluster]) for cluster in row] for row in shares.fillna(-1).argmax("cluster").values]


_SAME = 1e-6  # relative: what differs less between heads does not tell them apart


def _offset_dims(results: xr.Dataset) -> tuple[str, ...]:
    """Dimensions of an offset: tokens on a line have one, patches in a grid have rows and columns."""
    return ("row_offset", "column_offset") if "row_offset" in results.dims else ("offset",)


def patch_shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Share of all weight of patches at each offset: the profile times the share of patches that have the neighbour."""
    shares = results[f"{prefix}patch_profile"].fillna(0.0)
    for size, offset in (("rows", "row_offset"), ("columns", "column_offset")):
        shares = shares * ((results[size] - abs(results[offset])).clip(0) / results[size])
    return shares


def _shares(results: xr.Dataset, prefix: str = "") -> xr.DataArray | None:
    """Share of all weight at each offset: at a large one the mean over the few rows that have it would say little."""
    if "row_offset" in results.dims:
        return text_mean(patch_shares(results, prefix))
    name = f"{prefix}band_sum"
    return text_mean(results[name] / queries(results)) if name in results and "length" in results else None


@reads("scan")
def peaks(results: xr.Dataset) -> xr.Dataset | None:
    """At which offset the profile of each head has its peak, by means over windows."""
    shares, dims, units = _shares(results), _offset_dims(results), "tokens"
    if shares is None:
        return None
    measured = shares
    if len(dims) > 1:  # where the shares of what is not there are 0
        measured, units = text_mean(results["patch_profile"]), "patches"
    known = measured.notnull().any(dims).transpose("layer", "head").values
    stacked = shares.transpose("layer", "head", *dims).stack(place=dims)
    best = stacked.fillna(-1).argmax("place").values
    found = {f"peak_{dim}": (stacked[dim].values[best].astype(float), units) for dim in dims}
    found["peak_weight"] = stacked.max("place").values, "share"
    return xr.Dataset(
        {
            name: (("layer", "head"), np.where(known, values, np.nan), {"units": unit})
            for name, (values, unit) in found.items()
        }
    )


def _number_of_rows(results: xr.Dataset) -> xr.DataArray | None:
    """How many rows means are over, of all windows, by layer where layers differ; None where it is not known."""
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
    """The most positional, most local and most sink-like heads, by means over windows; none where there is none."""
    questions: list[Question] = []
    dims, rows = _offset_dims(results), _number_of_rows(results)
    is_grid = len(dims) > 1
    shares, equal = _shares(results), _shares(results, EQUAL)
    if shares is not None:
        elsewhere = (shares[dims[0]] != 0) | (shares[dims[-1]] != 0)
        away = beyond(shares.where(elsewhere), equal, LEAST_SHARE, rows)

        def place(layer: int, head: int) -> int | str:
            at = away.isel(layer=layer, head=head).fillna(-1.0).stack(place=dims)
            best = at.isel(place=int(at.argmax("place")))
            offset = [int(best[dim]) for dim in dims]
            return offset_name(*offset) if is_grid else offset[0]

        questions.append(Question("positional", away.max(dims), place))
    if is_grid and shares is not None and equal is not None:
        near = {dim: abs(shares[dim]) <= 1 for dim in dims}
        questions.append(
            Question("local", beyond(shares.isel(near).sum(dims), equal.isel(near).sum(dims), LOCAL, rows))
        )
    elif "outside" in results:
        of_equal = 1 - text_mean(results.equal_outside) if "equal_outside" in results else None
        questions.append(Question("local", beyond(1 - text_mean(results.outside), of_equal, LOCAL, rows)))
    sinks = ("class_token", "registers") if is_grid else ("first_token", "special_tokens", "learned_sink")
    return answered([*questions, *sink_like(results, sinks)], results, top)


@reads("scan")
def heads_far_from_uniform(results: xr.Dataset, top: int = 5) -> tuple[str, list[tuple[int, int]]] | None:
    """Heads to look at first where nothing ranks them: those furthest from equal weights in one statistic."""
    for key, variable in results.data_vars.items():
        name = str(key)
        if not {"layer", "head"} <= set(variable.dims) <= {"window", "layer", "head", *SEVERAL}:
            continue
        if variable.dtype.kind != "f" or without_end(name) != name or name.endswith("_variance"):
            continue
        values = _one_each(variable, ("layer", "head"))
        known = np.isfinite(values)
        if not known.any() or np.ptp(values[known]) <= _SAME * np.abs(values[known]).max():
            continue
        equal = results.get(f"{EQUAL}{name}")
        middle = np.median(values[known]) if equal is None else _one_each(equal, ("layer",))[:, None]
        away = np.nan_to_num(np.abs(values - middle), nan=-1.0)
        order = [divmod(int(place), away.shape[1]) for place in np.argsort(-away, axis=None, kind="stable")]
        return name, [place for place in order if known[place]][:top]
    return None


def _one_each(variable: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Means over texts; of several numbers of a head (shares of blocks, chosen offsets), of the first."""
    first = variable.isel({dim: 0 for dim in variable.dims if dim in SEVERAL})
    return text_mean(first).transpose(*dims).values.astype(float)


def offset_name(row: int, column: int) -> str:
    """Name an offset as a kind of head."""
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
    """A key that receives much: its share of all weight and what equal weights would give it, and the text about it."""

    position: int
    share: float
    equal_share: float
    before: str
    token: str
    after: str


class TopKeys(TypedDict):
    """The keys that receive most from a head in a window; ``recent_keys`` from its last queries alone."""

    window: int
    layer: int
    head: int
    keys: list[TopKey]
    recent_keys: NotRequired[list[TopKey]]
    recent_queries: NotRequired[int]


def top_places(shares: np.ndarray, count: int = TOP) -> np.ndarray:
    """Numbers of the largest shares, largest first; none of what is 0 or NaN."""
    known = np.nan_to_num(shares)
    order = np.argsort(-known, kind="stable")[:count]
    return order[known[order] > 0]


def context(tokens: Sequence[str], place: int) -> tuple[str, str, str]:
    """Text before a token, the token, and text behind it."""
    before = tokens[max(0, place - AROUND) : place]
    return "".join(before), tokens[place], "".join(tokens[place + 1 : place + 1 + AROUND])


def key_side(sample: xr.Dataset, layer: int) -> str:
    """Which text a layer's keys are of: "" is the text, "target_" what a decoder reads."""
    of_decoder = str(sample.layer_kind.values[layer]) == "causal" and "target_position_token" in sample
    return "target_" if of_decoder else ""


def top_keys(sample: xr.Dataset, heads: Sequence[tuple[int, int]]) -> list[TopKeys]:
    """The keys that receive most in each window of a sample, of these heads: with position, share and text."""
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
    """How many queries of a window ``recent`` is over: all, where it has no more than were asked for."""
    of_decoder = str(sample.layer_kind.values[layer]) != "self" and "target_tokens" in sample
    tokens = sample["target_tokens" if of_decoder else "tokens"].values[window]
    return min(int(sample.attrs["observation"]), int(tokens))


def _listed(sample: xr.Dataset, name: str, window: int, layer: int, head: int) -> list[TopKey]:
    shares = _key_shares(sample[name].values[window, layer, head])
    equal = _key_shares(sample[f"equal_{name}"].values[window, layer])
    tokens = sample[f"{key_side(sample, layer)}position_token"].values[window].tolist()
    return [
        TopKey(
            position=int(place),
            share=float(shares[place]),
            equal_share=float(equal[place]),
            before=before,
            token=token,
            after=after,
        )
        for place in top_places(shares)
        for before, token, after in [context(tokens, int(place))]
    ]


def _key_shares(received: np.ndarray) -> np.ndarray:
    total = np.nansum(received, -1, keepdims=True, dtype=np.float64)
    return received / np.where(total > 0, total, 1)


def with_each(result: xr.Dataset) -> xr.Dataset:
    """The result with a statistic for each of several numbers of a head: ``block_recall_5``, ``weight_at_-64``."""
    apart: dict[str, xr.DataArray] = {}
    for dim in SEVERAL:
        for own in of_several(result, dim):
            for name in (own, f"equal_{own}"):
                for one in result[dim].values.tolist() if name in result else ():
                    each = f"{name}_{one}"
                    value = result[name].sel({dim: one}, drop=True).drop_attrs()
                    apart[each] = value.assign_attrs(wording(each).attributes)
    return result.assign(apart)


def of_several(result: xr.Dataset, dim: str) -> list[str]:
    """Names of the variables that are several numbers of a head, along that dimension."""
    return [
        str(name)
        for name, variable in result.data_vars.items()
        if {"layer", "head", dim} <= set(variable.dims) <= {"window", "layer", "head", dim}
    ]
