"""Where a head's weight lies, place by place, beside what equal weights over the same tokens would give."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float

if TYPE_CHECKING:
    from collections.abc import Callable

#: Statistics from which kinds of heads are found.
NEEDED = ("band_sum", "bin_sum", "entropy", "first_token", "special_tokens", "mean_offset")
NEAR = 8  # tokens on either side that are called local; further reaches are told by number


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of all weight, for any number of heads: ``(head,)`` unless stated."""

    offset: Float[np.ndarray, "head offset"]  # ``(head, offset)``: at each offset of the band
    first: Float[np.ndarray, " head"]  # on the first token, on other special tokens, on no token (a learned sink)
    special: Float[np.ndarray, " head"]
    none: Float[np.ndarray, " head"]
    # ``(head, reach)``: within `NEAR` tokens, and twice as many, and so on; on one side of them
    near: Float[np.ndarray, "head reach"]
    near_left: Float[np.ndarray, "head reach"]
    near_right: Float[np.ndarray, "head reach"]
    left: Float[np.ndarray, " head"]  # on either side of the token, the first token not counted
    right: Float[np.ndarray, " head"]
    # what would be on the left if all rows had the same weights, those of their mean: a head that looks at one token
    # near the end of the text looks right from nearly everywhere, and yet knows no direction
    columns_left: Float[np.ndarray, " head"]
    bins: Float[np.ndarray, "head bin"]  # ``(head, bin)``: in each bin of offsets
    entropy: Float[np.ndarray, " head"]  # entropy of a row, nats

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> Shares:
        """The same change of every array."""
        return Shares(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True, eq=False)
class Places:
    """What was measured of some heads, and of equal weights over the tokens that they may see."""

    measured: Shares  # measured, and of equal weights
    equal: Shares
    # ``(head,)``: rows that the shares are means over; where some stand for all, those
    rows: Float[np.ndarray, " head"]
    kinds: np.ndarray  # ``(head,)``: kind of attention of each, ``self``, ``causal`` or ``cross``
    offsets: np.ndarray  # offsets of the band
    reaches: list[int]  # tokens on either side that `Shares.near` holds

    def take(self, chosen: np.ndarray) -> Places:
        """Some of the heads."""

        def some(values: np.ndarray) -> np.ndarray:
            return values[chosen]

        changes = {"rows": self.rows[chosen], "kinds": self.kinds[chosen]}
        return replace(self, measured=self.measured.map(some), equal=self.equal.map(some), **changes)

    def pooled(self, groups: np.ndarray, count: int) -> Places:
        """Means over the heads of each group 0..count-1, each weighted by its rows; kind of the most."""
        rows = np.bincount(groups, self.rows, count)
        member = np.zeros((count, len(groups)))
        member[groups, np.arange(len(groups))] = self.rows / rows[groups]
        kinds = [_most_frequent(self.kinds[groups == group]) for group in range(count)]

        def mean(values: np.ndarray) -> np.ndarray:
            return member @ values

        changes = {"rows": rows, "kinds": np.array(kinds)}
        return replace(self, measured=self.measured.map(mean), equal=self.equal.map(mean), **changes)


def _most_frequent(names: np.ndarray) -> str:
    values, counts = np.unique(names, return_counts=True)
    return str(values[counts.argmax()])


def places_of(results: xr.Dataset) -> Places:
    """Places of every head of a scan: text by text, if it has any, layer by layer, head by head."""
    heads, layers = results.sizes["head"], results.sizes["layer"]
    own = results.rows.values.reshape(-1)  # of each layer, in each text
    rows = np.repeat(own, heads).astype(float)
    measured = _shares(results, "", rows)
    equal = _shares(results, "equal_", own).map(lambda values: np.repeat(values, heads, 0))
    told = np.repeat(results.get("told", results.rows).values.reshape(-1), heads).astype(float)
    kinds = np.tile(np.repeat(results.layer_kind.values.astype(str), heads), len(own) // layers)
    return Places(measured, equal, told, kinds, results.offset.values, _reaches(results))


def over_texts(results: xr.Dataset) -> xr.Dataset:
    """The same of all rows of all texts together."""
    rows = results.rows
    names = (*NEEDED, "columns_left")
    sums = {name: results[name] for name in (*names, *(f"equal_{name}" for name in names)) if name in results}
    pooled = {
        name: values.sum("window")
        if name.endswith("_sum")
        else (values * rows).sum("window", skipna=False) / rows.sum("window")
        for name, values in sums.items()
    }
    keep = ("layer_kind", "bin_first", "bin_last", "offset", "offset_bin")
    pooled |= {name: results[name].sum("window") for name in ("rows", "told") if name in results}
    return xr.Dataset(pooled, {name: results[name] for name in keep})


def _shares(results: xr.Dataset, prefix: str, rows: np.ndarray) -> Shares:
    def of(name: str, *along: str) -> np.ndarray:
        values = results[prefix + name]
        dims = [dim for dim in ("window", "layer", "head") if dim in values.dims]
        values = values.transpose(*dims, *along).values
        return values.reshape(len(rows), *values.shape[len(dims) :])

    bins = of("bin_sum", "offset_bin") / rows[:, None]
    first = of("first_token")
    where, far = results.offset_bin.values, _furthest(results)
    near = far[:, None] <= np.array(_reaches(results), dtype=int)
    return Shares(
        offset=of("band_sum", "offset") / rows[:, None],
        first=first,
        special=np.maximum(of("special_tokens") - first, 0.0),
        none=np.maximum(1.0 - bins.sum(-1), 0.0),
        near=bins @ near,
        near_left=bins @ (near & (where < 0)[:, None]),
        near_right=bins @ (near & (where > 0)[:, None]),
        left=np.maximum(bins[:, where < 0].sum(-1) - first, 0.0),
        right=bins[:, where > 0].sum(-1),
        columns_left=np.maximum(of("columns_left") - first, 0.0) if not prefix else np.zeros(len(rows)),
        bins=bins,
        entropy=of("entropy"),
    )


def _furthest(results: xr.Dataset) -> np.ndarray:
    """Largest distance in each bin."""
    return np.maximum(np.abs(results.bin_first.values), np.abs(results.bin_last.values))


def _reaches(results: xr.Dataset) -> list[int]:
    """Ends of the bins from `NEAR` on, but the last, which has none."""
    ends = _furthest(results)
    return [int(end) for end in np.unique(ends) if NEAR <= end < ends.max()]


def with_rows(results: xr.Dataset, rows: xr.DataArray) -> xr.Dataset:
    """A scan with what `places_of` needs beside its variables."""
    if "layer" not in rows.dims:
        rows = rows.expand_dims(layer=results.sizes["layer"], axis=1)
    if "layer_kind" not in results.coords:
        results = results.assign_coords(layer_kind=("layer", ["self"] * results.sizes["layer"]))
    rows = rows.transpose("window", "layer").drop_vars("layer", errors="ignore")
    if "sampled_rows" in results:
        results = results.assign(told=np.minimum(rows, results.sampled_rows))
    mean_key = results.mean_offset + (rows - 1) / 2
    if "columns_left" in results:
        return results.assign(rows=rows)
    columns_left = ((rows - 1 - mean_key) / rows).clip(0, 1).transpose("window", "layer", "head")
    if "frames" in results:  # Whisper also looks at frames that are no sound, of which the mean key tells nothing
        columns_left = columns_left.where(results.frames <= rows)
    return results.assign(rows=rows, columns_left=columns_left)
