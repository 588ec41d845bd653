"""Which share of its weight each head puts at each offset, or in each bin of offsets, beside equal weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnscope.statistics._catalogue import EQUAL
from attnscope.statistics._means import text_mean
from attnscope.statistics._ranking import queries

if TYPE_CHECKING:
    import xarray as xr
    from jaxtyping import Float, Int

_NONE = 1e-9  # a share that is rounding alone

#: What has shares by offset, by the name of its sums: bins that double, the band, every offset.
SUMS = {"bins": "bin_sum", "band": "band_sum", "every": "offset_sum"}


@dataclass(frozen=True, eq=False)
class OffsetShares:
    """Shares of a query's weight by offset, means over queries and over texts.

    All bins together hold 1, less a learned sink; the band alone holds less.

    Attributes
    ----------
    first, last
        ``(bin,)``: the offsets that a bin holds, from the left to the right; one and the same where it holds one.
    share
        ``(layer, head, bin)``; NaN where there is no such head.
    equal
        ``(layer, bin)``: what equal weights over all that a token may see would put there; None where that was not
        measured.

    Examples
    --------
    >>> offsets = np.arange(-4, 1)
    >>> shares = OffsetShares(offsets, offsets, np.array([[[0.125, 0.125, 0.25, 0.5, 0.0]]]), None)
    >>> double = shares.binned()  # -4 and -3 are one bin
    >>> double.first.tolist(), double.last.tolist(), double.share.tolist()
    ([-4, -2, -1, 0], [-3, -2, -1, 0], [[[0.25, 0.25, 0.5, 0.0]]])
    """

    first: Int[np.ndarray, " bin"]
    last: Int[np.ndarray, " bin"]
    share: Float[np.ndarray, "layer head bin"]
    equal: Float[np.ndarray, "layer bin"] | None

    def take(self, bins: slice) -> OffsetShares:
        """Some of the bins."""
        equal = None if self.equal is None else self.equal[:, bins]
        return replace(
            self, first=self.first[bins], last=self.last[bins], share=self.share[..., bins], equal=equal
        )

    def seen(self) -> OffsetShares:
        """Without the ends at which nothing ever lies: the right side where no token may look right."""
        there = np.nan_to_num(self.share).max((0, 1)) > _NONE
        if self.equal is not None:
            there |= np.nan_to_num(self.equal).max(0) > 0
        kept = np.flatnonzero(there | ((self.first <= 0) & (self.last >= 0)))
        return self.take(slice(int(kept[0]), int(kept[-1]) + 1))

    def binned(self) -> OffsetShares:
        """Of single offsets, the sums in bins that double: those of ``bin_sum``."""
        from attnscope.attention import bin_ranges  # with PyTorch, which a finished run does without

        ranges = np.array(bin_ranges(0, int(max(self.last[-1], -self.first[0], 1))))
        inside = (self.first >= ranges[:, :1]) & (self.first <= ranges[:, 1:])  # (bin, offset)
        starts = inside.argmax(1)[inside.any(1)]
        equal = None if self.equal is None else np.add.reduceat(self.equal, starts, -1)
        kept = ranges[inside.any(1)]
        return OffsetShares(kept[:, 0], kept[:, 1], np.add.reduceat(self.share, starts, -1), equal)


def shares_by_offset(results: xr.Dataset, of: str = "bins") -> OffsetShares | None:
    """Shares of the weight by offset, from a scan; None where it does not have them.

    Parameters
    ----------
    results
        From `scan`.
    of
        Name among those of `SUMS`: ``bins`` that double, of which the far ones hold many offsets, found from the sums
        at every offset where they were not measured themselves; the offsets of the ``band``; ``every`` offset.

    Examples
    --------
    >>> import xarray as xr
    >>> results = xr.Dataset(
    ...     {"band_sum": (("text", "layer", "head", "offset"), [[[[2.0, 6.0, 0.0]]]]), "length": ("text", [10])},
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
    along = str(next(dim for dim in results[name].dims if dim not in ("text", "layer", "head")))
    if of == "bins":
        first, last = results.bin_first.values, results.bin_last.values
    else:
        first = last = results[along].values
    equal = results.get(f"{EQUAL}{name}")
    return OffsetShares(
        first,
        last,
        _mean(results, results[name], ("layer", "head", along)),
        None if equal is None else _mean(results, equal, ("layer", along)),
    )


def _mean(results: xr.Dataset, sums: xr.DataArray, dims: tuple[str, ...]) -> np.ndarray:
    """Of each query, and then of each text that has the head."""
    return text_mean(sums / queries(results)).transpose(*dims).values.astype(float)
