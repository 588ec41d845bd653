"""Sampled queries of a window: drawn at random, more often if they attend far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.bins import bin_ranges
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.sampled import measure_by_level, measure_rows
from attnscope.measure.labels import NEEDED
from attnscope.measure.quantities import CHOSEN, EFFECTIVE, ERROR, FREEDOM, KNOWN, SKEWNESS, STATISTICS
from attnscope.measure.rows import Rows, SecondPass, first_of, reduce_call, there
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError

LEAST = 16  # rows of a window: with fewer, a standard error is too uncertain
_BY_SIZE = 0.5  # share of the draws in proportion to the far weight
_FLOOR = 1e-4  # far weight below which rows differ by rounding


@dataclass(frozen=True)
class RowSample:
    """Settings of the sample of rows."""

    rows: int  # rows of each window; an even number
    seed: int = 0  # seed of the random numbers, with the number of the window
    first: int = 0  # number of the first window of a batch

    def __post_init__(self) -> None:
        check_whole(LEAST, rows=self.rows)
        if self.rows % 2:
            raise AttnscopeError(f"rows (--rows) is {self.rows}; expected an even number, as rows are drawn in pairs")

    def draw(self, lengths: Sequence[int], sizes: Tensor | None = None) -> Draw:
        """Draw rows of windows of these lengths."""
        heads = 1 if sizes is None else sizes.shape[1]
        size = None if sizes is None else sizes.double().cpu().numpy()  # at once: a GPU waits each time
        queries = np.zeros((len(lengths), heads, self.rows), dtype=np.int64)
        weight = np.zeros((len(lengths), heads, self.rows))
        for text, length in enumerate(lengths):
            if length <= self.rows:
                queries[text, :, :length], weight[text, :, :length] = np.arange(length), 1.0
                continue
            # a stream for each window: the draw depends neither on batches nor on other windows
            random = np.random.default_rng([self.seed, self.first + text, length])
            # two points in each stratum of the cumulative chances
            points = (np.arange(self.rows) // 2 + random.random(self.rows)) / (self.rows // 2)
            for head in range(heads):
                position = np.arange(length + 1)  # half uniform, half uniform in the logarithm of the position
                chances = np.diff(position / length + np.log1p(position) / np.log1p(length)) / 2
                if size is not None:
                    chances = (1 - _BY_SIZE) * chances + _BY_SIZE * size[text, head, :length]
                ends = np.cumsum(chances)
                drawn = np.searchsorted(ends / ends[-1], points, side="right").clip(max=length - 1)
                queries[text, head] = drawn
                # one over the expected number of its draws (Hansen and Hurwitz 1943)
                weight[text, head] = ends[-1] / (self.rows * chances[drawn])
        is_drawn = torch.tensor([length > self.rows for length in lengths])
        return Draw(torch.from_numpy(queries), torch.from_numpy(weight), is_drawn)


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows drawn from some windows."""

    queries: Tensor  # ``(batch, kv_head or 1, row)``; neighbours 2h and 2h + 1 are of one stratum
    weight: Tensor  # ``(batch, kv_head or 1, row)``: number of rows that each represents; 0 beyond a short window
    is_drawn: Tensor  # ``(batch,)``: False if all rows of a window were taken

    def of_heads(self, heads: int) -> Draw:
        """The sample with queries and weights for each query head."""
        group = heads // self.queries.shape[1]
        return Draw(self.queries.repeat_interleave(group, 1), self.weight.repeat_interleave(group, 1), self.is_drawn)


def sizes_of(call: AttentionCall, every: RowMeasures, counted: Tensor, near: int) -> Tensor | None:
    """Share of the far weight in each row, ``(batch, kv_head, query)``; None without a band."""
    if every.band is None:
        return None
    reach = every.band.shape[-1] // 2
    inside = every.band[..., reach - near : reach + near + 1].sum(-1, dtype=torch.float64)
    far = ((every.mass - inside).clamp_min(0) + _FLOOR).where(counted, 0.0)
    start, stop = call.extent
    distance = torch.maximum(call.query_positions - start, stop - 1 - call.query_positions).clamp_min(0) + 1
    # the part of each row in the sums of the far weight, of its distance and of its squared distance
    powers = [far * distance[:, None].double() ** power for power in range(3)]
    shares = [each / each.sum(-1, keepdim=True).clamp_min(_FLOOR) for each in powers]
    return torch.stack(shares).mean(0).unflatten(1, (-1, call.group)).mean(2)


ESTIMATED = "Estimated: "  # begins the names in the note
OF_ALL_ROWS = frozenset({"band", "columns", CHOSEN})  # computed for every row from its log-sum-exp
_STEP = 2.0**-12  # of a row's part, for its influence


@dataclass(frozen=True, eq=False)
class ExactValues:
    """Exact values over all rows."""

    queries: Tensor  # ``(batch,)``: real tokens on either side
    keys: Tensor
    first_key: Tensor  # ``(batch,)``: position of the first real key
    rows: Tensor  # ``(batch, head)``: number of counted rows
    band: Tensor | None  # ``(batch, head, offset)``: the weights at each offset, summed over rows, if requested

    @classmethod
    def of(cls, every: RowMeasures, valid: tuple[Tensor, Tensor]) -> ExactValues:
        """From the measures of every row; `valid` is of queries and keys, as in `reduce_call`."""
        counted = valid[0][:, None] & (every.mass > 0)
        band = every.band
        if band is not None:
            band = band.where(counted[..., None], 0.0).sum(2, dtype=torch.float64)
        return cls(valid[0].sum(1), valid[1].sum(1), first_of(valid[1]), counted.sum(2), band)


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledRows(Rows):
    r"""Rows that represent others."""

    drawn: Tensor  # ``(batch, head, row)``: the queries
    weight: Tensor  # ``(batch, head, row)``: :math:`w_r`
    is_drawn: Tensor  # ``(batch,)``: False if all rows of a window were taken: they have no influence
    known: ExactValues  # exact values over all rows

    @property
    def places(self) -> Tensor:
        """Values of the drawn queries."""
        return self.drawn

    def total(self, values: Tensor) -> Tensor:
        """Estimates of sums over all rows, ``(1 + row, batch, head, ...)``."""
        more = (None,) * (values.ndim - 3)
        weighted = values.double().where(self.counted[(..., *more)], 0.0) * self.weight[(..., *more)]
        estimate = weighted.sum(2)[None]
        # a numerical derivative: each neighbour has one row that counts a little more
        parts = weighted * self.is_drawn[(slice(None), None, None, *more)] * _STEP
        return torch.cat([estimate, estimate + parts.movedim(2, 0)])

    @cached_property
    def band_sum(self) -> Tensor:
        """The exact value over all rows."""
        band = there(self.known.band)
        return band[None].expand(1 + self.weight.shape[-1], *band.shape)

    @cached_property
    def bin_sum(self) -> Tensor:
        """``(1 + row, batch, head, bin)``: near bins are exact, far ones are the number of rows times a mean."""
        far = self.total(there(self.measures.bins)) / self.count[..., None] * self.known.rows[..., None]
        return self._with_near_bins(far)


@dataclass(frozen=True, eq=False)
class Influences:
    """Contributions of the drawn rows to the error of an estimate."""

    estimate: Tensor  # ``(batch, head, ...)``
    of_rows: Tensor  # ``(row, batch, head, ...)``: influence of each row
    share: Tensor  # ``(row, batch, head, ...)``: the share of all rows that it represents

    def variance(self) -> tuple[Tensor, Tensor]:
        """The variance from the differences of pairs, and its degrees of freedom."""
        first, second = self.of_rows.unflatten(0, (-1, 2)).unbind(1)
        parts = (first - second).square()
        variance = parts.sum(0)
        # Satterthwaite (1946): (sum v)^2 / sum v^2 for the variance v of each difference D. A normal D has
        # E D^4 = 3 v^2, so that sum v^2 is about sum D^4 / 3, and (sum v)^2 is about (sum D^2)^2 - 2 sum v^2
        freedom = 3 * variance**2 / parts.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny) - 2
        return variance, freedom.clamp(1, len(parts))

    def third_moment(self) -> Tensor:
        """The third central moment, from pairs of neighbouring strata."""
        fours = self.of_rows[: len(self.of_rows) // 4 * 4].unflatten(0, (-1, 4))
        cubes = (fours - fours.mean(1, keepdim=True)).pow(3).sum((0, 1))
        # Fisher's k-statistic of 4 numbers is their sum of cubes times 4 / (3 * 2); it stands for each of the 4. The
        # last factor is for influences that are in no four
        return cubes * (8 / 3) * (len(self.of_rows) / (4 * len(fours)))

    def effective(self) -> Tensor:
        """The effective number of rows (Kish 1965): NaN without contributions."""
        parts = self.of_rows + self.share * self.estimate
        return parts.abs().sum(0).square() / parts.square().sum(0)


def sampled_statistics(
    call: AttentionCall,
    need: Need,
    names: Sequence[str],
    valid: tuple[Tensor, Tensor],
    sample: RowSample,
    second: Callable[[AttentionCall, Tensor], SecondPass],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and statistics of one call; estimates come with the numbers for their intervals."""
    output, every = measure_by_level(call, need)
    exact_values = ExactValues.of(every, valid)
    counted = valid[0][:, None] & (every.mass > 0)
    near = 0 if need.band is None else min(need.band, need.bins[0] - 1 if need.bins else need.band)
    draw = sample.draw(exact_values.queries.tolist(), sizes_of(call, every, counted, near))
    of_all = [name for name in names if set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = reduce_call(every, of_all, *valid, second=second(call, every.log_sum_exp))
    others = [name for name in names if name not in of_all]
    if not others:
        return output, exact
    queries = draw.queries.to(call.query.device).expand(-1, call.key.shape[1], -1)
    estimated = estimates(
        measure_rows(call, replace(need, columns=None, band=None), queries), others, draw, exact_values
    )
    if "bin_sum" in others:
        estimated[f"bin_sum{EFFECTIVE}"].masked_fill_(_beyond(call, need, estimated["bin_sum"])[:, None], torch.inf)
    return output, exact | estimated


def _beyond(call: AttentionCall, need: Need, bins: Tensor) -> Tensor:
    """``(batch or 1, bin)``: bins out of reach of every row, with weight 0."""
    start, stop = call.extent
    left = (start - call.query_positions).amin(1)[:, None]
    right = (stop - 1 - call.query_positions).amax(1)[:, None]
    ranges = torch.tensor(bin_ranges(need.band or 0, need.bins[-1]), device=bins.device)
    return (ranges[:, 1] < left) | (ranges[:, 0] > right)


def estimates(rows: RowMeasures, names: Sequence[str], draw: Draw, known: ExactValues) -> dict[str, Tensor]:
    """Statistics of the drawn rows, with the numbers for their intervals: see `intervals`."""
    device = rows.mass.device
    draw = draw.of_heads(rows.mass.shape[1])
    weight, is_drawn = draw.weight.to(device), draw.is_drawn.to(device)
    counted = (weight > 0) & (rows.mass > 0)
    sizes, drawn = (known.queries, known.keys, known.first_key), draw.queries.to(device)
    standing = SampledRows(rows, counted, *sizes, drawn=drawn, weight=weight, is_drawn=is_drawn, known=known)
    share = (weight / weight.sum(-1, keepdim=True)).movedim(-1, 0)
    statistics: dict[str, Tensor] = {}
    for name in names:
        estimate, *neighbours = KNOWN[name].reduce(standing)
        # the influence of a row on any statistic, without its formula (the infinitesimal jackknife)
        of_rows = (torch.stack(neighbours) - estimate) / _STEP
        of = Influences(estimate, of_rows, share[(..., *(None,) * (estimate.ndim - 2))])
        variance, freedom = of.variance()
        statistics |= {
            name: estimate,
            f"{name}{ERROR}": variance.sqrt(),
            f"{name}{FREEDOM}": freedom,
            f"{name}{SKEWNESS}": (of.third_moment() / variance.pow(1.5)).where(variance > 0, 0.0),
            f"{name}{EFFECTIVE}": of.effective().where(is_drawn[(..., *(None,) * (estimate.ndim - 1))], torch.inf),
        }
    return statistics


def rows_note(count: int, names: Sequence[str]) -> str:
    """A note on estimated numbers."""
    estimated = [name for name in STATISTICS if name in names and not set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = [name for name in names if name not in estimated]
    labels = ", also those behind labels" if set(NEEDED) <= set(names) and set(NEEDED) & set(estimated) else ""
    certainty = f"some numbers are estimates{labels}" if estimated else "all numbers are exact"
    return (
        f"At most {count} queries of each window were measured, drawn at random: {certainty}. "
        f"{ESTIMATED}{', '.join(estimated) or 'nothing'}. Exact: {', '.join(exact) or 'nothing'}."
    )
