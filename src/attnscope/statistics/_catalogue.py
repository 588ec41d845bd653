"""What can be asked of a head: each statistic as what it needs of a pass and what it makes of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Need, RowMeasures, bin_ranges, far_starts
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, eq=False)
class Rows:
    """The measured rows of one attention call, with what is known of the texts.

    Attributes
    ----------
    measures
        ``(batch, head, query)`` each.
    counted
        ``(batch, head, query)``: True for rows that enter the averages, False for padding, whatever it holds, and for
        rows that may look nowhere.
    queries, keys
        ``(batch,)``: real tokens on either side.
    """

    measures: RowMeasures
    counted: Tensor
    queries: Tensor
    keys: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the counted rows: ``(batch, head)``; NaN where there is none."""
        return values.double().where(self.counted, 0.0).sum(-1) / self.counted.sum(-1)

    @cached_property
    def band_sum(self) -> Tensor:
        """tr_t, ``(batch, head, offset)``: the weights at offset t, summed over rows.

        See docs/mathematics.md, Offset profile.
        """
        band = _there(self.measures.band)
        return band.where(self.counted[..., None], 0.0).sum(2, dtype=torch.float64)

    @cached_property
    def bin_sum(self) -> Tensor:
        """``(batch, head, bin)``: the weights in each bin, summed over rows; near bins are read off the band."""
        band, bins = self.band_sum, _there(self.measures.bins)
        far = bins.where(self.counted[..., None], 0.0).sum(2, dtype=torch.float64)
        reach = band.shape[-1] // 2
        near = [
            band[..., first + reach : last + reach + 1].sum(-1)
            for first, last in bin_ranges(0, reach)
            if max(-first, last) <= reach
        ]
        left, right = far.split(far.shape[-1] // 2, dim=-1)
        return torch.cat([left, torch.stack(near, -1), right], dim=-1)

    def pairs(self, band: int) -> Tensor:
        """How many (query, key) pairs of real tokens lie at each offset: T - abs(t) in self-attention."""
        offset = torch.arange(-band, band + 1, device=self.keys.device)
        queries, keys = self.queries[:, None], self.keys[:, None]
        return (torch.minimum(queries, keys - offset) - (-offset).clamp_min(0)).clamp_min(0)


@dataclass(frozen=True)
class Statistic:
    """A number of each head and text.

    Attributes
    ----------
    long_name, units
        For tables and axes.
    needs
        Names of the fields of `Need`; ``band`` and ``columns`` among them.
    reduce
        Rows -> ``(batch, head)``, or with one more dimension.
    along
        Name of that dimension, ``offset`` or ``offset_bin``, or "".
    has_equal
        Whether a result says beside it what equal weights would give.
    """

    long_name: str
    units: str
    reduce: Callable[[Rows], Tensor]
    needs: tuple[str, ...] = ()
    along: str = field(default="", kw_only=True)
    has_equal: bool = field(default=False, kw_only=True)


FIRST, SPECIAL = 0, 1  # value columns: indicator of the first real key, and of special tokens


def _there(tensor: Tensor | None) -> Tensor:
    if tensor is None:  # the planner asked for it
        raise AttnscopeError("a statistic was reduced that was not measured")
    return tensor


def _outside(rows: Rows) -> Tensor:
    inside = rows.band_sum.sum(-1) / rows.counted.sum(-1)
    return (rows.mean(rows.measures.mass) - inside).clamp_min(0.0)


def _profile(rows: Rows) -> Tensor:
    band_sum = rows.band_sum
    pairs = rows.pairs(band_sum.shape[-1] // 2)[:, None].double()
    return torch.where(pairs > 0, band_sum / pairs, torch.nan)


STATISTICS: dict[str, Statistic] = {
    "band_sum": Statistic(
        "Sum of the weights at each offset, tr_t",
        "tokens",
        lambda rows: rows.band_sum,
        ("band",),
        along="offset",
        has_equal=True,
    ),
    "bin_sum": Statistic(
        "Sum of the weights in each bin of offsets",
        "tokens",
        lambda rows: rows.bin_sum,
        ("band", "bins"),
        along="offset_bin",
        has_equal=True,
    ),
    "profile": Statistic("Mean weight at each offset", "share", _profile, ("band",), along="offset"),
    "outside": Statistic("Weight outside the band of offsets", "share", _outside, ("band",), has_equal=True),
    "entropy": Statistic(
        "Entropy of a row",
        "nats",
        lambda rows: rows.mean(_there(rows.measures.entropy)),
        ("entropy",),
        has_equal=True,
    ),
    "first_token": Statistic(
        "Weight on the first token",
        "share",
        lambda rows: rows.mean(_there(rows.measures.columns)[..., FIRST]),
        ("columns",),
        has_equal=True,
    ),
    "special_tokens": Statistic(
        "Weight on special tokens",
        "share",
        lambda rows: rows.mean(_there(rows.measures.columns)[..., SPECIAL]),
        ("columns",),
        has_equal=True,
    ),
    "mean_offset": Statistic(
        "Mean offset (negative is left)",
        "tokens",
        lambda rows: rows.mean(_there(rows.measures.mean_offset)),
        ("offsets",),
    ),
    "offset_spread": Statistic(
        "Spread of the offset within a row",
        "tokens",
        lambda rows: rows.mean(_there(rows.measures.offset_variance)).sqrt(),
        ("offsets", "variance"),
    ),
    "max_weight": Statistic(
        "Largest weight of a row",
        "share",
        lambda rows: rows.mean(_there(rows.measures.largest)),
        ("largest",),
    ),
    "gini_simpson": Statistic(
        "Gini-Simpson index of a row, 1 − ΣA²",
        "0 when one-hot",
        lambda rows: 1.0 - rows.mean(_there(rows.measures.collision)),
        ("collision",),
    ),
    "learned_sink": Statistic(
        "Weight on a learned sink, on no token", "share", lambda rows: 1.0 - rows.mean(rows.measures.mass)
    ),
}
DEFAULT = tuple(name for name in STATISTICS if name != "learned_sink")


def choose(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of statistics; None means `DEFAULT`, one string holds names with commas between.

    Raises
    ------
    AttnscopeError
        If a name is unknown: the known ones are listed.

    Examples
    --------
    >>> choose(["entropy", "outside"])
    ('outside', 'entropy')
    >>> choose("entropy, outside")
    ('outside', 'entropy')
    """
    if names is None:
        return DEFAULT
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    unknown = [name for name in names if name not in STATISTICS]
    if unknown or not names:
        found = f"there is no statistic {unknown[0]!r}" if unknown else "no statistic was named"
        raise AttnscopeError(f"{found}: choose from {', '.join(STATISTICS)}")
    return tuple(name for name in STATISTICS if name in set(names))


def plan(names: Sequence[str], band: int, columns: Tensor, reach: int = 0) -> Need:
    """Pack what the statistics need into one request for one pass.

    Parameters
    ----------
    names
        Statistics.
    band
        Largest offset.
    columns
        ``(batch, key, 2)``: indicators of the first real key and of special tokens.
    reach
        Largest offset that has a bin; what lies beyond is in the last one.

    Examples
    --------
    >>> import torch
    >>> need = plan(["entropy", "outside"], 5, torch.zeros(1, 3, 2))
    >>> need.band, need.entropy, need.largest, need.columns
    (5, True, False, None)
    """
    wanted = {part for name in names for part in STATISTICS[name].needs}
    return Need(
        band=band if "band" in wanted else None,
        columns=columns if "columns" in wanted else None,
        entropy="entropy" in wanted,
        offsets="offsets" in wanted,
        variance="variance" in wanted,
        largest="largest" in wanted,
        collision="collision" in wanted,
        bins=far_starts(band, reach) if "bins" in wanted else (),
    )


def bin_coordinates(band: int, reach: int) -> dict[str, Any]:
    """Coordinates of the bins of offsets: the offset nearest to 0 names a bin, first and last say what it holds.

    Examples
    --------
    >>> bin_coordinates(1, 4)["offset_bin"].tolist()
    [-3, -2, -1, 0, 1, 2, 3]
    """
    ranges = np.array(bin_ranges(band, reach))
    return {
        "offset_bin": np.where(ranges[:, 0] < 0, ranges[:, 1], ranges[:, 0]),
        "bin_first": ("offset_bin", ranges[:, 0]),
        "bin_last": ("offset_bin", ranges[:, 1]),
    }


def indicator_columns(valid: Tensor, special: Tensor) -> Tensor:
    """Value columns for `FIRST` and `SPECIAL`: ``(batch, key, 2)``, float32.

    Examples
    --------
    >>> import torch
    >>> indicator_columns(torch.tensor([[False, True, True]]), torch.tensor([[False, True, False]])).tolist()
    [[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]
    """
    first = torch.zeros_like(special)
    first.scatter_(1, valid.to(torch.uint8).argmax(1, keepdim=True), value=True)
    return torch.stack([first, special & valid], dim=-1).float()


def reduce_call(
    rows: RowMeasures, names: Sequence[str], query_valid: Tensor, key_valid: Tensor
) -> dict[str, Tensor]:
    """Statistics of one attention call: ``(batch, head)`` or ``(batch, head, offset)`` each, float64.

    `query_valid` and `key_valid` are ``(batch, query)`` and ``(batch, key)``, True on real tokens.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import AttentionCall, measure
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> need = plan(["entropy"], 2, torch.zeros(1, 4, 2))
    >>> _, rows = measure(AttentionCall(x, x, x, scale=1.0), need)
    >>> everywhere = torch.ones(1, 4, dtype=torch.bool)
    >>> round(reduce_call(rows, ["entropy"], everywhere, everywhere)["entropy"].exp().item(), 5)
    4.0
    """
    counted = query_valid[:, None] & (rows.mass > 0)
    reduced = Rows(rows, counted, query_valid.sum(1), key_valid.sum(1))
    return {name: STATISTICS[name].reduce(reduced) for name in names}
