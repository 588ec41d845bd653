"""Labels of heads, from the shares of their weight and those of uniform attention."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from attnscope.measure.means import queries
from attnscope.measure.quantities import EQUAL
from attnscope.report.schema import shown_label
from attnscope.statistics.agreement import (
    effective_labels,
    independence,
    label_information,
    label_shares,
    sign_agreement,
)
from attnscope.statistics.units import units_in
from attnscope.support.numbers import with_nulls

SHARE = 0.3  # of all weight at one offset or token, for its label
LEAST_SHARE = 0.1  # of all weight at one offset or token, for a ranking
LOCAL = 0.5  # of all weight within some tokens: a local head
MORE = 2.0  # times uniform attention; of sides, times the odds
SHARED_ODDS = 6.0  # times the odds of uniform attention, for a key that all rows share: random Llama models reach 5.5
ALIKE_PLACES, ALIKE_ENTROPY = (0.1, 0.2)  # share of weight in other bins than uniform attention's; nats below it
CHANCE = 0.01  # of any false label in a run
_LEAST = 1e-12  # of the weight on tokens, next to a learned sink
UNNAMED = ("uniform", "uniform over the past", "mixed", "flat")
_SIDES = ("left", "right")


def _fraction(side: np.ndarray, other: np.ndarray) -> np.ndarray:
    both = side + other
    return np.where(both > 0, side / np.where(both > 0, both, 1.0), 0.0)


def beyond_chance(
    measured: Float[np.ndarray, "*#cell"], equal: Float[np.ndarray, "*#cell"], rows: Float[np.ndarray, "*#cell"] | float
) -> Bool[np.ndarray, "*#cell"]:
    """Whether a share exceeds what this number of rows would reach by chance if they ignored position."""
    # away from 0 and 1, where the divergence is infinite
    p, q = np.clip(measured, 1e-12, 1 - 1e-12), np.clip(equal, 1e-12, 1 - 1e-12)
    # n rows of mean q have a mean of p or more with a probability of at most exp(-n KL(p, q)) (Hoeffding 1963, theorem
    # 1); `CHANCE` is divided by the number of shares that are tested (Bonferroni)
    divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return (p > q) & (rows * divergence >= np.log(measured.size / CHANCE))


def beyond_shared(
    measured: Float[np.ndarray, "*#cell"], equal: Float[np.ndarray, "*#cell"]
) -> Bool[np.ndarray, "*#cell"]:
    """Whether a key that all rows share has `SHARED_ODDS` times the odds of uniform attention."""
    # odds multiplied out: no division by 0 where a share is 0 or 1
    return (measured > equal) & (measured * (1 - equal) >= SHARED_ODDS * equal * (1 - measured))


def kind_list(places: Places) -> list[str]:
    """All possible labels, in the order of `kind_codes`."""
    local = ["local" if reach == NEAR else f"within {reach}" for reach in places.reaches]
    return [
        *(f"offset {offset:+d}" for offset in places.offsets),
        *("first token", "special tokens", "no token"),
        *(f"{name}{side}" for name in local for side in ("", " left", " right")),
        *("leftward", "rightward", "uniform", "mixed"),
    ]


def kind_codes(places: Places, allowed: Bool[np.ndarray, "head candidate"]) -> np.ndarray:
    """Number of the label of each head in `kind_list`, among the allowed candidates."""
    kinds, (measured, equal, _) = kind_list(places), places.candidates()
    single, reaches = len(places.offsets) + 3, len(places.reaches)
    enough = allowed & (measured >= MORE * equal)
    shared = slice(len(places.offsets), single)
    enough[:, shared] &= beyond_shared(measured[:, shared], equal[:, shared])
    # a fraction with `MORE` times the odds of uniform attention; never under a mask that hides one side
    leans = allowed & (equal > 0) & (equal < 1) & (measured * (1 - equal) >= MORE * equal * (1 - measured))
    shares = np.where(enough[:, :single], measured[:, :single], 0.0)
    of_heads, even = places.measured, places.equal
    is_uniform = (  # in position and in sharpness
        (np.abs(of_heads["bins"] - even["bins"]).sum(-1) / 2 <= ALIKE_PLACES)
        & (np.abs(of_heads["first"] - even["first"]) <= ALIKE_PLACES)
        & (np.abs(of_heads["entropy"] - even["entropy"]) <= ALIKE_ENTROPY)
    )
    choices = [(shares.max(-1) >= SHARE, shares.argmax(-1)), (is_uniform, kinds.index("uniform"))]
    for reach in range(reaches):
        near = single + reach
        is_local = enough[:, near] & (measured[:, near] >= LOCAL)
        code, left, right = single + 3 * reach, near + reaches, near + 2 * reaches
        choices += [(is_local & leans[:, left], code + 1), (is_local & leans[:, right], code + 2), (is_local, code)]
    for number, side in enumerate(_SIDES):
        is_leaning = (of_heads[side] >= SHARE) & leans[:, single + 3 * reaches + number]
        choices.append((is_leaning, kinds.index(f"{side}ward")))
    conditions, codes = zip(*choices, strict=True)
    # the first condition that holds decides: narrow labels stand before wide ones
    return np.select(conditions, codes, kinds.index("mixed"))


def kind_name(kind: str, attention: str) -> str:
    """The name of a label in ``self``, ``causal`` or ``cross`` attention."""
    if attention == "cross":
        return {"offset +0": "same position"}.get(kind, kind)
    names = {"offset -1": "previous", "offset +0": "self", "offset +1": "next"}
    if attention == "causal":
        names["uniform"] = "uniform over the past"
    return names.get(kind, kind)


def named_clusters(names: list[str], places: Places) -> list[str]:
    """Unique names: clusters of one name get their share of weight in the band and, if that is equal, a number."""
    labelled = [
        f"{name} ({100 * inside:.0f}% in the band)" if names.count(name) > 1 else name
        for name, inside in zip(names, places.measured["offset"].sum(-1), strict=True)
    ]
    return [
        f"{name[:-1]}, no. {labelled[: number + 1].count(name)})" if labelled.count(name) > 1 else name
        for number, name in enumerate(labelled)
    ]


#: Statistics that labels are computed from.
NEEDED = ("band_sum", "bin_sum", "entropy", "first_token", "special_tokens", "mean_offset")
NEAR = 8  # tokens on either side that are called local; longer reaches are named by their number


@dataclass(frozen=True, eq=False)
class Places:
    """Where the weight of some heads falls, and that of uniform attention over the visible tokens."""

    # shares of all weight by name, ``(head[, position])``: at each ``offset`` of the band and in each of the ``bins``;
    # on the ``first`` token, on other ``special`` tokens, on ``none`` (a learned sink); ``near``, within `NEAR` tokens,
    # twice as many, and so on, and of that ``near_left`` and ``near_right``; on the ``left`` without the first token
    # and on the ``right``; and ``columns_left``, the share on the left if all rows had their mean weights: a head that
    # attends to one token near the end attends rightward from nearly everywhere without having a direction. Also the
    # ``entropy`` of a row, in nats
    measured: Mapping[str, np.ndarray]
    equal: Mapping[str, np.ndarray]
    # ``(head,)``: rows that the shares are means over; with sampled rows, those
    rows: Float[np.ndarray, " head"]
    kinds: np.ndarray  # ``(head,)``: ``self``, ``causal`` or ``cross`` attention
    offsets: np.ndarray  # offsets of the band
    reaches: list[int]  # tokens on either side that ``near`` counts

    def candidates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shares that may give a label, those of uniform attention, and their rows: ``(head, candidate)`` each."""
        sides: list[np.ndarray] = []
        for shares in (self.measured, self.equal):
            columns = [shares[name] for name in ("offset", "first", "special", "none", "near")]
            for side, other in (("near_left", "near_right"), ("near_right", "near_left"), _SIDES, _SIDES[::-1]):
                columns.append(_fraction(shares[side], shares[other]))
            sides.append(np.column_stack(columns))
        measured, equal = sides
        of_heads, columns = self.measured, self.measured["columns_left"]
        on_first = of_heads["first"] / np.maximum(
            1.0 - of_heads["none"], _LEAST
        )  # of the weight on tokens, as the columns
        first = of_heads["offset"].shape[1]
        ones = np.ones((len(measured), first + 3 + of_heads["near"].shape[1]))
        near, far = of_heads["near_left"] + of_heads["near_right"], of_heads["left"] + of_heads["right"]
        supported = np.column_stack([ones, near, near, far, far])
        # frames without sound are all alike, and the first frame is unlike all others in every sound (its convolution
        # reads zeros before it): a head attends to them or does not, trained or not
        unknown = np.isnan(columns)
        supported[unknown, first : first + 2] = 0.0
        left = np.where(unknown, np.nan, _fraction(columns, np.maximum(1.0 - columns - on_first, 0.0)))
        equal[:, -2] = np.maximum(equal[:, -2], left)  # NaN if unknown: then there is no side
        equal[:, -1] = np.maximum(equal[:, -1], 1.0 - left)
        return measured, equal, supported * self.rows[:, None]

    def pooled(self, chosen: np.ndarray, groups: np.ndarray, count: int) -> Places:
        """Means over the chosen heads of each group 0..count-1, weighted by rows; the most frequent attention."""
        rows, kinds = self.rows[chosen], self.kinds[chosen]
        total = np.bincount(groups, rows, count)
        member = np.zeros((count, len(groups)))
        member[groups, np.arange(len(groups))] = rows / total[groups]
        each = [np.unique(kinds[groups == group], return_counts=True) for group in range(count)]
        frequent = [str(names[counts.argmax()]) for names, counts in each]
        measured, equal = (
            {name: member @ values[chosen] for name, values in shares.items()} for shares in (self.measured, self.equal)
        )
        return replace(self, measured=measured, equal=equal, rows=total, kinds=np.array(frequent))


def places_of(results: xr.Dataset) -> Places:
    """`Places` of every head of a scan: by text, if it has texts, then layer, then head."""
    heads, layers = results.sizes["head"], results.sizes["layer"]
    layer_rows = results.rows.values.reshape(-1)  # of each layer and text
    rows = np.repeat(layer_rows, heads).astype(float)
    where = results.offset_bin.values
    ends = np.maximum(np.abs(results.bin_first.values), np.abs(results.bin_last.values))  # largest distance in each bin
    reaches = [int(end) for end in np.unique(ends) if NEAR <= end < ends.max()]  # the last bin has no end
    near = ends[:, None] <= np.array(reaches, dtype=int)
    ordered = results.transpose("window", "layer", "head", ..., "offset", "offset_bin", missing_dims="ignore")
    measured = _shares_of(ordered, "", rows, where, near)
    equal = {
        name: np.repeat(values, heads, 0)
        for name, values in _shares_of(ordered, EQUAL, layer_rows, where, near).items()
    }
    supporting = np.repeat(results.get("supporting_rows", results.rows).values.reshape(-1), heads).astype(float)
    kinds = np.tile(np.repeat(results.layer_kind.values.astype(str), heads), len(layer_rows) // layers)
    return Places(measured, equal, supporting, kinds, results.offset.values, reaches)


def _shares_of(
    results: xr.Dataset, prefix: str, rows: np.ndarray, where: np.ndarray, near: np.ndarray
) -> dict[str, np.ndarray]:
    """The shares of `Places` from the statistics with a prefix; `near` marks the bins within each reach."""
    names = ("band_sum", "bin_sum", "first_token", "special_tokens", "entropy")
    band, bins, first, special, entropy = (results[prefix + name].values.reshape(len(rows), -1) for name in names)
    bins, first = bins / rows[:, None], first[:, 0]
    shares = {
        "offset": band / rows[:, None],
        "first": first,
        "special": np.maximum(special[:, 0] - first, 0.0),
        "none": np.maximum(1.0 - bins.sum(-1), 0.0),
        "near": bins @ near,
        "near_left": bins @ (near & (where < 0)[:, None]),
        "near_right": bins @ (near & (where > 0)[:, None]),
        "left": np.maximum(bins[:, where < 0].sum(-1) - first, 0.0),
        "right": bins[:, where > 0].sum(-1),
        "bins": bins,
        "entropy": entropy[:, 0],
    }
    if not prefix:
        on_first = first / np.maximum(bins.sum(-1), _LEAST)
        shares["columns_left"] = np.maximum(results.columns_left.values.reshape(-1) - on_first, 0.0)
    return shares


def over_texts(results: xr.Dataset) -> xr.Dataset:
    """The same statistics over all rows of all texts."""
    present = [name for name in (*NEEDED, "columns_left") if name in results]
    data = results[[*present, *(f"{EQUAL}{name}" for name in present if f"{EQUAL}{name}" in results)]]
    sums = [name for name in data.data_vars if str(name).endswith("_sum")]
    means = (data.drop_vars(sums) * results.rows).sum("window", skipna=False) / results.rows.sum("window")
    pooled = {**data[sums].sum("window"), **means}
    keep = ("layer_kind", "bin_first", "bin_last", "offset", "offset_bin")
    pooled |= {name: results[name].sum("window") for name in ("rows", "supporting_rows") if name in results}
    return xr.Dataset(pooled, {name: results[name] for name in keep})


def with_rows(results: xr.Dataset, rows: xr.DataArray) -> xr.Dataset:
    """A scan with the row counts and left shares that `places_of` needs."""
    if "layer" not in rows.dims:
        rows = rows.expand_dims(layer=results.sizes["layer"], axis=1)
    if "layer_kind" not in results.coords:
        results = results.assign_coords(layer_kind=("layer", ["self"] * results.sizes["layer"]))
    rows = rows.transpose("window", "layer").drop_vars("layer", errors="ignore")
    if "sampled_rows" in results:
        results = results.assign(supporting_rows=np.minimum(rows, results.sampled_rows))
    # offset = key - query, and queries have the mean (rows - 1) / 2
    mean_key = results.mean_offset + (rows - 1) / 2
    if "columns_left" in results:
        return results.assign(rows=rows)
    columns_left = ((rows - 1 - mean_key) / rows).clip(0, 1).transpose("window", "layer", "head")
    if "frames" in results:  # in Whisper's window the mean key is no evidence: see `Places.candidates`
        columns_left = xr.full_like(columns_left, np.nan)
    return results.assign(rows=rows, columns_left=columns_left)


PEAK_SHARE = 0.3  # of the weight at one offset: a head that attends to one neighbour
LEAN = 0.2  # of (right - left) / (right + left): a head with a direction
DIRECTED = ("next-to-left", "next-to-right", "leftward", "rightward")


def name_profile(shares: Float[np.ndarray, " offset"]) -> str:
    """Name a profile as the papers do (mathematics.md, Labels); a scan's labels need further tests."""
    centre = len(shares) // 2
    peak = int(np.argmax(shares)) - centre
    if abs(peak) == 1 and shares[peak + centre] >= PEAK_SHARE:
        return "next-to-left" if peak < 0 else "next-to-right"
    lean = float(direction(shares))
    if abs(lean) > LEAN:
        return "leftward" if lean < 0 else "rightward"
    return "self" if peak == 0 and shares[centre] >= PEAK_SHARE else "flat"


def direction(band_sums: Float[np.ndarray, "*any offset"]) -> Float[np.ndarray, "*any"]:
    """Direction index (right - left) / (right + left), -1..1; 0 if neither side has weight, NaN for NaN."""
    centre = band_sums.shape[-1] // 2
    left, right = band_sums[..., :centre].sum(-1), band_sums[..., centre + 1 :].sum(-1)
    both = left + right
    return np.where(both > 0, (right - left) / np.where(both > 0, both, 1.0), np.where(np.isnan(both), both, 0.0))


@dataclass(frozen=True, eq=False)
class Clustering:
    """k-means over profiles."""

    labels: Int[np.ndarray, " vector"]  # cluster of each vector, in the order of the names below
    centroids: Float[np.ndarray, "cluster offset"]  # share of the weight at each offset
    names: tuple[str, ...]  # by `name_profile`; a second cluster of the same name is called ``leftward (no. 2)``
    inertia: float  # sum of squared distances to the centroids


def cluster_profiles(shares: Float[np.ndarray, "vector offset"], *, clusters: int = 6, seed: int = 0) -> Clustering:
    """Cluster per-text profiles: k-means++, Euclidean, unstandardised, the best of 20 starts."""
    from sklearn.cluster import KMeans

    distinct = len(np.unique(shares, axis=0))
    model = KMeans(min(clusters, distinct), n_init=20, random_state=seed).fit(shares)  # pyright: ignore[reportArgumentType]
    centroids = np.asarray(model.cluster_centers_)
    base = [name_profile(centroid) for centroid in centroids]
    # order: by name, then by the weight in the band, so that numbers do not depend on the starts
    order = sorted(
        range(len(base)),
        key=lambda cluster: ((*DIRECTED, "self", "flat").index(base[cluster]), -centroids[cluster].sum()),
    )
    names: list[str] = []
    for cluster in order:
        again = sum(name.split(" ")[0] == base[cluster] for name in names)
        names.append(base[cluster] if not again else f"{base[cluster]} (no. {again + 1})")
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    # numbers in the order of the names, not of the starts
    labels = position[np.asarray(model.labels_)]
    return Clustering(labels, centroids[order], tuple(names), float(cast("float", model.inertia_)))


_HEADS_AT_ONCE = 1 << 16  # heads in texts that are labelled at once
_MEANINGS = {
    "label": ("Label of the head in a text: number of its name in cluster, −1 without a head", "1"),
    "centroid": ("Mean share of the weight at each offset, over heads and texts with a label", "share"),
    "label_share": ("Texts in which the head has that label", "share"),
    "majority_share": ("Texts in which the head has its most frequent label", "share"),
    "effective_labels": ("Effective number of labels of the head over texts", "1"),
    "direction": ("Direction (right − left) / (right + left) of the weight, mean over texts", "1"),
    "direction_sign_agreement": ("Texts in which the direction has the sign of its median", "share"),
}


def summarize(results: xr.Dataset, *, clusters: int | None = None, seed: int = 0) -> xr.Dataset:
    """Label every head in every text, and measure how far labels depend on the text."""
    texts, layers, heads, offsets = results.band_sum.shape
    shares = (results.band_sum / queries(results)).transpose("window", "layer", "head", "offset").values
    flat = shares.reshape(texts, layers * heads, offsets)
    exists = np.isfinite(flat).all((0, 2))
    present = flat[:, exists]
    how = _named(results, exists) if clusters is None else _clustered(results, present, exists, clusters, seed)
    labels, names, inertia = how
    directions = direction(present)
    label_share = label_shares(labels, len(names))
    centroids = np.stack([present[labels == label].mean(0) for label in range(len(names))])
    summary = xr.Dataset(
        {
            "label": (("window", "layer", "head"), of_all_heads(labels, exists, heads, -1.0)),
            "centroid": (("cluster", "offset"), centroids),
            **label_variables(label_share, exists, heads),
            "direction": (("layer", "head"), of_all_heads(directions.mean(0), exists, heads)),
            "direction_sign_agreement": (("layer", "head"), of_all_heads(sign_agreement(directions), exists, heads)),
        },
        coords={"offset": results.offset.values, "cluster": np.array(names, dtype=object)},
    )
    for name, (long_name, units) in _MEANINGS.items():
        summary[name].attrs = {"long_name": long_name, "units": units}
    majority = label_share.argmax(-1)
    units, called = units_in(results)
    information, chance = label_information(labels, seed=seed)
    numbers: dict[str, Any] = {"intervals_over": called, "texts": len(labels)}
    numbers |= {"label_information": information, "label_information_by_chance": chance}
    is_named = np.array([names[label].split(" (")[0] not in UNNAMED for label in majority])
    for kind, chosen in (("named", is_named), ("unnamed", ~is_named)):
        numbers[kind] = {"heads": int(chosen.sum())}
        if chosen.any():
            of_chosen = labels[:, chosen], directions[:, chosen], present[:, chosen]
            estimates = independence(*of_chosen, clusters=len(names), units=units)
            numbers[kind] |= {name: asdict(estimate) for name, estimate in estimates.items()}
    if clusters is not None:
        numbers["clusters"] = {"asked for": clusters, "k": len(names), "seed": seed, "inertia": inertia}
    summary.attrs["summary"] = json.dumps(with_nulls(numbers))
    summary.attrs["labels"] = counted(names, majority, clusters)
    return summary


def of_all_heads(values: np.ndarray, exists: np.ndarray, heads: int, missing: float = np.nan) -> np.ndarray:
    """Values of the heads that exist, ``(..., head that exists)``, as ``(..., layer, head)``."""
    whole = np.full((*values.shape[:-1], len(exists)), missing, dtype=values.dtype)
    whole[..., exists] = values
    return whole.reshape(*values.shape[:-1], -1, heads)


def label_variables(shares: Float[np.ndarray, "head cluster"], exists: np.ndarray, heads: int) -> dict[str, Any]:
    """The share of windows with each label, of each head, and how far labels depend on the window."""
    dims = ("layer", "head")
    return {
        "label_share": ((*dims, "cluster"), np.moveaxis(of_all_heads(shares.T, exists, heads), 0, -1)),
        "majority_share": (dims, of_all_heads(shares.max(-1), exists, heads)),
        "effective_labels": (dims, of_all_heads(effective_labels(shares), exists, heads)),
    }


def kinds_of(settings: Mapping[str, Any]) -> Callable[[xr.Dataset], xr.Dataset] | None:
    """The function that labels heads in a scan with these settings; None if it cannot."""
    names, clusters = set(settings["statistics"]), settings.get("clusters")
    if set(NEEDED) <= names or (clusters is not None and "band_sum" in names):
        return partial(summarize, clusters=clusters, seed=settings.get("seed", 0))
    return None


#: Number of the label of every head in every text, ``(text, head)``; the names of the labels; the inertia of clusters.
_Kinds = tuple[np.ndarray, tuple[str, ...], float]


def _named(results: xr.Dataset, exists: np.ndarray) -> _Kinds:
    """Labels by their criteria in each text, among those that hold over all texts together."""
    results = with_rows(results, queries(results))
    whole = places_of(over_texts(results))
    shares, equal, rows = whole.candidates()
    allowed = np.zeros(shares.shape, dtype=bool)
    allowed[exists] = beyond_chance(shares[exists], equal[exists], rows[exists])
    size = max(1, _HEADS_AT_ONCE // len(exists))
    blocks = (results.isel(window=slice(first, first + size)) for first in range(0, results.sizes["window"], size))
    each = [kind_codes(places_of(block), np.tile(allowed, (block.sizes["window"], 1))) for block in blocks]
    codes = np.concatenate([part.reshape(-1, len(exists)) for part in each])[:, exists]
    attention, kinds = whole.kinds[exists], kind_list(whole)
    names: list[str] = []
    labels = np.empty_like(codes)
    for code in np.unique(codes):
        for mask in np.unique(attention):
            chosen = (codes == code) & (attention == mask)
            if chosen.any():
                name = kind_name(kinds[code], str(mask))
                names += [] if name in names else [name]
                labels[chosen] = names.index(name)
    return labels, tuple(names), np.nan


def _clustered(results: xr.Dataset, present: np.ndarray, exists: np.ndarray, clusters: int, seed: int) -> _Kinds:
    """Clusters of profiles, with labels by the same criteria if those were measured."""
    clustering = cluster_profiles(present.reshape(-1, present.shape[-1]), clusters=clusters, seed=seed)
    labels = clustering.labels.reshape(len(present), -1)
    if any(name not in results for name in NEEDED):
        return labels, clustering.names, clustering.inertia
    every = np.tile(exists, len(present))
    members = places_of(with_rows(results, queries(results))).pooled(every, clustering.labels, len(clustering.names))
    kinds, codes = kind_list(members), kind_codes(members, beyond_chance(*members.candidates()))
    names = [kind_name(kinds[code], str(mask)) for code, mask in zip(codes, members.kinds, strict=True)]
    return labels, tuple(named_clusters(names, members)), clustering.inertia


def counted(names: tuple[str, ...], majority: np.ndarray, clusters: int | None) -> str:
    """The number of heads with each label in most texts, as a sentence."""
    counts = {name: int((majority == label).sum()) for label, name in enumerate(names)}
    listed = ", ".join(f"{shown_label(name)}: {count}" for name, count in counts.items() if count)
    if clusters is not None:
        fewer = f" ({clusters} requested, but no more profiles differ)" if len(names) < clusters else ""
        return f"{len(names)} clusters of heads{fewer}: {listed}."
    named = [name for name, count in counts.items() if count and name not in UNNAMED]
    return f"Head labels: {listed}." if named else f"No head labels beyond chance: {listed}."
