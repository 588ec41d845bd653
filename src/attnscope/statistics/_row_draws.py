"""Which queries of a window are measured where not all are: drawn at random, those that look far more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.checks import check_whole
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall, RowMeasures

LEAST = 16  # rows of a window: with fewer, a standard error knows too little of itself
_BY_SIZE = 0.5  # share of the draws that goes by the far weight
_FLOOR = 1e-4  # far weight below which rows differ by rounding


@dataclass(frozen=True)
class RowSample:
    """How rows are drawn.

    Attributes
    ----------
    rows
        Number of rows of each window; an even number.
    seed
        Seed of the random numbers, with the number of the window.
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

    def draw(self, lengths: Sequence[int], sizes: Tensor | None = None) -> Draw:
        """Draw rows of windows of these lengths.

        The chance of each is half by its place, see `by_place`, half by `sizes`, ``(batch, kv_head, query)``, which sum
        to 1 over the queries of a window. The chances, one after another, fill the stretch from 0 to 1; it is cut into
        `rows` / 2 equal strata, and two points are drawn evenly from each. So a row may be drawn twice, and one whose
        chance fills a stratum always is. Of a window with no more than `rows` queries all are taken, and nothing is
        estimated.

        Examples
        --------
        >>> draw = RowSample(rows=16).draw([100, 10])
        >>> draw.queries.shape, draw.is_drawn.tolist()
        (torch.Size([2, 1, 16]), [True, False])
        >>> draw.queries[1, 0, :10].tolist(), draw.weight[1].sum().item()
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 10.0)
        """
        heads = 1 if sizes is None else sizes.shape[1]
        size = None if sizes is None else sizes.double().cpu().numpy()  # at once: a GPU waits each time
        queries = np.zeros((len(lengths), heads, self.rows), dtype=np.int64)
        weight = np.zeros((len(lengths), heads, self.rows))
        for text, length in enumerate(lengths):
            if length <= self.rows:
                queries[text, :, :length], weight[text, :, :length] = np.arange(length), 1.0
                continue
            random = np.random.default_rng([self.seed, self.first + text, length])
            points = (np.arange(self.rows) // 2 + random.random(self.rows)) / (self.rows // 2)
            for head in range(heads):
                chances = by_place(length)
                if size is not None:
                    chances = (1 - _BY_SIZE) * chances + _BY_SIZE * size[text, head, :length]
                ends = np.cumsum(chances)
                drawn = np.searchsorted(ends / ends[-1], points, side="right").clip(max=length - 1)
                queries[text, head] = drawn
                weight[text, head] = ends[-1] / (self.rows * chances[drawn])
        is_drawn = torch.tensor([length > self.rows for length in lengths])
        return Draw(torch.from_numpy(queries), torch.from_numpy(weight), is_drawn)


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows that were drawn of some windows.

    Attributes
    ----------
    queries
        ``(batch, kv_head or 1, row)``; neighbours 2h and 2h + 1 are of one stratum.
    weight
        ``(batch, kv_head or 1, row)``: how many rows each stands for; 0 where a window has no more.
    is_drawn
        ``(batch,)``: False where all rows of a window were taken.
    """

    queries: Tensor
    weight: Tensor
    is_drawn: Tensor

    def of_heads(self, heads: int) -> Draw:
        """The same with queries and weights for each query head."""
        group = heads // self.queries.shape[1]
        return Draw(
            self.queries.repeat_interleave(group, 1), self.weight.repeat_interleave(group, 1), self.is_drawn
        )


def by_place(length: int) -> np.ndarray:
    """Chance of each query by its place: half of it spread evenly, half over the logarithm of the place.

    The first queries of a causal model see few keys, and differ most from each other.

    Examples
    --------
    >>> by_place(3).round(3).tolist()
    [0.417, 0.313, 0.27]
    """
    place = np.arange(length + 1)
    return np.diff(place / length + np.log1p(place) / np.log1p(length)) / 2


def sizes_of(call: AttentionCall, every: RowMeasures, counted: Tensor, near: int) -> Tensor | None:
    r"""How much of what lies far away is each row's, ``(batch, kv_head, query)``; they sum to 1. None without a band.

    With :math:`w_i` the weight of row i beyond the offsets up to `near` and :math:`r_i` the largest distance that it
    may look, the mean of the row's shares in the sums of :math:`w`, :math:`w r` and :math:`w r^2`, which bound what it
    adds to the weight in a far bin, to the mean offset and to its variance; then the mean over the heads of a key head.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import AttentionCall, Need, measure
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> rows = measure(call, Need(band=1))[1]
    >>> sizes_of(call, rows, rows.mass > 0, near=1)[0, 0].round(decimals=2).tolist()
    [0.0, 0.0, 0.34, 0.66]
    """
    if every.band is None:
        return None
    reach = every.band.shape[-1] // 2
    inside = every.band[..., reach - near : reach + near + 1].sum(-1, dtype=torch.float64)
    far = ((every.mass - inside).clamp_min(0) + _FLOOR).where(counted, 0.0)
    start, stop = call.extent
    distance = torch.maximum(call.query_positions - start, stop - 1 - call.query_positions).clamp_min(0) + 1
    powers = [far * distance[:, None].double() ** power for power in range(3)]
    shares = [each / each.sum(-1, keepdim=True).clamp_min(_FLOOR) for each in powers]
    return torch.stack(shares).mean(0).unflatten(1, (-1, call.group)).mean(2)
