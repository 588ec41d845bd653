"""Statistics from some queries of each window, drawn at random, with what their intervals need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from attnscope.attention import bin_ranges, measure_by_level, measure_rows
from attnscope.statistics._catalogue import CHOSEN, EFFECTIVE, ERROR, FREEDOM, KNOWN, SKEWNESS, STATISTICS
from attnscope.statistics._places import NEEDED
from attnscope.statistics._reduce import reduce_call
from attnscope.statistics._row_draws import RowSample, sizes_of
from attnscope.statistics._rows import Rows, first_of, there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall, Need, RowMeasures
    from attnscope.statistics._row_draws import Draw
    from attnscope.statistics._second_pass import Asking

ESTIMATED = "Estimated: "  # begins the names in the note
OF_ALL_ROWS = frozenset({"band", "columns", CHOSEN})  # had of every row from its log-sum-exp
_STEP = 2.0**-12  # of a row's part, by which its influence is found


@dataclass(frozen=True, eq=False)
class KnownOfAll:
    """What is known of all rows, whichever are drawn.

    Attributes
    ----------
    queries, keys
        ``(batch,)``: real tokens on either side.
    first_key
        ``(batch,)``: place of the first real key.
    rows
        ``(batch, head)``: how many rows are counted.
    band
        ``(batch, head, offset)``: the weights at each offset, summed over rows, if they are wanted.
    """

    queries: Tensor
    keys: Tensor
    first_key: Tensor
    rows: Tensor
    band: Tensor | None

    @classmethod
    def of(cls, every: RowMeasures, valid: tuple[Tensor, Tensor]) -> KnownOfAll:
        """From what was measured of every row; `valid` is of queries and keys, as in `reduce_call`."""
        counted = valid[0][:, None] & (every.mass > 0)
        band = every.band
        if band is not None:
            band = band.where(counted[..., None], 0.0).sum(2, dtype=torch.float64)
        return cls(valid[0].sum(1), valid[1].sum(1), first_of(valid[1]), counted.sum(2), band)


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledRows(Rows):
    r"""Rows that stand for others.

    A sum over all rows is estimated by :math:`\sum_r w_r y_r`, with :math:`w_r = 1 / (N p_r)` for N draws of chance
    :math:`p_r` (Hansen and Hurwitz 1943); a mean is divided by the estimated number of rows (Hajek 1971). To it, along
    a dimension before all others, come as many neighbours as there are rows: the estimate with a small part of
    :math:`w_r y_r` added. Whatever smooth function of sums a statistic is, what that moves is each row's influence (the
    delta method).

    Attributes
    ----------
    drawn
        ``(batch, head, row)``: the queries.
    weight
        ``(batch, head, row)``: :math:`w_r`.
    is_drawn
        ``(batch,)``: False where all rows of a window were taken, which have no influence.
    known
        What is known of all rows.
    """

    drawn: Tensor
    weight: Tensor
    is_drawn: Tensor
    known: KnownOfAll

    @property
    def places(self) -> Tensor:
        """Those of the queries that were drawn."""
        return self.drawn

    def total(self, values: Tensor) -> Tensor:
        """Estimates of sums over all rows, ``(1 + row, batch, head, ...)``."""
        more = (None,) * (values.ndim - 3)
        counted = values.double().where(self.counted[(..., *more)], 0.0)
        weighted = counted * self.weight[(..., *more)]
        estimate = weighted.sum(2)[None]
        parts = weighted * self.is_drawn[(slice(None), None, None, *more)] * _STEP
        return torch.cat([estimate, estimate + parts.movedim(2, 0)])

    @cached_property
    def band_sum(self) -> Tensor:
        """That of all rows, which is known."""
        band = there(self.known.band)
        return band[None].expand(1 + self.weight.shape[-1], *band.shape)

    @cached_property
    def bin_sum(self) -> Tensor:
        """``(1 + row, batch, head, bin)``: near bins are known, far ones the number of rows times a mean."""
        far = self.total(there(self.measures.bins)) / self.count[..., None] * self.known.rows[..., None]
        return self._with_near_bins(far)


@dataclass(frozen=True, eq=False)
class Influences:
    """Drawn rows' parts in the error of an estimate.

    Attributes
    ----------
    estimate
        ``(batch, head, ...)``.
    of_rows
        ``(row, batch, head, ...)``: what each row moves it by.
    share
        ``(row, batch, head, ...)``: the share of all rows for which it stands.
    """

    estimate: Tensor
    of_rows: Tensor
    share: Tensor

    def variance(self) -> tuple[Tensor, Tensor]:
        """That of the estimate from the differences of the pairs, and its degrees of freedom.

        Each difference has one degree of freedom (Satterthwaite 1946); its fourth power is 3 times too large.
        """
        first, second = self.of_rows.unflatten(0, (-1, 2)).unbind(1)
        parts = (first - second).square()
        variance = parts.sum(0)
        freedom = 3 * variance**2 / parts.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny) - 2
        return variance, freedom.clamp(1, len(parts))

    def third_moment(self) -> Tensor:
        """The central one of the estimate, from neighbouring strata two by two.

        A pair alone knows nothing of skewness. With m the mean of four and n = 4, n² / ((n - 1)(n - 2)) times the mean
        of (u - m)³ is the unbiased third moment of each (Fisher 1929), and the sum of four has four of them.
        """
        fours = self.of_rows[: len(self.of_rows) // 4 * 4].unflatten(0, (-1, 4))
        cubes = (fours - fours.mean(1, keepdim=True)).pow(3).sum((0, 1))
        return cubes * (8 / 3) * (len(self.of_rows) / (4 * len(fours)))

    def effective(self) -> Tensor:
        """As how many rows with parts alike these are (Kish 1965): NaN where no row has any part."""
        parts = self.of_rows + self.share * self.estimate
        return parts.abs().sum(0).square() / parts.square().sum(0)


def sampled_statistics(
    call: AttentionCall,
    need: Need,
    names: Sequence[str],
    valid: tuple[Tensor, Tensor],
    sample: RowSample,
    asking: Asking,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and statistics of one call, those that need more than the log-sum-exp with what their intervals need.

    `valid` is of queries and keys, as in `reduce_call`; `asking` is of chosen offsets alone.
    """
    output, every = measure_by_level(call, need)
    known = KnownOfAll.of(every, valid)
    counted = valid[0][:, None] & (every.mass > 0)
    near = 0 if need.band is None else min(need.band, need.bins[0] - 1 if need.bins else need.band)
    draw = sample.draw(known.queries.tolist(), sizes_of(call, every, counted, near))
    of_all = [name for name in names if set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = reduce_call(every, of_all, *valid, second=asking.of(call, every.log_sum_exp, valid[0]))
    others = [name for name in names if name not in of_all]
    if not others:
        return output, exact
    queries = draw.queries.to(call.query.device).expand(-1, call.key.shape[1], -1)
    some = measure_rows(call, replace(need, columns=None, band=None), queries)
    estimated = estimates(some, others, draw, known)
    if "bin_sum" in others:
        estimated[f"bin_sum{EFFECTIVE}"].masked_fill_(
            _beyond(call, need, estimated["bin_sum"])[:, None], torch.inf
        )
    return output, exact | estimated


def _beyond(call: AttentionCall, need: Need, bins: Tensor) -> Tensor:
    """``(batch or 1, bin)``: those that no row reaches, whose weight is 0 for sure."""
    start, stop = call.extent
    left = (start - call.query_positions).amin(1)[:, None]
    right = (stop - 1 - call.query_positions).amax(1)[:, None]
    last = need.bins[-1]
    ranges = torch.tensor(bin_ranges(need.band or 0, last), device=bins.device)
    return (ranges[:, 1] < left) | (ranges[:, 0] > right)


def estimates(rows: RowMeasures, names: Sequence[str], draw: Draw, known: KnownOfAll) -> dict[str, Tensor]:
    """Statistics of the rows that were drawn, each with what its interval needs: see `intervals`.

    Parameters
    ----------
    rows
        What was measured of the rows that were drawn.
    names
        Statistics.
    draw
        The rows.
    known
        Measures of all rows.
    """
    device = rows.mass.device
    draw = draw.of_heads(rows.mass.shape[1])
    weight, is_drawn = draw.weight.to(device), draw.is_drawn.to(device)
    counted = (weight > 0) & (rows.mass > 0)
    standing = SampledRows(
        rows,
        counted,
        known.queries,
        known.keys,
        known.first_key,
        drawn=draw.queries.to(device),
        weight=weight,
        is_drawn=is_drawn,
        known=known,
    )
    share = (weight / weight.sum(-1, keepdim=True)).movedim(-1, 0)
    made: dict[str, Tensor] = {}
    for name in names:
        estimate, *neighbours = KNOWN[name].reduce(standing)
        of_rows = (torch.stack(neighbours) - estimate) / _STEP
        of = Influences(estimate, of_rows, share[(..., *(None,) * (estimate.ndim - 2))])
        variance, freedom = of.variance()
        made |= {
            name: estimate,
            f"{name}{ERROR}": variance.sqrt(),
            f"{name}{FREEDOM}": freedom,
            f"{name}{SKEWNESS}": (of.third_moment() / variance.pow(1.5)).where(variance > 0, 0.0),
            f"{name}{EFFECTIVE}": of.effective().where(
                is_drawn[(..., *(None,) * (estimate.ndim - 1))], torch.inf
            ),
        }
    return made


def rows_note(count: int, names: Sequence[str]) -> str:
    """What a reader has to know of numbers that are estimates."""
    estimated = [name for name in STATISTICS if name in names and not set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = [name for name in names if name not in estimated]
    kinds = (
        ", and kinds of heads rest on them"
        if set(NEEDED) <= set(names) and set(NEEDED) & set(estimated)
        else ""
    )
    known = f"some numbers are estimates{kinds}" if estimated else "no number here is an estimate"
    return (
        f"{count} queries of each window that has more, drawn at random, were measured: {known}. "
        f"{ESTIMATED}{', '.join(estimated) or 'nothing'}. Of all queries: {', '.join(exact) or 'nothing'}."
    )
