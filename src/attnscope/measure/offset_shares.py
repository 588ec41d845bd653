"""Shares of the weight by offset, and models that add to their scores by distance alone, as ALiBi and T5 do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture.families import named_scheme
from attnscope.capture.forward import run_body
from attnscope.capture.watch import Site, way_of
from attnscope.capture.watching import watching
from attnscope.kernels.bins import bin_ranges
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.masks import forbids
from attnscope.measure.means import queries, text_mean
from attnscope.measure.quantities import EQUAL, wording

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_ENOUGH, _LEAST = 64, 3  # tokens
_OF_TOKENS = 2  # dimensions: text, token
_ROUNDING, _ALIKE = 1e-6, 1e-2  # of a bias in 32 or in 16 bits
_SAID = (
    "The model adds a bias by distance to scores (as ALiBi and T5 do), which alone can make heads local: the label "
    "does not show that a head learned it."
)


@torch.no_grad()
def bias_note(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """A note on local heads for models that add a bias by distance to the scores."""
    if "ALiBi" in (named_scheme(model) or ""):
        return {"bias": _SAID}
    if not way_of(model).has_bias:
        return {}
    biased: list[Site] = []

    def look(site: Site, call: AttentionCall) -> Tensor:
        if site.kind != "cross" and call.bias is not None and _is_of_distance(call.bias):
            biased.append(site)
        return output_of(call)

    is_text = all(part.dim() == _OF_TOKENS for part in inputs.values())
    short = {name: part[:, :_ENOUGH] for name, part in inputs.items()} if is_text else inputs
    with watching(model, look, weights_suffice=True):
        run_body(model, dict(short))
    return {"bias": _SAID} if biased else {}


def _is_of_distance(bias: Tensor) -> bool:
    """Whether the bias depends on distance only; a constant along a row has no effect."""
    if min(bias.shape[-2:]) < _LEAST:
        return False
    bias = bias[..., :_ENOUGH, :_ENOUGH]  # a long window does not need the whole matrix
    allowed = ~forbids(bias)
    both = allowed[..., 1:] & allowed[..., :-1]
    steps = bias.masked_fill(~allowed, 0.0).diff(dim=-1).masked_fill(~both, 0.0)
    moved = (steps[..., 1:, 1:] - steps[..., :-1, :-1]).masked_fill(~(both[..., 1:, 1:] & both[..., :-1, :-1]), 0.0)
    size = float(steps.abs().amax())
    return size > _ROUNDING and float(moved.abs().amax()) <= _ALIKE * size


_NONE = 1e-9  # a share that is rounding alone
#: Variables with shares by offset: bins that double, the band, every offset.
SUMS = {"bins": "bin_sum", "band": "band_sum", "every": "offset_sum"}


@dataclass(frozen=True, eq=False)
class OffsetShares:
    """Shares of a query's weight by offset, means over queries and over texts."""

    # ``(bin,)``: first and last offset of each bin; equal for a bin of one offset
    first: Int[np.ndarray, " bin"]
    last: Int[np.ndarray, " bin"]
    share: Float[np.ndarray, "layer head bin"]  # ``(layer, head, bin)``; NaN for heads that a layer lacks
    # ``(layer, bin)``: the share of uniform attention over the visible tokens; None if not measured
    equal: Float[np.ndarray, "layer bin"] | None

    def take(self, bins: slice) -> OffsetShares:
        """A selection of the bins."""
        equal = None if self.equal is None else self.equal[:, bins]
        return replace(self, first=self.first[bins], last=self.last[bins], share=self.share[..., bins], equal=equal)

    def seen(self) -> OffsetShares:
        """Without empty ends, such as the right side under a causal mask."""
        weighted = np.nan_to_num(self.share).max((0, 1)) > _NONE
        if self.equal is not None:
            weighted |= np.nan_to_num(self.equal).max(0) > 0
        inside = np.flatnonzero(weighted | ((self.first <= 0) & (self.last >= 0)))
        return self.take(slice(int(inside[0]), int(inside[-1]) + 1))

    def binned(self) -> OffsetShares:
        """Single offsets summed into bins that double, as in ``bin_sum``."""
        ranges = np.array(bin_ranges(0, int(max(self.last[-1], -self.first[0], 1))))
        inside = (self.first >= ranges[:, :1]) & (self.first <= ranges[:, 1:])  # (bin, offset)
        starts = inside.argmax(1)[inside.any(1)]
        equal = None if self.equal is None else np.add.reduceat(self.equal, starts, -1)
        used = ranges[inside.any(1)]
        return OffsetShares(used[:, 0], used[:, 1], np.add.reduceat(self.share, starts, -1), equal)


def shares_by_offset(results: xr.Dataset, of: str = "bins") -> OffsetShares | None:
    """Shares of the weight by offset, from a scan: in ``bins`` that double in width (from the sums at every offset if
    they were not measured), at the offsets of the ``band``, or at ``every`` offset; None if it does not have them.

    >>> import xarray as xr
    >>> results = xr.Dataset(
    ...     {"band_sum": (("window", "layer", "head", "offset"), [[[[2.0, 6.0, 0.0]]]]), "length": ("window", [10])},
    ...     coords={"offset": [-1, 0, 1]},
    ... )
    >>> shares_by_offset(results, "band").share.tolist()
    [[[0.2, 0.6, 0.0]]]
    >>> shares_by_offset(results, "every") is None
    True
    """
    name = SUMS[of]
    if name not in results or "length" not in results:
        every = shares_by_offset(results, "every") if of == "bins" else None
        return None if every is None else every.binned()
    along = str(next(dim for dim in results[name].dims if dim not in ("window", "layer", "head")))
    if of == "bins":
        first, last = results.bin_first.values, results.bin_last.values
    else:
        first = last = results[along].values
    equal = results.get(f"{EQUAL}{name}")
    share = _mean(results, results[name], ("layer", "head", along))
    return OffsetShares(first, last, share, None if equal is None else _mean(results, equal, ("layer", along)))


def _mean(results: xr.Dataset, sums: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Means over queries, then over the texts that have the head."""
    return text_mean(sums / queries(results)).transpose(*dims).values.astype(float)


def rows_of(results: xr.Dataset) -> xr.DataArray:
    """Queries of each window in each layer, ``(window, layer)``."""
    rows = queries(results)
    if "layer" not in rows.dims:
        rows = rows.expand_dims(layer=results.sizes["layer"])
    return rows.transpose("window", "layer").drop_vars([*rows.coords]).astype(float)


def pairs_of(results: xr.Dataset) -> xr.DataArray:
    """The number of (query, key) pairs of each window, layer and offset, ``(window, layer, offset)``."""
    if "pairs" in results:
        return results.pairs.transpose("window", "layer", "offset")
    rows, offset = rows_of(results), results.offset.values
    kinds = results.layer_kind.values if "layer_kind" in results.coords else ["self"]
    is_causal = np.array([kind == "causal" for kind in kinds])
    keys = np.where(is_causal, rows.values, results.length.values[:, None])[..., None]
    # query i has a key at offset t for max(0, -t) <= i < min(queries, keys - t)
    pairs = (np.minimum(rows.values[..., None], keys - offset) - np.maximum(0, -offset)).clip(0)
    return xr.DataArray(pairs.astype(float), dims=("window", "layer", "offset"))


def profile_of(results: xr.Dataset) -> xr.DataArray:
    """Mean weight at each offset, ``(window, layer, head, offset)``; NaN at offsets without pairs."""
    dims = ("window", "layer", "head", "offset")
    pairs = pairs_of(results).values[:, :, None]
    sums = results.band_sum.transpose(*dims).values
    profile = np.divide(sums, pairs, out=np.full(sums.shape, np.nan), where=pairs > 0)
    return xr.DataArray(profile, dims=dims, attrs=wording("profile").attributes)


def with_profile(results: xr.Dataset) -> xr.Dataset:
    """Restore the profile that `without_profile` removed."""
    return results if "profile" in results else results.assign(profile=profile_of(results))


def without_profile(results: xr.Dataset) -> xr.Dataset:
    """Remove the profile if `profile_of` can restore it exactly."""
    if "profile" not in results or "band_sum" not in results:
        return results
    profile = results.profile.transpose("window", "layer", "head", "offset").values
    same = profile.dtype == np.float64 and np.array_equal(profile, profile_of(results).values, equal_nan=True)
    return results.drop_vars("profile") if same else results
