"""From statistics per text to what a reader asks first: kinds of heads, and how sure we are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from attnscope.measure.documents import units_in
from attnscope.measure.independence import (
    effective_labels,
    independence,
    label_information,
    label_shares,
    sign_agreement,
)
from attnscope.measure.labels import cluster_profiles, direction
from attnscope.measure.observer import UNNAMED, admissible, kind_codes, kind_list, kind_name, named_clusters
from attnscope.measure.places import NEEDED, over_texts, places_of, with_rows
from attnscope.measure.ranking import queries
from attnscope.support.numbers import with_nulls

_AT_ONCE = 1 << 16  # heads in texts that are named at once
_MEANINGS = {
    "label": ("Kind of the head in a text: number of its name in cluster, −1 without a head", "1"),
    "centroid": ("Mean share of the weight at each offset, over heads and texts of a kind", "share"),
    "label_share": ("Texts in which the head has that kind", "share"),
    "majority_share": ("Texts in which the head has its most frequent kind", "share"),
    "effective_labels": ("Effective number of kinds of the head over texts", "1"),
    "direction": ("Weight right of the query less that left of it, over both: mean over texts", "1"),
    "direction_sign_agreement": ("Texts in which the direction has the sign of its median", "share"),
}


def summarize(results: xr.Dataset, *, clusters: int | None = None, seed: int = 0) -> xr.Dataset:
    """Name the kind of every head in every text, and say how far it depends on the text."""
    texts, layers, heads, offsets = results.band_sum.shape
    shares = (results.band_sum / queries(results)).transpose("window", "layer", "head", "offset").values
    flat = shares.reshape(texts, layers * heads, offsets)
    exists = np.isfinite(flat).all((0, 2))
    present = flat[:, exists]
    kinds = _named(results, exists) if clusters is None else _clustered(results, present, exists, clusters, seed)
    names, labels = kinds.names, kinds.labels
    directions = direction(present)

    def by_head(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
        """(..., head that exists) -> (..., layer, head)."""
        whole = np.full((*values.shape[:-1], layers * heads), missing, dtype=values.dtype)
        whole[..., exists] = values
        return whole.reshape(*values.shape[:-1], layers, heads)

    label_share = label_shares(labels, len(names))
    centroids = np.stack([present[labels == label].mean(0) for label in range(len(names))])
    summary = xr.Dataset(
        {
            "label": (("window", "layer", "head"), by_head(labels, -1.0)),
            "centroid": (("cluster", "offset"), centroids),
            "label_share": (("layer", "head", "cluster"), np.moveaxis(by_head(np.moveaxis(label_share, 0, -1)), 0, -1)),
            "majority_share": (("layer", "head"), by_head(label_share.max(-1))),
            "effective_labels": (("layer", "head"), by_head(effective_labels(label_share))),
            "direction": (("layer", "head"), by_head(directions.mean(0))),
            "direction_sign_agreement": (("layer", "head"), by_head(sign_agreement(directions))),
        },
        coords={"offset": results.offset.values, "cluster": np.array(names, dtype=object)},
    )
    for name, (long_name, units) in _MEANINGS.items():
        summary[name].attrs = {"long_name": long_name, "units": units}
    majority = label_share.argmax(-1)
    documents = [str(name) for name in results.source.values] if "source" in results.coords else None
    numbers: dict[str, Any] = {"intervals_over": units_in(results)[1]}
    numbers |= _numbers(labels, majority, directions, present, names, documents, seed)
    if clusters is not None:
        numbers["clusters"] = {"asked for": clusters, "k": len(names), "seed": seed, "inertia": kinds.inertia}
    summary.attrs["summary"] = json.dumps(with_nulls(numbers))
    summary.attrs["kinds"] = counted(names, majority, clusters)
    return summary


def kinds_of(settings: Mapping[str, Any]) -> Callable[[xr.Dataset], xr.Dataset] | None:
    """What finds the kinds of heads in the results of a scan with these settings; None where it cannot."""
    names, clusters = set(settings["statistics"]), settings.get("clusters")
    if set(NEEDED) <= names or (clusters is not None and "band_sum" in names):
        return partial(summarize, clusters=clusters, seed=settings.get("seed", 0))
    return None


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Number of the kind of every head in every text, ``(text, head)``, and the names of the kinds."""

    labels: np.ndarray
    names: tuple[str, ...]
    inertia: float = float("nan")


def _named(results: xr.Dataset, exists: np.ndarray) -> _Kinds:
    """Kinds by their criteria: only names that hold over all texts together, and those in each text."""
    results = with_rows(results, queries(results))
    whole = places_of(over_texts(results))
    known = admissible(whole.take(exists))
    allowed = np.zeros((len(exists), known.shape[1]), dtype=bool)
    allowed[exists] = known
    size = max(1, _AT_ONCE // len(exists))
    codes = np.concatenate(
        [
            kind_codes(places_of(block), np.tile(allowed, (block.sizes["window"], 1))).reshape(-1, len(exists))
            for first in range(0, results.sizes["window"], size)
            for block in [results.isel(window=slice(first, first + size))]
        ]
    )[:, exists]
    attention, kinds = whole.kinds[exists], kind_list(whole)
    names: list[str] = []
    labels = np.empty_like(codes)
    for code in np.unique(codes):
        for way in np.unique(attention):
            chosen = (codes == code) & (attention == way)
            if chosen.any():
                name = kind_name(kinds[code], str(way))
                names += [] if name in names else [name]
                labels[chosen] = names.index(name)
    return _Kinds(labels, tuple(names))


def _clustered(results: xr.Dataset, present: np.ndarray, exists: np.ndarray, clusters: int, seed: int) -> _Kinds:
    """Clusters of profiles; named by the same criteria where all that they need was measured."""
    clustering = cluster_profiles(present.reshape(-1, present.shape[-1]), clusters=clusters, seed=seed)
    labels = clustering.labels.reshape(len(present), -1)
    if any(name not in results for name in NEEDED):
        return _Kinds(labels, clustering.names, clustering.inertia)
    every = np.tile(exists, len(present))
    members = (
        places_of(with_rows(results, queries(results))).take(every).pooled(clustering.labels, len(clustering.names))
    )
    kinds, codes = kind_list(members), kind_codes(members, admissible(members))
    names = [kind_name(kinds[code], str(way)) for code, way in zip(codes, members.kinds, strict=True)]
    return _Kinds(labels, tuple(named_clusters(names, members)), clustering.inertia)


def counted(names: tuple[str, ...], majority: np.ndarray, clusters: int | None) -> str:
    """How many heads are of each kind in most texts, in words."""
    counts = {name: int((majority == label).sum()) for label, name in enumerate(names)}
    listed = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    if clusters is not None:
        asked = f"{clusters} kinds were asked for"
        if len(names) < clusters:
            asked += f", but no more than {len(names)} profiles are different"
        return f"{asked}. Heads: {listed}."
    named = [name for name, count in counts.items() if count and name not in UNNAMED]
    return f"Kinds of heads: {listed}." if named else f"No kinds of heads beyond chance. Heads: {listed}."


def _numbers(
    labels: np.ndarray,
    majority: np.ndarray,
    directions: np.ndarray,
    profiles: np.ndarray,
    names: tuple[str, ...],
    documents: Sequence[str] | None,
    seed: int,
) -> dict[str, Any]:
    is_named = np.array([names[label].split(" (")[0] not in UNNAMED for label in majority])
    information, chance = label_information(labels, seed=seed)
    numbers: dict[str, Any] = {
        "texts": len(labels),
        "label_information": information,
        "label_information_by_chance": chance,
    }
    for kind, chosen in (("named", is_named), ("unnamed", ~is_named)):
        numbers[kind] = {"heads": int(chosen.sum())}
        if chosen.any():
            estimates = independence(
                labels[:, chosen], directions[:, chosen], profiles[:, chosen], clusters=len(names), documents=documents
            )
            numbers[kind] |= {name: asdict(estimate) for name, estimate in estimates.items()}
    return numbers
