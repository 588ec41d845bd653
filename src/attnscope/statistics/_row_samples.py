"""Statistics from some queries of each window, drawn at random, with their standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.attention import measure_sampled
from attnscope.checks import check_whole
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import ERROR, FREEDOM, KNOWN, STATISTICS
from attnscope.statistics._rows import Rows, reduce_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall, Need, RowMeasures

LEAST = 16  # rows of a window: with fewer, a standard error knows too little of itself
OF_ALL_ROWS = frozenset({"band", "columns"})  # had of every row from its log-sum-exp


@dataclass(frozen=True)
class RowSample:
    """How rows are drawn.

    Attributes
    ----------
    rows
        Of each window; an even number.
    seed
        Of the random numbers, with the number of the window.
    first
        Number of the first window of a batch.

    Raises
    ------
    AttnscopeError
        If `rows` is odd, or too small for an interval.
    """

    rows: int
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        check_whole(LEAST, rows=self.rows)
        if self.rows % 2:
            raise AttnscopeError(
                f"rows (--rows) is {self.rows}; expected an even number: they are drawn in pairs"
            )

    def draw(self, lengths: Sequence[int]) -> Draw:
        """Draw rows of windows of these lengths: the same for every call on the same windows.

        Two are drawn, without replacement, from each of `rows` / 2 strata: see `strata_edges`. Of a window with no more
        than `rows` queries all are taken, and nothing is estimated.

        Examples
        --------
        >>> draw = RowSample(rows=16).draw([100, 10])
        >>> draw.queries[0].tolist()
        [0, 1, 3, 4, 9, 12, 16, 18, 34, 39, 53, 58, 76, 78, 82, 88]
        >>> draw.weight.sum(1).tolist(), draw.spread[1].tolist()
        ([100.0, 10.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        """
        strata = self.rows // 2
        queries = np.zeros((len(lengths), self.rows), dtype=np.int64)
        weight, spread = np.zeros((len(lengths), self.rows)), np.zeros((len(lengths), strata))
        for text, length in enumerate(lengths):
            if length <= self.rows:
                queries[text, :length], weight[text, :length] = np.arange(length), 1.0
                continue
            random = np.random.default_rng([self.seed, self.first + text, length])
            edges = strata_edges(length, strata)
            size = np.diff(edges)
            pair = random.integers(0, [size, size - 1])
            pair[1] += pair[1] >= pair[0]  # another one of the same stratum
            queries[text] = np.sort(edges[:-1] + pair, axis=0).T.reshape(-1)
            weight[text] = np.repeat(size / 2, 2)
            spread[text] = np.sqrt(1 - 2 / size)
        return Draw(torch.from_numpy(queries), torch.from_numpy(weight), torch.from_numpy(spread))


def strata_edges(length: int, strata: int) -> np.ndarray:
    """First query of each stretch of neighbours from which two are drawn, and the end; short ones at the beginning.

    Half of the draws are spread evenly over the window, half over the logarithm of the place: the first queries of a
    causal model see few keys, and differ most from each other.

    Examples
    --------
    >>> strata_edges(100, 8).tolist()
    [0, 2, 6, 15, 27, 43, 61, 80, 100]
    """
    place = np.arange(length + 1)
    density = place / length + np.log1p(place) / np.log1p(length)
    edges = np.interp(np.arange(strata + 1) * 2 / strata, density, place).round().astype(int)
    # two queries at least in each, counted from either end
    least = 2 * np.arange(strata + 1)
    edges = np.maximum.accumulate(edges - least) + least
    return np.minimum(edges, length - least[::-1])


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows that were drawn of some windows.

    Attributes
    ----------
    queries
        ``(batch, row)``; neighbours 2h and 2h + 1 are of one stratum.
    weight
        ``(batch, row)``: how many rows each stands for; 0 where a window has no more.
    spread
        ``(batch, stratum)``: square root of the share of a stratum that was not drawn.
    """

    queries: Tensor
    weight: Tensor
    spread: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledRows(Rows):
    r"""Rows that stand for others.

    A sum over all rows is estimated by :math:`\sum_h \frac{n_h}{2} (y_{h1} + y_{h2})`. To it, along a dimension before
    all others, come as many neighbours as there are strata: the estimate with one stratum's difference
    :math:`\sqrt{1 - 2 / n_h} \, \frac{n_h}{2} (y_{h1} - y_{h2})` added. The sum of their squared distances from it is
    the usual unbiased estimate of its variance (Cochran 1977, Sampling techniques, section 5.4), and whatever smooth
    function of sums a statistic is, the same holds of it in the limit (the delta method).
    """

    weight: Tensor
    spread: Tensor

    def total(self, values: Tensor) -> Tensor:
        """Estimates of sums over all rows, ``(1 + stratum, batch, head, ...)``."""
        more = (None,) * (values.ndim - 3)
        counted = values.double().where(self.counted[(..., *more)], 0.0)
        weighted = counted * self.weight[(slice(None), None, slice(None), *more)]
        first, second = weighted.unflatten(2, (-1, 2)).unbind(3)
        away = (first - second) * self.spread[(slice(None), None, slice(None), *more)]
        estimate = weighted.sum(2)[None]
        return torch.cat([estimate, estimate + away.movedim(2, 0)])


def sampled_statistics(
    call: AttentionCall, need: Need, names: Sequence[str], valid: tuple[Tensor, Tensor], sample: RowSample
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and statistics of one call, those that need more than the log-sum-exp with a standard error each.

    `valid` is of queries and keys, as in `reduce_call`.
    """
    lengths = valid[0].sum(1)
    draw = sample.draw(lengths.tolist())
    device = call.query.device
    output, every, some = measure_sampled(call, need, draw.queries.to(device))
    of_all = [name for name in names if set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = reduce_call(every, of_all, *valid)
    others = [name for name in names if name not in of_all]
    return output, exact | estimates(some, others, draw, lengths, valid[1].sum(1))


def estimates(
    rows: RowMeasures, names: Sequence[str], draw: Draw, queries: Tensor, keys: Tensor
) -> dict[str, Tensor]:
    """Statistics of the rows that were drawn, each with its standard error and that one's degrees of freedom.

    `queries` and `keys` are how many there are in all, ``(batch,)``.
    """
    weight, spread = (each.to(rows.mass.device) for each in (draw.weight, draw.spread))
    counted = (weight > 0)[:, None] & (rows.mass > 0)
    standing = SampledRows(rows, counted, queries, keys, weight=weight, spread=spread)
    intervals: dict[str, Tensor] = {}
    for name in names:
        estimate, *neighbours = KNOWN[name].reduce(standing)
        variances = (torch.stack(neighbours) - estimate).square()
        variance = variances.sum(0)
        # each of the variances has one degree of freedom (Satterthwaite 1946); its square is 3 times too large
        freedom = 3 * variance**2 / variances.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny) - 2
        intervals |= {
            name: estimate,
            f"{name}{ERROR}": variance.sqrt(),
            f"{name}{FREEDOM}": freedom.clamp(1, len(variances)),
        }
    return intervals


def rows_note(count: int, names: Sequence[str]) -> str:
    """What a reader has to know of numbers that are estimates."""
    estimated = [name for name in STATISTICS if name in names and not set(KNOWN[name].needs) <= OF_ALL_ROWS]
    exact = [name for name in names if name not in estimated]
    return (
        f"{count} queries of each window, drawn at random, were measured: {', '.join(estimated) or 'nothing'} "
        f"estimated from them. Of all queries: {', '.join(exact) or 'nothing'}."
    )
