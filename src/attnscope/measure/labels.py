"""Kinds of heads: clusters of offset profiles, and names for them by a fixed rule (docs/mathematics.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from attnscope.capture.notes import layer_coordinates
from attnscope.measure.maps import KEPT
from attnscope.measure.passes import dimensions
from attnscope.measure.quantities import wording
from attnscope.measure.rows import bin_coordinates
from attnscope.support.checks import check_seed, check_whole, shaped
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attnscope.capture.watch import Site

PEAK_SHARE = 0.3  # of the weight at one offset: a head that looks at one neighbour
LEAN = 0.2  # of (right - left) / (right + left): a head that leans to a side
DIRECTED = ("next-to-left", "next-to-right", "leftward", "rightward")


def name_profile(shares: Float[np.ndarray, " offset"]) -> str:
    """Name a profile as the papers do (docs/mathematics.md, Kinds of heads); a scan's own kinds ask for more."""
    shaped("the profile", shares, "offset")
    centre = _centre(shares)
    peak = int(np.argmax(shares)) - centre
    if abs(peak) == 1 and shares[peak + centre] >= PEAK_SHARE:
        return "next-to-left" if peak < 0 else "next-to-right"
    lean = float(direction(shares))
    if abs(lean) > LEAN:
        return "leftward" if lean < 0 else "rightward"
    return "self" if peak == 0 and shares[centre] >= PEAK_SHARE else "flat"


def direction(band_sums: Float[np.ndarray, "*any offset"]) -> Float[np.ndarray, "*any"]:
    """Direction index (right - left) / (right + left), -1..1; 0 where nothing lies on either side, NaN where NaN
    does.
    """
    centre = _centre(band_sums)
    left, right = band_sums[..., :centre].sum(-1), band_sums[..., centre + 1 :].sum(-1)
    both = left + right
    known = np.where(np.isnan(both), both, 0.0)
    return np.where(both > 0, (right - left) / np.where(both > 0, both, 1.0), known)


def _centre(profiles: np.ndarray) -> int:
    """Where offset 0 stands in ``-n..n``."""
    offsets = profiles.shape[-1]
    if offsets % 2 == 0:
        raise AttnscopeError(f"found {offsets} offsets; expected an odd number, -n..n, of which 0 is in the middle")
    return offsets // 2


@dataclass(frozen=True, eq=False)
class Clustering:
    """k-means over profiles."""

    labels: Int[np.ndarray, " vector"]  # cluster of each vector, in the order of the names below
    centroids: Float[np.ndarray, "cluster offset"]  # share of the weight at each offset
    names: tuple[str, ...]  # by `name_profile`; a second cluster of the same name is called ``leftward (no. 2)``
    inertia: float  # sum of squared distances to the centroids


def cluster_profiles(
    shares: Float[np.ndarray, "vector offset"], *, clusters: int = 6, seed: int = 0, restarts: int = 20
) -> Clustering:
    """Cluster per-text profiles: k-means++, Euclidean, unstandardised, the best of several starts."""
    check_whole(1, clusters=clusters, restarts=restarts)
    check_seed(seed)
    shaped("the profiles", shares, "vector, offset")
    _centre(shares)
    if not len(shares):
        raise AttnscopeError("found no profile; expected one or more, (vector, offset)")
    from sklearn.cluster import KMeans

    distinct = len(np.unique(shares, axis=0))
    model = KMeans(min(clusters, distinct), n_init=restarts, random_state=seed).fit(shares)  # pyright: ignore[reportArgumentType]
    centroids = np.asarray(model.cluster_centers_)
    base = [name_profile(centroid) for centroid in centroids]
    # order: by name, then by how much weight lies in the band, so that numbers do not depend on the starts
    order = sorted(range(len(base)), key=lambda cluster: (_rank(base[cluster]), -centroids[cluster].sum()))
    names: list[str] = []
    for cluster in order:
        again = sum(name.split(" ")[0] == base[cluster] for name in names)
        names.append(base[cluster] if not again else f"{base[cluster]} (no. {again + 1})")
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    labels = position[np.asarray(model.labels_)]
    return Clustering(labels, centroids[order], tuple(names), float(cast("float", model.inertia_)))


def _rank(name: str) -> int:
    return (*DIRECTED, "self", "flat").index(name)


def labelled(
    arrays: Mapping[str, np.ndarray],
    sites: Sequence[Site],
    band: int,
    reach: int,
    lengths: Mapping[str, np.ndarray],
    sources: Sequence[tuple[str, int]],
    first: int = 0,
    groups: Sequence[str] = (),
    unit: str = "tokens",
    by: Sequence[str] | None = None,
    chosen: Sequence[int] = (),
) -> xr.Dataset:
    """Name the dimensions of arrays, and say what stands along them."""
    heads = next(array.shape[2] for name, array in arrays.items() if "head" in dimensions(name))
    tokens = {"long_name": unit, "units": unit}
    return xr.Dataset(
        {name: (dimensions(name), array, _attributes(name, unit)) for name, array in arrays.items()}
        | {name: ("window", counts, tokens) for name, counts in lengths.items()}
        | {
            "source": ("window", np.array([source for source, _ in sources], dtype=object)),
            "start": ("window", np.array([start for _, start in sources], dtype=np.int64)),
        },
        coords={
            "window": np.arange(first, first + len(sources)),
            **({} if by is None else {"by": ("window", np.array(by, dtype=object))}),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "offset": np.arange(-band, band + 1),
            **({"kept": list(KEPT)} if any("kept" in dimensions(name) for name in arrays) else {}),
            **({} if "bin_sum" not in arrays else bin_coordinates(band, reach)),
            **({} if "weight_at" not in arrays else _chosen_coordinate(chosen, unit)),
            **({} if "offset_sum" not in arrays else {"every_offset": np.arange(-reach, reach + 1)}),
            **{side: np.array(groups, dtype=object) for side in ("group_query", "group_key") if groups},
        },
    ).set_coords(["source", "start"])


def _chosen_coordinate(chosen: Sequence[int], unit: str) -> dict[str, Any]:
    attributes = {"long_name": "Chosen offset, key minus query", "units": unit}
    return {"chosen_offset": ("chosen_offset", np.array(chosen, dtype=np.int64), attributes)}


def _attributes(name: str, unit: str) -> dict[str, str]:
    attributes = wording(name).attributes
    return attributes | {"units": attributes["units"].replace("tokens", unit)}
